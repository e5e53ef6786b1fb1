"""The part that every consumer of EndpointSlices shares.

``model`` has the values; ``servicemap`` makes service ports out of Services, ``slicecache``
endpoints out of EndpointSlices (``selections`` are those that a node reads). ``claims`` decides
which Service gets an address that several claim (``grounds``: the reasons why one gets none),
``bounds`` how much of one is served. ``usable`` is the rule which endpoints may be used from a
location. ``progress`` is how far a consumer is; ``node_caches`` compares caches by digest;
``removal_hold`` is the schedule of a suspended mass removal; ``served`` is what rules lead to.

``balancing`` is a Service as a client uses it, ``drain`` proves that no node sends to a Pod,
``agents`` are registrations and grants of endpoints outside Kubernetes, ``io.client`` the modules
of ``sliceplane.client``.
"""
