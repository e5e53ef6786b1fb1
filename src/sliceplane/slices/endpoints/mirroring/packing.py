"""Which mirrored slice holds which endpoints of a group: all in one, as upstream, or packed into
smaller ones.

Packed means: no slice holds more than its limit, and no two slices of one group would fit into one.
Then a changed address writes a slice of a hundred endpoints, say, where upstream writes all
thousand, and no object is cut into more slices than twice the fewest. How few writes that takes:

- an endpoint stays in the slice that it is in; what is new goes into slices that have to be written
  anyway, then into one that has room for all that is left, else into new ones;
- slices that fit together are put together, those first that are written anyway;
- so from a packed state an address that comes or changes is one write, and one that goes is one, or
  two where its slice goes too.

No address is missing meanwhile if slices are written in this order: new ones, then ``kept`` without
``gives``, then those that take over a ``spare``, then ``kept`` with ``gives``, then deletions. What
moves is in its new place first.
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
    """A slice that stays, what it holds and what it must hold.  ``gives``: some of its endpoints go
    to other slices.
    """

    known: EndpointSlice
    held: Content
    group: MirrorGroup
    changed: bool
    gives: bool = False


class Arrangement(NamedTuple):
    """The slices of one group; ``spare`` ones are not needed any more."""

    kept: tuple[Kept, ...] = ()
    new: tuple[MirrorGroup, ...] = ()
    spare: tuple[EndpointSlice, ...] = ()


class _Bin:
    """A slice while it is decided what goes into it.  ``dirty``: it must be written, or go,
    whatever is decided.
    """

    __slots__ = ("dirty", "gives", "held", "inside", "known")

    def __init__(self, known: EndpointSlice, held: Content) -> None:
        self.known = known
        self.held = held
        self.inside: list[Identity] = []
        self.dirty = False
        self.gives = False

    def __len__(self) -> int:
        return len(self.inside)


def in_one(group: MirrorGroup, slices: Sequence[EndpointSlice], wanted: SliceMeta) -> Arrangement:
    """The first of *slices* has all of *group*, as upstream."""
    if not slices:
        return Arrangement(new=(group,))
    known = slices[0]
    held = content_of(known)
    changed = held != group.content or not wanted.fits(known.metadata)
    return Arrangement((Kept(known, held, group, changed),), spare=tuple(slices[1:]))


def packed(
    group: MirrorGroup, slices: Sequence[EndpointSlice], wanted: SliceMeta, limit: int
) -> Arrangement:
    """*slices* are those of the group's family and ports, in a fixed order; *limit* is in
    endpoints.

    Costs O(endpoints), and a sort of the slices.
    """
    assert limit > 0, f"a slice of {limit} endpoints"
    bins, pool = _as_they_are(group, slices, wanted, limit)
    made = _place(bins, pool, limit)
    spare = [box for box in bins if not box.inside]
    staying = [box for box in bins if box.inside]
    spare += _merge(staying, limit)
    texts = dict(zip(group.content, group.texts, strict=True))
    return Arrangement(
        tuple(
            Kept(box.known, box.held, _part(group, box.inside, texts), box.dirty, box.gives)
            for box in staying
            if box.inside
        ),
        tuple(_part(group, inside, texts) for inside in made),
        tuple(box.known for box in spare),
    )


def _as_they_are(
    group: MirrorGroup, slices: Sequence[EndpointSlice], wanted: SliceMeta, limit: int
) -> tuple[list[_Bin], list[Identity]]:
    """What is in a slice and wanted stays in the first that has it; the rest has no place yet."""
    unplaced = dict.fromkeys(group.content)
    bins: list[_Bin] = []
    for known in slices:
        each = _Bin(known, content_of(known))
        ours = [identity for identity in each.held if identity in unplaced]
        each.inside = ours[:limit]
        each.gives = len(ours) > limit
        for identity in each.inside:
            del unplaced[identity]
        each.dirty = (
            len(each.inside) != len(each.held)
            or any(each.held[identity] != group.content[identity] for identity in each.inside)
            or not wanted.fits(known.metadata)
        )
        bins.append(each)
    return bins, list(unplaced)


def _place(bins: list[_Bin], pool: list[Identity], limit: int) -> list[list[Identity]]:
    """*pool* goes into slices that are written anyway, the fullest first; then the rest.  Gives
    what is in new ones.
    """
    begin = 0
    for box in sorted((box for box in bins if box.dirty), key=len, reverse=True):
        end = begin + limit - len(box)
        box.inside += pool[begin:end]
        begin = min(end, len(pool))
    made = [pool[at : at + limit] for at in range(begin, len(pool), limit)]
    if made:
        roomy = [box for box in bins if not box.dirty and len(box) + len(made[-1]) <= limit]
        if roomy:
            best = max(roomy, key=len)
            best.inside += made.pop()
            best.dirty = True
    return made


def _merge(bins: list[_Bin], limit: int) -> list[_Bin]:
    """Until no two fit into one.  Gives those that were emptied.

    If any two fit, the two smallest do: the smallest moves, to one that is written anyway if that
    has room, and to the fullest such.
    """
    emptied: list[_Bin] = []
    ordered = sorted(bins, key=len)
    while len(ordered) > 1 and len(ordered[0]) + len(ordered[1]) <= limit:
        donor = ordered.pop(0)
        best = max(
            (box for box in ordered if len(box) + len(donor) <= limit),
            key=lambda box: (box.dirty, len(box)),
        )
        best.inside += donor.inside
        best.dirty = True
        donor.inside = []
        emptied.append(donor)
        ordered.sort(key=len)
    return emptied


def _part(group: MirrorGroup, inside: list[Identity], texts: dict[Identity, bytes]) -> MirrorGroup:
    content = {identity: group.content[identity] for identity in inside}
    return MirrorGroup(
        group.address_type, group.ports, content, tuple(texts[identity] for identity in inside)
    )
