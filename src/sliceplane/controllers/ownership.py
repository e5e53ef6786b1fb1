"""Who owns whom: the graph of ownerReferences over every watched object, kept from informer changes.

Edges go by uid alone.  An owner may be referred to before it is seen, and after it is gone; ``gone`` remembers those
whose end is certain, for as long as something still refers to them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.meta import Object, OwnerReference
from sliceplane.api.scheme import Resource
from sliceplane.informer.changes import Change

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class Item:
    """One object as last seen.  Changed by ``OwnershipGraph`` only, but for ``seen``."""

    __slots__ = ("deleting", "finalizers", "name", "namespace", "owners", "resource", "seen", "uid", "version")

    def __init__(self, resource: Resource, found: Object) -> None:
        meta = found.metadata
        self.resource: Final = resource
        self.namespace: Final = meta.namespace
        self.name: Final = meta.name
        self.uid: Final = meta.uid
        #: when the garbage collector first missed an owner of it (seconds since the epoch)
        self.seen: float | None = None
        self.update(found)

    def update(self, found: Object) -> None:
        meta = found.metadata
        self.version = meta.resource_version
        self.owners = meta.owner_references or ()
        self.finalizers = meta.finalizers or ()
        self.deleting = meta.deletion_timestamp is not None

    @property
    def foreground(self) -> bool:
        """It is being deleted and waits for its dependents."""
        return self.deleting and FOREGROUND in self.finalizers

    def blocks(self, owner_uid: str) -> bool:
        return any(owner.uid == owner_uid and owner.block_owner_deletion for owner in self.owners)


class Owners(NamedTuple):
    """An object's owners by what is known of them (see ``controllers.garbage_collector``)."""

    solid: list[OwnerReference]
    waiting: list[OwnerReference]
    dangling: list[OwnerReference]
    unsure: list[OwnerReference]


class OwnershipGraph:
    """Owned by the garbage collector."""

    def __init__(self, resources: tuple[Resource, ...]) -> None:
        self._resources = {each.key: each for each in resources}
        self._kinds = {(each.group, each.kind): each for each in resources}
        self.items: dict[str, Item] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        self._gone: set[str] = set()

    def on_change(self, change: Change[Object]) -> tuple[str, ...]:
        """Follow *change*.  Gives the uids of objects that something may have to be done about."""
        old, new = change.old, change.new
        touched: dict[str, None] = {}
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            touched.update(dict.fromkeys(self._remove(old.metadata.uid)))
        if new is not None:
            touched.update(dict.fromkeys(self._put(self._resources[change.resource], new)))
        return tuple(touched)

    def _put(self, resource: Resource, new: Object) -> tuple[str, ...]:
        uid = new.metadata.uid
        item = self.items.get(uid)
        if item is None:
            item = self.items[uid] = Item(resource, new)
            self._link(item)
            # dependents that were seen first may have been unsure of it
            concerned = item.owners or item.deleting
            return (*((uid,) if concerned else ()), *self._dependents.get(uid, ()))
        before = (item.owners, item.finalizers, item.deleting)
        self._unlink(item)
        item.update(new)
        self._link(item)
        if before == (item.owners, item.finalizers, item.deleting):
            return ()
        owners = tuple(owner.uid for owner in item.owners if owner.uid in self.items)
        lost = tuple(owner.uid for owner in before[0] if owner.uid in self.items)
        # deletion or finalizers: dependents see another kind of owner; owners: one may be blocked no more
        return tuple(dict.fromkeys((uid, *self._dependents.get(uid, ()), *owners, *lost)))

    def _remove(self, uid: str) -> tuple[str, ...]:
        item = self.items.pop(uid, None)
        if item is None:
            return ()
        self._unlink(item)
        owners = tuple(owner.uid for owner in item.owners if owner.uid in self.items)
        return (*owners, *self.note_gone(uid))

    def note_gone(self, uid: str) -> tuple[str, ...]:
        """*uid* surely exists no more.  Gives its dependents."""
        dependents = self.dependents(uid)
        if dependents:
            self._gone.add(uid)
        return dependents

    def _link(self, item: Item) -> None:
        for owner in item.owners:
            self._dependents.setdefault(owner.uid, {})[item.uid] = None

    def _unlink(self, item: Item) -> None:
        for owner in item.owners:
            dependents = self._dependents.get(owner.uid)
            if dependents is not None and dependents.pop(item.uid, 0) is None and not dependents:
                del self._dependents[owner.uid]
                self._gone.discard(owner.uid)

    def dependents(self, uid: str) -> tuple[str, ...]:
        return tuple(self._dependents.get(uid, ()))

    def resource_of(self, owner: OwnerReference) -> Resource | None:
        """The watched resource of an owner, whatever its version; ``None``: not watched."""
        group, slash, _ = owner.api_version.rpartition("/")
        return self._kinds.get((group if slash else "", owner.kind))

    def classify(self, item: Item) -> Owners:
        found = Owners([], [], [], [])
        for owner in item.owners:
            resource = self.resource_of(owner)
            known = self.items.get(owner.uid)
            if resource is None or (resource.namespaced and not item.namespace):
                found.solid.append(owner)
            elif known is not None and known.resource is resource and known.name == owner.name:
                if resource.namespaced and known.namespace != item.namespace:
                    found.dangling.append(owner)
                elif known.foreground:
                    found.waiting.append(owner)
                else:
                    found.solid.append(owner)
            elif owner.uid in self._gone:
                found.dangling.append(owner)
            else:
                found.unsure.append(owner)
        return found

    def check(self) -> None:
        expected: dict[str, set[str]] = {}
        for uid, item in self.items.items():
            assert item.uid == uid, f"{item.uid} filed under {uid}"
            for owner in item.owners:
                expected.setdefault(owner.uid, set()).add(uid)
        assert {owner: set(found) for owner, found in self._dependents.items()} == expected, "edges differ"
        assert self._gone <= set(expected), f"remembers {self._gone - set(expected)} for nobody"
        assert not self._gone & set(self.items), f"{self._gone & set(self.items)} are gone and there"
