"""Audit of Endpoints, for clusters that want to do without them: their writers, their readers, and
their faults.

``facts`` keeps the few relevant members of each object; ``judge`` finds the faults of the objects
of one Service's name; ``audit`` collects a whole cluster; ``usage`` reads lines of an audit log;
``verdict`` combines these into a report, and ``text`` formats it for people.

Promises: pure; memory follows the number of objects and addresses, never the size of their bodies;
the order in which objects arrive makes no difference; equal input gives equal bytes. Never: writes,
queries a server, or reads a clock.
"""
