"""The graph of ownerReferences over every watched object, kept from informer changes.

An edge is a reference's uid. What a reference says beside the uid (kind, namespace, name) may be
wrong, so all that is learned about owners is filed under the whole ``OwnerClaim``: that no Service
``b/web`` with uid U exists says nothing about U itself, whose real name and namespace another
reference may well give (kubernetes/kubernetes#65200, #88097). Nor does a reference with U in
another place hold up U's deletion: a namespaced object has no dependents elsewhere.

An owner may be referred to before it is seen, and after it is gone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import OPTIONAL_RESOURCES, Resource
from sliceplane.watch.cache import Change

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class OwnerClaim(NamedTuple):
    """An owner as a reference tells it.  ``resource`` is a ``Resource.key``; cluster-wide owners
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
    """One object as last seen.  Changed by ``OwnershipGraph`` only, but for ``confirmed`` and
    ``version``.
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
        self.deleting = meta.is_deleting
        #: the server itself said that this object waits for its dependents
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
        """It is being deleted and waits for its dependents."""
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def claim(self) -> OwnerClaim:
        """Returns the content of a correct reference to it."""
        return OwnerClaim(self.resource.key, self.namespace, self.name, self.uid)


class Owners(NamedTuple):
    """An object's owners by what is known of them (see
    ``controllers.objects.garbage_collector``).
    """

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
        #: owner's uid -> claim (``None``: it is not judged) -> dependent -> True if it blocks the
        #: owner's deletion
        self._claimed: dict[str, dict[OwnerClaim | None, dict[str, bool]]] = {}
        #: claim -> number of dependents that block the owner; no zeros
        self._blocking: dict[OwnerClaim, int] = {}
        #: uid -> claims without an object, as the server said, while they are made. A uid does not
        #: come back.
        self._gone: dict[str, set[OwnerClaim]] = {}
        #: uids that caches showed going. A cache may be behind, or a list older than it: a hint, no
        #: proof.
        self._ended: set[str] = set()

    # -- events

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
            return (*((uid,) if concerned else ()), *self.referrers(uid))
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
        # deletion or finalizers: dependents see another kind of owner; owners: one may be blocked
        # no more
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
        """The server has no such object.  Gives the dependents that claim it."""
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
        """Returns owner and claim -> True if the item blocks the owner. What is not judged is not
        collected by the item's means, and cannot be waited for.
        """
        edges: dict[tuple[str, OwnerClaim | None], bool] = {}
        for owner in item.owners:
            claim = self.claim(item, owner)
            edge = (owner.uid, claim)
            edges[edge] = edges.get(edge, False) or (
                bool(owner.block_owner_deletion) and claim is not None
            )
        return edges

    # -- questions

    def referrers(self, uid: str) -> tuple[str, ...]:
        """The objects that name *uid* as an owner, rightly or wrongly."""
        claims = self._claimed.get(uid, {})
        return tuple(
            dict.fromkeys(dependent for dependents in claims.values() for dependent in dependents)
        )

    def dependents(self, item: OwnedItem) -> tuple[str, ...]:
        """The objects that *item* owns, by references that it is judged by or that are of a version
        not known here.
        """
        claims = self._claimed.get(item.uid, {})
        unjudged = (
            uid for uid in claims.get(None, ()) if item.namespace in ("", self.items[uid].namespace)
        )
        return tuple(dict.fromkeys((*claims.get(item.claim, ()), *unjudged)))

    def has_dependents(self, item: OwnedItem) -> bool:
        return bool(self.dependents(item))

    def is_blocked(self, item: OwnedItem) -> bool:
        """Returns True if a dependent of *item* is to go before it."""
        return item.claim in self._blocking

    def is_in_circle(self, item: OwnedItem) -> bool:
        """*item* waits for its dependents, and one of them, by way of others maybe, waits for
        *item*.

        Walks up from owner to owner: those are few.
        """
        seen = {item.uid}
        walk = [item]
        while walk:
            each = walk.pop()
            for owner in each.owners:
                claim = self.claim(each, owner)
                above = None if claim is None else self.find(claim)
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

        That is an owner of a kind and version that we do not know, and a namespaced owner of a
        cluster-wide object.
        """
        resource = self._kinds.get((owner.api_version, owner.kind))
        if resource is None or (resource.namespaced and not item.namespace):
            return None
        return OwnerClaim(
            resource.key, item.namespace if resource.namespaced else "", owner.name, owner.uid
        )

    def claimants(self, claim: OwnerClaim) -> tuple[str, ...]:
        """The dependents that make *claim*, in the order in which they came."""
        return tuple(self._claimed.get(claim.uid, {}).get(claim, ()))

    def is_claimed(self, claim: OwnerClaim) -> bool:
        return claim in self._claimed.get(claim.uid, ())

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
                known_as = (
                    owners.unsure
                    if known is None
                    else owners.waiting
                    if known.foreground
                    else owners.solid
                )
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
            elsewhere = (
                known is not None
                and known.resource is resource
                and known.namespace != item.namespace
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
            claim: made
            for claims in expected.values()
            for claim, made in claims.items()
            if claim is not None
        }
        blocking = {
            claim: sum(made.values()) for claim, made in claims.items() if any(made.values())
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
