"""The base of every verb: the store, the source of chance, and the accounts that follow each write.

A write goes through ``put`` or ``remove``, in three steps: the record is staged, the *followers*
learn of it (what Services hold, who may do what, quotas, when Events end), and what follows from it
is staged too (IPAddresses that are free again, rules of aggregated roles). ``follow`` and
``rebuild`` are for writes that were made elsewhere, or undone. Owned by ``Registry``; one caller at
a time.
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
from sliceplane.server.registry.authorization.index import PolicyIndex
from sliceplane.server.registry.authorization.rules import (
    PolicyRule,
    decode_binding,
    decode_role,
    document_of_rule,
)
from sliceplane.server.registry.authorization.standing import Standing
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.documents import canonical, document_of, make_record
from sliceplane.server.registry.expiry import Expiry
from sliceplane.server.registry.types import Context, NoTokens, Target, TokenService, WriteOptions
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record, restamp

#: kinds that have megabytes of rules or subjects, which followers decode where they need them
_DECODED_APART = {
    Roles.storage_key: decode_role,
    ClusterRoles.storage_key: decode_role,
    RoleBindings.storage_key: decode_binding,
    ClusterRoleBindings.storage_key: decode_binding,
}


class Follower(Protocol):
    """Keeps an account of some kinds that is always what their newest objects say, staged ones
    included.
    """

    @property
    def follows(self) -> frozenset[str]:
        """``Resource.storage_key`` of each of the kinds."""

    def on_stored(self, key: Key, document: Document) -> None:
        """There is a new version."""

    def on_removed(self, key: Key) -> None:
        """The object is gone, or was forgotten before the follower knew of it."""

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """Forget everything but *objects*, all that there are of these kinds."""

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        """Assert that the account is what *objects*, all that there are, say."""


class Core:
    """The mutable heart of a registry.  Verbs read ``store`` freely and write through the
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
        self.standing = Standing()
        self.policy = PolicyIndex(self.standing)
        self.aggregation = Aggregation()
        self.quotas = QuotaIndex(store)
        self.expiry = Expiry()
        #: in the order in which they learn of a write: the ledgers of Services take their ranges
        #: from the address book, and aggregated roles their rules from the policy
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
        """Derive the accounts from the newest records: at start, and after staged events were
        forgotten.
        """
        for follower in self.followers:
            follower.rebuild(self._objects(follower))
        self.addresses.suspects.update(self.services.all_addresses())

    def follow(self, keys: Iterable[Key]) -> None:
        """Derive anew what is known of *keys*: another server wrote them, or staged versions were
        forgotten.

        Nothing is staged: who wrote them has written what follows from it, too. The cost is that of
        *keys*. All Services let go before any takes, as a number may have passed between them.
        """
        touched = tuple(keys)
        self.standing.doubt(touched)
        changed = sorted(key for key in touched if key.resource in self._followers_of)
        services = [key for key in changed if key.resource == Services.storage_key]
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))
            self.services.on_removed(key)
        for key in changed:
            record = self.store.latest(key)
            self._tell(key, None if record is None else _followed(record))
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))

    def _tell(self, key: Key, document: Document | None) -> None:
        """The followers learn of the newest version; ``None``: the object is gone."""
        self.standing.doubt((key,))
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
        """Every follower knows exactly what the newest objects say."""
        for follower in self.followers:
            follower.check(list(self._objects(follower)))
        self._check_addresses()
        self.standing.check()

    def _check_addresses(self) -> None:
        """Each address of a Service has its IPAddress and the other way round, but for those yet to
        be compared.
        """
        book = self.addresses
        for name in self.services.all_addresses():
            told = book.told(name)
            holder = self.services.holder(name)
            assert name in book.suspects or (told and told.service == holder), (
                f"{name} of {holder}: {told}"
            )
        for name in book.names():
            told = book.told(name)
            assert told is not None
            fine = (
                not told.managed
                or name in book.suspects
                or self.services.holder(name) == told.service
            )
            assert fine, (
                f"IPAddress {name} names {told.service}, {self.services.holder(name)} has the "
                "address"
            )

    def latest(self, target: Target) -> Record:
        """The newest version, staged ones included: what a writer builds on.  Raises a 404
        StatusError.
        """
        record = self.store.latest(key_of(target))
        if record is None:
            raise missing(target.resource, target.name)
        return record

    def put(self, resource: Resource, document: Document) -> Record:
        """Stage the object and what follows from it; the new record's body is the answer to the
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
        """The new record and the one before; aggregated roles are left as they are."""
        metadata = document["metadata"]
        key = Key(resource.storage_key, metadata.get("namespace", ""), metadata["name"])
        before = self.store.latest(key)
        shaped = canonical(resource, document)
        # The addresses that a Service has, which this write may set free.
        held = self.services.addresses(key) if resource is Services else ()
        record = self.store.stage_put(key, partial(make_record, resource, shaped, before=before))
        self._tell(key, shaped)
        if held:
            self._release(key, held)
        return record, before

    def remove(self, record: Record) -> Record:
        """Stage the deletion of the newest version, and what follows from it."""
        key = record.key
        held = self.services.addresses(key) if key.resource == Services.storage_key else ()
        last = self.store.stage_delete(key, lambda revision: restamp(record, revision))
        self._tell(key, None)
        if held:
            self._release(key, held)
        if key.resource == ClusterRoles.storage_key:
            self.gather(self.aggregation.gathering(key, record.labels))
        return last

    def _release(self, service: Key, held: tuple[str, ...]) -> None:
        """Remove the IPAddresses of what *service* has held and holds no more: no commit has one
        without the other.
        """
        for name in held:
            told = self.addresses.told(name)
            record = self.store.latest(Key(IPAddresses.storage_key, "", name))
            if self.services.holder(name) is not None or record is None:
                continue
            if told is None or not told.managed or told.service != service:
                continue
            if document_of(record)["metadata"].get("finalizers"):
                # It is held back: ``service_addresses`` compares the two, and deletes it.
                self.addresses.suspects.add(name)
            else:
                self.remove(record)

    def gather(self, keys: Iterable[Key]) -> None:
        """Stage the aggregated ClusterRoles among *keys*, and those that gather them, whose rules
        are not what they gather.
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
        """Give a ClusterRole that gathers others the rules of those, whatever it came with; others
        are left alone.

        Raises the 403 ``StatusError`` for one that is too much for those that gather it.
        """
        rules = self.aggregation.rules_for(role, self.policy)
        if rules is not None:
            _with_rules(role, rules)
        self.aggregation.admit(role, self.policy)

    def claim_addresses(self, document: Document, now: float) -> None:
        """Stage the IPAddresses that a Service lacks.  Required order: after admission, before
        ``put`` of it.
        """
        key = Key(
            Services.storage_key, document["metadata"]["namespace"], document["metadata"]["name"]
        )
        for text in document["spec"].get("clusterIPs", ()):
            name = canonical_address(text)
            if name is not None and self.addresses.told(name) is None:
                self.make_address(name, key, now)

    def make_address(self, name: str, service: Key, now: float) -> None:
        """Stage the IPAddress *name* of *service*."""
        parent = {"resource": Services.plural, "namespace": service.namespace, "name": service.name}
        head = {
            "name": name,
            "uid": self.rng.uuid(),
            "creationTimestamp": format_time(now),
            "labels": {FAMILY_LABEL: family_of(name), MANAGED_BY_LABEL: ALLOCATOR},
        }
        self.put(IPAddresses, {"metadata": head, "spec": {"parentRef": parent}})


class WriteCall(NamedTuple):
    """A write as the verbs receive it: the state, who writes and when, what, and how."""

    core: Core
    ctx: Context
    target: Target
    options: WriteOptions


def _followed(record: Record) -> Document:
    """The document of *record* as followers read it."""
    decode = _DECODED_APART.get(record.key.resource)
    return document_of(record) if decode is None else decode(record.body)


def _with_rules(role: Document, rules: tuple[PolicyRule, ...]) -> Document:
    """*role*, changed."""
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
