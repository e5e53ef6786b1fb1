"""EndpointSlice policy: from Service, Pods and Nodes to the slices that must exist.

``engine`` routes changes to ``service`` states; ``pod_routes`` finds the Services of a Pod.
``facts`` and ``shape`` are the parts of Pods, Nodes and Services that slices are built from;
``cluster`` has the facts that all Services share. ``members`` builds endpoints from them.
``packing`` puts endpoints into slices (``content``, with their ports) and orders the writes;
``writes`` adds the trigger time and encodes them. ``subsets`` decides which zone's nodes a slice is
for, ``hinting`` which zones an endpoint serves. ``removing`` confirms and retains mass removals;
``succession`` hands slices over to another controller. ``oracle`` is the specification, plain and
slow (``oracle_plugins`` for hints by heuristics).

Promises: pure decisions and owned per-service state; a change costs in proportion to what it
changes, whatever the size of the Service; never more writes than packing everything anew; equal
input gives equal bytes. It never talks to an API server and has no queue.
"""
