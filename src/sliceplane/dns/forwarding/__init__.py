"""Names that are not the cluster's: asked of upstreams, kept, answered.

``forwarder`` is the core: questions, replies and moments in; queries to send and answers out.
Around it: ``message`` (what is read of a reply, and how an answer is made of it), ``cache``,
``upstreams`` (which server is asked next), ``local`` (special names and the hosts table),
``configuration``, ``counts``.

Promises: no bytes of an upstream raise; an answer is given out, or kept, for the question alone
that it was asked for, in the spelling, from the address and with the number that were asked; every
question that is taken is answered once; everything is bounded. DNSSEC is not validated: DO, CD and
AD are passed on as they are, and AD says what the upstream believes. ``dns.io.upstream`` has the
sockets.
"""
