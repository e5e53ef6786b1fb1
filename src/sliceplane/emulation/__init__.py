"""Emulated Nodes and controllers of workloads, so that Deployments and manifests with Pods work on a
laptop without any kubelet (opt-in).

Deployments become ReplicaSets (``deployment``, with ``strategy`` for the next step, ``rollout`` for
its arithmetic, ``revisions`` for the documents and ``deployment_status``), ReplicaSets and
ReplicationControllers become Pods (``replicaset``), and so do StatefulSets (``statefulset``) and
DaemonSets (``daemonset``). All share ``owner``: its caches, and ``claims``, which decides which
children belong to an owner; two of them keep the ``history`` of their templates.
``eligibility`` says which Nodes a Pod may be on. The Pods are bound to emulated Nodes (``nodes``,
``placement``), started, made ready and, after a deletion, ended by ``kubelet``. ``disruption``
counts for PodDisruptionBudgets how many Pods may be evicted.

Cores like those of ``controllers``: they run in the plane's one process and in tests alike. Only
Nodes that this package registers are touched; Pods bound to others are left alone. That a
controller of ours and a real kube-controller-manager do not run side by side is for the caller to
see to.

A plan trusts its caches: a key waits until they show what its own writes did
(``watch.controller.expectations``), or Pods would be created twice.
"""
