"""The whole question: from a state, changes and the locations of clients to the state before, the
state after, and the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from sliceplane.api.core import Pod, Service
from sliceplane.api.scheme import Services
from sliceplane.consume.balancing.shares import chance
from sliceplane.emulation.replicaset import deletion_rank
from sliceplane.kit.times import time_or_zero
from sliceplane.lab.sim.cluster import BurstPace
from sliceplane.lab.whatif.assumptions import assumptions
from sliceplane.lab.whatif.audience import SliceEvent
from sliceplane.lab.whatif.changes import Changes, Running
from sliceplane.lab.whatif.picture import Clients, Loads, Picture, loads, picture
from sliceplane.lab.whatif.state import ClusterState, WhatIfError
from sliceplane.lab.whatif.world import Way, WhatIfWorld

#: maximum delay of a change after the question in seconds, and maximum number of delays to try
_DELAY_MAX_S: Final = 120.0
_DELAYS_MAX: Final = 10
_STEPS_MAX: Final = 200
#: 1 s to 34 minutes in nanoseconds
_AGE_POWERS: Final = range(30, 42)

T = TypeVar("T", int, Fraction)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """``per_gb``: price of traffic across zones, requests and answers together. ``gigabytes``:
    measured traffic of both; 0: not measured.
    """

    per_gb: Fraction
    of: str
    gigabytes: Fraction = Fraction(0)


class WhatIfQuestion(msgspec.Struct, frozen=True, kw_only=True):
    service: Service
    changes: Changes
    now: Running
    clients: Clients
    price: Price
    watchers: int = 0


class Written(msgspec.Struct, frozen=True):
    """Writes of slices. ``took_s``: virtual seconds until the last one."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    events: int = 0
    json: int = 0
    protobuf: int = 0
    took_s: float = 0.0

    @property
    def writes(self) -> int:
        return self.creates + self.updates + self.deletes


_TOGETHER: Final = Way(pace=BurstPace(jobs_max=1_000_000), zone_offset=0)
_ONE_BY_ONE: Final = BurstPace(write_s=0.05, eager="endpointslice-controller")
#: the first one is reported in full; the others extend its figures to ranges
WAYS: Final = (
    Way(),
    _TOGETHER,
    Way(pace=_ONE_BY_ONE, zone_offset=1, delay_s=30.0),
    Way(pace=_ONE_BY_ONE, zone_offset=2, delay_s=120.0),
)


class WhatIfRun(msgspec.Struct, frozen=True):
    """The outcome of the change in one run."""

    written: Written
    slices: int
    ready: Counter[str]
    leaving: Fraction
    greatest: Fraction
    #: load of the busiest endpoint over its allowed load
    used: Fraction


class Moment(msgspec.Struct, frozen=True):
    """A moment of a loss, *after_s* seconds after it. ``failing``: the share of connections to lost
    Pods; ``written``: the writes since the previous moment.
    """

    after_s: float
    picture: Picture
    failing: Fraction
    written: Written


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """``pending``: writes of the controllers without any change. ``stays``: the loads if clients of
    a lost zone continue elsewhere; ``moments``: of a loss: immediately, when it is detected
    (``after``), and when Pods are replaced.
    """

    question: WhatIfQuestion
    origin: str
    assumed: tuple[str, ...]
    pending: Written
    before: Picture
    after: Picture
    written: Written
    all_written: Written
    #: events of this Service since *began*, in virtual time
    events: tuple[SliceEvent, ...]
    began: float
    stays: Loads | None
    moments: tuple[Moment, ...]
    #: Events of the controller about this Service
    notes: tuple[str, ...]
    #: settings of the controllers after the change
    running: Running
    state: ClusterState
    #: one run for each of ``WAYS``, or only the first if the others could not differ
    runs: tuple[WhatIfRun, ...]

    def between(self, read: Callable[[WhatIfRun], T]) -> tuple[T, T]:
        """Returns the minimum and maximum of a figure over all runs."""
        figures = [read(run) for run in self.runs]
        return min(figures), max(figures)

    @property
    def is_worse(self) -> bool:
        """Returns True if the change drops connections or overloads an endpoint."""
        used = max(run.used for run in self.runs)
        used = used if self.stays is None else max(used, self.stays.used)
        overloaded = used > 1 and used > self.before.loads.used
        return overloaded or self.after.shares.dropped > self.before.shares.dropped

    @property
    def chance(self) -> float | None:
        return chance(self.after.shares.candidates, self.question.clients.connections)


