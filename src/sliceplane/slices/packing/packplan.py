"""The writes that a packer plans, in an order in which an endpoint that moves is never missing.

An endpoint *moves* if a slice of the same ports has it but is not the slice that it belongs to: its
subset has changed, or slices are merged. The write that adds it must come before the write that
removes it. Creates remove nothing and come first, deletes add nothing and come last; updates are
sorted between them. If updates wait for each other in a circle (two zones swap endpoints between
full slices), one of them is split: the endpoints that it would add get a slice of their own.
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
    """The writes for one address type, in the order ``creates``, ``updates``, ``dependents``,
    ``deletes``.

    ``updates`` may change a slice's ports: a slice that would be deleted is reused instead of
    creating one. ``dependents`` are updates that remove endpoints which another write must add
    first. ``moving`` are the identities of the endpoints that move.
    """

    creates: list[Creation]
    updates: list[Update]
    deletes: list[SliceState]
    #: numbers of endpoints
    added: int
    removed: int
    dependents: list[Update] = []
    moving: frozenset[str] = frozenset()


def order_writes(plan: PackPlan, moving: frozenset[str]) -> PackPlan:
    """Returns *plan* in an order in which none of the *moving* endpoints is ever missing."""
    losing = {
        update.slice.name: {
            identity
            for identity in update.slice.server
            if identity in moving and identity not in update.content
        }
        for update in plan.updates
    }
    free = [update for update in plan.updates if not losing[update.slice.name]]
    waiting = _WaitingUpdates(
        [update for update in plan.updates if losing[update.slice.name]], losing
    )
    if not waiting.updates:
        return plan
    creates = list(plan.creates)
    deletes = list(plan.deletes)
    for content in (*(update.content for update in creates), *(update.content for update in free)):
        waiting.on_written(content)
    ordered: list[Update] = []
    while waiting.updates:
        update = waiting.take_ready()
        if update is not None:
            ordered.append(update)
            waiting.on_written(update.content)
            continue
        update = waiting.take_blocker()
        created, rest = _split(update)
        creates.append(created)
        if rest is None:
            deletes.append(update.slice)
        else:
            waiting.updates[update.slice.name] = rest
        waiting.on_written(created.content)
    return plan._replace(
        creates=creates, updates=free, deletes=deletes, dependents=ordered, moving=moving
    )


class _WaitingUpdates:
    """Updates that remove endpoints which other writes must add first. *losing*: these endpoints,
    by slice.
    """

    def __init__(self, updates: list[Update], losing: dict[str, set[str]]) -> None:
        by_name = sorted(updates, key=lambda update: update.slice.name)
        self.updates = {update.slice.name: update for update in by_name}
        self._losing = losing
        #: the slices that wait to remove a moving endpoint, by endpoint that was not added yet
        self._waiting_by_identity: dict[str, list[str]] = {}
        for name in self.updates:
            for identity in losing[name]:
                self._waiting_by_identity.setdefault(identity, []).append(name)
        self._ready: list[str] = []
        self._candidates = iter(list(self.updates))

    def on_written(self, content: Content) -> None:
        for identity in content:
            for name in self._waiting_by_identity.pop(identity, ()):
                self._losing[name].discard(identity)
                if not self._losing[name] and name in self.updates:
                    heapq.heappush(self._ready, name)

    def take_ready(self) -> Update | None:
        """Returns the first update that waits for nothing."""
        return self.updates.pop(heapq.heappop(self._ready)) if self._ready else None

    def take_blocker(self) -> Update:
        """Returns the first update that adds an endpoint which others wait for."""
        name = next(
            name
            for name in self._candidates
            if name in self.updates
            and not self._waiting_by_identity.keys().isdisjoint(self.updates[name].content)
        )
        return self.updates.pop(name)


def independent_part(update: Update, moving: frozenset[str]) -> Update | None:
    """Returns the part of *update* that does not remove endpoints that move; ``None`` if it is
    empty.
    """
    state = update.slice
    content: Content = {}
    for identity, body in state.server.items():
        fresh = (
            update.content.get(identity)
            or state.desired.get(identity)
            or (body if identity in moving else b"")
        )
        if fresh:
            content[identity] = fresh
    return None if content == state.server else Update(state, state.group, content)


def _split(update: Update) -> tuple[Creation, Update | None]:
    """Splits *update* into a new slice for the endpoints that it adds, and the remaining update:
    ``None`` for a slice that changes its group or keeps nothing, since an empty slice of a subset
    would stay forever.
    """
    state = update.slice
    kept = {identity: body for identity, body in update.content.items() if identity in state.server}
    if update.group is not state.group or not kept:
        return Creation(update.group, update.content), None
    added = {
        identity: body for identity, body in update.content.items() if identity not in state.server
    }
    return Creation(update.group, added), update._replace(content=kept)
