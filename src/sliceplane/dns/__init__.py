"""A cluster's names: Services and EndpointSlices as a DNS zone, and what a name server says of it.

``wire`` reads and writes messages, ``view`` holds the zone and answers, ``forwarding`` is for names
that are not ours. Rules come from the Kubernetes DNS specification 1.1.0 (repository
kubernetes/dns) and the RFCs that the modules name.

Promises: any bytes give an answer that parses, or none; an answer is never older than the last
``apply``; the answers after any sequence of changes are those of a view that was told the last
state alone.
"""
