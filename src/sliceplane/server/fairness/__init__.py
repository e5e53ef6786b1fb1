"""Priority and fairness for requests (KEP-1040): the order of service, and the requests that get
429.

A request is classified by the first flow schema that matches it (``control``, over the objects of
``defaults``), which names a priority level and a flow. Each level has a share of the server's seats
and lends what it does not use (``seats``); within a level, flows that wait take turns. What a
request holds while it has no seat (bytes of a body, a wait for a future version, a watch) is shared
among users (``kit.shares``).

Promises: no flow waits for ever while others are served; a level always gets the seats that it does
not lend; what one user takes leaves as much for the others. Never: sleeps or reads a clock (time is
an argument); knows what a request does.
"""
