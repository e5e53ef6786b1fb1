"""One Service as one client sees it: slices in; whole states, differences and picks out.

``on_changes`` takes what an informer delivers in one go, an event or a whole relist, and all of it
becomes visible at once: a reader sees the state before or the state after, never something between.
A reader that is slow skips states and gets one difference for all of them (``model.Pending``), so
that no writer waits and memory is bounded.

Owned by one shell (``sliceplane.client``), which serialises all calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeVar

from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.balancing.ejection import Ejections
from sliceplane.consume.balancing.load import Load
from sliceplane.consume.balancing.merge import EndpointMerge, PortChoice
from sliceplane.consume.balancing.model import Endpoint, Pending, ViewChange
from sliceplane.consume.balancing.pickers import PickStrategy
from sliceplane.consume.balancing.usable import Scope, Usable
from sliceplane.consume.usable import Locality
from sliceplane.kit.ip import Family
from sliceplane.watch.cache import Change

P = TypeVar("P", bound=PickStrategy)


class BalancedService:
    """See the module."""

    def __init__(
        self, port: PortChoice, *, family: Family | None, location: Locality, honour_hints: bool
    ) -> None:
        self._merge = EndpointMerge(port, family)
        self._usable = Usable(location, honour_hints=honour_hints)
        self.load = Load()
        #: endpoints picked so far
        self.picks = 0
        self.ejections = Ejections()
        self._pickers: list[PickStrategy] = []
        self._readers: list[Pending] = []
        self._snapshot: tuple[Endpoint, ...] | None = ()

    # -- slices

    def on_changes(self, changes: Iterable[Change[EndpointSlice]]) -> bool:
        """True if a reader would see a difference.  O(the slices that changed)."""
        for change in changes:
            self._merge.on_slice(change.object.metadata.key, change.new)
        touched = self._merge.take_touched()
        if not touched:
            return False
        rescoped = self._usable.apply(touched, self._merge.visible)
        for identity in touched:
            if identity not in self._merge.visible:
                self.ejections.on_removed(identity)
        for picker in self._pickers:
            picker.on_change(touched, rescoped=rescoped)
        for reader in self._readers:
            for identity, before in touched.items():
                reader.note(identity, before)
        self._snapshot = None
        return True

    # -- readers

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them, in the order of ids.  O(n log n) after a change, O(1) else."""
        if self._snapshot is None:
            visible = self._merge.visible
            self._snapshot = tuple([visible[identity] for identity in sorted(visible)])
        return self._snapshot

    def usable(self) -> tuple[Endpoint, ...]:
        """The endpoints that pickers choose from, in the order of ids."""
        return tuple(sorted(self._usable.pool.endpoints(), key=lambda endpoint: endpoint.id))

    @property
    def usable_count(self) -> int:
        return len(self._usable.pool)

    @property
    def scope(self) -> Scope:
        return self._usable.scope

    @property
    def problem(self) -> str:
        return self._merge.problem

    def get(self, identity: str) -> Endpoint | None:
        return self._merge.visible.get(identity)

    def add_reader(self) -> Pending:
        """A reader that has seen nothing: what is there now is the first that it gets."""
        reader = Pending(dict.fromkeys(self._merge.visible))
        self._readers.append(reader)
        return reader

    def remove_reader(self, reader: Pending) -> None:
        self._readers = [other for other in self._readers if other is not reader]

    def take(self, reader: Pending) -> ViewChange:
        return reader.take(self._merge.visible)

    # -- pickers

    def attach(self, picker: P) -> P:
        picker.attach(self._usable, self.load)
        self._pickers.append(picker)
        return picker

    def detach(self, picker: PickStrategy) -> None:
        self._pickers = [other for other in self._pickers if other is not picker]
        picker.detach(self.load)

    def pick(
        self, picker: PickStrategy, key: bytes, tried: Set[str], now: float
    ) -> Endpoint | None:
        """One that was not *tried* and did not fail lately; else one that was not tried; ``None``:
        there is none.
        """
        ejected = self.ejections.out(self._usable.pool, now)
        picked = picker.pick(key, ejected | tried if ejected else tried)
        if picked is None and ejected:
            picked = picker.pick(key, tried)
        self.picks += picked is not None
        return picked

    def check(self) -> None:
        """Assert every invariant.  O(endpoints)."""
        self._merge.check()
        self.ejections.check()
        self._usable.check(self._merge.visible)
        self.load.check()
        for picker in self._pickers:
            picker.check()
        assert self.endpoints == tuple(
            self._merge.visible[key] for key in sorted(self._merge.visible)
        ), "snapshot is old"
