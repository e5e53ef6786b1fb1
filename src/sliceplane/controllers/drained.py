"""The condition ``sliceplane.dev/Drained`` of Pods: no node's kernel sends new connections to the
Pod any more.

It is for Pods that request it, either by the annotation ``sliceplane.dev/drain-barrier`` in their
template, which takes effect at their deletion, or by the mark of ``sliceplane drain``. It is
written once, with the version, the number of nodes and the milliseconds since this controller
observed the start of the drain. So ``kubectl wait`` and the node proxy of the Pod's own node
(``node.io.drain_hook``) need not follow every Lease. Removing the mark removes the condition.

Nodes are queried through the server's memory (``consume.drain.reports``), with one query at a time
for all draining Pods. Nodes that have not reported after ``MEMORY_S``, or all nodes if the server
has no such memory, are requested to write their Leases by an annotation on slices: at most once in
``ASK_PERIOD_S`` for each Pod, shared by Pods that leave one Service together. The controller also
waits for a node that never reported: unknown is not drained.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.core import Pod
from sliceplane.api.discovery import ANNOTATION_DRAIN, ANNOTATION_DRAIN_BARRIER
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Leases, Nodes, Pods
from sliceplane.consume.drain.answer import CONDITION, DrainVerdict, message
from sliceplane.consume.drain.barrier import ASK_PERIOD_S
from sliceplane.consume.drain.cluster import SELECTIONS, DrainCluster
from sliceplane.consume.drain.departure import is_draining, subject_of
from sliceplane.consume.drain.reports import LARGE_CLUSTER_PAUSE_S, MEMORY_S, pause_s, question
from sliceplane.consume.progress import SMALL_CLUSTER_NODES, Scope
from sliceplane.kit.times import format_time
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write, condition_write
from sliceplane.watch.controller.keyed import KeyedController

#: the key of the query of the server's memory
_QUERY: Final = ""
#: seconds until the next query after a server without the memory
_NO_MEMORY_S: Final = 60.0


class DrainedController(KeyedController):
    """The controller. Jobs are keyed ``namespace/name`` of the Pod."""

    def __init__(self) -> None:
        super().__init__(
            ControllerInfo(
                name="pod-drained-controller",
                aliases=("pod-drained",),
                watches=(Selection(Pods), *SELECTIONS),
            )
        )
        self._cluster = DrainCluster()
        #: Pods that request the condition
        self._pods: dict[str, Pod] = {}
        #: start time of the drain of Pods that are not known to be drained
        self._draining: dict[str, float] = {}
        #: uid and status of the condition that was written last, by Pod
        self._written: dict[str, tuple[str, str]] = {}
        self._requested_at: dict[str, float] = {}
        self._requests = 0
        #: start time of the wait for nodes, by Pod; and the time until which the server's memory is
        #: not queried
        self._waiting_since: dict[str, float] = {}
        self._no_memory_until = 0.0
        self._query_due = 0.0

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Pod() as pod:
                self._on_pod(pod, gone=change.new is None, now=now)
                return
            case _:
                self._cluster.on_change(change, now)
        if change.resource in (Nodes.key, Leases.key):
            self._enqueue_draining(now)

    def on_mark(self, mark: Mark, now: float) -> None:
        """Implements ``watch.controller.base.MarkReader``."""
        for key in self._cluster.on_mark(mark, now):
            if key in self._draining:
                self.enqueue(key, now)

    def _on_pod(self, pod: Pod, *, gone: bool, now: float) -> None:
        key = pod.metadata.key
        if gone or not (_is_requested(pod) or _condition(pod) == "True"):
            self._forget(key)
            return
        self._pods[key] = pod
        self._cluster.draining_pods.add(subject_of(pod))
        if not is_draining(pod):
            self._draining.pop(key, None)
            self._waiting_since.pop(key, None)
        elif _condition(pod) != "True":
            self._draining.setdefault(key, now)
        self.enqueue(key, now)

    def _forget(self, key: str) -> None:
        self._cluster.draining_pods.discard(key)
        for kept in (
            self._pods,
            self._draining,
            self._written,
            self._requested_at,
            self._waiting_since,
        ):
            kept.pop(key, None)

    def _enqueue_draining(self, now: float) -> None:
        """Queues all draining Pods, delayed if there are many nodes: thousands of them report one
        after the other, and checking every Pod takes a while.
        """
        delay_s = 0.0 if len(self._cluster.nodes) <= SMALL_CLUSTER_NODES else LARGE_CLUSTER_PAUSE_S
        for key in self._draining:
            self.enqueue_after(key, delay_s, now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key == _QUERY:
            return self._query()
        pod = self._pods.get(key)
        if pod is None:
            return ()
        current = _condition(pod)
        if not is_draining(pod):
            return (
                (self._condition_write(pod, "False", "Serving", "", now),)
                if current == "True"
                else ()
            )
        if current == "True" or self._written.get(key) == (pod.metadata.uid, "True"):
            return ()
        since = self._draining.setdefault(key, now)
        verdict = self._verdict(key, now)
        if verdict is None:
            return ()
        if verdict.state == "proven":
            return (
                self._condition_write(pod, "True", "Proven", message(verdict, now - since), now),
            )
        if verdict.state == "waiting":
            return self._ask(key, verdict, now)
        return ()

    def _verdict(self, key: str, now: float) -> DrainVerdict | None:
        if not self._cluster.draining_pods.is_tracked(key):
            # A Pod without a Service may wait long for the next mark.
            for other in self._cluster.draining_pods.update():
                if other != key and other in self._draining:
                    self.enqueue(other, now)
            if not self._cluster.draining_pods.is_tracked(key):
                return None
        return self._cluster.verdict(key, self._cluster.facts(), now)

    def _query(self) -> tuple[Write, ...]:
        goal: dict[Scope, int] = {}
        for key in self._waiting_since:
            for scope, revision in self._cluster.draining_pods.goal(key).items():
                goal[scope] = max(revision, goal.get(scope, 0))
        return (question(goal, self._cluster.answer_number),) if goal else ()

    def _ask(self, key: str, verdict: DrainVerdict, now: float) -> tuple[Write, ...]:
        waits_until = self._waiting_since.setdefault(key, now) + MEMORY_S
        if now >= self._no_memory_until:
            self.enqueue_after(_QUERY, max(self._query_due - now, 0.0), now)
            if now < waits_until:
                self.enqueue_after(key, waits_until - now, now)
                return ()
        due = self._requested_at.get(key, -ASK_PERIOD_S) + ASK_PERIOD_S
        if now < due:
            self.enqueue_after(key, due - now, now)
            return ()
        self._requested_at[key] = now
        self._requests += 1
        self.enqueue_after(key, ASK_PERIOD_S, now)
        return self._cluster.request_reports(key, f"{key}.{self._requests}", verdict.required)

    def _condition_write(self, pod: Pod, status: str, reason: str, text: str, now: float) -> Write:
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": text,
            "lastTransitionTime": format_time(now),
        }
        return condition_write(Pods, pod.metadata, condition)

    def finished(self, done: Done, now: float) -> None:
        """Records the written condition before the cache shows it."""
        key = done.job.key
        if key == _QUERY:
            self._on_answer(done, now)
            return
        pod = self._pods.get(key)
        if done.error is None and pod is not None and done.job.writes[0].resource is Pods:
            self._written[key] = (pod.metadata.uid, "True" if is_draining(pod) else "False")
            self._draining.pop(key, None)
            self._waiting_since.pop(key, None)

    def _on_answer(self, done: Done, now: float) -> None:
        answer = next(iter(done.results), b"")
        if answer:
            self._cluster.on_answer(answer, now)
        else:
            self._no_memory_until = now + _NO_MEMORY_S
        self._query_due = now + pause_s(len(self._cluster.nodes))
        self._enqueue_draining(now)

    def check(self) -> None:
        super().check()
        self._cluster.check()
        assert self._draining.keys() <= self._pods.keys(), "a Pod drains without a request"
        assert self._waiting_since.keys() <= self._pods.keys(), (
            "nodes are queried for a Pod without a request"
        )


def _is_requested(pod: Pod) -> bool:
    annotations = pod.metadata.annotations or {}
    return ANNOTATION_DRAIN in annotations or ANNOTATION_DRAIN_BARRIER in annotations


def _condition(pod: Pod) -> str:
    condition = pod.condition(CONDITION)
    return condition.status if condition is not None else ""
