"""Obstacles between a cluster and life without Endpoints: who writes and reads them, and what is
wrong with them.

``facts`` keeps of each object the little that matters; ``judge`` says what is wrong with the
objects of one Service's name; ``audit`` gathers a whole cluster; ``usage`` reads lines of an audit
log; ``verdict`` puts all that together into a report, and ``text`` shows it to people.

Promises: pure; memory follows the number of objects and addresses, never the size of their bodies;
the order in which objects arrive makes no difference; equal input gives equal bytes. Never: writes,
asks a server, or knows a clock.
"""
