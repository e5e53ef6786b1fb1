"""What a packer wants written, and the order in which an endpoint that moves is never missing.

An endpoint *moves* when a slice of the same ports shows it that is not the one it belongs into: its
subset has changed, or slices are merged. The write that adds it must be before the one that removes
it. Creates remove nothing and go first, deletes add nothing and go last; updates are sorted
between. Where updates wait for each other in a circle (two zones swap endpoints between full
slices), one of them is cut in two: what it would add is created.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from sliceplane.slices.content import Content, PortGroup, SliceState


class Creation(NamedTuple):
    group: PortGroup
    content: Content


class Update(NamedTuple):
    slice: SliceState
    group: PortGroup
    content: Content


class PackPlan(NamedTuple):
    """``updates`` may change a slice's ports: a slice that would be deleted serves one that would
    be created.

    To be written in the order ``creates``, ``updates``, ``dependents``, ``deletes``. ``dependents``
    are updates that take endpoints out which another write must have added before.
    """

    creates: list[Creation]
    updates: list[Update]
    deletes: list[SliceState]
    #: endpoints
    added: int
    removed: int
    dependents: list[Update] = []
    moving: frozenset[str] = frozenset()


def settle_order(plan: PackPlan, moving: frozenset[str]) -> PackPlan:
    """*plan* in an order in which none of the *moving* endpoints is ever missing."""
    losing = {
        update.slice.name: {
            identity
            for identity in update.slice.server
            if identity in moving and identity not in update.content
        }
        for update in plan.updates
    }
    dependents = sorted(
        (update for update in plan.updates if losing[update.slice.name]),
        key=lambda update: update.slice.name,
    )
    if not dependents:
        return plan
    free = [update for update in plan.updates if not losing[update.slice.name]]
    #: by endpoint that moves and was not added yet: the slices that wait with taking it out
    shown_by: dict[str, list[str]] = {}
    for update in dependents:
        for identity in losing[update.slice.name]:
            shown_by.setdefault(identity, []).append(update.slice.name)
    waiting = {update.slice.name: update for update in dependents}
    creates = list(plan.creates)
    deletes = list(plan.deletes)
    ready: list[str] = []

    def written(content: Content) -> None:
        for identity in content:
            for name in shown_by.pop(identity, ()):
                losing[name].discard(identity)
                if not losing[name] and name in waiting:
                    heapq.heappush(ready, name)

    for content in (*(update.content for update in creates), *(update.content for update in free)):
        written(content)
    ordered: list[Update] = []
    candidates = iter([update.slice.name for update in dependents])
    while waiting:
        if ready:
            update = waiting.pop(heapq.heappop(ready))
            ordered.append(update)
            written(update.content)
            continue
        name = next(
            name
            for name in candidates
            if name in waiting and not shown_by.keys().isdisjoint(waiting[name].content)
        )
        cut, rest = _cut(waiting[name])
        creates.append(cut)
        if rest is None:
            deletes.append(waiting.pop(name).slice)
        else:
            waiting[name] = rest
        written(cut.content)
    return plan._replace(
        creates=creates, updates=free, deletes=deletes, dependents=ordered, moving=moving
    )


def hold_back(update: Update, moving: frozenset[str]) -> Update | None:
    """The part of *update* that needs not wait for its endpoints that move; ``None`` if there is
    none.
    """
    state = update.slice
    content: Content = {}
    for identity, body in state.server.items():
        fresh = (
            update.content.get(identity)
            or state.want.get(identity)
            or (body if identity in moving else b"")
        )
        if fresh:
            content[identity] = fresh
    return None if content == state.server else Update(state, state.group, content)


def _cut(update: Update) -> tuple[Creation, Update | None]:
    """What *update* adds as a slice of its own, and what is left of it.

    A slice goes that changes its group or keeps nothing: an empty one of a subset would stay for
    ever.
    """
    state = update.slice
    kept = {identity: body for identity, body in update.content.items() if identity in state.server}
    if update.group is not state.group or not kept:
        return Creation(update.group, update.content), None
    added = {
        identity: body for identity, body in update.content.items() if identity not in state.server
    }
    return Creation(update.group, added), update._replace(content=kept)
