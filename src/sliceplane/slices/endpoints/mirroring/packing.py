"""The distribution of a group's endpoints over mirrored slices: all in one, as upstream, or packed
into smaller ones.

In a packed group no slice exceeds its limit, and no two slices would fit into one. So a changed
address writes a slice of, say, a hundred endpoints, while upstream writes all thousand, and an
object has at most twice the fewest slices. Writes are few:

- an endpoint stays in its slice; new ones go into slices that are written anyway, then into one
  with space for all the rest, else into new slices;
- slices that fit into one are merged, first those that are written anyway;
- so from a packed state an added or changed address is one write, and a removed one is one, or two
  if its slice is deleted.

No address is missing meanwhile if slices are written in this order: new ones, ``kept`` without
``loses_endpoints``, reused ``spare`` ones, ``kept`` with ``loses_endpoints``, deletions. An
endpoint that moves is added before it is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sliceplane.api.discovery import EndpointSlice
from sliceplane.slices.endpoints.mirroring.desired import (
    Content,
    Identity,
    MirrorGroup,
    SliceMeta,
    content_of,
)


class Kept(NamedTuple):
    """A slice that stays, with its present and desired content. ``loses_endpoints``: some of its
    endpoints move to other slices.
    """

    stored: EndpointSlice
    content: Content
    group: MirrorGroup
    changed: bool
    loses_endpoints: bool = False


class Arrangement(NamedTuple):
    """The slices of one group. ``spare`` slices are not needed any more."""

    kept: tuple[Kept, ...] = ()
    new: tuple[MirrorGroup, ...] = ()
    spare: tuple[EndpointSlice, ...] = ()


class _Bin:
    """A slice during packing. ``dirty``: it must be written or deleted in any case."""

    __slots__ = ("content", "dirty", "identities", "loses_endpoints", "stored")

    def __init__(self, stored: EndpointSlice, content: Content) -> None:
        self.stored = stored
        self.content = content
        self.identities: list[Identity] = []
        self.dirty = False
        self.loses_endpoints = False

    def __len__(self) -> int:
        return len(self.identities)


def arrange_in_one(
    group: MirrorGroup, slices: Sequence[EndpointSlice], desired_meta: SliceMeta
) -> Arrangement:
    """Puts all of *group* into the first of *slices*, as upstream."""
    if not slices:
        return Arrangement(new=(group,))
    stored = slices[0]
    content = content_of(stored)
    changed = content != group.content or not desired_meta.fits(stored.metadata)
    return Arrangement((Kept(stored, content, group, changed),), spare=tuple(slices[1:]))


def arrange_packed(
    group: MirrorGroup, slices: Sequence[EndpointSlice], desired_meta: SliceMeta, limit: int
) -> Arrangement:
    """Distributes *group* over several slices. *slices* are those of its family and ports, in a
    fixed order; *limit* is in endpoints.

    Costs O(endpoints), and a sort of the slices.
    """
    assert limit > 0, f"a slice of {limit} endpoints"
    bins, pool = _keep_unmoved(group, slices, desired_meta, limit)
    created = _place(bins, pool, limit)
    spare = [box for box in bins if not box.identities]
    staying = [box for box in bins if box.identities]
    spare += _merge(staying, limit)
    texts = dict(zip(group.content, group.texts, strict=True))
    return Arrangement(
        tuple(
            Kept(
                box.stored,
                box.content,
                _part(group, box.identities, texts),
                box.dirty,
                box.loses_endpoints,
            )
            for box in staying
            if box.identities
        ),
        tuple(_part(group, identities, texts) for identities in created),
        tuple(box.stored for box in spare),
    )


def _keep_unmoved(
    group: MirrorGroup, slices: Sequence[EndpointSlice], desired_meta: SliceMeta, limit: int
) -> tuple[list[_Bin], list[Identity]]:
    """Leaves each desired endpoint in the first slice that has it. Returns the slices and the
    unplaced endpoints.
    """
    unplaced = dict.fromkeys(group.content)
    bins: list[_Bin] = []
    for stored in slices:
        box = _Bin(stored, content_of(stored))
        identities = [identity for identity in box.content if identity in unplaced]
        box.identities = identities[:limit]
        box.loses_endpoints = len(identities) > limit
        for identity in box.identities:
            del unplaced[identity]
        box.dirty = (
            len(box.identities) != len(box.content)
            or any(box.content[identity] != group.content[identity] for identity in box.identities)
            or not desired_meta.fits(stored.metadata)
        )
        bins.append(box)
    return bins, list(unplaced)


def _place(bins: list[_Bin], pool: list[Identity], limit: int) -> list[list[Identity]]:
    """Adds *pool* to slices that are written anyway, the fullest first, and then to others. Returns
    the contents of new slices.
    """
    begin = 0
    for box in sorted((box for box in bins if box.dirty), key=len, reverse=True):
        end = begin + limit - len(box)
        box.identities += pool[begin:end]
        begin = min(end, len(pool))
    created = [pool[at : at + limit] for at in range(begin, len(pool), limit)]
    if created:
        roomy = [box for box in bins if not box.dirty and len(box) + len(created[-1]) <= limit]
        if roomy:
            best = max(roomy, key=len)
            best.identities += created.pop()
            best.dirty = True
    return created


def _merge(bins: list[_Bin], limit: int) -> list[_Bin]:
    """Merges slices until no two fit into one. Returns the emptied ones.

    If any two fit, the two smallest do. The smallest moves into a slice with space: one that is
    written anyway if possible, and among these the fullest.
    """
    emptied: list[_Bin] = []
    ordered = sorted(bins, key=len)
    while len(ordered) > 1 and len(ordered[0]) + len(ordered[1]) <= limit:
        donor = ordered.pop(0)
        best = max(
            (box for box in ordered if len(box) + len(donor) <= limit),
            key=lambda box: (box.dirty, len(box)),
        )
        best.identities += donor.identities
        best.dirty = True
        donor.identities = []
        emptied.append(donor)
        ordered.sort(key=len)
    return emptied


def _part(
    group: MirrorGroup, identities: list[Identity], texts: dict[Identity, bytes]
) -> MirrorGroup:
    content = {identity: group.content[identity] for identity in identities}
    return MirrorGroup(
        group.address_type, group.ports, content, tuple(texts[identity] for identity in identities)
    )
