"""Drift: compares each node with the API server: does it hold the same objects, and if not, since
when, and which object differs?

``facts`` has the inputs: the Leases of node proxies (``consume.progress``), the objects now and at
the versions that nodes report, and the pages of node proxies. ``judge`` derives a row for each
node, and findings; ``answer`` prints them. Three axes are kept apart: *fresh* (how far behind),
*equal* (does the cache equal the server's objects at that version), *held* (does the kernel have
the rules that the proxy believes).

Promises: a node without enough information is "not looked at", never fine. Never: reads a cluster
or a kernel; ``diagnose.io.drifting`` does.
"""
