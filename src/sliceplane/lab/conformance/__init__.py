"""A conformance kit for consumers of EndpointSlices: legal but nasty histories, told to any
software that follows a Service, and a comparison of what it believes with what is right.

A *case* is a history of writes and of troubles of the server. The *stage* plays it on a real API
server in memory; the *consumer* under test is a real client of that server: a program, a name
server, a view of ours. At each checkpoint of the history the consumer has some seconds to believe
what the slices say; and an endpoint that was right all the time may not be missing meanwhile.

Promises: every history is one that a Kubernetes API server could show; each case names the public
bug it stands for; a consumer is judged by what it claims (hints, terminating fall-back), never by
more. Never: looks into a consumer; asks it in the way its users do.

See ``docs/testing.md``.
"""

from __future__ import annotations
