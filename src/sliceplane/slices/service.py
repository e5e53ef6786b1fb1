"""One Service: its members, their endpoints for each address type, its slices, and the plan of a
sync.

Events change state at once, at a cost in proportion to the change. ``plan`` reads the state;
``finish`` takes the result of the plan's writes. Any event may arrive between the two calls,
including events that the plan's own writes cause: the state contains only what the server is known
to have (``SlicePacker``).

The engine plans on the newer of two versions of each slice: the informer's, and the server's answer
to our own write (``watch.controller.own_writes``). So no plan is made from a cache that lacks them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from sliceplane.api.core import Pod
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.selectors.adoption import AdoptionStage, Scope
from sliceplane.kit.ip import Family
from sliceplane.slices.adoption import STAGE_PROBLEMS
from sliceplane.slices.cluster import ClusterFacts, SliceSettings
from sliceplane.slices.content import Content, PortResolver, Stored, read_slice
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.members import SliceMembers
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.packing.packplan import Update, independent_part
from sliceplane.slices.packing.placement import ServiceSnapshot
from sliceplane.slices.removing.losses import ConfirmationQuery, RemovalVerdict
from sliceplane.slices.removing.review import RemovalReview
from sliceplane.slices.shape import ServiceShape
from sliceplane.slices.subsets import REASON_DISABLED, REASON_INVALID, Subsetting
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, HandOver, SelectorChanges
from sliceplane.slices.writes import (
    FamilyChanges,
    SlicePlan,
    SliceTotals,
    SliceWrite,
    TriggerTime,
    create_slice,
    delete_slice,
    delete_unowned,
    prove_slice,
    update_slice,
    written,
)
from sliceplane.watch.controller.own_writes import Observation, OwnWrites

#: deadline value: when the current plan has finished
IMMEDIATELY: Final = 0.0


class ServiceState:
    """The state of one Service. Owned by ``SliceEngine``, its only caller."""

    def __init__(self, key: str, cluster: ClusterFacts, settings: SliceSettings) -> None:
        self.key: Final = key
        self._cluster = cluster
        self._settings = settings
        self.removals: Final = RemovalReview(cluster, retain_by_default=settings.retain_by_default)
        #: used while the Service has no endpoints of ours
        self._hand_over = HandOver()
        self.shape: ServiceShape | None = None
        self.members: SliceMembers | None = None
        self._own: OwnWrites[Stored] = OwnWrites(key, cluster.pending, attrgetter("meta"))
        #: slices labelled as ours and not terminating, by name, whatever their owner
        self.slices: Final = self._own.objects
        #: slices to delete: not owned, or of an address type that the Service does not have
        self._to_delete: dict[str, Stored] = {}
        self._packers: dict[Family, SlicePacker] = {}
        #: the order in which address types are written; a failed one moves to the end
        self._order: list[Family] = []
        self._creates_last = False
        self._trigger = TriggerTime()
        #: contents of the slices after the updates of the current plan, by name
        self._writing: dict[str, Content] = {}
        #: net number of slices that the current plan adds
        self._slices_added = 0
        #: the current plan leaves writes to the next one
        self._has_more = False
        self._reported_stage = AdoptionStage.UPSTREAM
        #: the problem with the annotation for subsetting that was reported last
        self._reported_problem = ""

    @property
    def totals(self) -> SliceTotals:
        """Counts for metrics. Costs O(groups of ports)."""
        packers = self._packers.values()
        return SliceTotals(
            sum(packer.endpoints for packer in packers),
            len(self.slices) + (self._slices_added if self._own.in_flight else 0) if packers else 0,
            sum(max(packer.fewest_slices, 1) for packer in packers),
        )

    @property
    def is_writing(self) -> bool:
        return self._own.in_flight

    @property
    def empty(self) -> bool:
        """True if the state can be dropped: no Service, no slice and no write in flight."""
        return self.shape is None and not self._own

    # -- the service and its pods

    def set_shape(self, shape: ServiceShape | None, pods: Iterable[PodFacts]) -> None:
        """Replaces the shape after a change that requires all endpoints to be built anew. *pods*:
        the Pods that the Service selects now.
        """
        if self.shape is None or shape is None or self.shape.uid != shape.uid:
            self._trigger.restart()
        earlier = self.members
        if earlier is not None:
            self._cluster.burst.ready -= earlier.ready
        self.shape = shape
        self._hand_over = HandOver()
        self._packers = {}
        self._order = []
        self._to_delete = {}
        self.members = None
        if shape is None or not shape.active:
            return
        ports = PortResolver(shape.ports)
        self._order = list(shape.families)
        subsets = shape.subsetting is not Subsetting.OFF
        self._packers = {
            family: SlicePacker(ports, self._settings.max_endpoints, subsets=subsets)
            for family in shape.families
        }
        self.members = SliceMembers(
            shape, ports, self._packers, self._cluster, find=self._settings.find, earlier=earlier
        )
        self.members.begin(pods)
        for name in self.slices:
            self._file(name)

    def set_labels(self, shape: ServiceShape) -> None:
        """Replaces the shape after a change of labels, termination or annotations only."""
        earlier = self.shape
        self.shape = shape
        if self.members is not None and earlier is not None:
            if earlier.annotations != shape.annotations:
                self.members.set_annotations(shape)
            if replace(earlier, annotations=shape.annotations) == shape:
                return
        for packer in self._packers.values():
            packer.touch_all()

    # -- slices in the cache

    def on_slice(self, observed: EndpointSlice) -> bool:
        """Handles a slice of ours in the cache. Returns False if it contains nothing new."""
        meta = observed.metadata
        if meta.deletion_timestamp is not None:
            return self.on_slice_gone(meta.name, meta.uid)
        if self._own.on_observed(meta, partial(self._read, observed)) is not Observation.NEW:
            return False
        self._file(meta.name)
        return True

    def _read(self, observed: EndpointSlice) -> Stored:
        """Converts *observed*. The watch is often faster than the response to our own write, so the
        content of the current write is a good guess.
        """
        name = observed.metadata.name
        stored = self.slices.get(name)
        return read_slice(
            observed, self._writing.get(name), None if stored is None else stored.content
        )

    def on_slice_gone(self, name: str, uid: str) -> bool:
        """Handles a slice that left the cache, is terminating, or is no longer labelled as ours.
        Returns False if that was known.
        """
        was_owned = self._own.on_gone(name, uid)
        if was_owned:
            self._file(name)
        return was_owned

    def on_successor(self, observed: EndpointSlice) -> bool:
        """Handles a slice of another controller for this Service. Returns True if our slices of its
        address type may be deleted now.
        """
        if self.shape is None or self.shape.active or not self.slices or not observed.endpoints:
            return False
        if observed.metadata.deletion_timestamp is not None:
            return False
        return self._hand_over.on_successor(observed.address_type)

    def _file(self, name: str) -> None:
        """Updates the packers after a change of the slice *name*."""
        stored = self.slices.get(name)
        owner = None if stored is None else self._packer_for(stored)
        for packer in self._packers.values():
            if packer is not owner and name in packer.slices:
                packer.detach(name)
        self._to_delete.pop(name, None)
        if stored is not None and owner is not None:
            owner.attach(stored)
        elif stored is not None:
            self._to_delete[name] = stored

    def _packer_for(self, stored: Stored) -> SlicePacker | None:
        """Returns the packer of an owned slice; ``None`` for a slice to delete (not owned, or of
        another address type).
        """
        if self.shape is None or not self.shape.owns(stored.meta.owner_references):
            return None
        return next(
            (packer for family, packer in self._packers.items() if family == stored.address_type),
            None,
        )

    def _desired_content(self, stored: Stored) -> Content:
        """Returns the desired versions of the endpoints in a slice to delete, without undesired
        ones.
        """
        packers = (
            packer for family, packer in self._packers.items() if family == stored.address_type
        )
        return next((packer.desired_content(stored.content) for packer in packers), {})

    # -- plan and result

    def plan(self, now: float) -> SlicePlan:
        """Returns the writes that are due. If there are any, they are in flight until
        ``finish``.
        """
        assert not self._own.in_flight, f"{self.key} has a plan under way"
        for name in self._own.drop_expired(now):
            self._file(name)
        self._has_more = False
        if self.shape is None:
            return SlicePlan()
        if self._own.defer_plan():
            return SlicePlan(stale=True)
        if self.members is None:
            return self._plan_hand_over(self.shape, now)
        self._reported_stage = self.shape.stage
        self._trigger.note(self.members.take_trigger_time(), self.shape.created)
        removal_notices = self.removals.apply(self.members, self.shape, now)
        self.members.reconcile(now)
        writes: list[SliceWrite] = []
        families = [self._plan_family(self.shape, family, writes) for family in self._order]
        if self._to_delete:
            desired_content = self._desired_content if self._creates_last else None
            first, last = delete_unowned(self._to_delete, desired_content)
            writes = [*first, *writes, *last]
            self._has_more = self._has_more or bool(first)
        proofs = self._own.proofs(writes, prove_slice)
        if proofs:
            writes = proofs
            families = []
            self._has_more = True
        if not writes and self.shape.stage is AdoptionStage.ADOPTED:
            writes = self._leftovers(self.shape)
        self._own.in_flight = bool(writes)
        self._slices_added = 0
        self._writing = {write.name: write.content for write in writes if write.verb == "update"}
        for write in writes:
            self._slices_added += (write.verb == "create") - (write.verb == "delete")
        if not writes:
            self._trigger.written()
        return SlicePlan(
            tuple(writes),
            self.members.take_problems(),
            notices=(
                *removal_notices,
                *self._take_notices(self.shape, self.members.take_notices()),
            ),
            families=tuple(families),
            hint_problems=self.members.hint_problems,
            proof=bool(proofs),
        )

    def confirmation_query(self) -> ConfirmationQuery | None:
        """Returns the reads that must come before endpoints are removed."""
        if self.members is None or self.shape is None:
            return None
        return self.removals.confirmation_query(self.members, self.shape)

    def on_listed(
        self, pods: Mapping[str, Pod], nodes: Container[str], now: float
    ) -> RemovalVerdict:
        """Handles a fresh list of the Service's Pods, and of Nodes if they were requested."""
        if self.members is None:
            return RemovalVerdict()
        return self.removals.on_listed(self.members, pods, nodes, now)

    def _plan_hand_over(self, shape: ServiceShape, now: float) -> SlicePlan:
        """Plans deletions for a Service without a selector or of type ExternalName
        (``slices.succession``). Slices that the Service does not own belong to another writer,
        whatever their labels.
        """
        owned = [
            stored
            for _, stored in sorted(self.slices.items())
            if shape.owns(stored.meta.owner_references)
        ]
        if self._settings.scope is Scope.ADOPTED:
            return self._plan_return(shape, owned, now)
        if self._settings.selector_changes is SelectorChanges.UPSTREAM or not owned:
            return SlicePlan()
        return self._plan_obsolete(shape, owned, now)

    def _plan_obsolete(self, shape: ServiceShape, owned: list[Stored], now: float) -> SlicePlan:
        self._hand_over.advance(now, timeout_s=0.0 if shape.external else HAND_OVER_TIMEOUT_S)
        obsolete = [stored for stored in owned if self._hand_over.is_over(stored.address_type)]
        self._own.in_flight = bool(obsolete)
        self._slices_added = 0
        return SlicePlan(tuple(map(delete_slice, obsolete)))

    # -- adoption (``slices.adoption``)

    @property
    def minds_theirs(self) -> bool:
        """True if upstream's slices of this Service may require writes."""
        return self.members is not None or bool(self.slices)

    def _leftovers(self, shape: ServiceShape) -> list[SliceWrite]:
        """Returns deletions of upstream's slices of an adopted Service, which nobody keeps true.
        For use only if nothing else is to write, so that the server has all of ours.
        """
        return [
            SliceWrite.delete(observed.metadata, address_type=observed.address_type, content={})
            for observed in self._cluster.sets.theirs(self.key)
            if shape.owns(observed.metadata.owner_references)
        ]

    def _plan_return(self, shape: ServiceShape, owned: list[Stored], now: float) -> SlicePlan:
        """Plans deletions for a Service that is not adopted, or not any more. Our slices of an
        address type wait for upstream's to have their endpoints, for a limited time once there are
        any. Nothing is deleted for an invalid annotation, or while upstream has written nothing for
        a selector.
        """
        selects = (
            shape.stage in (AdoptionStage.UPSTREAM, AdoptionStage.CONFLICT) and not shape.external
        )
        theirs = self._cluster.sets.theirs(self.key)
        notices = self._stage_notices(shape.stage)
        if not owned or shape.stage is AdoptionStage.INVALID or (selects and not theirs):
            return SlicePlan(notices=notices)
        for address_type in {stored.address_type for stored in owned}:
            if self._cluster.sets.is_covered(self.key, address_type):
                self._hand_over.on_successor(address_type)
            else:
                self._hand_over.on_successor_gone(address_type)
        return replace(self._plan_obsolete(shape, owned, now), notices=notices)

    def _stage_notices(self, stage: AdoptionStage) -> tuple[Notice, ...]:
        """Returns the Event for a stage that needs a person, once for each time it begins."""
        if stage is self._reported_stage:
            return ()
        self._reported_stage = stage
        message = STAGE_PROBLEMS.get(stage)
        return () if message is None else (Notice(True, *message),)

    def snapshot(self, now: float) -> ServiceSnapshot | None:
        """Returns the desired endpoints and the slices, without a plan; ``None`` for no Service.
        Hints are reconciled as before a plan.
        """
        if self.shape is None:
            return None
        if self.members is not None:
            if self.members.losses:
                self.members.confirm_losses(tuple(self.members.losses.unconfirmed))
                self.members.retain_losses(0)
            self.members.reconcile(now)
            self.members.take_notices()
        desired = {family: packer.desired for family, packer in self._packers.items()}
        return ServiceSnapshot(self.shape, desired, self.slices)

    @property
    def surplus(self) -> int:
        """Number of slices that merging can save; 0 while other writes are due."""
        if self._own.in_flight or self._own.is_waiting or self._own.suspects or self._to_delete:
            return 0
        if self.shape is None or self.shape.terminating:
            return 0
        return sum(packer.surplus for packer in self._packers.values())

    def merge(self, max_writes: int, *, at_least_one: bool) -> SlicePlan:
        """Returns a plan that merges slices with at most *max_writes* (or one step). Like ``plan``;
        for use only if ``plan`` has no writes.
        """
        if self.shape is None or self._own.deadline() is not None or not self.surplus:
            return SlicePlan()
        updates: list[SliceWrite] = []
        deletes: list[SliceWrite] = []
        for family in self._order:
            writes_remaining = max_writes - len(updates) - len(deletes)
            plan = self._packers[family].merge(
                writes_remaining, at_least_one=at_least_one and not deletes
            )
            updates += [self._update(self.shape, planned) for planned in plan.updates]
            deletes += [delete_slice(planned.stored) for planned in plan.deletes]
        self._own.in_flight = bool(deletes)
        self._writing = {write.name: write.content for write in updates}
        self._slices_added = -len(deletes)
        return SlicePlan((*updates, *deletes), saves=len(deletes))

    def _plan_family(
        self, shape: ServiceShape, family: Family, writes: list[SliceWrite]
    ) -> FamilyChanges:
        """Plans creates before updates before deletes, so that an endpoint that moves is never
        missing.

        After a refused create the updates come first: a quota must not delay the report that a Pod
        is not ready. Updates that remove a moving endpoint then do only the rest of their work.
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
            parts = [
                part
                for planned in plan.dependents
                if (part := independent_part(planned, plan.moving)) is not None
            ]
            if parts:
                # The next plan adds the rest of their endpoints; until then no write may remove
                # these elsewhere.
                updates += [self._update(shape, part) for part in parts]
                dependents = []
                deletes = []
                self._has_more = True
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
        """Adds to *notices*, once, the reason for ignoring the subsetting annotation."""
        problem = shape.subsetting_problem
        if problem == self._reported_problem:
            return notices
        self._reported_problem = problem
        reason = REASON_DISABLED if shape.subsetting is Subsetting.OFF else REASON_INVALID
        return (*notices, Notice(True, reason, problem)) if problem else notices

    def deadline(self) -> float | None:
        """Returns the earliest of four times: an unobserved own write is given up, retained
        endpoints are reviewed, slices stop waiting for their successors, the next hints move.
        Returns ``IMMEDIATELY`` if the last plan postponed writes.
        """
        if self._has_more:
            return IMMEDIATELY
        hand_over = self._hand_over.deadline if self.slices else None
        hints = None if self.members is None else self.members.hint_deadline
        dues = (self._own.deadline(), hand_over, self.removals.deadline, hints)
        return min((due for due in dues if due is not None), default=None)

    def finish(
        self, plan: SlicePlan, answers: Sequence[bytes], error: StatusError | None, now: float
    ) -> None:
        """Takes the result of *plan*. *answers* are the responses to its first writes: the object,
        or anything for a delete. *error* is that of the next write, if it was refused or its
        outcome is unknown; later writes were not tried.
        """
        for write, answer in zip(plan.writes, answers, strict=False):
            name = self._own.succeeded(write, answer, partial(written, write), now)
            if name:
                self._file(name)
        if error is not None:
            self._failed(plan.writes[len(answers)], error)
        self._own.on_plan_ended()
        self._writing = {}
        if error is None and not plan.proof:
            self._trigger.written()
            self._creates_last = False

    def _failed(self, write: SliceWrite, error: StatusError) -> None:
        self._has_more = False  # the retry has its own time
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
        assert set(self._to_delete) == set(self.slices) - expected or self.members is None, (
            f"slices to delete of {self.key}"
        )
        assert owned == expected, (
            f"packers of {self.key} hold {sorted(owned)}, should {sorted(expected)}"
        )
