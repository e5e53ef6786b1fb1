"""Merging of under-filled slices of one group, which packing never does.

A step empties the slice with the fewest endpoints into free space of others and deletes it, so each
saved slice moves as few endpoints as possible. A step that would not free a whole slice is not
planned. Every step's additions are written before its deletion, and its cost in writes is known
beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sliceplane.slices.content import Content, SliceState
from sliceplane.slices.packing.packplan import PackPlan, Update


def merge(
    slices: Iterable[SliceState], max_endpoints: int, max_writes: int, *, at_least_one: bool
) -> PackPlan:
    """Returns as many steps among *slices* of one group, none of them touched, as *max_writes*
    allow.

    *at_least_one*: the first step is planned at any cost.
    """
    ordered = sorted(slices, key=lambda state: (len(state.server), state.name))
    fills = {state.name: len(state.server) for state in ordered}
    saved = _most_saved(list(fills.values()), max_endpoints)
    staying = ordered[saved:]
    written: dict[str, Content] = {}
    deletes: list[SliceState] = []
    for donor in ordered[:saved]:
        receivers = _receivers(fills[donor.name], staying, fills, written, max_endpoints)
        fresh = [state for state in receivers if state.name not in written]
        cost = len(written) + len(deletes) + len(fresh) + 1
        if cost > max_writes and not (at_least_one and not deletes):
            break
        moving = iter(donor.server.items())
        for state in receivers:
            content = written.setdefault(state.name, dict(state.server))
            content.update(islice(moving, max_endpoints - len(content)))
            fills[state.name] = len(content)
        deletes.append(donor)
    updates = [
        Update(state, state.group, written[state.name])
        for state in staying
        if state.name in written
    ]
    return PackPlan([], sorted(updates, key=lambda update: update.slice.name), deletes, 0, 0)


def _most_saved(fills: list[int], max_endpoints: int) -> int:
    """Returns how many of the emptiest slices (*fills* ascending) can be emptied into
    the others.
    """
    moved = 0
    room = sum(max(max_endpoints - fill, 0) for fill in fills)
    for number, fill in enumerate(fills):
        moved += fill
        room -= max(max_endpoints - fill, 0)
        if moved > room:
            return number
    return len(fills)


def _receivers(
    count: int,
    staying: list[SliceState],
    fills: dict[str, int],
    written: dict[str, Content],
    max_endpoints: int,
) -> list[SliceState]:
    """Returns the slices that *count* endpoints go into, as few newly written ones as possible.
    Their free space suffices.
    """
    rooms = {state.name: max_endpoints - fills[state.name] for state in staying}
    receivers = [state for state in staying if state.name in written and rooms[state.name] > 0]
    count -= sum(rooms[state.name] for state in receivers)
    free = [state for state in staying if state.name not in written and rooms[state.name] > 0]
    while count > 0:
        fitting = [state for state in free if rooms[state.name] >= count]
        # prefers the fullest slice that takes all; if none does, the emptiest
        chosen = min(
            fitting or free,
            key=lambda state: (rooms[state.name] * (1 if fitting else -1), state.name),
        )
        free.remove(chosen)
        receivers.append(chosen)
        count -= rooms[chosen.name]
    return receivers
