"""Drift: whether each node holds what the API server says, and if not, since when and at which
object.

``facts`` is what was read: the Leases of node proxies (``consume.progress``), the objects as they
are and as they were at the versions that nodes tell of, and what nodes themselves answered.
``judge`` makes a row of each node, and findings; ``answer`` prints them. Three axes that are never
one light: *fresh* (how far behind), *equal* (is the cache what the server held at that version),
*held* (does the kernel have what the proxy believes).

Promises: a node of which too little is known is "not looked at", never fine.
Never: reads a cluster or a kernel; ``diagnose.io.drifting`` does.
"""
