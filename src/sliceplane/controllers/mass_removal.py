"""The reads and reports of the EndpointSlice controller because of mass removals;
``slices.removing.guard`` decides about them.

Before many endpoints go that no Pod told, their Pods are listed again: one job at a time for all
Services concerned, so that told changes of others never wait for it, and one list for each
Namespace, however many of its Services are in doubt. What a Namespace asks for is read with the
same job, and only then: no informer keeps Namespaces for it, and a reader that may not read them
follows the flag. What is held is told by a condition of the Service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod, Service
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import Namespaces, Nodes, Pods, Resource, Services
from sliceplane.kit.metrics import Family, Metrics
from sliceplane.kit.times import format_time
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.removing.guard import (
    REASON_EXPIRED,
    REASON_HELD,
    REASON_OVER,
    REASON_RELEASED,
)
from sliceplane.slices.removing.losses import ConfirmationQuery
from sliceplane.watch.controller.base import Done, Job, Selection, Write, condition_write

#: keys of the queue: the condition of a Service; the reads that confirm removals, of all Services
_CONDITION: Final = "guard:"
CONFIRM_KEY: Final = "confirm"
_PROBE: Final = "probe"
#: one job tries so many at most, one after the other; at a time there is one job
PROBES_MAX: Final = 16
#: from the last probe of a Service's Pods until the next round
PROBE_PERIOD_S: Final = 60.0
#: one job reads so many Namespaces at most; others wait for the next
SPACES_MAX: Final = 8
#: a cache is listed anew no more often
RELIST_PAUSE_S: Final = 10.0
#: of mass removals, by the reasons of their notices
_OUTCOMES: Final = {
    REASON_HELD: "held",
    REASON_RELEASED: "released",
    REASON_EXPIRED: "expired",
    REASON_OVER: "over",
}


class _ListedPods(msgspec.Struct):
    items: list[Pod]


class _ListedObjects(msgspec.Struct):
    items: list[Object]


@dataclass(slots=True)
class _Round:
    """The probes of one Service that holds endpoints: Pods that were tried, and when the next round
    is.
    """

    due: float
    tried: set[str] = field(default_factory=set)


class _Asked(msgspec.Struct, frozen=True):
    """The Services that a job reads for, by Namespace."""

    keys: dict[str, tuple[str, ...]]
    #: those that wait for a list of their Pods
    pods: frozenset[str]


class MassRemovals:
    """Owned by one ``EndpointSliceController``, which gives it the keys of its queue that are its
    own.
    """

    def __init__(self, engine: SliceEngine, *, probes: bool) -> None:
        """*probes*: Pods that are held are asked whether they take connections."""
        self._engine = engine
        self._probes = probes
        self._rounds: dict[str, _Round] = {}
        #: the condition that says what is held, of Services that have it: status and message
        self._shown: dict[str, tuple[str, str]] = {}
        #: Services with removals in doubt
        self._doubted: dict[str, None] = {}
        self._relist: dict[Resource, None] = {}
        #: when each was listed anew last
        self._relisted: dict[Resource, float] = {}
        self._metrics = Metrics()
        self._outcomes = self._metrics.counters(
            "sliceplane_mass_removals_total",
            "Mass removals that were held, by what came of them.",
            "outcome",
        )
        self._confirmations = self._metrics.counters(
            "sliceplane_mass_removal_confirmations_total",
            "Reads of the server before many endpoints go, by what they said of a Service.",
            "result",
        )
        self._refused = self._metrics.counter(
            "sliceplane_mass_removal_refused_probes_total",
            "Endpoints that were held and let go because a TCP probe was refused.",
        )
        self._metrics.computed(
            "gauge",
            "sliceplane_mass_removal_held_endpoints",
            "Endpoints that stay although no Pod says that it is there.",
            lambda: engine.retained,
        )

    def families(self) -> tuple[Family, ...]:
        return self._metrics.families()

    def on_service(self, service: Service, *, gone: bool) -> None:
        key = service.metadata.key
        self._shown.pop(key, None)
        for condition in () if gone else service.status.conditions or ():
            if condition.type == REASON_HELD:
                self._shown[key] = (condition.status, condition.message)

    def on_notices(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            if notice.reason in _OUTCOMES:
                self._outcomes.of(_OUTCOMES[notice.reason]).value += 1

    def keys_after_plan(self, key: str, now: float) -> tuple[tuple[str, float], ...]:
        """Keys of the queue, and in how many seconds their turn is, that follow from a plan of the
        Service *key*.
        """
        due: list[tuple[str, float]] = []
        if self._wanted(key) != self._shown.get(key):
            due.append((f"{_CONDITION}{key}", 0.0))
        question = self._engine.confirmation_query(key)
        if question is None:
            self._doubted.pop(key, None)
        else:
            self._doubted[key] = None
            due.append((CONFIRM_KEY, max(0.0, question.due - now)))
        if self._probes and self._engine.hold(key) is not None:
            self._rounds.setdefault(key, _Round(now))
            due.append((_PROBE, 0.0))
        else:
            self._rounds.pop(key, None)
        return tuple(due)

    @staticmethod
    def is_own(key: str) -> bool:
        return key in (CONFIRM_KEY, _PROBE) or key.startswith(_CONDITION)

    def job(self, key: str, now: float) -> Job | None:
        if key == _PROBE:
            return self._probing(now)
        return self._confirmation(now) if key == CONFIRM_KEY else self._condition_job(key, now)

    def next_probe(self) -> float | None:
        """Returns when the next Pods are to be tried."""
        return min((due.due for due in self._rounds.values()), default=None)

    def on_done(self, done: Done, now: float) -> tuple[str, ...]:
        """Keys of the queue that are due then: Services to be planned again, among others."""
        if done.job.key == CONFIRM_KEY:
            return self._on_read(done, now)
        if done.job.key == _PROBE:
            return self._on_probed(done)
        if done.error is None:
            self._shown[done.job.key.removeprefix(_CONDITION)] = done.job.token
        return ()

    def take_relist(self) -> tuple[Selection, ...]:
        """Returns the selections to list anew: a list has shown that their caches are wrong."""
        if not self._relist:
            return ()
        relist = tuple(Selection(resource) for resource in self._relist)
        self._relist = {}
        return relist

    # -- what is in doubt is read

    def _confirmation(self, now: float) -> Job | None:
        spaces: dict[str, dict[str, ConfirmationQuery]] = {}
        for key in self._doubted:
            question = self._engine.confirmation_query(key)
            space = key.partition("/")[0]
            if (
                question is not None
                and question.due <= now
                and (space in spaces or len(spaces) < SPACES_MAX)
            ):
                spaces.setdefault(space, {})[key] = question
        reads: list[Write] = []
        for space, questions in spaces.items():
            if any(question.namespace for question in questions.values()):
                reads.append(
                    Write(
                        verb="get",
                        resource=Namespaces,
                        name=space,
                        tolerate=("NotFound", "Forbidden"),
                    )
                )
            wanted = [key for key, question in questions.items() if question.pods]
            if wanted:
                selector = self._selector(wanted[0]) if len(wanted) == 1 else ""
                reads.append(
                    Write(verb="list", resource=Pods, namespace=space, label_selector=selector)
                )
        asked = [question for questions in spaces.values() for question in questions.values()]
        if any(question.nodes for question in asked):
            reads.append(Write(verb="list", resource=Nodes))
        if not reads:
            return None
        pods = frozenset(
            key for questions in spaces.values() for key, each in questions.items() if each.pods
        )
        return Job(
            key=CONFIRM_KEY,
            writes=tuple(reads),
            token=_Asked({space: tuple(questions) for space, questions in spaces.items()}, pods),
        )

    def _selector(self, key: str) -> str:
        shape = self._engine.shape(key)
        assert shape is not None, f"{key} has endpoints in doubt and no shape"
        return ",".join(f"{name}={value}" for name, value in sorted(shape.selector.items()))

    def _on_read(self, done: Done, now: float) -> tuple[str, ...]:
        asked = done.job.token
        assert isinstance(asked, _Asked), f"job {done.job.key} has a foreign token {asked!r}"
        pods: dict[str, dict[str, Pod]] = {}
        nodes: frozenset[str] = frozenset()
        # what could not be read asks for nothing
        annotations: dict[str, dict[str, str] | None] = {
            read.name: None for read in done.job.writes if read.resource is Namespaces
        }
        for read, answer in zip(done.job.writes, done.results, strict=False):
            if read.resource is Namespaces:
                annotations[read.name] = (
                    decode(answer, Object).metadata.annotations if answer else None
                )
            elif read.resource is Pods:
                listed = msgspec.json.decode(answer, type=_ListedPods).items
                pods[read.namespace] = {pod.metadata.name: pod for pod in listed}
            else:
                objects = msgspec.json.decode(answer, type=_ListedObjects).items
                nodes = frozenset(item.metadata.name for item in objects)
        for space, said in annotations.items():
            self._engine.on_namespace(space, said, now)
        for space, keys in asked.keys.items():
            for key in keys:
                if key in asked.pods:
                    self._judge(key, None if done.error is not None else pods[space], nodes, now)
        return tuple(key for keys in asked.keys.values() for key in keys)

    def _judge(
        self, key: str, pods: dict[str, Pod] | None, nodes: frozenset[str], now: float
    ) -> None:
        if pods is None:
            self._engine.on_read_failed(key, now)
            self._confirmations.of("failed").value += 1
            return
        verdict = self._engine.on_listed(key, pods, nodes, now)
        self._confirmations.of("refuted" if verdict.refuted else "confirmed").value += 1
        for resource, is_wrong in ((Pods, verdict.relist_pods), (Nodes, verdict.relist_nodes)):
            if is_wrong and now >= self._relisted.get(resource, 0.0) + RELIST_PAUSE_S:
                self._relisted[resource] = now
                self._relist[resource] = None

    # -- what is held is probed

    def _probing(self, now: float) -> Job | None:
        """Selects Pods of one Service after the other, as many as one job takes."""
        for key, turn in self._rounds.items():
            if turn.due > now:
                continue
            targets = [
                target for target in self._engine.retained_ports(key) if target[0] not in turn.tried
            ][:PROBES_MAX]
            if targets:
                turn.tried.update(name for name, _ in targets)
                space = key.partition("/")[0]
                probes = (
                    Write(
                        verb="probe", resource=Pods, namespace=space, name=name, body=encode(port)
                    )
                    for name, port in targets
                )
                return Job(key=_PROBE, writes=tuple(probes), token=key)
            self._rounds[key] = _Round(now + PROBE_PERIOD_S)
        return None

    def _on_probed(self, done: Done) -> tuple[str, ...]:
        refused = [
            probe.name
            for probe, answer in zip(done.job.writes, done.results, strict=False)
            if not answer
        ]
        for name in refused:
            self._engine.on_connection_refused(done.job.token, name)
        self._refused.value += len(refused)
        return (done.job.token, _PROBE) if refused else (_PROBE,)

    # -- what is held is told

    def _wanted(self, key: str) -> tuple[str, str] | None:
        """Status and message of the condition; ``None``: no Service has it that never held
        anything.
        """
        hold = self._engine.hold(key)
        if hold is not None:
            return ("True", str(hold))
        return ("False", "nothing is held") if key in self._shown else None

    def _condition_job(self, condition_key: str, now: float) -> Job | None:
        key = condition_key.removeprefix(_CONDITION)
        shape = self._engine.shape(key)
        wanted = self._wanted(key)
        if shape is None or wanted is None or wanted == self._shown.get(key):
            return None
        status, message = wanted
        condition = {
            "type": REASON_HELD,
            "status": status,
            "reason": REASON_HELD if status == "True" else REASON_OVER,
            "message": message,
            "lastTransitionTime": format_time(now),
        }
        meta = ObjectMeta(namespace=shape.namespace, name=shape.name, uid=shape.uid)
        write = condition_write(Services, meta, condition)
        return Job(key=condition_key, writes=(write,), token=wanted)
