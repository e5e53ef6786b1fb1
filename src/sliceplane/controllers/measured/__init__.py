"""Shares of zones by measured connections, for Services with ``sliceplane.dev/Measured``.

``meter`` reads the connections from the nodes' Leases, ``decision`` is the law that turns them into
shares, ``controller`` writes these and the condition of the Service. Hints follow in the controller
of EndpointSlices (``slices.heuristics.measured``).
"""
