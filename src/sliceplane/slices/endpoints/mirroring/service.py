"""One Endpoints object and its mirror: the slices that must exist, those that do, and the writes
between the two.

Each family and set of ports has one slice, or several if slices are limited (``packing``); a slice
is written whole if anything in it differs. A slice that would be deleted is reused if another of
its address type is created.

When the Service gains a selector, its slices become the task of the EndpointSlice controller. Our
slices stay until that controller has made its own, type by type, or until the wait is over: traffic
always has a destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.api.codec import decode
from sliceplane.api.core import Endpoints
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.slices.endpoints.mirroring.desired import (
    ADDRESSES_PER_SUBSET_MAX,
    GroupKey,
    Mirror,
    MirrorGroup,
    SliceMeta,
    group_key,
    mirror_of,
    slice_meta,
)
from sliceplane.slices.endpoints.mirroring.packing import arrange_in_one, arrange_packed
from sliceplane.slices.endpoints.mirroring.writes import (
    MirrorPlan,
    MirrorSizes,
    create_slice,
    prove_slice,
    update_slice,
)
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.succession import HandOver
from sliceplane.watch.controller.own_writes import (
    Observation,
    OwnWrites,
    PendingWrites,
    PlannedWrite,
)


class MirrorLimits(NamedTuple):
    """Limits: addresses that are mirrored of one subset, and endpoints in one slice (``None``:
    unlimited).
    """

    per_subset: int = ADDRESSES_PER_SUBSET_MAX
    per_slice: int | None = None


class MirrorState:
    """The state of one Endpoints object. Owned by ``MirrorEngine``, its only caller."""

    __slots__ = (
        "_hand_over",
        "_own",
        "_reported",
        "counts",
        "endpoints",
        "key",
        "selecting",
    )

    def __init__(self, key: str, selecting: bool | None, pending: PendingWrites) -> None:
        self.key: Final = key
        #: the object, if no metadata of it forbids mirroring
        self.endpoints: Endpoints | None = None
        #: True if the Service has a selector; ``None`` without a Service
        self.selecting = selecting
        #: desired endpoints and slices, as last planned
        self.counts = (0, 0)
        #: our slices that are not terminating; they share the cache's objects, so they cost little
        self._own: OwnWrites[EndpointSlice] = OwnWrites(key, pending, attrgetter("metadata"))
        #: the hand-over to the EndpointSlice controller
        self._hand_over = HandOver()
        #: the version of the object whose warnings were reported
        self._reported = ""

    @property
    def empty(self) -> bool:
        """True if the state can be dropped: no object that may be mirrored, no slice, no write in
        flight.
        """
        return self.endpoints is None and not self._own

    @property
    def slices(self) -> int:
        return len(self._own.objects)

    @property
    def _is_mirrored(self) -> bool:
        return self.endpoints is not None and self.selecting is False

    # -- events

    def set_selecting(self, selecting: bool | None) -> None:
        self.selecting = selecting
        self._hand_over.restart()

    def on_slice(self, observed: EndpointSlice) -> bool:
        """Handles a slice of ours in the cache. Returns False if it contains nothing new."""
        meta = observed.metadata
        if meta.deletion_timestamp is not None:
            return self.on_slice_gone(meta.name, meta.uid)
        observation = self._own.on_observed(meta, lambda: observed)
        if observation is Observation.ECHO:
            self._own.keep(observed)  # shares the cache's object
        return observation is Observation.NEW

    def on_slice_gone(self, name: str, uid: str) -> bool:
        """Handles a slice that left the cache, is terminating, or is no longer labelled as ours.
        Returns False if that was known.
        """
        return self._own.on_gone(name, uid)

    def on_successor(self, address_type: str, *, exists: bool) -> bool:
        """Handles a slice of the EndpointSlice controller: added (*exists*) or removed. Returns
        True if our slices may be deleted now.
        """
        if not exists:
            self._hand_over.on_successor_gone(address_type)
            return False
        return self._hand_over.on_successor(address_type) and self.selecting is True

    # -- plan and result

    def plan(self, now: float, limits: MirrorLimits, *, hand_over: bool) -> MirrorPlan:
        """Returns the writes that are due. If there are any, they are in flight until
        ``finish``.
        """
        assert not self._own.in_flight, f"{self.key} has a plan under way"
        self._own.drop_expired(now)
        if self._own.defer_plan():
            return MirrorPlan(stale=True)
        plan = (
            self._mirror(self.endpoints, limits)
            if self._is_mirrored
            else self._plan_deletes(now, hand_over=hand_over)
        )
        proofs = self._own.proofs(plan.writes, prove_slice)
        if proofs:
            plan = replace(plan, writes=tuple(proofs), sizes=None, proof=True)
        self._own.in_flight = bool(plan.writes)
        return plan

    def _plan_deletes(self, now: float, *, hand_over: bool) -> MirrorPlan:
        """Plans deletions: nothing must be mirrored."""
        self.counts = (0, 0)
        obsolete = [stored for _, stored in sorted(self._own.objects.items())]
        if hand_over and self.selecting and obsolete:
            self._hand_over.advance(now)
            obsolete = [
                stored for stored in obsolete if self._hand_over.is_over(stored.address_type)
            ]
        return MirrorPlan(
            tuple(PlannedWrite.delete(stored.metadata) for stored in obsolete), counted=False
        )

    def _mirror(self, endpoints: Endpoints | None, limits: MirrorLimits) -> MirrorPlan:
        assert endpoints is not None, f"{self.key}: nothing to mirror"
        mirror = mirror_of(endpoints, limits.per_subset)
        writes, sizes = self._differences(endpoints, mirror, limits.per_slice)
        notices = _notices(mirror, limits.per_subset)
        if self._reported == endpoints.metadata.resource_version:
            notices = ()
        self._reported = endpoints.metadata.resource_version
        return MirrorPlan(writes, notices, sizes)

    def _differences(
        self, endpoints: Endpoints, mirror: Mirror, per_slice: int | None
    ) -> tuple[tuple[PlannedWrite, ...], MirrorSizes]:
        desired_meta = slice_meta(endpoints)
        stored_by_group: dict[GroupKey, list[EndpointSlice]] = {}
        for _, mirrored in sorted(self._own.objects.items()):
            stored_by_group.setdefault(group_key(mirrored), []).append(mirrored)
        creates: list[MirrorGroup] = []
        updates: list[PlannedWrite] = []
        last: list[PlannedWrite] = []
        spare: list[EndpointSlice] = []
        added = 0
        updated = 0
        removed = 0
        slices = 0
        for group in mirror.groups:
            existing = stored_by_group.pop((group.address_type, group.ports), [])
            arrangement = (
                arrange_in_one(group, existing, desired_meta)
                if per_slice is None
                else arrange_packed(group, existing, desired_meta, per_slice)
            )
            creates += arrangement.new
            spare += arrangement.spare
            slices += len(arrangement.kept) + len(arrangement.new)
            added += sum(len(group.content) for group in arrangement.new)
            for kept in arrangement.kept:
                before = kept.content
                after = kept.group.content
                if kept.changed:
                    (last if kept.loses_endpoints else updates).append(
                        update_slice(kept.stored, desired_meta, kept.group)
                    )
                added += len(after.keys() - before.keys())
                removed += len(before.keys() - after.keys())
                updated += sum(
                    before.get(identity, text) != text for identity, text in after.items()
                )
        for unused in stored_by_group.values():
            spare += unused
        removed += sum(len(stored.endpoints or ()) for stored in spare)
        self.counts = (mirror.endpoints, slices)
        writes = self._recycle(
            endpoints, desired_meta, creates, updates=updates, last=last, spare=spare
        )
        return writes, MirrorSizes(added, updated, removed, mirror.skipped)

    def _recycle(
        self,
        endpoints: Endpoints,
        desired_meta: SliceMeta,
        creates: list[MirrorGroup],
        *,
        updates: list[PlannedWrite],
        last: list[PlannedWrite],
        spare: list[EndpointSlice],
    ) -> tuple[PlannedWrite, ...]:
        """Returns all writes in order: creates, updates, updates that move endpoints away, deletes
        (``packing``). Slices to delete are reused for creates. A terminating object gets no new
        slices.
        """
        meta = endpoints.metadata
        created: list[PlannedWrite] = []
        unused = sorted(spare, key=lambda stored: stored.metadata.name)
        for group in creates:
            reused = next(
                (stored for stored in unused if stored.address_type == group.address_type), None
            )
            if reused is not None:
                unused.remove(reused)
                updates.append(update_slice(reused, desired_meta, group))
            elif meta.deletion_timestamp is None:
                created.append(create_slice(meta.namespace, meta.name, desired_meta, group))
        return (
            *created,
            *updates,
            *last,
            *(PlannedWrite.delete(stored.metadata) for stored in unused),
        )

    def finish(
        self, plan: MirrorPlan, answers: Sequence[bytes], error: StatusError | None, now: float
    ) -> None:
        """Takes the result of *plan*. *answers* are the responses to its first writes; *error* is
        that of the next write, if one failed.
        """
        for write, answer in zip(plan.writes, answers, strict=False):
            self._own.succeeded(write, answer, lambda body: decode(body, EndpointSlice), now)
        if error is not None:
            self._own.failed(plan.writes[len(answers)], error)
        self._own.on_plan_ended()

    def deadline(self) -> float | None:
        """Returns the time at which a plan is needed even without an event."""
        waiting = self._hand_over.deadline if self._own.objects else None
        return min(
            (time for time in (self._own.deadline(), waiting) if time is not None), default=None
        )

    def check(self) -> None:
        self._own.check()


def _notices(mirror: Mirror, max_per_subset: int) -> tuple[Notice, ...]:
    notices = []
    if mirror.invalid:
        message = f"Skipped {mirror.invalid} invalid IP addresses when mirroring to EndpointSlices"
        notices.append(Notice(True, "InvalidIPAddress", message))
    if mirror.skipped > mirror.invalid:
        message = (
            f"A max of {max_per_subset} addresses can be mirrored to EndpointSlices per Endpoints "
            "subset. "
            f"{mirror.skipped} addresses were skipped"
        )
        notices.append(Notice(True, "TooManyAddressesToMirror", message))
    return tuple(notices)
