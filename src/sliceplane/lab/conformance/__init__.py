"""A conformance kit for consumers of EndpointSlices: it plays legal but adversarial histories to
any software that follows a Service, and compares its belief with the correct endpoints.

A *case* is a history of writes and server faults. The *stage* plays it on a real API server in
memory. The *consumer* under test is a real client of that server: a program, a name server, or our
own view. At each checkpoint of the history the consumer has some seconds to reach the correct
belief. An endpoint that was correct throughout must not be missing in between.

Promises: a Kubernetes API server could produce every history; each case names the public bug it
stands for; a consumer is judged only by its claims (hints, terminating fall-back). Never: inspects
the inside of a consumer; it uses the consumer as its users do.

See ``docs/testing.md``.
"""

from __future__ import annotations
