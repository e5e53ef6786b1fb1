"""The base of every verb: the store, the random generator, and the indexes that follow each write.

A write goes through ``put`` or ``remove``, in three steps. The record is staged. The *followers*
are notified (ledgers of Services, RBAC, quotas, expiry of Events). Dependent changes are staged,
too (removal of released IPAddresses, rules of aggregated roles). ``follow`` and ``rebuild`` are for
writes of other servers, and for writes that were undone. Owned by ``Registry``; one caller at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from sliceplane.api.errors import StatusError, not_found
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    ClusterRoleBindings,
    ClusterRoles,
    IPAddresses,
    Resource,
    RoleBindings,
    Roles,
    Services,
)
from sliceplane.kit.ip import canonical as canonical_address
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_time
from sliceplane.server.registry.admission.address_book import (
    ALLOCATOR,
    FAMILY_LABEL,
    MANAGED_BY_LABEL,
    AddressBook,
    family_of,
)
from sliceplane.server.registry.admission.quotas import QuotaIndex
from sliceplane.server.registry.admission.services import ServiceLedgers
from sliceplane.server.registry.authorization.aggregation import Aggregation, Gatherers
from sliceplane.server.registry.authorization.dependencies import Dependencies
from sliceplane.server.registry.authorization.index import PolicyIndex
from sliceplane.server.registry.authorization.rules import (
    PolicyRule,
    decode_binding,
    decode_role,
    document_of_rule,
)
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.documents import canonical, document_of, make_record
from sliceplane.server.registry.expiry import Expiry
from sliceplane.server.registry.types import Context, NoTokens, Target, TokenService, WriteOptions
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record, restamp

#: kinds with up to megabytes of rules or subjects, which followers decode when they need them
_DECODED_APART = {
    Roles.storage_key: decode_role,
    ClusterRoles.storage_key: decode_role,
    RoleBindings.storage_key: decode_binding,
    ClusterRoleBindings.storage_key: decode_binding,
}


class Follower(Protocol):
    """Maintains an index over the newest objects of some kinds, staged ones included."""

    @property
    def follows(self) -> frozenset[str]:
        """``Resource.storage_key`` of each of the kinds."""

    def on_stored(self, key: Key, document: Document) -> None:
        """Handles a new version."""

    def on_removed(self, key: Key) -> None:
        """Handles a removal, also of an object that the follower never observed."""

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """Rebuilds the index from *objects*, all objects of these kinds."""

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        """Asserts that the index equals one built from *objects*, all objects of these kinds."""


class Core:
    """The mutable state of a registry.  Verbs read ``store`` freely and write through the
    methods.
    """

    def __init__(
        self, store: Store, rng: Rng, config: RegistryConfig, tokens: TokenService | None = None
    ) -> None:
        self.store = store
        store.object_bytes.most = config.object_bytes_max
        self.rng = rng
        self.config = config
        self.tokens = tokens or NoTokens()
        self.addresses = AddressBook(config.service_cidrs)
        self.services = ServiceLedgers(config, rng, self.addresses)
        self.dependencies = Dependencies()
        self.policy = PolicyIndex(self.dependencies)
        self.aggregation = Aggregation()
        self.quotas = QuotaIndex(store)
        self.expiry = Expiry()
        #: in the order of notification: the ledgers of Services take their ranges from the address
        #: book, and aggregated roles their rules from the policy
        self.followers: tuple[Follower, ...] = (
            *(
                self.addresses,
                self.services,
                self.policy,
                self.aggregation,
                self.quotas,
                self.expiry,
            ),
        )
        kinds = frozenset[str]().union(*(follower.follows for follower in self.followers))
        self._followers_of = {
            kind: tuple(follower for follower in self.followers if kind in follower.follows)
            for kind in kinds
        }
        self.rebuild()

    def rebuild(self) -> None:
        """Derives the indexes from the newest records: at start, and after staged events were
        dropped.
        """
        for follower in self.followers:
            follower.rebuild(self._objects(follower))
        self.addresses.suspects.update(self.services.all_addresses())

    def follow(self, keys: Iterable[Key]) -> None:
        """Updates the indexes for *keys*, which another server wrote, or whose staged versions were
        dropped.

        Stages nothing: the writer has written the dependent changes, too. The cost is proportional
        to *keys*. Required order: all Services release before any claims, as an address or port may
        have moved from one to another.
        """
        touched = tuple(keys)
        self.dependencies.invalidate(touched)
        changed = sorted(key for key in touched if key.resource in self._followers_of)
        services = [key for key in changed if key.resource == Services.storage_key]
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))
            self.services.on_removed(key)
        for key in changed:
            record = self.store.latest(key)
            self._notify(key, None if record is None else _followed(record))
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))

    def _notify(self, key: Key, document: Document | None) -> None:
        """Notifies the followers of the newest version; ``None``: the object was removed."""
        self.dependencies.invalidate((key,))
        for follower in self._followers_of.get(key.resource, ()):
            if document is None:
                follower.on_removed(key)
            else:
                follower.on_stored(key, document)

    def _objects(self, follower: Follower) -> Iterator[tuple[Key, Document]]:
        for resource in sorted(follower.follows):
            for record in self.store.iter_latest(resource):
                yield record.key, document_of(record)

    def check(self) -> None:
        """Asserts that every index equals one built from the newest objects."""
        for follower in self.followers:
            follower.check(list(self._objects(follower)))
        self._check_addresses()
        self.dependencies.check()

    def _check_addresses(self) -> None:
        """Asserts that Services and IPAddresses agree, except for the suspects."""
        book = self.addresses
        for name in self.services.all_addresses():
            entry = book.entry(name)
            holder = self.services.holder(name)
            assert name in book.suspects or (entry and entry.service == holder), (
                f"{name} of {holder}: {entry}"
            )
        for name in book.names():
            entry = book.entry(name)
            assert entry is not None
            fine = (
                not entry.managed
                or name in book.suspects
                or self.services.holder(name) == entry.service
            )
            assert fine, (
                f"IPAddress {name} names {entry.service}, {self.services.holder(name)} has the "
                "address"
            )

    def latest(self, target: Target) -> Record:
        """Returns the newest version, also if it is only staged, as the base of a write.  Raises a
        404 StatusError.
        """
        record = self.store.latest(key_of(target))
        if record is None:
            raise missing(target.resource, target.name)
        return record

    def put(self, resource: Resource, document: Document) -> Record:
        """Stages the object and its dependent changes; the new record's body is the answer to the
        client.
        """
        record, before = self._stage(resource, document)
        if resource is ClusterRoles:
            self.gather(
                self.aggregation.gathering(
                    record.key, record.labels, before.labels if before else {}
                )
            )
        return record

    def _stage(self, resource: Resource, document: Document) -> tuple[Record, Record | None]:
        """Returns the new and the previous record; does not update aggregated roles."""
        metadata = document["metadata"]
        key = Key(resource.storage_key, metadata.get("namespace", ""), metadata["name"])
        before = self.store.latest(key)
        shaped = canonical(resource, document)
        # The current addresses of a Service, which this write may release.
        addresses = self.services.addresses(key) if resource is Services else ()
        record = self.store.stage_put(key, partial(make_record, resource, shaped, before=before))
        self._notify(key, shaped)
        if addresses:
            self._release(key, addresses)
        return record, before

    def remove(self, record: Record) -> Record:
        """Stages the deletion of the newest version, and its dependent changes."""
        key = record.key
        addresses = self.services.addresses(key) if key.resource == Services.storage_key else ()
        last = self.store.stage_delete(key, lambda revision: restamp(record, revision))
        self._notify(key, None)
        if addresses:
            self._release(key, addresses)
        if key.resource == ClusterRoles.storage_key:
            self.gather(self.aggregation.gathering(key, record.labels))
        return last

    def _release(self, service: Key, addresses: tuple[str, ...]) -> None:
        """Removes the IPAddresses of the addresses that *service* released, in the same commit as
        the write of the Service.
        """
        for name in addresses:
            entry = self.addresses.entry(name)
            record = self.store.latest(Key(IPAddresses.storage_key, "", name))
            if self.services.holder(name) is not None or record is None:
                continue
            if entry is None or not entry.managed or entry.service != service:
                continue
            if document_of(record)["metadata"].get("finalizers"):
                # Finalizers defer the removal: ``service_addresses`` compares both and deletes it.
                self.addresses.suspects.add(name)
            else:
                self.remove(record)

    def gather(self, keys: Iterable[Key]) -> None:
        """Stages the aggregated ClusterRoles with outdated rules: those of *keys*, and the roles
        that gather them.
        """
        gatherers = Gatherers(self.aggregation, keys)
        for key in gatherers:
            record = self.store.latest(key)
            assert record is not None, f"{key} gathers and does not exist"
            rules = self.aggregation.rules_of(key, self.policy)
            if rules != self.policy.role(key):
                self._stage(ClusterRoles, _with_rules(document_of(record), rules))
                gatherers.changed(key, record.labels)

    def fill(self, role: Document) -> None:
        """Replaces the rules of an aggregated ClusterRole by those of the roles that it gathers;
        does not change other roles.

        Raises the 403 ``StatusError`` if the role makes one that gathers it too large.
        """
        rules = self.aggregation.rules_for(role, self.policy)
        if rules is not None:
            _with_rules(role, rules)
        self.aggregation.admit(role, self.policy)

    def claim_addresses(self, document: Document, now: float) -> None:
        """Stages the missing IPAddresses of a Service.  Required order: after its admission, before
        its ``put``.
        """
        key = Key(
            Services.storage_key, document["metadata"]["namespace"], document["metadata"]["name"]
        )
        for text in document["spec"].get("clusterIPs", ()):
            name = canonical_address(text)
            if name is not None and self.addresses.entry(name) is None:
                self.make_address(name, key, now)

    def make_address(self, name: str, service: Key, now: float) -> None:
        """Stages the IPAddress *name* of *service*."""
        parent = {"resource": Services.plural, "namespace": service.namespace, "name": service.name}
        head = {
            "name": name,
            "uid": self.rng.uuid(),
            "creationTimestamp": format_time(now),
            "labels": {FAMILY_LABEL: family_of(name), MANAGED_BY_LABEL: ALLOCATOR},
        }
        self.put(IPAddresses, {"metadata": head, "spec": {"parentRef": parent}})


class WriteCall(NamedTuple):
    """A write as the verbs receive it: the state, the user and time, the target, the options."""

    core: Core
    ctx: Context
    target: Target
    options: WriteOptions


def _followed(record: Record) -> Document:
    """Returns the document of *record* as followers read it."""
    decode = _DECODED_APART.get(record.key.resource)
    return document_of(record) if decode is None else decode(record.body)


def _with_rules(role: Document, rules: tuple[PolicyRule, ...]) -> Document:
    """Returns *role*, with its rules replaced in place."""
    if rules:
        role["rules"] = [document_of_rule(rule) for rule in rules]
    else:
        role.pop("rules", None)
    return role


def key_of(target: Target) -> Key:
    namespace = target.namespace if target.resource.namespaced else ""
    return Key(target.resource.storage_key, namespace, target.name)


def missing(resource: Resource, name: str) -> StatusError:
    return not_found(resource.plural, resource.group, name)
