"""Which object owns which: the graph of ownerReferences over every watched object, kept from informer changes.

An edge is a reference's uid.  What a reference says beside the uid (kind, namespace, name) may be wrong, so all that is
learned about owners is filed under the whole ``OwnerClaim``: that no Service ``b/web`` with uid U exists says nothing
about U itself, whose real name and namespace another reference may well give (kubernetes/kubernetes#65200, #88097).

An owner may be referred to before it is seen, and after it is gone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.meta import Object, OwnerReference
from sliceplane.api.scheme import OPTIONAL_RESOURCES, Resource
from sliceplane.informer.cache import Change

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class OwnerClaim(NamedTuple):
    """An owner as a reference tells it.  ``resource`` is a ``Resource.key``; cluster-wide owners have no namespace."""

    resource: str
    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.resource}/{self.namespace}/{self.name}#{self.uid}"


class OwnedItem:
    """One object as last seen.  Changed by ``OwnershipGraph`` only, but for ``confirmed`` and ``version``."""

    __slots__ = ("confirmed", "deleting", "finalizers", "name", "namespace", "owners", "resource", "uid", "version")

    def __init__(self, resource: Resource, seen: Object) -> None:
        meta = seen.metadata
        self.resource: Final = resource
        self.namespace: Final = meta.namespace
        self.name: Final = meta.name
        self.uid: Final = meta.uid
        self.update(seen)

    def update(self, seen: Object) -> None:
        meta = seen.metadata
        self.version = meta.resource_version
        self.owners = meta.owner_references or ()
        self.finalizers = meta.finalizers or ()
        self.deleting = meta.deletion_timestamp is not None
        #: the server itself said that this object waits for its dependents
        self.confirmed = False

    @property
    def foreground(self) -> bool:
        """It is being deleted and waits for its dependents."""
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def claim(self) -> OwnerClaim:
        """What a right reference to it says."""
        return OwnerClaim(self.resource.key, self.namespace, self.name, self.uid)


class Owners(NamedTuple):
    """An object's owners by what is known of them (see ``controllers.garbage_collector``)."""

    solid: list[OwnerReference]
    waiting: list[OwnerReference]
    dangling: list[OwnerReference]
    unsure: list[OwnerReference]


