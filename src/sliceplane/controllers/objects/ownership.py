"""The graph of ownerReferences over every watched object, updated from informer changes.

An edge is a reference's uid. The other fields of a reference (kind, namespace, name) may be wrong,
so all facts about owners are filed under the whole ``OwnerClaim``. That no Service ``b/web`` with
uid U exists is no fact about U itself, whose real name and namespace another reference may have
(kubernetes/kubernetes#65200, #88097). A reference with U in another place does not block U's
deletion either: a namespaced object has no dependents elsewhere.

References to an owner may be observed before the owner, and after its end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import OPTIONAL_RESOURCES, Resource
from sliceplane.watch.cache import Change

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class OwnerClaim(NamedTuple):
    """An owner according to a reference. ``resource`` is a ``Resource.key``; cluster-scoped owners
    have no namespace.
    """

    resource: str
    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.resource}/{self.namespace}/{self.name}#{self.uid}"


class OwnedItem:
    """The newest observed version of one object. Changed by ``OwnershipGraph`` only, except
    ``confirmed`` and ``version``.
    """

    __slots__ = (
        "confirmed",
        "deleting",
        "finalizers",
        "name",
        "namespace",
        "owners",
        "resource",
        "uid",
        "version",
    )

    def __init__(self, resource: Resource, observed: Object) -> None:
        meta = observed.metadata
        self.resource: Final = resource
        self.namespace: Final = meta.namespace
        self.name: Final = meta.name
        self.uid: Final = meta.uid
        self.update(observed)

    def update(self, observed: Object) -> None:
        meta = observed.metadata
        self.version = meta.resource_version
        self.owners = meta.owner_references or ()
        self.finalizers = meta.finalizers or ()
        self.deleting = meta.is_deleting
        #: the server itself reported that this object waits for its dependents
        self.confirmed = False

    @property
    def meta(self) -> ObjectMeta:
        return ObjectMeta(
            name=self.name,
            namespace=self.namespace,
            uid=self.uid,
            resource_version=self.version,
        )

    @property
    def foreground(self) -> bool:
        """True if it is being deleted and waits for its dependents."""
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def claim(self) -> OwnerClaim:
        """Content of a correct reference to it."""
        return OwnerClaim(self.resource.key, self.namespace, self.name, self.uid)


class Owners(NamedTuple):
    """An object's owners by state (see ``controllers.objects.garbage_collector``)."""

    solid: list[OwnerReference]
    waiting: list[OwnerReference]
    dangling: list[OwnerReference]
    unsure: list[OwnerReference]


