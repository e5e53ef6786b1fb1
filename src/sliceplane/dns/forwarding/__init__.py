"""Forwarding of names outside the cluster to upstreams, with a cache.

``forwarder`` is the core: its inputs are questions, replies and the time, its outputs queries and
answers. Beside it: ``message`` (decoding of replies, encoding of answers), ``cache``, ``upstreams``
(the choice of a server), ``local`` (special names and the hosts table), ``configuration``,
``counts``.

Guarantees: no bytes of an upstream raise. A reply is used, or cached, only if its question,
spelling, source address and ID match the query. Every admitted question gets exactly one answer.
Everything is bounded. DNSSEC is not validated: DO, CD and AD are passed on, and AD is the claim of
the upstream. ``dns.io.upstream`` has the sockets.
"""
