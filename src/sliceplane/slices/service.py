"""One service: its members, their endpoints in each address type, its slices, and the plan of a
sync.

Events change state at once and cost what they change. ``plan`` reads it; ``finish`` tells how the
plan's writes went. Between the two calls events may come in as they like, even those that the
plan's own writes cause: the state holds only what the server is *known* to hold (``SlicePacker``).

What the server holds is the newer of what the cache shows and what it answered to our own writes
(``api.own_writes``), so no plan is made on a cache that has not seen them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from sliceplane.api.core import Pod
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.own_writes import OwnWrites, Shown, Unseen
from sliceplane.kit.ip import Family
from sliceplane.slices.content import Content, PortResolver, Stored, read_slice
from sliceplane.slices.facts import NodeFacts, PodFacts
from sliceplane.slices.guard import (
    REASON_EXPIRED,
    REASON_HELD,
    REASON_REFUTED,
    Losses,
    ServiceGuard,
    Storm,
)
from sliceplane.slices.heuristics.asking import Find
from sliceplane.slices.hint_policy import Notice
from sliceplane.slices.members import SliceMembers
from sliceplane.slices.packer import Desired, SlicePacker
from sliceplane.slices.packplan import Update, hold_back
from sliceplane.slices.removal_doubt import NAMESPACE_S, RemovalQuestion, RemovalVerdict, bears_out
from sliceplane.slices.shape import ServiceShape
from sliceplane.slices.subsets import REASON_DISABLED, REASON_INVALID, NodeZones, Subsetting
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges
from sliceplane.slices.topology import ZoneShares
from sliceplane.slices.writes import (
    FamilyChanges,
    SlicePlan,
    SliceWrite,
    TriggerTime,
    create_slice,
    delete_slice,
    leaving,
    prove_slice,
    update_slice,
    written,
)

_WARNINGS: Final = (REASON_HELD, REASON_EXPIRED, REASON_REFUTED)
#: a Namespace -> what it asks for, and when that was read
HoldingNamespaces = Mapping[str, tuple[bool | None, float]]
#: a deadline: as soon as the plan that is under way has ended
AT_ONCE: Final = 0.0


class SliceTotals(NamedTuple):
    """For metrics: endpoints desired, slices that exist once a plan under way was carried out, the
    fewest possible.
    """

    endpoints: int = 0
    slices: int = 0
    fewest_slices: int = 0


class Sight(NamedTuple):
    """A service as a reader sees it that only compares: what is desired, and the slices that there
    are.

    Views of the engine's own state: good until its next event.

    ``desired``: by address type, in the order in which the service has them, and by name of the
    pod; an entry without ``identity`` is no endpoint. Empty for a service whose endpoints are not
    ours to make. ``slices``: those labelled as ours and not on their way out, by name, of any
    address type, owned or not.
    """

    shape: ServiceShape
    desired: Mapping[Family, Mapping[str, Desired]]
    slices: Mapping[str, Stored]


class ServiceState:
    """Owned by ``SliceEngine``, which alone calls it.  ``nodes``, the two of zones and ``unseen``
    are the engine's.
    """

    def __init__(
        self,
        key: str,
        nodes: Mapping[str, NodeFacts],
        zones: ZoneShares,
        node_zones: NodeZones,
        max_endpoints: int,
        *,
        unseen: Unseen,
        find: Find,
        changes: SelectorChanges,
        storm: Storm,
        holds: bool,
        spaces: HoldingNamespaces,
    ) -> None:
        self.key: Final = key
        self._nodes = nodes
        self._zones = zones
        self._node_zones = node_zones
        self._find = find
        self._max = max_endpoints
        self._changes = changes
        self._storm = storm
        self._holds = holds
        self._spaces = spaces
        self.guard: Final = ServiceGuard()
        #: when the guard has to be asked again
        self._guard_at: float | None = None
        #: address types of which another controller has endpoints, noted while the service makes
        #: none itself
        self._covered: set[str] = set()
        self._hold_until: float | None = None
        #: at the last plan that time had not come
        self._held = False
        self.shape: ServiceShape | None = None
        self.members: SliceMembers | None = None
        self._own: OwnWrites[Stored] = OwnWrites(key, unseen, attrgetter("meta"))
        #: slices labelled as ours and not on their way out, by name, whatever their owner
        self.slices: Final = self._own.objects
        #: those among them that have to go: not owned, or of an address type that the service does
        #: not have
        self._doomed: dict[str, Stored] = {}
        self._packers: dict[Family, SlicePacker] = {}
        #: the order in which address types are written; one that failed goes last
        self._order: list[Family] = []
        self._creates_last = False
        self._trigger = TriggerTime()
        #: what the updates of the plan under way leave in their slices, by name
        self._writing: dict[str, Content] = {}
        #: by how many slices there are more once the plan under way is carried out
        self._made = 0
        #: the plan under way leaves something to the next one
        self._again = False
        #: the problem with the annotation for subsetting that was told last
        self._told = ""

    @property
    def totals(self) -> SliceTotals:
        """Costs O(groups of ports)."""
        packers = self._packers.values()
        return SliceTotals(
            sum(packer.endpoints for packer in packers),
            len(self.slices) + (self._made if self._own.in_flight else 0) if packers else 0,
            sum(max(packer.fewest_slices, 1) for packer in packers),
        )

    @property
    def empty(self) -> bool:
        """Nothing is left to know: no service, no slice, no write under way."""
        return self.shape is None and not self._own

    # -- the service and its pods

    def set_shape(self, shape: ServiceShape | None, pods: Iterable[PodFacts]) -> None:
        """The service changed so that all endpoints are made anew.  *pods*: those that it selects
        now.
        """
        if self.shape is None or shape is None or self.shape.uid != shape.uid:
            self._trigger.restart()
        earlier = self.members
        if earlier is not None:
            self._storm.ready -= earlier.ready
        self.shape = shape
        self._covered.clear()
        self._hold_until = None
        self._held = False
        self._packers = {}
        self._order = []
        self._doomed = {}
        self.members = None
        if shape is None or not shape.active:
            return
        ports = PortResolver(shape.ports)
        self._order = list(shape.families)
        subsets = shape.subsetting is not Subsetting.OFF
        self._packers = {
            family: SlicePacker(ports, self._max, subsets=subsets) for family in shape.families
        }
        self.members = SliceMembers(
            *(shape, ports, self._packers, self._nodes),
            zones=self._zones,
            node_zones=self._node_zones,
            find=self._find,
            storm=self._storm,
            earlier=earlier,
        )
        self.members.begin(pods)
        for name in self.slices:
            self._file(name)

    def set_labels(self, shape: ServiceShape) -> None:
        """The service changed in labels or termination only."""
        self.shape = shape
        for packer in self._packers.values():
            packer.touch_all()

    # -- what the cache shows

    def on_slice(self, observed: EndpointSlice) -> bool:
        """A slice of ours is there.  False: that tells nothing new."""
        meta = observed.metadata
        if meta.deletion_timestamp is not None:
            return self.on_slice_gone(meta.name, meta.uid)
        if self._own.on_shown(meta, partial(self._read, observed)) is not Shown.NEW:
            return False
        self._file(meta.name)
        return True

    def _read(self, observed: EndpointSlice) -> Stored:
        """The watch is often faster than the answer to our own write: what is being written is
        likely to be there.
        """
        name = observed.metadata.name
        known = self.slices.get(name)
        return read_slice(
            observed, self._writing.get(name), None if known is None else known.content
        )

    def on_slice_gone(self, name: str, uid: str) -> bool:
        """The cache lost a slice, or it is on its way out, or not labelled as ours any more.
        False: that was known.
        """
        was_known = self._own.on_gone(name, uid)
        if was_known:
            self._file(name)
        return was_known

    def on_successor(self, observed: EndpointSlice) -> bool:
        """A slice of another controller names this service.  True: ours of its address type
        may go.
        """
        if self.shape is None or self.shape.active or not self.slices or not observed.endpoints:
            return False
        if (
            observed.metadata.deletion_timestamp is not None
            or observed.address_type in self._covered
        ):
            return False
        self._covered.add(observed.address_type)
        return True

    def _file(self, name: str) -> None:
        """Something else is known of the slice *name*: the packers follow."""
        stored = self.slices.get(name)
        owner = None if stored is None else self._packer_for(stored)
        for packer in self._packers.values():
            if packer is not owner and name in packer.slices:
                packer.detach(name)
        self._doomed.pop(name, None)
        if stored is not None and owner is not None:
            owner.attach(stored)
        elif stored is not None:
            self._doomed[name] = stored

    def _packer_for(self, stored: Stored) -> SlicePacker | None:
        """The packer of an owned slice; ``None`` for one that has to go (not owned, or of another
        address type).
        """
        if self.shape is None or not self.shape.owns(stored.meta.owner_references):
            return None
        return next(
            (packer for family, packer in self._packers.items() if family == stored.address_type),
            None,
        )

    def _wanted_of(self, stored: Stored) -> Content:
        packers = (
            packer for family, packer in self._packers.items() if family == stored.address_type
        )
        return next((packer.wanted_of(stored.content) for packer in packers), {})

    # -- plan and result

    def plan(self, now: float) -> SlicePlan:
        """The writes that are due; ``in_flight`` until their end is told, if there are any."""
        assert not self._own.in_flight, f"{self.key} has a plan under way"
        for name in self._own.give_up(now):
            self._file(name)
        self._again = False
        if self.shape is None:
            return SlicePlan()
        if self._own.wait_once():
            return SlicePlan(stale=True)
        if self.members is None:
            return self._plan_farewell(self.shape, now)
        self._trigger.note(self.members.take_trigger_time(), self.shape.created)
        guarded = self._guard(self.members, self.shape, now)
        self.members.settle(now)
        writes: list[SliceWrite] = []
        families = [self._plan_family(self.shape, family, writes) for family in self._order]
        if self._doomed:
            first, last = leaving(self._doomed, self._wanted_of if self._creates_last else None)
            writes, self._again = [*first, *writes, *last], self._again or bool(first)
        proofs = self._own.proofs(writes, prove_slice)
        if proofs:
            writes, families, self._again = proofs, [], True
        self._own.in_flight = bool(writes)
        self._made = 0
        self._writing = {write.name: write.content for write in writes if write.verb == "update"}
        for write in writes:
            self._made += (write.verb == "create") - (write.verb == "delete")
        if not writes:
            self._trigger.written()
        return SlicePlan(
            tuple(writes),
            self.members.take_problems(),
            notices=(*guarded, *self._take_notices(self.shape, self.members.take_notices())),
            families=tuple(families),
            hint_problems=self.members.hint_problems,
            proof=bool(proofs),
        )

    def _guard(self, members: SliceMembers, shape: ServiceShape, now: float) -> tuple[Notice, ...]:
        """Removals that no Pod told stay until they are confirmed, are then held, or are what they
        seem.
        """
        guard = self.guard
        if not (members.doubted or members.missed or guard.hold is not None or guard.news):
            guard.rest(members.ready, now)
            self._guard_at = None
            return ()
        storm = bool(members.doubted or members.missed) and self._storm.blows(now)
        unknown = members.may_be_missed and self._asks_namespace(shape, now)
        if not guard.doubts(len(members.doubted), members.ready, now, storm=storm, unknown=unknown):
            members.believe(tuple(members.doubted))
        # As the Service says; else its Namespace, as far as that was read; else the flag.
        said = (
            shape.holds
            if shape.holds is not None
            else self._spaces.get(shape.namespace, (None, 0.0))[0]
        )
        losses = Losses(
            ready=members.ready,
            missed=len(members.missed),
            asks=self._holds if said is None else said,
            released_at=shape.released_at,
            storm=storm,
        )
        keep = guard.weigh(losses, now)
        if members.missed or members.doubted:
            members.hold(keep)
        self._guard_at = guard.deadline(now)
        news, guard.news = guard.news, []
        return tuple(Notice(reason in _WARNINGS, reason, text) for reason, text in news)

    def _asks_namespace(self, shape: ServiceShape, now: float) -> bool:
        if shape.holds is not None:
            return False
        known = self._spaces.get(shape.namespace)
        return known is None or now >= known[1] + NAMESPACE_S

    def question(self) -> RemovalQuestion | None:
        """What is to be read before endpoints go."""
        members, shape, doubt = self.members, self.shape, self.guard.doubt
        if members is None or shape is None or not members.doubted or doubt.due is None:
            return None
        return RemovalQuestion(
            due=doubt.due,
            pods=doubt.asks_pods,
            nodes=doubt.asks_pods and members.lacks_nodes,
            namespace=members.may_be_missed and self._asks_namespace(shape, doubt.due),
        )

    def on_listed(
        self, pods: Mapping[str, Pod], nodes: Container[str], now: float
    ) -> RemovalVerdict:
        """A fresh list of its Pods, and of Nodes if they were asked for."""
        members = self.members
        if members is None or not members.doubted:
            return RemovalVerdict()
        without_node = {
            name
            for name, lost in members.doubted.items()
            if name in members and lost.node_name not in self._nodes
        }
        confirmed = [
            name
            for name, lost in members.doubted.items()
            if (name in without_node and lost.node_name not in nodes)
            or bears_out(lost, pods.get(name))
        ]
        members.believe(confirmed)
        refuted = len(members.doubted)
        relist = self.guard.doubt.on_answer(refuted, now)
        if relist and self.guard.doubt.first_proof:
            text = (
                f"{refuted} endpoints stay: their Pods are ready, though a watch or a list said "
                "otherwise"
            )
            self.guard.news.append((REASON_REFUTED, text))
        return RemovalVerdict(
            confirmed=len(confirmed),
            refuted=refuted,
            relist_pods=relist and not members.doubted.keys() <= without_node,
            relist_nodes=relist and not members.doubted.keys().isdisjoint(without_node),
        )

    def _plan_farewell(self, shape: ServiceShape, now: float) -> SlicePlan:
        """The service has no selector any more, or is a name elsewhere; see ``slices.succession``.

        What the service does not own another writer made, whatever its labels say.
        """
        owned = [
            stored
            for _, stored in sorted(self.slices.items())
            if shape.owns(stored.meta.owner_references)
        ]
        if self._changes is SelectorChanges.UPSTREAM or not owned:
            return SlicePlan()
        if self._hold_until is None:
            self._hold_until = now if shape.external else now + HAND_OVER_TIMEOUT_S
        self._held = now < self._hold_until
        going = [
            stored for stored in owned if not self._held or stored.address_type in self._covered
        ]
        self._own.in_flight = bool(going)
        self._made = 0
        return SlicePlan(tuple(map(delete_slice, going)))

    def look(self, now: float) -> Sight | None:
        """What is desired and what there is, without a plan; ``None`` for no service. Hints are
        settled as before a plan.
        """
        if self.shape is None:
            return None
        if self.members is not None:
            if self.members.doubted or self.members.missed:
                self.members.believe(tuple(self.members.doubted))
                self.members.hold(0)
            self.members.settle(now)
            self.members.take_notices()
        desired = {family: packer.desired for family, packer in self._packers.items()}
        return Sight(self.shape, desired, self.slices)

    @property
    def surplus(self) -> int:
        """How many slices merging can save; 0 while there is something to plan."""
        if self._own.in_flight or self._own.waits or self._own.suspects or self._doomed:
            return 0
        if self.shape is None or self.shape.terminating:
            return 0
        return sum(packer.surplus for packer in self._packers.values())

    def merge(self, max_writes: int, *, at_least_one: bool) -> SlicePlan:
        """Merge slices with at most *max_writes* (or one step); like ``plan``, and only where that
        finds nothing.
        """
        if self.shape is None or self._own.deadline() is not None or not self.surplus:
            return SlicePlan()
        updates: list[SliceWrite] = []
        deletes: list[SliceWrite] = []
        for family in self._order:
            left = max_writes - len(updates) - len(deletes)
            plan = self._packers[family].merge(left, at_least_one=at_least_one and not deletes)
            updates += [self._update(self.shape, planned) for planned in plan.updates]
            deletes += [delete_slice(planned.stored) for planned in plan.deletes]
        self._own.in_flight = bool(deletes)
        self._writing = {write.name: write.content for write in updates}
        self._made = -len(deletes)
        return SlicePlan((*updates, *deletes), saves=len(deletes))

    def _plan_family(
        self, shape: ServiceShape, family: Family, writes: list[SliceWrite]
    ) -> FamilyChanges:
        """Creates before updates before deletes, so that an endpoint that moves is never missing.

        After a refused create the updates go first: a quota must not hold back that a pod is not
        ready. Those that take out an endpoint which is to move do only the rest of their work then.
        """
        plan = self._packers[family].plan(shape.labels)
        creates = [
            create_slice(shape, family, planned.group, planned.content, self._trigger.since)
            for planned in plan.creates
        ]
        updates = [self._update(shape, planned) for planned in plan.updates]
        dependents = (
            [self._update(shape, planned) for planned in plan.dependents] if plan.dependents else []
        )
        deletes = [delete_slice(planned.stored) for planned in plan.deletes]
        if self._creates_last and dependents:
            held = [
                part
                for planned in plan.dependents
                if (part := hold_back(planned, plan.moving)) is not None
            ]
            if held:
                # What they were to add is added by the next plan, and until then nothing may take
                # it out elsewhere.
                updates += [self._update(shape, part) for part in held]
                dependents = []
                deletes = []
                self._again = True
        if shape.terminating and creates:
            creates = []
            dependents = []
        writes += [*updates, *creates] if self._creates_last else [*creates, *updates]
        writes += [*dependents, *deletes]
        return FamilyChanges(
            plan.added, plan.removed, len(creates) + len(updates) + len(dependents) + len(deletes)
        )

    def _update(self, shape: ServiceShape, update: Update) -> SliceWrite:
        return update_slice(
            shape, update.slice.stored, update.group, update.content, self._trigger.since
        )

    def _take_notices(self, shape: ServiceShape, notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
        """*notices*, and why the annotation for subsetting is not followed; told once."""
        problem = shape.subsetting_problem
        if problem == self._told:
            return notices
        self._told = problem
        reason = REASON_DISABLED if shape.subsetting is Subsetting.OFF else REASON_INVALID
        return (*notices, Notice(True, reason, problem)) if problem else notices

    def deadline(self) -> float | None:
        """When an own write that the cache never showed is given up, or slices wait no more for
        their successors; ``AT_ONCE`` for what the last plan left.
        """
        if self._again:
            return AT_ONCE
        waiting = self._hold_until if self._held and self.slices else None
        return min(
            (due for due in (self._own.deadline(), waiting, self._guard_at) if due is not None),
            default=None,
        )

    def finish(
        self, plan: SlicePlan, answers: Sequence[bytes], error: StatusError | None, now: float
    ) -> None:
        """*answers* are those to the first writes of *plan* (the object; anything, for a delete);
        *error* is the next one's, if one was refused or its end is not known: later ones were not
        tried.
        """
        for write, answer in zip(plan.writes, answers, strict=False):
            name = self._own.succeeded(write, answer, partial(written, write), now)
            if name:
                self._file(name)
        if error is not None:
            self._failed(plan.writes[len(answers)], error)
        self._own.ended()
        self._writing = {}
        if error is None and not plan.proof:
            self._trigger.written()
            self._creates_last = False

    def _failed(self, write: SliceWrite, error: StatusError) -> None:
        self._again = False  # the retry has its own time
        self._creates_last |= write.verb == "create"
        if self._own.failed(write, error):
            self._file(write.name)
        if write.address_type in self._order:
            family = next(listed for listed in self._order if listed == write.address_type)
            self._order.remove(family)
            self._order.append(family)

    # -- invariants

    def check(self) -> None:
        self._own.check()
        for packer in self._packers.values():
            packer.check()
        if self.members is not None:
            self.members.check()
        owned = {name for packer in self._packers.values() for name in packer.slices}
        expected = {
            name for name, stored in self.slices.items() if self._packer_for(stored) is not None
        }
        assert set(self._doomed) == set(self.slices) - expected or self.members is None, (
            f"doomed of {self.key}"
        )
        assert owned == expected, (
            f"packers of {self.key} hold {sorted(owned)}, should {sorted(expected)}"
        )
