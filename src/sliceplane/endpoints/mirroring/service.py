"""One Endpoints object and its mirror: which slices must exist, which do, and the writes between the two.

Each family and set of ports has one slice, or several if slices are limited (``packing``); one is written whole when
anything of it differs.  A slice that would be deleted while another of its address type is made becomes that one.

When the Service gets a selector its slices are the EndpointSlice controller's business.  Ours then stay until that
controller's are there, type by type, or until it is clear that nobody makes any: traffic always has somewhere to go.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.core import Endpoints
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.endpoints.mirroring.desired import (
    ADDRESSES_PER_SUBSET_MAX,
    Group,
    GroupKey,
    Mirror,
    SliceMeta,
    group_key,
    mirror_of,
    slice_meta,
)
from sliceplane.endpoints.mirroring.ledger import Ledger
from sliceplane.endpoints.mirroring.packing import in_one, packed
from sliceplane.endpoints.mirroring.writes import (
    MirrorPlan,
    MirrorWrite,
    Notice,
    Sizes,
    create_slice,
    delete_slice,
    update_slice,
)
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S


class Limits(NamedTuple):
    """Of addresses that are mirrored of one subset, and of endpoints in one slice; ``None``: as many as there are."""

    per_subset: int = ADDRESSES_PER_SUBSET_MAX
    per_slice: int | None = None


class MirrorState:
    """Owned by ``MirrorEngine``, which alone calls it."""

    __slots__ = (
        "_covered",
        "_hold_until",
        "_ledger",
        "_told",
        "counts",
        "endpoints",
        "in_flight",
        "key",
        "selecting",
    )

    def __init__(self, key: str, selecting: bool | None) -> None:
        self.key: Final = key
        #: if nothing on the object itself forbids mirroring it
        self.endpoints: Endpoints | None = None
        #: the Service has a selector; ``None``: there is no Service
        self.selecting = selecting
        self.in_flight = False
        #: desired endpoints and slices, as last planned
        self.counts = (0, 0)
        self._ledger = Ledger()
        #: address types of which the EndpointSlice controller has slices
        self._covered: frozenset[str] = frozenset()
        self._hold_until: float | None = None
        #: the version of the object whose warnings were told
        self._told = ""

    @property
    def empty(self) -> bool:
        """Nothing is left to know: no object that could be mirrored, no slice, no write under way."""
        return self.endpoints is None and self._ledger.empty and not self.in_flight

    @property
    def slices(self) -> int:
        return len(self._ledger.slices)

    @property
    def _mirrored(self) -> bool:
        return self.endpoints is not None and self.selecting is False

    # -- events -----------------------------------------------------------------------------------------

    def set_selecting(self, selecting: bool | None) -> None:
        self.selecting = selecting
        self._hold_until = None

    def on_slice(self, observed: EndpointSlice) -> bool:
        return self._ledger.on_slice(observed)

    def on_slice_gone(self, name: str, uid: str) -> bool:
        return self._ledger.on_slice_gone(name, uid, in_flight=self.in_flight)

    def on_successor(self, address_type: str, *, there: bool) -> bool:
        """A slice of the EndpointSlice controller came or went.  True: ours may go now."""
        if not there:
            self._covered -= {address_type}
            return False
        known = address_type in self._covered
        self._covered |= {address_type}
        return not known and self.selecting is True

    # -- plan and result --------------------------------------------------------------------------------

    def plan(self, now: float, limits: Limits, *, hand_over: bool) -> MirrorPlan:
        """The writes that are due; ``in_flight`` until their end is told, if there are any."""
        assert not self.in_flight, f"{self.key} has a plan under way"
        self._ledger.drop_unseen(now)
        if self._ledger.is_behind():
            return MirrorPlan(stale=True)
        plan = self._mirror(self.endpoints, limits) if self._mirrored else self._clean(now, hand_over=hand_over)
        self.in_flight = bool(plan.writes)
        return plan

    def _clean(self, now: float, *, hand_over: bool) -> MirrorPlan:
        """Nothing is to be mirrored."""
        self.counts = (0, 0)
        waits: set[str] = set()
        if hand_over and self.selecting and self._ledger.slices:
            if self._hold_until is None:
                self._hold_until = now + HAND_OVER_TIMEOUT_S
            if now < self._hold_until:
                waits = {each.address_type for each in self._ledger.slices.values()} - self._covered
        going = [each for _, each in sorted(self._ledger.slices.items()) if each.address_type not in waits]
        return MirrorPlan(tuple(map(delete_slice, going)), counted=False)

    def _mirror(self, endpoints: Endpoints | None, limits: Limits) -> MirrorPlan:
        assert endpoints is not None, f"{self.key}: nothing to mirror"
        mirror = mirror_of(endpoints, limits.per_subset)
        writes, sizes = self._differences(endpoints, mirror, limits.per_slice)
        notices = _notices(mirror, limits.per_subset)
        if self._told == endpoints.metadata.resource_version:
            notices = ()
        self._told = endpoints.metadata.resource_version
        return MirrorPlan(writes, notices, sizes)

    def _differences(
        self, endpoints: Endpoints, mirror: Mirror, per_slice: int | None
    ) -> tuple[tuple[MirrorWrite, ...], Sizes]:
        wanted = slice_meta(endpoints)
        known: dict[GroupKey, list[EndpointSlice]] = {}
        for _, each in sorted(self._ledger.slices.items()):
            known.setdefault(group_key(each), []).append(each)
        creates: list[Group] = []
        updates: list[MirrorWrite] = []
        last: list[MirrorWrite] = []
        spare: list[EndpointSlice] = []
        added = updated = removed = slices = 0
        for group in mirror.groups:
            held = known.pop((group.address_type, group.ports), [])
            found = in_one(group, held, wanted) if per_slice is None else packed(group, held, wanted, per_slice)
            creates += found.new
            spare += found.spare
            slices += len(found.kept) + len(found.new)
            added += sum(len(each.content) for each in found.new)
            for kept in found.kept:
                before, after = kept.held, kept.group.content
                if kept.changed:
                    (last if kept.gives else updates).append(update_slice(kept.known, wanted, kept.group))
                added += len(after.keys() - before.keys())
                removed += len(before.keys() - after.keys())
                updated += sum(before.get(identity, text) != text for identity, text in after.items())
        for left in known.values():
            spare += left
        removed += sum(len(each.endpoints or ()) for each in spare)
        self.counts = (mirror.endpoints, slices)
        writes = self._recycle(endpoints, wanted, creates, updates=updates, last=last, spare=spare)
        return writes, Sizes(added, updated, removed, mirror.skipped)

    def _recycle(
        self,
        endpoints: Endpoints,
        wanted: SliceMeta,
        creates: list[Group],
        *,
        updates: list[MirrorWrite],
        last: list[MirrorWrite],
        spare: list[EndpointSlice],
    ) -> tuple[MirrorWrite, ...]:
        """Creates, updates, those that move endpoints away, deletes: what moves is in its new place before it leaves
        its old one (``packing``).  An object that is on its way out gets no new slices."""
        meta = endpoints.metadata
        made: list[MirrorWrite] = []
        left = sorted(spare, key=lambda each: each.metadata.name)
        for group in creates:
            reused = next((each for each in left if each.address_type == group.address_type), None)
            if reused is not None:
                left.remove(reused)
                updates.append(update_slice(reused, wanted, group))
            elif meta.deletion_timestamp is None:
                made.append(create_slice(meta.namespace, meta.name, wanted, group))
        return (*made, *updates, *last, *map(delete_slice, left))

    def succeeded(self, write: MirrorWrite, answer: bytes, now: float) -> None:
        self._ledger.succeeded(write, answer, now)

    def failed(self, write: MirrorWrite, error: StatusError) -> None:
        self._ledger.failed(write, error)

    def ended(self) -> None:
        self.in_flight = False
        self._ledger.ended()

    def deadline(self) -> float | None:
        """When to plan again although nothing happens."""
        waiting = self._hold_until if self._ledger.slices else None
        return min((each for each in (self._ledger.deadline(), waiting) if each is not None), default=None)

    def check(self) -> None:
        self._ledger.check()


def _notices(mirror: Mirror, max_per_subset: int) -> tuple[Notice, ...]:
    found = []
    if mirror.invalid:
        message = f"Skipped {mirror.invalid} invalid IP addresses when mirroring to EndpointSlices"
        found.append(Notice("InvalidIPAddress", message))
    if mirror.skipped > mirror.invalid:
        message = (
            f"A max of {max_per_subset} addresses can be mirrored to EndpointSlices per Endpoints subset. "
            f"{mirror.skipped} addresses were skipped"
        )
        found.append(Notice("TooManyAddressesToMirror", message))
    return tuple(found)
