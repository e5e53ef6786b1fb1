"""The condition ``sliceplane.dev/Drained`` of Pods: no node's kernel sends new connections to it
any more.

For Pods that ask for it: by the annotation ``sliceplane.dev/drain-barrier`` in their template, from
then on when they are deleted; or by the mark of ``sliceplane drain``. It is written once, with the
version, the nodes and the milliseconds since this controller saw the Pod go, so that ``kubectl
wait`` and the node proxy of the Pod's own node (``node.io.drain_hook``) need not follow every
Lease; a mark that is taken away takes the condition back.

Nodes are asked through the server's memory (``consume.drain.reports``): one question at a time for
all Pods that wait. Those that have not told after ``MEMORY_S``, or all where the server has no such
memory, are asked to write their Leases: by an annotation on slices, at most once in
``ASK_PERIOD_S`` for each Pod; Pods that leave one Service together share that. A node that never
told is waited for: unknown is not done.
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
from sliceplane.consume.drain.departure import leaves, subject_of
from sliceplane.consume.drain.reports import LOOK_S, MEMORY_S, pause_s, question
from sliceplane.consume.progress import FEW_NODES, Place
from sliceplane.kit.times import format_time
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write, condition_write
from sliceplane.watch.controller.keyed import KeyedController

#: the key of the question to the server's memory
_QUESTION: Final = ""
#: after an answer that there is none
_ABSENT_S: Final = 60.0


class DrainedController(KeyedController):
    """Jobs are keyed ``namespace/name`` of the Pod."""

    def __init__(self) -> None:
        super().__init__(
            ControllerInfo(
                name="pod-drained-controller",
                aliases=("pod-drained",),
                watches=(Selection(Pods), *SELECTIONS),
            )
        )
        self._cluster = DrainCluster()
        #: those that ask for the condition
        self._pods: dict[str, Pod] = {}
        #: those that leave and are not known to be drained -> since when
        self._leaving: dict[str, float] = {}
        #: uids of those that were told what they are now
        self._told: dict[str, tuple[str, str]] = {}
        self._asked: dict[str, float] = {}
        self._asks = 0
        #: by Pod, since when nodes are waited for; and until when the server's memory is not tried
        self._waits: dict[str, float] = {}
        self._no_memory_until = 0.0
        self._question_due = 0.0

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Pod() as pod:
                self._on_pod(pod, gone=change.new is None, now=now)
                return
            case _:
                self._cluster.on_change(change, now)
        if change.resource in (Nodes.key, Leases.key):
            self._look_at_all(now)

    def on_mark(self, mark: Mark, now: float) -> None:
        """A ``watch.controller.base.MarkReader``."""
        for key in self._cluster.on_mark(mark, now):
            if key in self._leaving:
                self.enqueue(key, now)

    def _on_pod(self, pod: Pod, *, gone: bool, now: float) -> None:
        key = pod.metadata.key
        if gone or not (_asks(pod) or _condition(pod) == "True"):
            self._forget(key)
            return
        self._pods[key] = pod
        self._cluster.departures.add(subject_of(pod))
        if not leaves(pod):
            self._leaving.pop(key, None)
            self._waits.pop(key, None)
        elif _condition(pod) != "True":
            self._leaving.setdefault(key, now)
        self.enqueue(key, now)

    def _forget(self, key: str) -> None:
        self._cluster.departures.discard(key)
        for kept in (self._pods, self._leaving, self._told, self._asked, self._waits):
            kept.pop(key, None)

    def _look_at_all(self, now: float) -> None:
        """Thousands of nodes answer one after the other, and to look at all of them takes a
        while.
        """
        delay_s = 0.0 if len(self._cluster.nodes) <= FEW_NODES else LOOK_S
        for key in self._leaving:
            self.enqueue_after(key, delay_s, now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key == _QUESTION:
            return self._question()
        pod = self._pods.get(key)
        if pod is None:
            return ()
        shown = _condition(pod)
        if not leaves(pod):
            return (self._told_write(pod, "False", "Serving", "", now),) if shown == "True" else ()
        if shown == "True" or self._told.get(key) == (pod.metadata.uid, "True"):
            return ()
        since = self._leaving.setdefault(key, now)
        verdict = self._verdict(key, now)
        if verdict is None:
            return ()
        if verdict.state == "proven":
            return (self._told_write(pod, "True", "Proven", message(verdict, now - since), now),)
        if verdict.state == "waiting":
            return self._ask(key, verdict, now)
        return ()

    def _verdict(self, key: str, now: float) -> DrainVerdict | None:
        if not self._cluster.departures.is_known(key):
            for other in (
                self._cluster.departures.look()
            ):  # a Pod without a Service may wait for the next mark for long
                if other != key and other in self._leaving:
                    self.enqueue(other, now)
            if not self._cluster.departures.is_known(key):
                return None
        return self._cluster.verdict(key, self._cluster.facts(), now)

    def _question(self) -> tuple[Write, ...]:
        goal: dict[Place, int] = {}
        for key in self._waits:
            for place, revision in self._cluster.departures.goal(key).items():
                goal[place] = max(revision, goal.get(place, 0))
        return (question(goal, self._cluster.heard),) if goal else ()

    def _ask(self, key: str, verdict: DrainVerdict, now: float) -> tuple[Write, ...]:
        waits_until = self._waits.setdefault(key, now) + MEMORY_S
        if now >= self._no_memory_until:
            self.enqueue_after(_QUESTION, max(self._question_due - now, 0.0), now)
            if now < waits_until:
                self.enqueue_after(key, waits_until - now, now)
                return ()
        due = self._asked.get(key, -ASK_PERIOD_S) + ASK_PERIOD_S
        if now < due:
            self.enqueue_after(key, due - now, now)
            return ()
        self._asked[key] = now
        self._asks += 1
        self.enqueue_after(key, ASK_PERIOD_S, now)
        return self._cluster.asks(key, f"{key}.{self._asks}", verdict.required)

    def _told_write(self, pod: Pod, status: str, reason: str, text: str, now: float) -> Write:
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": text,
            "lastTransitionTime": format_time(now),
        }
        return condition_write(Pods, pod.metadata, condition)

    def finished(self, done: Done, now: float) -> None:
        """What was written is known before the cache shows it."""
        key = done.job.key
        if key == _QUESTION:
            self._on_answer(done, now)
            return
        pod = self._pods.get(key)
        if done.error is None and pod is not None and done.job.writes[0].resource is Pods:
            self._told[key] = (pod.metadata.uid, "True" if leaves(pod) else "False")
            self._leaving.pop(key, None)
            self._waits.pop(key, None)

    def _on_answer(self, done: Done, now: float) -> None:
        answer = next(iter(done.results), b"")
        if answer:
            self._cluster.on_heard(answer, now)
        else:
            self._no_memory_until = now + _ABSENT_S
        self._question_due = now + pause_s(len(self._cluster.nodes))
        self._look_at_all(now)

    def check(self) -> None:
        super().check()
        self._cluster.check()
        assert self._leaving.keys() <= self._pods.keys(), "a Pod leaves that nobody asked for"
        assert self._waits.keys() <= self._pods.keys(), (
            "nodes are asked for a Pod that nobody asked for"
        )


def _asks(pod: Pod) -> bool:
    annotations = pod.metadata.annotations or {}
    return ANNOTATION_DRAIN in annotations or ANNOTATION_DRAIN_BARRIER in annotations


def _condition(pod: Pod) -> str:
    condition = pod.condition(CONDITION)
    return condition.status if condition is not None else ""