class OwnershipGraph:
    """The graph. Owned by the garbage collector."""

    def __init__(self, resources: tuple[Resource, ...]) -> None:
        self._resources = {resource.key: resource for resource in resources}
        self._kinds = {(resource.api_version, resource.kind): resource for resource in resources}
        for resource in OPTIONAL_RESOURCES:
            if resource.key in self._resources:
                self._kinds[resource.api_version, resource.kind] = self._resources[resource.key]
        self.items: dict[str, OwnedItem] = {}
        #: by the owner's uid, by claim (``None``: not judged), by dependent: True if it blocks the
        #: owner's deletion
        self._claimed: dict[str, dict[OwnerClaim | None, dict[str, bool]]] = {}
        #: number of dependents that block the owner, by claim; no zeros
        self._blocking: dict[OwnerClaim, int] = {}
        #: present claims without an object according to the server, by uid. A uid is never reused.
        self._gone: dict[str, set[OwnerClaim]] = {}
        #: uids whose deletion caches showed. A cache may be behind, or a list older: evidence, but
        #: no proof.
        self._ended: set[str] = set()

    # -- events

    def on_change(self, change: Change[Object]) -> tuple[str, ...]:
        """Applies *change*. Returns the uids of objects that may need an action."""
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
            # dependents that were observed first may have been unsure of it
            affected = item.owners or item.deleting
            return (*((uid,) if affected else ()), *self.referrers(uid))
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
        # deletion or finalizers: dependents have another kind of owner; owners: one may no longer
        # be blocked
        return tuple(dict.fromkeys((uid, *self.referrers(uid), *owners, *lost)))

    def _remove(self, uid: str) -> tuple[str, ...]:
        item = self.items.pop(uid, None)
        if item is None:
            return ()
        self._unlink(item)
        owners = tuple(owner.uid for owner in item.owners if owner.uid in self.items)
        dependents = self.referrers(uid)
        if dependents:
            self._ended.add(uid)
        return (*owners, *dependents)

    def note_gone(self, claim: OwnerClaim) -> tuple[str, ...]:
        """Records that the server has no such object. Returns the dependents that claim it."""
        dependents = self.claimants(claim)
        if dependents:
            self._gone.setdefault(claim.uid, set()).add(claim)
        return dependents

    def _link(self, item: OwnedItem) -> None:
        for (uid, claim), blocks in self._edges(item).items():
            self._claimed.setdefault(uid, {}).setdefault(claim, {})[item.uid] = blocks
            if blocks and claim is not None:
                self._blocking[claim] = self._blocking.get(claim, 0) + 1

    def _unlink(self, item: OwnedItem) -> None:
        for (uid, claim), blocks in self._edges(item).items():
            claims = self._claimed[uid]
            dependents = claims[claim]
            del dependents[item.uid]
            if not dependents:
                del claims[claim]
                self._forget_gone(uid, claim)
            if not claims:
                del self._claimed[uid]
                self._ended.discard(uid)
            if blocks and claim is not None:
                self._blocking[claim] -= 1
                if not self._blocking[claim]:
                    del self._blocking[claim]

    def _forget_gone(self, uid: str, claim: OwnerClaim | None) -> None:
        gone = self._gone.get(uid)
        if gone is not None and claim is not None:
            gone.discard(claim)
            if not gone:
                del self._gone[uid]

    def _edges(self, item: OwnedItem) -> dict[tuple[str, OwnerClaim | None], bool]:
        """Returns a mapping from owner and claim: True if the item blocks the owner. An owner that
        is not judged does not wait for the item.
        """
        edges: dict[tuple[str, OwnerClaim | None], bool] = {}
        for owner in item.owners:
            claim = self.claim(item, owner)
            edge = (owner.uid, claim)
            edges[edge] = edges.get(edge, False) or (
                bool(owner.block_owner_deletion) and claim is not None
            )
        return edges

    # -- queries

    def referrers(self, uid: str) -> tuple[str, ...]:
        """Returns the objects that name *uid* as an owner, correctly or not."""
        claims = self._claimed.get(uid, {})
        return tuple(
            dict.fromkeys(dependent for dependents in claims.values() for dependent in dependents)
        )

    def dependents(self, item: OwnedItem) -> tuple[str, ...]:
        """Returns the objects that *item* owns, by references that are judged, or that have an
        unknown version.
        """
        claims = self._claimed.get(item.uid, {})
        unjudged = (
            uid for uid in claims.get(None, ()) if item.namespace in ("", self.items[uid].namespace)
        )
        return tuple(dict.fromkeys((*claims.get(item.claim, ()), *unjudged)))

    def has_dependents(self, item: OwnedItem) -> bool:
        return bool(self.dependents(item))

    def is_blocked(self, item: OwnedItem) -> bool:
        """Returns True if a dependent of *item* must be deleted before it."""
        return item.claim in self._blocking

    def is_in_circle(self, item: OwnedItem) -> bool:
        """Returns True if *item* waits for its dependents, and one of them waits for *item*,
        directly or not.

        Walks up from owner to owner, of which there are few.
        """
        visited = {item.uid}
        walk = [item]
        while walk:
            current = walk.pop()
            for owner in current.owners:
                claim = self.claim(current, owner)
                above = None if claim is None else self.find(claim)
                if above is None or not owner.block_owner_deletion or not above.foreground:
                    continue
                if above is item:
                    return True
                if above.uid not in visited:
                    visited.add(above.uid)
                    walk.append(above)
        return False

    def claim(self, item: OwnedItem, owner: OwnerReference) -> OwnerClaim | None:
        """Returns the claim of *item* about *owner*; ``None`` if it is not judged.

        That is an owner of an unknown kind or version, and a namespaced owner of a cluster-scoped
        object.
        """
        resource = self._kinds.get((owner.api_version, owner.kind))
        if resource is None or (resource.namespaced and not item.namespace):
            return None
        return OwnerClaim(
            resource.key, item.namespace if resource.namespaced else "", owner.name, owner.uid
        )

    def claimants(self, claim: OwnerClaim) -> tuple[str, ...]:
        """Returns the dependents that make *claim*, in the order of their first event."""
        return tuple(self._claimed.get(claim.uid, {}).get(claim, ()))

    def is_claimed(self, claim: OwnerClaim) -> bool:
        return claim in self._claimed.get(claim.uid, ())

    def resource(self, claim: OwnerClaim) -> Resource:
        return self._resources[claim.resource]

    def find(self, claim: OwnerClaim) -> OwnedItem | None:
        """Returns the object of *claim* if the caches have it and it matches."""
        cached = self.items.get(claim.uid)
        return cached if cached is not None and cached.claim == claim else None

    def is_suspect(self, claim: OwnerClaim) -> bool:
        """Returns True if there is evidence against *claim* besides its absence from caches."""
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
                cached = self.find(claim)
                state = (
                    owners.unsure
                    if cached is None
                    else owners.waiting
                    if cached.foreground
                    else owners.solid
                )
                state.append(owner)
        return owners

    def misplaced(self, item: OwnedItem) -> tuple[OwnerReference, ...]:
        """Returns owners that cannot be in the namespace of *item* (reason
        OwnerRefInvalidNamespace).
        """
        wrong = []
        for owner in item.owners:
            resource = self._kinds.get((owner.api_version, owner.kind))
            cached = self.items.get(owner.uid)
            if resource is None or not resource.namespaced:
                continue
            elsewhere = (
                cached is not None
                and cached.resource is resource
                and cached.namespace != item.namespace
            )
            if elsewhere or not item.namespace:
                wrong.append(owner)
        return tuple(wrong)

    def check(self) -> None:
        expected: dict[str, dict[OwnerClaim | None, dict[str, bool]]] = {}
        for uid, item in self.items.items():
            assert item.uid == uid, f"{item.uid} filed under {uid}"
            for (owner, claim), blocks in self._edges(item).items():
                expected.setdefault(owner, {}).setdefault(claim, {})[uid] = blocks
        assert self._claimed == expected, "edges differ"
        claims = {
            claim: dependents
            for claims in expected.values()
            for claim, dependents in claims.items()
            if claim is not None
        }
        blocking = {
            claim: sum(dependents.values())
            for claim, dependents in claims.items()
            if any(dependents.values())
        }
        assert self._blocking == blocking, f"blocking is {self._blocking}, not {blocking}"
        gone = {claim for claims in self._gone.values() for claim in claims}
        assert gone <= set(claims), f"remembers {gone - set(claims)}, which nothing claims"
        assert self._ended <= set(expected), (
            f"remembers {self._ended - set(expected)} for no dependent"
        )
        assert not self._ended & set(self.items), (
            f"{self._ended & set(self.items)} have ended and are there"
        )
