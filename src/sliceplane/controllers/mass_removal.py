"""The reads and reports of the EndpointSlice controller for mass removals;
``slices.removing.guard`` decides about them.

Before many endpoints are removed although no Pod reported it, their Pods are listed again. There is
one job at a time for all Services concerned, so reported changes of other Services never wait for
it, and one list for each Namespace, however many of its Services have unconfirmed removals. The
same job reads the Namespaces' annotations; no informer caches Namespaces for it, and without
permission to read them the flag applies. A condition of the Service reports retained endpoints.
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
    REASON_OVER,
    REASON_RELEASED,
    REASON_RETAINED,
)
from sliceplane.slices.removing.losses import ConfirmationQuery
from sliceplane.watch.controller.base import Done, Job, Selection, Write, condition_write

#: keys of the queue: the condition of a Service; the reads that confirm removals, of all Services
_CONDITION: Final = "guard:"
CONFIRM_KEY: Final = "confirm"
_PROBE: Final = "probe"
#: Pods that one job probes, one after the other; there is one job at a time
PROBES_MAX: Final = 16
#: seconds from the last probe of a Service's Pods until the next round
PROBE_PERIOD_S: Final = 60.0
#: Namespaces that one job reads; others wait for the next
NAMESPACES_MAX: Final = 8
#: minimum seconds between two new lists of a cache
RELIST_PAUSE_S: Final = 10.0
#: outcomes of mass removals, by the reasons of their notices
_OUTCOMES: Final = {
    REASON_RETAINED: "held",
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
    """The probes of one Service with retained endpoints: the time of the round, and the Pods that
    were probed.
    """

    due: float
    tried: set[str] = field(default_factory=set)


class _ConfirmationReads(msgspec.Struct, frozen=True):
    """The Services that a job reads for, by Namespace."""

    keys: dict[str, tuple[str, ...]]
    #: Services that wait for a list of their Pods
    pods: frozenset[str]


class MassRemovals:
    """The mass removals of one ``EndpointSliceController``, which owns it and passes it the keys of
    its queue for which ``is_own`` is true.
    """

    def __init__(self, engine: SliceEngine, *, probes: bool) -> None:
        """*probes*: retained Pods are probed by TCP connections."""
        self._engine = engine
        self._probes = probes
        self._rounds: dict[str, _Round] = {}
        #: status and message of the condition of Services that have it
        self._conditions: dict[str, tuple[str, str]] = {}
        #: Services with unconfirmed removals
        self._unconfirmed: dict[str, None] = {}
        self._relist: dict[Resource, None] = {}
        #: the time of the last new list of each resource
        self._relisted: dict[Resource, float] = {}
        self._metrics = Metrics()
        self._outcomes = self._metrics.counters(
            "sliceplane_mass_removals_total",
            "Mass removals that were held, by outcome.",
            "outcome",
        )
        self._confirmations = self._metrics.counters(
            "sliceplane_mass_removal_confirmations_total",
            "Reads of the server before many endpoints are removed, by result for a Service.",
            "result",
        )
        self._refused = self._metrics.counter(
            "sliceplane_mass_removal_refused_probes_total",
            "Retained endpoints that were removed because a TCP probe was refused.",
        )
        self._metrics.computed(
            "gauge",
            "sliceplane_mass_removal_held_endpoints",
            "Endpoints that are retained although their Pods are lost.",
            lambda: engine.retained,
        )

    def families(self) -> tuple[Family, ...]:
        return self._metrics.families()

    def on_service(self, service: Service, *, gone: bool) -> None:
        key = service.metadata.key
        self._conditions.pop(key, None)
        for condition in () if gone else service.status.conditions or ():
            if condition.type == REASON_RETAINED:
                self._conditions[key] = (condition.status, condition.message)

    def on_notices(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            if notice.reason in _OUTCOMES:
                self._outcomes.of(_OUTCOMES[notice.reason]).value += 1

    def keys_after_plan(self, key: str, now: float) -> tuple[tuple[str, float], ...]:
        """Returns the keys of the queue that follow from a plan of the Service *key*, each with its
        delay in seconds.
        """
        due: list[tuple[str, float]] = []
        if self._desired_condition(key) != self._conditions.get(key):
            due.append((f"{_CONDITION}{key}", 0.0))
        query = self._engine.confirmation_query(key)
        if query is None:
            self._unconfirmed.pop(key, None)
        else:
            self._unconfirmed[key] = None
            due.append((CONFIRM_KEY, max(0.0, query.due - now)))
        if self._probes and self._engine.get_retention(key) is not None:
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
        """Returns the time of the next probes."""
        return min((due.due for due in self._rounds.values()), default=None)

    def on_done(self, done: Done, now: float) -> tuple[str, ...]:
        """Returns the keys of the queue that are due after a job: Services to plan again, among
        others.
        """
        if done.job.key == CONFIRM_KEY:
            return self._on_read(done, now)
        if done.job.key == _PROBE:
            return self._on_probed(done)
        if done.error is None:
            self._conditions[done.job.key.removeprefix(_CONDITION)] = done.job.token
        return ()

    def take_relist(self) -> tuple[Selection, ...]:
        """Returns the selections to list anew, because a list proved their caches wrong."""
        if not self._relist:
            return ()
        relist = tuple(Selection(resource) for resource in self._relist)
        self._relist = {}
        return relist

    # -- reads for unconfirmed removals

    def _confirmation(self, now: float) -> Job | None:
        namespaces: dict[str, dict[str, ConfirmationQuery]] = {}
        for key in self._unconfirmed:
            query = self._engine.confirmation_query(key)
            namespace = key.partition("/")[0]
            if (
                query is not None
                and query.due <= now
                and (namespace in namespaces or len(namespaces) < NAMESPACES_MAX)
            ):
                namespaces.setdefault(namespace, {})[key] = query
        reads: list[Write] = []
        for namespace, queries in namespaces.items():
            if any(query.namespace for query in queries.values()):
                reads.append(
                    Write(
                        verb="get",
                        resource=Namespaces,
                        name=namespace,
                        tolerate=("NotFound", "Forbidden"),
                    )
                )
            listed = [key for key, query in queries.items() if query.pods]
            if listed:
                selector = self._selector(listed[0]) if len(listed) == 1 else ""
                reads.append(
                    Write(verb="list", resource=Pods, namespace=namespace, label_selector=selector)
                )
        all_queries = [query for queries in namespaces.values() for query in queries.values()]
        if any(query.nodes for query in all_queries):
            reads.append(Write(verb="list", resource=Nodes))
        if not reads:
            return None
        pods = frozenset(
            key for queries in namespaces.values() for key, query in queries.items() if query.pods
        )
        return Job(
            key=CONFIRM_KEY,
            writes=tuple(reads),
            token=_ConfirmationReads(
                {namespace: tuple(queries) for namespace, queries in namespaces.items()}, pods
            ),
        )

    def _selector(self, key: str) -> str:
        shape = self._engine.shape(key)
        assert shape is not None, f"{key} has unconfirmed removals and no shape"
        return ",".join(f"{name}={value}" for name, value in sorted(shape.selector.items()))

    def _on_read(self, done: Done, now: float) -> tuple[str, ...]:
        token = done.job.token
        assert isinstance(token, _ConfirmationReads), (
            f"job {done.job.key} has a foreign token {token!r}"
        )
        pods: dict[str, dict[str, Pod]] = {}
        nodes: frozenset[str] = frozenset()
        # a Namespace that could not be read requests nothing
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
        for namespace, namespace_annotations in annotations.items():
            self._engine.on_namespace(namespace, namespace_annotations, now)
        for namespace, keys in token.keys.items():
            for key in keys:
                if key in token.pods:
                    self._judge(
                        key, None if done.error is not None else pods[namespace], nodes, now
                    )
        return tuple(key for keys in token.keys.values() for key in keys)

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

    # -- probes of retained endpoints

    def _probing(self, now: float) -> Job | None:
        """Selects Pods of one Service after the other, as many as one job probes."""
        for key, probe_round in self._rounds.items():
            if probe_round.due > now:
                continue
            targets = [
                target
                for target in self._engine.retained_ports(key)
                if target[0] not in probe_round.tried
            ][:PROBES_MAX]
            if targets:
                probe_round.tried.update(name for name, _ in targets)
                namespace = key.partition("/")[0]
                probes = (
                    Write(
                        verb="probe",
                        resource=Pods,
                        namespace=namespace,
                        name=name,
                        body=encode(port),
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

    # -- the condition

    def _desired_condition(self, key: str) -> tuple[str, str] | None:
        """Returns status and message of the condition; ``None`` for a Service that never retained
        endpoints.
        """
        retention = self._engine.get_retention(key)
        if retention is not None:
            return ("True", str(retention))
        return ("False", "nothing is held") if key in self._conditions else None

    def _condition_job(self, condition_key: str, now: float) -> Job | None:
        key = condition_key.removeprefix(_CONDITION)
        shape = self._engine.shape(key)
        desired = self._desired_condition(key)
        if shape is None or desired is None or desired == self._conditions.get(key):
            return None
        status, message = desired
        condition = {
            "type": REASON_RETAINED,
            "status": status,
            "reason": REASON_RETAINED if status == "True" else REASON_OVER,
            "message": message,
            "lastTransitionTime": format_time(now),
        }
        meta = ObjectMeta(namespace=shape.namespace, name=shape.name, uid=shape.uid)
        write = condition_write(Services, meta, condition)
        return Job(key=condition_key, writes=(write,), token=desired)
