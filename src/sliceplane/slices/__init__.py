"""EndpointSlice policy: from Service, Pods and Nodes to the slices that must exist.

``engine`` routes changes to ``service`` states (``pod_routes`` those of pods); ``facts`` and
``shape`` are what pods, nodes and services say, ``cluster`` what all Services share; ``members``
makes endpoints of them, ``packing`` puts these into slices (``content``, ports too) and orders the
writes, ``writes`` dates and encodes them. ``subsets`` says which zone's nodes a slice is for,
``hinting`` which zones an endpoint serves; ``removing`` confirms and retains mass removals,
``succession`` hands slices over. ``oracle`` is the specification, plain and slow
(``oracle_plugins`` that of hints by heuristics).

Promises: pure decisions and owned per-service state; a change costs what it changes, whatever the
size of the service; never more writes than packing everything anew would make; equal input gives
equal bytes. Never: talks to an API server, knows a queue.
"""
