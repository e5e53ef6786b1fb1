"""Packing of endpoints into slices for one Service and one address type, incrementally.

A plan is made only from the touched slices and the unplaced endpoints of a ``SlicePlacement`` and
changes neither; only the *result* of a write (``attach`` of the stored slice) does. So a write that
failed, or whose outcome is unknown, leaves nothing to undo, and a plan always equals full packing
over the server's slices.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from sliceplane.slices.content import Content, PortGroup, SliceState
from sliceplane.slices.packing.defragment import merge
from sliceplane.slices.packing.packplan import Creation, PackPlan, Update, order_writes
from sliceplane.slices.packing.placement import SlicePlacement
from sliceplane.slices.subsets import with_subset

#: number of equally full slices that are compared in bytes
CANDIDATES_MAX: Final = 4


class SlicePacker(SlicePlacement):
    """Plans the writes of a ``SlicePlacement``. Owned by a ``ServiceState``."""

    # -- merging

    @property
    def surplus(self) -> int:
        """Number of slices that merging can save. Costs O(groups)."""
        return sum(
            len(self._rooms[group]) - -(-size // self._max) for group, size in self._mergeable()
        )

    def _mergeable(self) -> list[tuple[PortGroup, int]]:
        if self._touched or self._unplaced:
            return []
        sizes = self._sizes.items()
        return [
            (group, size)
            for group, size in sizes
            if len(self._rooms[group]) > -(-size // self._max)
        ]

    def merge(self, max_writes: int, *, at_least_one: bool) -> PackPlan:
        """Returns a plan with fewer slices for the same endpoints; empty while any slice is touched
        or any endpoint unplaced.
        """
        updates: list[Update] = []
        deletes: list[SliceState] = []
        for group, _ in sorted(self._mergeable(), key=lambda pair: pair[0].order):
            writes_remaining = max_writes - len(updates) - len(deletes)
            first = at_least_one and not deletes
            plan = merge(
                self._rooms[group].values(), self._max, writes_remaining, at_least_one=first
            )
            updates += plan.updates
            deletes += plan.deletes
        return PackPlan([], updates, deletes, 0, 0)

    # -- the plan

    def plan(self, labels: dict[str, str]) -> PackPlan:
        """Returns the writes after which the server has the desired endpoints, in slices with
        exactly *labels* (and the label of their subset).
        """
        added = 0
        removed = 0
        for state in self._touched.values():
            removed += len(state.server) - len(state.desired)
        for unplaced in self._unplaced.values():
            added += len(unplaced)
        updates, deletes = self._review(labels)
        creates: list[Creation] = []
        rewritten: list[Update] = []
        for group in sorted(self._unplaced, key=lambda group: group.order):
            unplaced = self._unplaced[group]
            if deletes and self._holders:
                unplaced = self._inherit(group, updates, deletes, rewritten)
            self._fill(group, unplaced, updates, creates)
        self._keep_placeholder(labels, creates, deletes)
        recycled = min(len(creates), len(deletes))
        if recycled:  # a create reuses a slice that would be deleted: one write instead of two
            rewritten += [
                Update(state, creation.group, creation.content)
                for creation, state in zip(creates[:recycled], deletes[:recycled], strict=True)
            ]
        plan = PackPlan(
            creates[recycled:], [*updates.values(), *rewritten], deletes[recycled:], added, removed
        )
        moving = self._moving() if self._subsets and self._unplaced else frozenset()
        return order_writes(plan, moving) if moving else plan

    def _moving(self) -> frozenset[str]:
        """Returns endpoints that no slice of their group has, but a slice of the same ports and
        another subset.
        """
        return frozenset(
            identity
            for group, unplaced in self._unplaced.items()
            for identity in unplaced
            if any(holder.group.ports == group.ports for holder in self._holders.get(identity, ()))
        )

    def _review(self, labels: dict[str, str]) -> tuple[dict[str, Update], list[SliceState]]:
        """Steps 1a and 2: returns updates and deletions of touched slices, and untouches those that
        are as desired.
        """
        updates: dict[str, Update] = {}
        deletes: list[SliceState] = []
        for name in sorted(self._touched):
            state = self._touched[name]
            same = state.desired == state.server
            # The placeholder has no subset.
            idle = not state.desired and (not same or bool(state.group.subset))
            if state.group not in self._pods_by_group or idle:
                deletes.append(state)
            elif same and (state.stored.meta.labels or {}) == (
                with_subset(labels, state.group.subset) if self._subsets else labels
            ):
                state.desired = state.server
                del self._touched[name]
            else:
                updates[name] = Update(state, state.group, state.share_desired())
        return updates, deletes

    def _inherit(
        self,
        group: PortGroup,
        updates: dict[str, Update],
        deletes: list[SliceState],
        rewritten: list[Update],
    ) -> Content:
        """Reuses slices that would be deleted for unplaced endpoints of *group* that are in them.

        As many slices stay as are needed, those with most such endpoints first, so the fewest
        endpoints move. Other unplaced endpoints fill them up. Returns the endpoints that remain
        unplaced.
        """
        unplaced = self._unplaced[group]
        reusable: dict[str, list[str]] = {}
        for state in deletes:
            identities = [identity for identity in state.server if identity in unplaced]
            if identities:
                reusable[state.name] = identities
        if not reusable:
            return unplaced
        fewest_first = sorted(reusable, key=lambda name: (len(reusable[name]), name))
        inherited_identities = {identity for name in fewest_first for identity in reusable[name]}
        ordered = [identity for identity in unplaced if identity not in inherited_identities]
        ordered += [identity for name in fewest_first for identity in reusable[name]]
        remaining = self._top_up(
            group, {identity: unplaced[identity] for identity in ordered}, updates
        )
        if (
            group.subset
            and 0 < len(remaining) < self._max
            and self._fullest_with_space(group, len(remaining)) is not None
        ):
            # Two writes instead of one, but no second slice for few endpoints of one zone.
            return remaining
        staying: list[tuple[str, Content]] = []
        space = 0
        for name in reversed(fewest_first):
            content = {
                identity: remaining[identity]
                for identity in reusable[name]
                if identity in remaining
            }
            if content and space < len(remaining):
                staying.append((name, content))
                space += max(self._max, len(content))
        for _, content in staying:
            for identity in content:
                remaining.pop(identity, None)
        states = {state.name: state for state in deletes}
        for name, content in staying:
            for identity in list(islice(remaining, max(self._max - len(content), 0))):
                content[identity] = remaining.pop(identity)
            rewritten.append(Update(states.pop(name), group, content))
        deletes[:] = states.values()
        return remaining

    def _top_up(self, group: PortGroup, unplaced: Content, updates: dict[str, Update]) -> Content:
        """Step 1b: adds unplaced endpoints to slices that are written anyway, the fullest first.
        Returns the remaining ones.
        """
        written = [update for update in updates.values() if update.group is group]
        if not written:
            return unplaced
        remaining = iter(unplaced.items())
        for update in sorted(written, key=lambda update: (-len(update.content), update.slice.name)):
            space = self._max - len(update.content)
            if space > 0:
                added = dict(islice(remaining, space))
                if added:
                    updates[update.slice.name] = update._replace(
                        content={**update.content, **added}
                    )
        return dict(remaining)

    def _fill(
        self,
        group: PortGroup,
        leftovers: Content,
        updates: dict[str, Update],
        creates: list[Creation],
    ) -> None:
        """Steps 1b and 1c: adds unplaced endpoints to slices that are written anyway, then to one
        with space for all, then to new ones.
        """
        unplaced = self._top_up(group, leftovers, updates)
        remaining = len(unplaced)
        rest = iter(unplaced.items())
        while remaining:
            state = self._fullest_with_space(group, remaining) if remaining < self._max else None
            if state is not None:
                updates[state.name] = Update(state, group, {**state.server, **dict(rest)})
                return
            creates.append(Creation(group, dict(islice(rest, self._max))))
            remaining -= min(remaining, self._max)

    def _fullest_with_space(self, group: PortGroup, count: int) -> SliceState | None:
        """Returns the fullest untouched slice with space for *count* more endpoints. Among equally
        full ones, of which it compares four, it prefers the fewest bytes to write, then the
        greatest name.
        """
        rooms = self._rooms.get(group)
        if rooms is None:
            return None
        fullest_first = rooms.irange(maximum=(self._max - count + 1, ""), reverse=True)
        best: SliceState | None = None
        least = 0
        compared = 0
        for fill, name in fullest_first:
            if best is not None and (fill != len(best.server) or compared == CANDIDATES_MAX):
                break
            if name not in self._touched:
                compared += 1
                state = rooms[fill, name]
                size = sum(map(len, state.server.values()))
                if best is None or size < least:
                    best = state
                    least = size
        return best

    def _keep_placeholder(
        self, labels: dict[str, str], creates: list[Creation], deletes: list[SliceState]
    ) -> None:
        """Step 3: if no slice would remain, keeps or creates one without ports and endpoints."""
        if creates or len(deletes) < len(self.slices):
            return
        empty = self._ports.empty
        for state in deletes:
            if (
                state.group is empty
                and not state.server
                and (state.stored.meta.labels or {}) == labels
            ):
                deletes.remove(state)
                return
        creates.append(Creation(empty, {}))
