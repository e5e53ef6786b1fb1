"""Deletes Pods that no kubelet will ever finish (``pkg/controller/podgc`` upstream).

A Pod is deleted by force, after its phase became ``Failed`` if it had not ended, for one of four
reasons:

    orphaned         its Node does not exist (condition ``DisruptionTarget``, reason
                     ``DeletionByPodGC``)
    terminated       it has ended, and more than ``TERMINATED_PODS_MAX`` Pods have; evicted ones
                     first, then the oldest
    out-of-service   it terminates on a Node that is not Ready and has the taint
                     ``node.kubernetes.io/out-of-service``
    unscheduled      it terminates and never had a Node

**A cache alone never justifies a deletion.**  A Node that the cache lacks is in quarantine for
``QUARANTINE_S``; then a live GET asks the server. Only Pods that were bound to the Node before that
request are deleted, each with its uid as precondition, and none if the Node has appeared since.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.core import Node, Pod
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Nodes, Pods
from sliceplane.kit.metrics import Family, Metrics
from sliceplane.kit.times import format_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Selection,
    Write,
    deletion,
    object_patch,
)
from sliceplane.watch.controller.keyed import KeyedController

#: upstream's quarantineTime and gcCheckPeriod, and the default of --terminated-pod-gc-threshold
QUARANTINE_S: Final = 40.0
CHECK_PERIOD_S: Final = 20.0
TERMINATED_PODS_MAX: Final = 12_500
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
#: the key that counts ended Pods; other keys are ``node/NAME`` and ``pod/NAMESPACE/NAME``
_TERMINATED: Final = "terminated"
_ORPHANED: Final = "orphaned"
_CONDITION: Final[Document] = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class _Deletion(NamedTuple):
    """The reason of a deletion; ``uid`` distinguishes the Pod from a later one of its name."""

    uid: str
    reason: str


class PodGarbageCollector(KeyedController):
    """The controller. A job of a Node's key checks that the Node exists; a job of a Pod's key
    deletes the Pod.
    """

    def __init__(self, terminated_max: int = TERMINATED_PODS_MAX) -> None:
        super().__init__(
            ControllerInfo(
                name="pod-garbage-collector-controller",
                aliases=("podgc",),
                watches=(Selection(Pods), Selection(Nodes)),
                queue="orphaned_pods_nodes",
            )
        )
        self._terminated_max = terminated_max
        self._pods: dict[str, Pod] = {}
        #: keys of Pods by their Node, without Pods that only finalizers keep
        self._bound: dict[str, set[str]] = {}
        #: Nodes by name; True if the Node is out of service
        self._nodes: dict[str, bool] = {}
        #: end of the quarantine of Nodes that the cache lacks
        self._missing: dict[str, float] = {}
        #: uids by key of the Pods of a Node at the time of its look-up
        self._pods_at_lookup: dict[str, dict[str, str]] = {}
        self._ended: set[str] = set()
        self._to_delete: dict[str, _Deletion] = {}
        self._metrics = Metrics()
        self._deleted = self._metrics.counters(
            "pod_gc_collector_force_delete_pods_total",
            "Pods deleted by force.",
            "namespace",
            "reason",
        )
        self._failed = self._metrics.counters(
            "pod_gc_collector_force_delete_pod_errors_total",
            "Forced deletions of Pods that failed.",
            "namespace",
            "reason",
        )

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        if change.resource == Nodes.key:
            _, node = change.typed(Node)
            self._on_node(change.object.metadata.name, node, now)
        else:
            _, pod = change.typed(Pod)
            self._on_pod(change.object.metadata.key, pod, now)

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        for node in sorted(self._bound.keys() - self._nodes.keys()):
            self._quarantine(node, now)

    def _on_node(self, name: str, node: Node | None, now: float) -> None:
        if node is None:
            self._nodes.pop(name, None)
            if name in self._bound:
                self._quarantine(name, now)
            return
        self._missing.pop(name, None)
        tainted = any(taint.key == TAINT_OUT_OF_SERVICE for taint in node.spec.taints or ())
        self._nodes[name] = tainted and not node.is_ready
        if self._nodes[name]:
            for key in sorted(self._bound.get(name, ())):
                self._judge_terminating(self._pods[key], now)

    def _on_pod(self, key: str, pod: Pod | None, now: float) -> None:
        self._forget(key)
        if pod is None:
            return
        self._pods[key] = pod
        if pod.has_ended:
            self._ended.add(key)
            if len(self._ended) > self._terminated_max:
                self.enqueue_after(_TERMINATED, CHECK_PERIOD_S, now)
        if _waits_for_finalizers(pod):
            return
        node = pod.spec.node_name
        if node:
            self._bound.setdefault(node, set()).add(key)
            if node not in self._nodes and self._synced:
                self._quarantine(node, now)
        self._judge_terminating(pod, now)

    def _forget(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        self._ended.discard(key)
        keys = self._bound.get(pod.spec.node_name, set())
        keys.discard(key)
        if not keys:
            self._bound.pop(pod.spec.node_name, None)

    def _quarantine(self, node: str, now: float) -> None:
        if node not in self._missing:
            self._missing[node] = now + QUARANTINE_S
            self.enqueue_after(f"node/{node}", QUARANTINE_S, now)

    def _judge_terminating(self, pod: Pod, now: float) -> None:
        if not pod.metadata.is_deleting:
            return
        if not pod.spec.node_name:
            self._delete_soon(pod, "unscheduled", now)
        elif self._nodes.get(pod.spec.node_name):
            self._delete_soon(pod, "out-of-service", now)

    def _delete_soon(self, pod: Pod, reason: str, now: float) -> None:
        key = pod.metadata.key
        self._to_delete[key] = _Deletion(pod.metadata.uid, reason)
        self.enqueue(f"pod/{key}", now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        kind, _, name = key.partition("/")
        match kind:
            case "node":
                return self._query_node(name, now)
            case "pod":
                return self._delete(name, now)
        self._delete_surplus(now)
        return ()

    def _query_node(self, node: str, now: float) -> tuple[Write, ...]:
        """Looks up a Node whose quarantine is over."""
        until = self._missing.get(node)
        if until is None:
            return ()
        if node not in self._bound:
            del self._missing[node]
            return ()
        if now < until:
            self.enqueue_after(f"node/{node}", until - now, now)
            return ()
        self._pods_at_lookup[node] = {
            key: self._pods[key].metadata.uid for key in sorted(self._bound[node])
        }
        return (Write(verb="get", resource=Nodes, name=node, tolerate=("NotFound",)),)

    def _delete_surplus(self, now: float) -> None:
        surplus = len(self._ended) - self._terminated_max
        if surplus > 0:
            ended = sorted((self._pods[key] for key in self._ended), key=_order_of_deletion)
            for pod in ended[:surplus]:
                self._delete_soon(pod, "terminated", now)

    def _delete(self, key: str, now: float) -> tuple[Write, ...]:
        verdict = self._to_delete.get(key)
        if verdict is None:
            return ()
        pod = self._pods.get(key)
        if (
            pod is None
            or pod.metadata.uid != verdict.uid
            or _waits_for_finalizers(pod)
            or self._returned(pod)
        ):
            del self._to_delete[key]
            return ()
        delete = deletion(Pods, pod.metadata, gracePeriodSeconds=0)
        if pod.has_ended:
            return (delete,)
        status: Document = {"phase": "Failed"}
        if verdict.reason == _ORPHANED:
            status["conditions"] = [{**_CONDITION, "lastTransitionTime": format_time(now)}]
        return (
            object_patch(Pods, pod.metadata, {"status": status}, "status", "strategic"),
            delete,
        )

    def _returned(self, pod: Pod) -> bool:
        """Returns True if the Pod was to be deleted as an orphan and its Node exists again."""
        return (
            self._to_delete[pod.metadata.key].reason == _ORPHANED
            and pod.spec.node_name in self._nodes
        )

    def finished(self, done: Done, now: float) -> None:
        kind, _, name = done.job.key.partition("/")
        if kind == "node":
            self._on_answer(name, done, now)
            return
        reason = self._to_delete[name].reason
        namespace = name.partition("/")[0]
        if done.error is not None:
            self._failed.of(namespace, reason).value += 1
            return
        self._deleted.of(namespace, reason).value += 1
        del self._to_delete[name]
        pod = self._pods.get(name)
        if (
            pod is not None
            and pod.spec.node_name in self._bound
            and pod.spec.node_name not in self._nodes
        ):
            self._quarantine(pod.spec.node_name, now)  # the cache may still have the Pod

    def _on_answer(self, node: str, done: Done, now: float) -> None:
        pods = self._pods_at_lookup.pop(node)
        if done.error is not None:
            return  # the key is retried
        self._missing.pop(node, None)
        if node in self._nodes:
            return
        gone = not done.results[0]
        for key in sorted(self._bound.get(node, ())):
            pod = self._pods[key]
            if gone and pods.get(key) == pod.metadata.uid:
                self._delete_soon(pod, _ORPHANED, now)
            else:
                self._quarantine(node, now)

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*super().samples(now), *self._metrics.families())

    def check(self) -> None:
        super().check()
        for node, keys in self._bound.items():
            assert keys, f"Node {node} has an empty set of Pods"
            for key in keys:
                assert self._pods[key].spec.node_name == node, f"Pod {key} is not bound to {node}"
                is_followed = node in self._nodes or node in self._missing or key in self._to_delete
                assert is_followed or not self._synced, (
                    f"Pod {key} has no Node {node}, and no action is due"
                )
        assert self._ended == {key for key, pod in self._pods.items() if pod.has_ended}, (
            "ended Pods"
        )
        assert not self._missing.keys() & self._nodes.keys(), "a Node is missing and there"


def _waits_for_finalizers(pod: Pod) -> bool:
    """Returns True if the Pod has ended and was deleted by force: only its finalizers keep it."""
    return (
        pod.has_ended
        and pod.metadata.is_deleting
        and not pod.metadata.deletion_grace_period_seconds
    )


def _order_of_deletion(pod: Pod) -> tuple[bool, str, str]:
    was_evicted = pod.status.phase == "Failed" and pod.status.reason == "Evicted"
    return not was_evicted, pod.metadata.creation_timestamp or "", pod.metadata.key
