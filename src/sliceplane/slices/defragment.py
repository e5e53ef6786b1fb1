"""Merging under-filled slices of one group, which packing never does: which to empty into which.

A step empties the slice with the fewest endpoints into the room of others and deletes it, so each slice saved moves as
few endpoints as it can.  A step that would not free a whole slice is not made.  Every step's additions are written
before its deletion, and what a step costs in writes is known before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sliceplane.slices.content import Content, SliceState
from sliceplane.slices.packplan import PackPlan, Update


def merge(slices: Iterable[SliceState], max_endpoints: int, max_writes: int, *, at_least_one: bool) -> PackPlan:
    """As many steps among *slices* of one group, which are all at rest, as *max_writes* allow.

    *at_least_one*: the first step is made whatever it costs.
    """
    ordered = sorted(slices, key=lambda each: (len(each.server), each.name))
    fills = {each.name: len(each.server) for each in ordered}
    saved = _most_saved(list(fills.values()), max_endpoints)
    staying = ordered[saved:]
    written: dict[str, Content] = {}
    deletes: list[SliceState] = []
    for donor in ordered[:saved]:
        receivers = _receivers(fills[donor.name], staying, fills, written, max_endpoints)
        fresh = [each for each in receivers if each.name not in written]
        cost = len(written) + len(deletes) + len(fresh) + 1
        if cost > max_writes and not (at_least_one and not deletes):
            break
        moving = iter(donor.server.items())
        for each in receivers:
            content = written.setdefault(each.name, dict(each.server))
            content.update(islice(moving, max_endpoints - len(content)))
            fills[each.name] = len(content)
        deletes.append(donor)
    updates = [Update(each, each.group, written[each.name]) for each in staying if each.name in written]
    return PackPlan([], sorted(updates, key=lambda each: each.slice.name), deletes, 0, 0)


def _most_saved(fills: list[int], max_endpoints: int) -> int:
    """How many of the emptiest slices (*fills* ascending) can be emptied into the others."""
    moved, room = 0, sum(max(max_endpoints - fill, 0) for fill in fills)
    for number, fill in enumerate(fills):
        moved += fill
        room -= max(max_endpoints - fill, 0)
        if moved > room:
            return number
    return len(fills)


def _receivers(
    count: int, staying: list[SliceState], fills: dict[str, int], written: dict[str, Content], max_endpoints: int
) -> list[SliceState]:
    """The slices that *count* endpoints go into, as few newly written as possible.  There is room for them."""
    rooms = {each.name: max_endpoints - fills[each.name] for each in staying}
    found = [each for each in staying if each.name in written and rooms[each.name] > 0]
    count -= sum(rooms[each.name] for each in found)
    free = [each for each in staying if each.name not in written and rooms[each.name] > 0]
    while count > 0:
        fitting = [each for each in free if rooms[each.name] >= count]
        # into the fullest that takes all; where none does, into the one that takes most
        chosen = min(fitting or free, key=lambda each: (rooms[each.name] * (1 if fitting else -1), each.name))
        free.remove(chosen)
        found.append(chosen)
        count -= rooms[chosen.name]
    return found
