"""The nodes that a barrier waits for, and the check that all of them hold a goal.

**Required** are nodes that tell in a Lease that has not run out; those whose Lease ran out less
than ``forget_s`` ago (their kernels go on with the rules of then); and Nodes that are Ready and
tell nothing, or stopped telling longer ago: of these nothing can be known (another proxy serves
them, or none does), so they are **unknown**, and unknown is not done. Nodes that are not Ready and
silent for longer than ``forget_s`` send nothing that is to be waited for. Where that leaves no node
at all, nothing is proven, and all are unknown.

**Policy for the unknown**: ``wait`` for them until the time is over; ``fail`` at once; or let them
go ``after`` so many seconds, and say so.

A node whose cache is known to have lost an event holds no version, whatever it says.

**Other consumers** (views, name servers, ...) tell in the same way, and a goal that concerns them
waits for them as long as their Leases last: a client that ended sends nothing. They are no proof
that nodes were heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from sliceplane.api.core import Lease, Node
from sliceplane.api.meta import revision_of
from sliceplane.consume.drain.answer import NEVER_TOLD, DrainVerdict, Missing, State, Use
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    Place,
    ProgressReport,
    read_report,
)
from sliceplane.consume.selections import (
    EVERY,
    NAMESPACE_READING,
    SERVICE_READING,
    SHARED,
    needed,
    own_readings,
)
from sliceplane.kit.times import parse_duration, time_or_zero

#: a proxy that told nothing for so long after its Lease ran out was taken away, or its node is gone
FORGET_S: Final = 300.0
#: between two requests for reports on account of one Pod; a request is a write itself, which a goal
#: may follow
ASK_PERIOD_S: Final = 1.0
#: characters by which a client of a consumer is named
CLIENT_MAX: Final = 120

Policy = Literal["wait", "fail", "after"]


class UnknownPolicy(NamedTuple):
    kind: Policy = "wait"
    after_s: float = 0.0


def parse_policy(text: str) -> UnknownPolicy:
    """Reads ``wait``, ``fail`` or ``after=DURATION`` (``after=60s``).  Raises ``ValueError``."""
    match text.partition("="):
        case ("wait", "", ""):
            return UnknownPolicy("wait")
        case ("fail", "", ""):
            return UnknownPolicy("fail")
        case ("after", "=", duration):
            seconds = parse_duration(duration)
            if seconds is not None and not duration.startswith(("-", "+")):
                return UnknownPolicy("after", seconds)
    raise ValueError(f"{text!r} is none of wait, fail, after=60s")


class NodeHolding(NamedTuple):
    """``held``: what its kernel holds, as it told last; ``None``: it never told. ``until``: when
    its Lease runs out, on our clock. ``ready``: what its Node says; ``None``: there is no Node, or
    it may not be read.
    """

    name: str
    held: Mapping[Place, int] | None
    until: float
    ready: bool | None
    differs: bool = False
    #: what it is, if no node: a view, say
    kind: str = ""
    #: by reading: its client that is behind, and its client that is not waited for any more
    behind: Mapping[str, str] = MappingProxyType({})
    unacknowledged: Mapping[str, str] = MappingProxyType({})


class Proof(NamedTuple):
    """How the nodes stand to one goal. ``required``: all that count; ``unknown``: those of which
    nothing is known; ``others``: consumers that are no nodes and count, too; ``unacknowledged``:
    clients of these that did not acknowledge in time, and may go on sending.
    """

    required: int
    waiting: tuple[Missing, ...]
    unknown: tuple[Missing, ...]
    others: int = 0
    unacknowledged: tuple[Missing, ...] = ()


def compare(
    goal: Mapping[Place, int],
    nodes: Iterable[NodeHolding],
    now: float,
    *,
    forget_s: float = FORGET_S,
) -> Proof:
    """O(nodes)."""
    required = others = 0
    waiting: list[Missing] = []
    unknown: list[Missing] = []
    unacknowledged: list[Missing] = []
    for node in nodes:
        silent_s = now - node.until
        if node.kind:
            if node.held and silent_s <= 0 and any(needed(place, goal) for place in node.held):
                others += 1
                if not _holds(node, goal):
                    waiting.append(Missing(f"{node.kind} {node.name}", _clients_behind(node, goal)))
                unacknowledged += [
                    Missing(
                        f"{node.kind} {node.name}",
                        f"{client} did not acknowledge {_subject(reading)}",
                    )
                    for reading, client in node.unacknowledged.items()
                    if goal.get((EVERY[0], reading))
                ]
            continue
        if node.held is None or silent_s > forget_s:
            if node.ready:
                required += 1
                why = NEVER_TOLD if node.held is None else "its proxy stopped long ago"
                unknown.append(Missing(node.name, why))
            continue
        required += 1
        if _holds(node, goal):
            continue
        if node.differs:
            waiting.append(Missing(node.name, "its cache lost an event"))
        else:
            waiting.append(
                Missing(node.name, "its proxy stopped reporting" if silent_s > 0 else "")
            )
    if not required:
        unknown.append(Missing("every node", "none is Ready, and none tells anything"))
    return Proof(
        required,
        tuple(sorted(waiting)),
        tuple(sorted(unknown)),
        others,
        tuple(sorted(unacknowledged)),
    )


def _clients_behind(node: NodeHolding, goal: Mapping[Place, int]) -> str:
    """Names clients of a consumer that lack something of *goal*; "" if it is the consumer
    itself.
    """
    held = node.held or {}
    return ", ".join(
        f"{client} has not acknowledged {_subject(reading)}"
        for reading, client in node.behind.items()
        if held.get((EVERY[0], reading), 0) < needed((EVERY[0], reading), goal)
    )


def _subject(reading: str) -> str:
    """Returns the subject of a reading for people: a Service as ``namespace/name``."""
    if reading.startswith(NAMESPACE_READING):
        return f"Services of {reading.removeprefix(NAMESPACE_READING)}"
    return reading.removeprefix(SERVICE_READING)


def _holds(node: NodeHolding, goal: Mapping[Place, int]) -> bool:
    if node.differs or not node.held:
        return False
    if EVERY in node.held:  # one version for all that it reads
        return node.held[EVERY] >= max(
            (at for place, at in goal.items() if place[0] == EVERY[0]), default=0
        )
    return all(revision >= needed(place, goal) for place, revision in node.held.items())


def judge(
    uses: tuple[Use, ...],
    goal: Mapping[Place, int],
    proof: Proof,
    policy: UnknownPolicy,
    waited_s: float,
) -> DrainVerdict:
    """*waited_s*: since the barrier began."""
    revision = max(goal.values(), default=0)
    gives_up = policy.kind == "after" and waited_s >= policy.after_s
    unknown, let_go = ((), proof.unknown) if gives_up else (proof.unknown, ())
    state: State
    if uses:
        state = "used"
    elif proof.waiting:
        state = "waiting"
    else:
        state = "unknown" if unknown else "proven"
    waiting = () if uses else proof.waiting
    return DrainVerdict(
        state,
        uses,
        waiting,
        unknown,
        let_go,
        revision,
        proof.required,
        proof.others,
        proof.unacknowledged,
    )


class Nodes:
    """The reports in Leases and Nodes, by the key of the Lease. Owned by one reader of them.

    Clocks of machines differ: a Lease lives from the moment at which we saw it change, but for the
    first look, when its own word is taken.
    """

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._until: dict[str, float] = {}
        self._held: dict[str, dict[Place, int] | None] = {}
        self._names: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._ready: dict[str, bool] = {}
        #: by Node: what a proxy there reads by its labels, told or not
        self._own: dict[str, tuple[Place, ...]] = {}
        self._differs: frozenset[str] = frozenset()
        #: of the last report: clients that are behind, and those that are not waited for
        self._clients: dict[str, tuple[dict[str, str], dict[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def on_lease(self, old: Lease | None, new: Lease | None, now: float) -> None:
        subject = new or old
        assert subject is not None, "a change has an old or a new object"
        lease = subject.metadata.key
        kind = "" if new is None else (new.metadata.labels or {}).get(LABEL_COMPONENT, "")
        own = subject.metadata.namespace == LEASE_NAMESPACE
        if new is None or not kind or (kind == COMPONENT and not own):
            for kept in (
                self._leases,
                self._until,
                self._held,
                self._names,
                self._kinds,
                self._clients,
            ):
                kept.pop(lease, None)
            return
        duration_s = new.spec.lease_duration_seconds or LEASE_DURATION_S
        renewed = time_or_zero(new.spec.renew_time)
        known = self._leases.get(lease)
        self._leases[lease] = new
        self._until[lease] = duration_s + (min(renewed, now) if known is None else now)
        self._kinds[lease] = "" if kind == COMPONENT else kind
        report = read_report((new.metadata.annotations or {}).get(ANNOTATION_PROGRESS, ""))
        if report is not None:
            self._clients[lease] = _clients_of(report, new.metadata.namespace)
        told = _within(new.metadata.namespace, held_of(new))
        goes_back = (
            known is None or new.metadata.revision < known.metadata.revision
        )  # a server was restored
        self._held[lease] = told if told is None or goes_back else newest(self._held[lease], told)
        owner = next(
            (owner.name for owner in new.metadata.owner_references or () if owner.kind == "Node"),
            "",
        )
        self._names[lease] = (
            owner or new.spec.holder_identity or new.metadata.name.removeprefix(LEASE_PREFIX)
        )

    def on_report(self, lease: str, report: ProgressReport) -> bool:
        """The same, told otherwise than by the Lease.  False: that is not there, and nobody is
        known by it.
        """
        if lease not in self._leases:
            return False
        self._clients[lease] = _clients_of(report, lease.partition("/")[0])
        told = _within(lease.partition("/")[0], places_of(report))
        self._held[lease] = newest(self._held[lease], told or {})
        return True

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._ready[new.metadata.name] = new.is_ready
            self._own[new.metadata.name] = tuple(
                (EVERY[0], reading) for reading in own_readings(new)
            )
        elif old is not None:
            self._ready.pop(old.metadata.name, None)
            self._own.pop(old.metadata.name, None)

    def on_differing(self, nodes: frozenset[str]) -> None:
        """Keys of Leases of nodes whose caches lost an event."""
        self._differs = nodes

    def facts(self) -> list[NodeHolding]:
        told = {name for lease, name in self._names.items() if not self._kinds[lease]}
        facts = [
            NodeHolding(
                name,
                self._held_on(lease),
                self._until[lease],
                ready,
                lease in self._differs,
                self._kinds[lease],
                *self._clients.get(lease, ()),
            )
            for lease, name in self._names.items()
            for ready in (None if self._kinds[lease] else self._ready.get(name),)
        ]
        return facts + [
            NodeHolding(name, None, 0.0, ready)
            for name, ready in self._ready.items()
            if name not in told
        ]

    def _held_on(self, lease: str) -> Mapping[Place, int] | None:
        """A Node that was given another zone may be read for already: of what was not told yet
        nothing is held.
        """
        held = self._held[lease]
        if not held or self._kinds[lease] or (EVERY[0], SHARED) not in held:
            return held
        missing = [place for place in self._own.get(self._names[lease], ()) if place not in held]
        return {**held, **dict.fromkeys(missing, 0)} if missing else held


def _within(namespace: str, told: dict[Place, int] | None) -> dict[Place, int] | None:
    """Returns the part of a report that its writer may make: writers of Leases in a namespace speak
    only for readers of that namespace's Services.
    """
    if namespace == LEASE_NAMESPACE or told is None:
        return told
    own = f"{SERVICE_READING}{namespace}/"
    return {place: revision for place, revision in told.items() if place[1].startswith(own)}


def held_of(lease: Lease) -> dict[Place, int] | None:
    """A proxy of an older release tells one version for all that it reads."""
    annotations = lease.metadata.annotations or {}
    report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
    if report is not None:
        return places_of(report)
    revision = revision_of(annotations.get(ANNOTATION_REVISION, ""))
    return {EVERY: revision} if revision else None


def places_of(report: ProgressReport) -> dict[Place, int]:
    return report.revisions()


def _clients_of(report: ProgressReport, namespace: str) -> tuple[dict[str, str], dict[str, str]]:
    """Clients that are behind, and that are not waited for; as ``_within``, and as a person may
    read them.
    """
    own = "" if namespace == LEASE_NAMESPACE else f"{SERVICE_READING}{namespace}/"
    found = {reading: lag.client for reading, lag in report.behind.items()}, report.unacknowledged
    behind, unacknowledged = (
        {
            reading: _printable(client)
            for reading, client in clients.items()
            if reading.startswith(own)
        }
        for clients in found
    )
    return behind, unacknowledged


def _printable(text: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text[:CLIENT_MAX])


def newest(known: Mapping[Place, int] | None, told: dict[Place, int]) -> dict[Place, int]:
    """Two ways lead here, and either may be late: readings as *told*, versions the greater.

    A report that is late says nothing of clients that have fallen behind since: they are behind as
    they were known.
    """
    known = known or {}
    found = {place: max(revision, known.get(place, 0)) for place, revision in told.items()}
    if any(revision < known.get(place, 0) for place, revision in told.items()):
        for place, revision in known.items():
            if place[1].startswith((SERVICE_READING, NAMESPACE_READING)):
                found.setdefault(place, revision)
    return found