def predict(
    state: ClusterState, question: WhatIfQuestion, report: Callable[[str], None] | None = None
) -> Prediction:
    """Predicts the effect of the changes. *report* is called often with the current activity.
    Raises ``WhatIfError``.
    """
    service = question.service
    key = service.metadata.key
    if not service.spec.selector:
        raise WhatIfError(
            f"Service {key} has no selector: its slices are written by hand, and no change makes "
            "them"
        )
    world = WhatIfWorld(state, service, question.now, question.watchers, report=report)
    take_picture = partial(picture, world, service, question.clients, others=question.watchers)
    began = world.cluster.now
    world.finish_pending()
    pending = sum_up(world.events, key, began)
    before = take_picture()
    world.events.clear()
    world.cluster.notes.clear()
    began = world.cluster.now
    lost = question.changes.zones_lost
    remaining = 1 - sum(
        (location.share for location in before.client_locations if location.at.zone in lost),
        Fraction(0),
    )
    moments = [_moment(world, question, remaining, 0.0, Written())] if lost else []
    world.apply(question.changes)
    world.converge(world.next_eviction)
    written = sum_up(world.events, key, began)
    if lost:
        moments.append(_moment(world, question, remaining, world.running.node_grace_s, written))
    after = moments[-1].picture if lost else take_picture()
    runs = [_run_of(after, written), *_other_runs(state, question, written, report)]
    after_state = world.state
    events = tuple(event for event in world.events if event.service == key)
    all_written = sum_up(world.events, "", began)
    notes = _notes(world, service)
    if world.next_eviction is not None:
        world.events.clear()
        deleted_at = world.evict()
        last = sum_up(world.events, key, began)
        moments.append(
            _moment(world, question, remaining, max(last.took_s, deleted_at - began), last)
        )
    return Prediction(
        question=question,
        origin=state.origin,
        assumed=assumptions(question, world, before.client_locations, pending.writes, len(runs)),
        pending=pending,
        before=before,
        after=after,
        written=written,
        all_written=all_written,
        events=events,
        began=began,
        stays=_stays(question, before, after),
        moments=tuple(moments),
        notes=notes,
        running=world.running,
        state=after_state,
        runs=tuple(runs),
    )


def _stays(question: WhatIfQuestion, before: Picture, after: Picture) -> Loads | None:
    """Returns the loads if the clients of lost zones continue elsewhere; ``None``: no zone is lost."""
    if not question.changes.zones_lost:
        return None
    local = after.policy == "Local"
    return loads(after.kinds, before.client_locations, question.clients, Fraction(1), local=local)


def _other_runs(
    state: ClusterState,
    question: WhatIfQuestion,
    written: Written,
    report: Callable[[str], None] | None,
) -> list[WhatIfRun]:
    """Runs the change in the other ways, unless they could not differ."""
    changes = question.changes
    if written.writes <= 1 and not changes.replicas and not changes.rollouts:
        return []
    delayed = (replace(_TOGETHER, delay_s=delay_s) for delay_s in _delays(state, question))
    return [_run(state, question, way, report) for way in (*WAYS[1:], *delayed)]


