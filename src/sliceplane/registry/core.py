"""What every verb shares: the store, the sources of chance and the ledgers of what Services own, and who may do what.

All writes go through ``put`` and ``remove``, so that the ledgers and the policy always tell what the newest staged
objects hold.  Owned by ``Registry``; one caller at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sliceplane.api.errors import StatusError, not_found
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ClusterRoles, Events, IPAddresses, Resource, ResourceQuotas, ServiceCIDRs, Services
from sliceplane.kit.ip import canonical as canonical_address
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_time
from sliceplane.registry.admission.address_book import (
    ALLOCATOR,
    FAMILY_LABEL,
    MANAGED_BY_LABEL,
    AddressBook,
    family_of,
)
from sliceplane.registry.admission.quotas import QuotaIndex
from sliceplane.registry.admission.services import ServiceLedgers
from sliceplane.registry.authentication.types import NoTokens, TokenService
from sliceplane.registry.authorization.aggregation import Aggregation, Followers
from sliceplane.registry.authorization.index import RESOURCES as POLICY_RESOURCES
from sliceplane.registry.authorization.index import PolicyIndex
from sliceplane.registry.authorization.rules import Rule, document_of_rule
from sliceplane.registry.authorization.standing import Standing
from sliceplane.registry.config import RegistryConfig
from sliceplane.registry.documents import canonical, document_of, make_record
from sliceplane.registry.expiry import Expiry
from sliceplane.registry.types import Target
from sliceplane.store.mvcc import Store
from sliceplane.store.restamp import restamp
from sliceplane.store.types import Key, Record

#: what the ledgers tell of
_FOLLOWED = POLICY_RESOURCES | {
    each.storage_key for each in (Services, IPAddresses, ServiceCIDRs, ResourceQuotas, Events)
}


class Core:
    """The mutable heart of a registry.  Verbs read ``store`` freely and write through the methods."""

    def __init__(self, store: Store, rng: Rng, config: RegistryConfig, tokens: TokenService | None = None) -> None:
        self.store = store
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
        self.rebuild()

    def rebuild(self) -> None:
        """Derive the ledgers from the newest records: at start, and after staged events were forgotten."""
        self.addresses.reset()
        for record in self.store.iter_latest(ServiceCIDRs.storage_key):
            self.addresses.on_range(record.key.name, document_of(record))
        for record in self.store.iter_latest(IPAddresses.storage_key):
            self.addresses.on_address(record.key.name, document_of(record))
        self.services.reset()
        for record in self.store.iter_latest(Services.storage_key):
            self.services.on_stored(record.key, document_of(record))
        self.addresses.suspects.update(self.services.all_addresses())
        self.policy.reset()
        self.aggregation.reset()
        for key, document in self._policy_objects():
            self.policy.on_stored(key, document)
            if key.resource == ClusterRoles.storage_key:
                self.aggregation.on_stored(key, document)
        self.quotas.reset()
        for record in self.store.iter_latest(ResourceQuotas.storage_key):
            self.quotas.on_stored(record.key)
        events = self.store.iter_latest(Events.storage_key)
        self.expiry.reset((record.key, document_of(record)) for record in events)

    def follow(self, keys: Iterable[Key]) -> None:
        """Derive anew what the ledgers tell of *keys*: another server wrote them, or staged versions were forgotten.

        The cost is that of *keys*.  All Services let go before any takes, as a number may have passed between them.
        """
        touched = tuple(keys)
        self.standing.doubt(touched)
        changed = sorted(key for key in touched if key.resource in _FOLLOWED)
        services = [key for key in changed if key.resource == Services.storage_key]
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))
            self.services.on_removed(key)
        for key in changed:
            record = self.store.latest(key)
            self._follow_one(key, None if record is None else document_of(record))
        for key in services:
            self.addresses.suspects.update(self.services.addresses(key))

    def _follow_one(self, key: Key, document: Document | None) -> None:
        """As ``put`` and ``remove`` do it, but nothing follows from it: whoever wrote it has written that too."""
        if key.resource == Services.storage_key and document is not None:
            self.services.on_stored(key, document)
        else:
            self._keep_account(key, document)
        self._index(key, document)

    def _keep_account(self, key: Key, document: Document | None) -> None:
        """Of an IPAddress or a ServiceCIDR; ``None``: the object is gone."""
        if key.resource == IPAddresses.storage_key:
            if document is not None:
                self.addresses.on_address(key.name, document)
            elif self.addresses.told(key.name) is not None:  # of what was staged and forgotten nobody told
                self.addresses.on_address_removed(key.name)
        elif key.resource == ServiceCIDRs.storage_key:
            if document is not None:
                self.addresses.on_range(key.name, document)
            else:
                self.addresses.on_range_removed(key.name)
            self.services.on_ranges()

    def _index(self, key: Key, document: Document | None) -> None:
        """The indexes that a version of one key replaces; ``None``: the object is gone."""
        self.standing.doubt((key,))
        indexes: list[Expiry | QuotaIndex] = []
        if key.resource == Events.storage_key:
            indexes.append(self.expiry)
        if key.resource == ResourceQuotas.storage_key:
            indexes.append(self.quotas)
        if document is None:
            self.policy.on_removed(key)
            if key.resource == ClusterRoles.storage_key:
                self.aggregation.on_removed(key)
            for index in indexes:
                index.on_removed(key)
            return
        self.policy.on_stored(key, document)
        if key.resource == ClusterRoles.storage_key:
            self.aggregation.on_stored(key, document)
        for index in indexes:
            index.on_stored(key)

    def check(self) -> None:
        """The ledgers hold exactly what the newest Services say, and every Event has a deadline."""
        self.quotas.check(tuple(record.key for record in self.store.iter_latest(ResourceQuotas.storage_key)))
        self.expiry.check(record.key for record in self.store.iter_latest(Events.storage_key))
        stored = [(record.key, document_of(record)) for record in self.store.iter_latest(Services.storage_key)]
        self.services.check(stored)
        self._check_addresses()
        self.policy.check(self._policy_objects())
        self.standing.check()
        self.aggregation.check(each for each in self._policy_objects() if each[0].resource == ClusterRoles.storage_key)

    def _check_addresses(self) -> None:
        """Each address of a Service has its IPAddress and the other way round, where nobody has to look yet."""
        book = self.addresses
        book.check()
        for name in self.services.all_addresses():
            told, holder = book.told(name), self.services.holder(name)
            assert name in book.suspects or (told and told.service == holder), f"{name} of {holder}: {told}"
        for name in book.names():
            told = book.told(name)
            assert told is not None
            fine = not told.managed or name in book.suspects or self.services.holder(name) == told.service
            assert fine, f"IPAddress {name} names {told.service}, {self.services.holder(name)} has the address"

    def _policy_objects(self) -> Iterator[tuple[Key, Document]]:
        for resource in sorted(POLICY_RESOURCES):
            for record in self.store.iter_latest(resource):
                yield record.key, document_of(record)

    def latest(self, target: Target) -> Record:
        """The newest version, staged ones included: what a writer builds on.  Raises a 404 StatusError."""
        record = self.store.latest(key_of(target))
        if record is None:
            raise missing(target.resource, target.name)
        return record

    def put(self, resource: Resource, document: Document) -> Record:
        """Stage the object; the new record's body is the answer to the client."""
        metadata = document["metadata"]
        before = self.store.latest(Key(resource.storage_key, metadata.get("namespace", ""), metadata["name"]))
        record = self._put(resource, document)
        if resource is ClusterRoles:
            self.gather(self.aggregation.gathering(record.key, record.labels, before.labels if before else {}))
        return record

    def _put(self, resource: Resource, document: Document) -> Record:
        metadata = document["metadata"]
        key = Key(resource.storage_key, metadata.get("namespace", ""), metadata["name"])
        before = self.store.latest(key)
        shaped = canonical(resource, document)
        record = self.store.stage_put(
            key, lambda revision: make_record(resource, shaped, revision, before.created if before else revision)
        )
        self._follow(key, shaped)
        self._index(key, shaped)
        return record

    def gather(self, keys: Iterable[Key]) -> None:
        """Stage the aggregated ClusterRoles among *keys*, and those that gather them, whose rules are not what they
        gather."""
        followers = Followers(self.aggregation, keys)
        for key in followers:
            record = self.store.latest(key)
            assert record is not None, f"{key} gathers and does not exist"
            rules = self.aggregation.rules_of(key, self.policy)
            if rules != self.policy.role(key):
                self._put(ClusterRoles, _with_rules(document_of(record), rules))
                followers.changed(key, record.labels)

    def fill(self, role: Document) -> None:
        """Give a ClusterRole that gathers others the rules of those, whatever it came with; others are left alone.

        Raises the 403 ``StatusError`` for one that is too much for those that gather it.
        """
        rules = self.aggregation.rules_for(role, self.policy)
        if rules is not None:
            _with_rules(role, rules)
        self.aggregation.admit(role, self.policy)

    def claim_addresses(self, document: Document, now: float) -> None:
        """Stage the IPAddresses that a Service lacks.  Required order: after admission, before ``put`` of it."""
        key = Key(Services.storage_key, document["metadata"]["namespace"], document["metadata"]["name"])
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

    def charge(self, quotas: tuple[Document, ...]) -> None:
        """Stage what ``QuotaIndex.admit`` returned.  Required order: before the object that it is for."""
        for quota in quotas:
            self.put(ResourceQuotas, quota)

    def remove(self, record: Record) -> Record:
        """Stage the deletion of the newest version."""
        last = self.store.stage_delete(record.key, lambda revision: restamp(record, revision))
        self._follow(record.key, None)
        self._index(record.key, None)
        if record.key.resource == ClusterRoles.storage_key:
            self.gather(self.aggregation.gathering(record.key, record.labels))
        return last

    def _follow(self, key: Key, document: Document | None) -> None:
        """Tell those who keep account of addresses; ``None``: the object is gone.

        IPAddresses that a Service lets go of are removed in the same step, so no commit has one without the other.
        """
        if key.resource != Services.storage_key:
            self._keep_account(key, document)
            return
        before = self.services.addresses(key)
        if document is not None:
            self.services.on_stored(key, document)
        else:
            self.services.on_removed(key)
        for name in before:
            if self.services.holder(name) is None:
                self._release(key, name)

    def _release(self, service: Key, name: str) -> None:
        told = self.addresses.told(name)
        record = self.store.latest(Key(IPAddresses.storage_key, "", name))
        if record is None or told is None or not told.managed or told.service != service:
            return
        if document_of(record)["metadata"].get("finalizers"):
            # Somebody holds it back: it is deleted, not removed, by whoever compares the two.
            self.addresses.suspects.add(name)
        else:
            self.remove(record)


def _with_rules(role: Document, rules: tuple[Rule, ...]) -> Document:
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