class OwnershipGraph:
    """Owned by the garbage collector."""

    def __init__(self, resources: tuple[Resource, ...]) -> None:
        self._resources = {resource.key: resource for resource in resources}
        self._kinds = {(resource.api_version, resource.kind): resource for resource in resources}
        for resource in OPTIONAL_RESOURCES:
            if resource.key in self._resources:
                self._kinds[resource.api_version, resource.kind] = self._resources[resource.key]
        self.items: dict[str, OwnedItem] = {}
        #: owner -> dependent -> whether it blocks the owner's deletion
        self._dependents: dict[str, dict[str, bool]] = {}
        #: owner -> how many dependents block it; no zeros
        self._blocking: dict[str, int] = {}
        #: uid -> claims of which the server said that there is no such object.  A uid does not come back.
        self._gone: dict[str, set[OwnerClaim]] = {}
        #: uids that caches showed going.  A cache may be behind, or a list older than it: a hint, no proof.
        self._ended: set[str] = set()

    # -- events -----------------------------------------------------------------------------------------

    def on_change(self, change: Change[Object]) -> tuple[str, ...]:
        """Follow *change*.  Gives the uids of objects that something may have to be done about."""
        old = change.old
        new = change.new
        touched: dict[str, None] = {}
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            touched.update(dict.fromkeys(self._remove(old.metadata.uid)))
        if new is not None:
            touched.update(dict.fromkeys(self._put(self._resources[change.resource], new)))
        return tuple(touched)

    def _put(self, resource: Resource, new: Object) -> tuple[str, ...]:
        uid = new.metadata.uid
        self._ended.discard(uid)
        item = self.items.get(uid)
        if item is None:
            item = self.items[uid] = OwnedItem(resource, new)
            self._link(item)
            # dependents that were seen first may have been unsure of it
            concerned = item.owners or item.deleting
            return (*((uid,) if concerned else ()), *self._dependents.get(uid, ()))
        before = (item.owners, item.finalizers, item.deleting)
        if (new.metadata.owner_references or ()) == item.owners:
            item.update(new)
        else:
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
        dependents = self.dependents(uid)
        if dependents:
            self._ended.add(uid)
        return (*owners, *dependents)

    def note_gone(self, claim: OwnerClaim) -> tuple[str, ...]:
        """The server has no such object.  Gives the dependents that claim it."""
        dependents = self.claimants(claim)
        if dependents:
            self._gone.setdefault(claim.uid, set()).add(claim)
        return dependents

    def _link(self, item: OwnedItem) -> None:
        for uid, blocks in self._edges(item).items():
            self._dependents.setdefault(uid, {})[item.uid] = blocks
            if blocks:
                self._blocking[uid] = self._blocking.get(uid, 0) + 1

    def _unlink(self, item: OwnedItem) -> None:
        for uid, blocks in self._edges(item).items():
            dependents = self._dependents[uid]
            del dependents[item.uid]
            if not dependents:
                del self._dependents[uid]
                self._gone.pop(uid, None)
                self._ended.discard(uid)
            if blocks:
                self._blocking[uid] -= 1
                if not self._blocking[uid]:
                    del self._blocking[uid]

    def _edges(self, item: OwnedItem) -> dict[str, bool]:
        """Owner uid -> whether the item blocks it.  What will not be collected by its means cannot be waited for."""
        edges: dict[str, bool] = {}
        for owner in item.owners:
            blocks = bool(owner.block_owner_deletion) and self.claim(item, owner) is not None
            edges[owner.uid] = edges.get(owner.uid, False) or blocks
        return edges

    # -- questions --------------------------------------------------------------------------------------

    def dependents(self, uid: str) -> tuple[str, ...]:
        return tuple(self._dependents.get(uid, ()))

    def has_dependents(self, uid: str) -> bool:
        return uid in self._dependents

    def is_blocked(self, uid: str) -> bool:
        """A dependent wants to go before *uid*."""
        return uid in self._blocking

    def is_in_circle(self, item: OwnedItem) -> bool:
        """*item* waits for its dependents, and one of them, by way of others maybe, waits for *item*.

        Walks up from owner to owner: those are few.
        """
        seen = {item.uid}
        walk = [item]
        while walk:
            each = walk.pop()
            for owner in each.owners:
                above = self.items.get(owner.uid)
                if above is None or not owner.block_owner_deletion or not above.foreground:
                    continue
                if above is item:
                    return True
                if above.uid not in seen:
                    seen.add(above.uid)
                    walk.append(above)
        return False

    def claim(self, item: OwnedItem, owner: OwnerReference) -> OwnerClaim | None:
        """What *item* says about *owner*; ``None``: not for us to judge.

        That is an owner of a kind and version that we do not know, and a namespaced owner of a cluster-wide object.
        """
        resource = self._kinds.get((owner.api_version, owner.kind))
        if resource is None or (resource.namespaced and not item.namespace):
            return None
        return OwnerClaim(resource.key, item.namespace if resource.namespaced else "", owner.name, owner.uid)

    def claimants(self, claim: OwnerClaim) -> tuple[str, ...]:
        """The dependents that make *claim*, in the order in which they came."""
        return tuple(uid for uid in self._dependents.get(claim.uid, ()) if self._claims(uid, claim))

    def is_claimed(self, claim: OwnerClaim) -> bool:
        return any(self._claims(uid, claim) for uid in self._dependents.get(claim.uid, ()))

    def _claims(self, uid: str, claim: OwnerClaim) -> bool:
        item = self.items[uid]
        return any(owner.uid == claim.uid and self.claim(item, owner) == claim for owner in item.owners)

    def resource(self, claim: OwnerClaim) -> Resource:
        return self._resources[claim.resource]

    def find(self, claim: OwnerClaim) -> OwnedItem | None:
        """The object that *claim* tells of, if the caches have it and it is as told."""
        known = self.items.get(claim.uid)
        return known if known is not None and known.claim == claim else None

    def is_suspect(self, claim: OwnerClaim) -> bool:
        """There is more against *claim* than that the caches may be behind."""
        return claim.uid in self._ended or claim.uid in self.items

    def is_gone(self, claim: OwnerClaim) -> bool:
        return claim in self._gone.get(claim.uid, ())

    def classify(self, item: OwnedItem) -> Owners:
        owners = Owners([], [], [], [])
        for owner in item.owners:
            claim = self.claim(item, owner)
            if claim is None:
                owners.solid.append(owner)
            elif self.is_gone(claim):
                owners.dangling.append(owner)
            else:
                known = self.find(claim)
                known_as = owners.unsure if known is None else owners.waiting if known.foreground else owners.solid
                known_as.append(owner)
        return owners

    def misplaced(self, item: OwnedItem) -> tuple[OwnerReference, ...]:
        """Owners that cannot be where *item* looks for them (reason OwnerRefInvalidNamespace)."""
        wrong = []
        for owner in item.owners:
            resource = self._kinds.get((owner.api_version, owner.kind))
            known = self.items.get(owner.uid)
            if resource is None or not resource.namespaced:
                continue
            elsewhere = known is not None and known.resource is resource and known.namespace != item.namespace
            if elsewhere or not item.namespace:
                wrong.append(owner)
        return tuple(wrong)

    def check(self) -> None:
        expected: dict[str, dict[str, bool]] = {}
        for uid, item in self.items.items():
            assert item.uid == uid, f"{item.uid} filed under {uid}"
            for owner, blocks in self._edges(item).items():
                expected.setdefault(owner, {})[uid] = blocks
        assert self._dependents == expected, "edges differ"
        blocking = {owner: sum(claims.values()) for owner, claims in expected.items() if any(claims.values())}
        assert self._blocking == blocking, f"blocking is {self._blocking}, not {blocking}"
        remembered = {*self._gone, *self._ended}
        assert remembered <= set(expected), f"remembers {remembered - set(expected)} for no dependent"
        assert not self._ended & set(self.items), f"{self._ended & set(self.items)} have ended and are there"
