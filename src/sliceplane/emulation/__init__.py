"""Emulated workloads: Deployments, StatefulSets and so on become Pods on emulated Nodes, where
there is no kubelet.

Plainly labelled (every Node that it creates carries ``emulation.sliceplane.dev/node``), off by
default, and a client of the public API like any other controller: nothing here knows the server.

docs/guarantees.md lists what it promises of upstream's behaviour, line by line with tests.

* ``owner``       the base of all that follow: caches, claims, Events, back-off
* ``deployments`` Deployments -> ReplicaSets; ``deployments.strategy`` decides the next step,
  ``deployments.rollout`` does the arithmetic, ``deployments.revisions`` writes the sets
* ``replicaset``  ReplicaSets and ReplicationControllers; which Pods are deleted first
* ``statefulset`` StatefulSets: Pods with numbers, in order
* ``daemonset``   DaemonSets: a Pod on each Node that fits (``eligibility``)
* ``claims``      adoption and release of children
* ``history``     revisions of the templates of StatefulSets and DaemonSets
* ``templates``   the hash of a pod template and the documents of children created from it
* ``nodes``       the emulated Nodes: names, zones, pod address ranges, delays
* ``kubelet``     binds Pods to a Node (``placement``) and gives them addresses and a status
  (``pod_status``: readiness and its gates); they terminate after a grace period
* ``disruption``  PodDisruptionBudgets: how many Pods may be evicted
"""