def _delays(state: ClusterState, question: WhatIfQuestion) -> list[float]:
    """Returns delays of a scale-down, up to ``_DELAY_MAX_S``, at which a ReplicaSet would delete
    Pods of different zones.

    It deletes younger Pods first, and treats ages between two powers of two of a nanosecond as
    equal.
    """
    surplus = sum(
        max(0, workload.replicas - replicas) for workload, replicas in question.changes.replicas
    )
    if not surplus or not state.read_at:
        return []
    selector = question.service.spec.selector or {}
    pods = [
        pod
        for pod in state.pods(question.service.metadata.namespace)
        if pod.is_active and selector.items() <= (pod.metadata.labels or {}).items()
    ]
    crowd = Counter(pod.spec.node_name for pod in pods)
    zones = state.zone_by_node
    delay_by_deletion: dict[frozenset[tuple[str, int]], float] = {}
    for early, late in pairwise([0.0, *_age_steps(pods, state.read_at), _DELAY_MAX_S]):
        delay_s = (early + late) / 2
        ranked = sorted(pods, key=partial(deletion_rank, crowd=crowd, now=state.read_at + delay_s))
        deleted = Counter(zones.get(pod.spec.node_name, "") for pod in ranked[:surplus])
        delay_by_deletion.setdefault(frozenset(deleted.items()), delay_s)
    return list(delay_by_deletion.values())[:_DELAYS_MAX]


def _age_steps(pods: Sequence[Pod], now: float) -> list[float]:
    """Returns the seconds from *now* at which an age of a Pod is a power of two in nanoseconds."""
    steps: set[float] = set()
    for pod in pods:
        ready = pod.condition("Ready")
        for text in (
            pod.metadata.creation_timestamp,
            ready.last_transition_time if ready else None,
        ):
            delays = (2.0**power / 1e9 - now + time_or_zero(text) for power in _AGE_POWERS)
            steps |= {delay_s for delay_s in delays if 0 < delay_s < _DELAY_MAX_S}
    return sorted(steps)[:_STEPS_MAX]


def _run(
    state: ClusterState, question: WhatIfQuestion, way: Way, report: Callable[[str], None] | None
) -> WhatIfRun:
    service = question.service
    world = WhatIfWorld(state, service, question.now, question.watchers, report=report, way=way)
    world.finish_pending()
    world.converge(world.cluster.now + way.delay_s)
    world.events.clear()
    began = world.cluster.now
    world.apply(question.changes)
    world.converge(world.next_eviction)
    written = sum_up(world.events, service.metadata.key, began)
    lost = question.changes.zones_lost
    return _run_of(
        picture(world, service, question.clients, others=question.watchers, lost=lost), written
    )


def _run_of(after: Picture, written: Written) -> WhatIfRun:
    return WhatIfRun(
        written,
        after.slices,
        after.ready,
        after.shares.leaving,
        after.shares.greatest[0],
        after.loads.used,
    )


def _moment(
    world: WhatIfWorld,
    question: WhatIfQuestion,
    remaining: Fraction,
    after_s: float,
    written: Written,
) -> Moment:
    lost = question.changes.zones_lost
    after = picture(
        world,
        question.service,
        question.clients,
        others=question.watchers,
        lost=lost,
        remaining=remaining,
    )
    failing = sum(
        (share for (_, zone), share in after.shares.flows.items() if zone in lost), Fraction(0)
    )
    return Moment(after_s, after, failing, written)


def _notes(world: WhatIfWorld, service: Service) -> tuple[str, ...]:
    """Returns the Events about the Service in order, without duplicates."""
    texts = [
        f"{note.reason}: {note.note}"
        for note in world.cluster.notes
        if note.regarding_resource is Services
        and note.regarding.metadata.key == service.metadata.key
    ]
    return tuple(dict.fromkeys(texts))


def sum_up(events: Sequence[SliceEvent], service: str, began: float) -> Written:
    """Sums up the writes of *service*; "" means all Services."""
    counted = [event for event in events if service in ("", event.service)]
    verbs = Counter(event.verb for event in counted)
    return Written(
        verbs["create"],
        verbs["update"],
        verbs["delete"],
        sum(event.watchers for event in counted),
        sum(event.json for event in counted),
        sum(event.protobuf for event in counted),
        max((event.at - began for event in counted), default=0.0),
    )
