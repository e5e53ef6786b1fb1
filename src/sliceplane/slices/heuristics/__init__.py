"""Traffic distribution by plug-in: ``trafficDistribution: example.com/Name`` (KEP-4444,
"Implementation specific heuristics").

A heuristic is a pure function from what a Service, its endpoints and the zones are to the hints of
the endpoints. There are two sorts (``types``): *local* ones look at one endpoint at a time, *zonal*
ones at how many endpoints each zone has; neither sees the whole list, which keeps one changed Pod
cheap in a Service of any size.

- ``spread_constraints``: ``sliceplane.dev/SpreadConstraints``, along the Pods' topology spread
  constraints.
- ``balanced``: ``sliceplane.dev/Balanced``, the own zone first, with a bound on overload.

Others are found by the entry point group ``sliceplane.slices.heuristics`` and tested with
``lab.testing.heuristics``.
"""
