"""Workload emulation: Deployments and ReplicaSets become Pods on emulated Nodes, where there is no kubelet.

Plainly labelled (every Node that it makes carries ``emulation.sliceplane.dev/node``), off by default, and
a client of the public API like any other controller: nothing here knows the server.

* ``templates``   the hash of a pod template and the documents of children made from it
* ``deployment``  Deployments -> ReplicaSets: rolling update with surge, Recreate, status for ``rollout status``
* ``replicaset``  ReplicaSets -> Pods
* ``nodes``       what is emulated: names, zones, pod address ranges, delays
* ``kubelet``     Pods get a node, addresses, readiness; terminate after a grace period
"""
