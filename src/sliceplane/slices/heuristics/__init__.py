"""Traffic distribution by plug-in: ``trafficDistribution: example.com/Name`` (KEP-4444,
"Implementation specific heuristics").

A heuristic is a pure function from the facts of a Service, its endpoints and the zones to the hints
of the endpoints. There are two kinds (``types``): *local* ones get one endpoint at a time, *zonal*
ones the number of endpoints in each zone. Neither gets the whole list, so one changed Pod stays
cheap in a Service of any size.

- ``spread_constraints``: ``sliceplane.dev/SpreadConstraints``, along the Pods' topology spread
  constraints.
- ``balanced``: ``sliceplane.dev/Balanced``, an endpoint's own zone first, with a bound on overload
  (``sharing``: for few endpoints).
- ``measured``: ``sliceplane.dev/Measured``, the same by measured connections.

Others are loaded from the entry point group ``sliceplane.slices.heuristics`` and tested with
``lab.testing.heuristics``.
"""
