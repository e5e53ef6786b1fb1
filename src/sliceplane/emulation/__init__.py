"""Workload emulation: Deployments, StatefulSets and so on become Pods on emulated Nodes, where
there is no kubelet.

Plainly labelled (every Node that it makes carries ``emulation.sliceplane.dev/node``), off by
default, and a client of the public API like any other controller: nothing here knows the server.

What it promises of upstream's behaviour, line by line with tests, is in docs/emulation.md.

* ``deployment`` Deployments -> ReplicaSets: caches, claims, Events; ``strategy`` decides the next
  step, ``rollout`` does the arithmetic, ``revisions`` writes the sets and their annotations,
  ``deployment_status`` the conditions
* ``pod_owner``   what has Pods: caches, claims, Events, back-off; the three that follow say what is missing
* ``replicaset`` ReplicaSets and ReplicationControllers; ``replicaset_status`` tells how many Pods
  there are
* ``statefulset`` StatefulSets: Pods with numbers, in order
* ``daemonset``   DaemonSets: a Pod on each Node that fits (``eligibility``)
* ``claims``      adoption and release, for all of them
* ``refusals``    what the server would not have, and when to try again, for all of them
* ``pods``        which Pods count, and which go first
* ``templates``   the hash of a pod template and the documents of children made from it
* ``nodes``       what is emulated: names, zones, pod address ranges, delays
* ``kubelet``     Pods get a node (``placement``), addresses and a status (``pod_status``: readiness and its gates);
  they terminate after a grace period
"""
