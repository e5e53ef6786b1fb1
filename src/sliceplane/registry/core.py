"""What every verb shares: the store, the sources of chance and the ledgers of what Services own, and who may do what.

All writes go through ``put`` and ``remove``, so that the ledgers and the policy always tell what the newest staged
objects hold.  Owned by ``Registry``; one caller at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sliceplane.api.errors import StatusError, not_found
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ClusterRoles, Events, Resource, ResourceQuotas, Services
from sliceplane.kit.rng import Rng
from sliceplane.registry.admission.quotas import QuotaIndex
from sliceplane.registry.admission.services import ServiceLedgers
from sliceplane.registry.authentication.types import NoTokens, TokenService
from sliceplane.registry.authorization.aggregation import Aggregation, Followers, fill
from sliceplane.registry.authorization.index import RESOURCES as POLICY_RESOURCES
from sliceplane.registry.authorization.index import PolicyIndex
from sliceplane.registry.config import RegistryConfig
from sliceplane.registry.documents import canonical, document_of, make_record
from sliceplane.registry.expiry import Expiry
from sliceplane.registry.types import Target
from sliceplane.store.mvcc import Store
from sliceplane.store.restamp import restamp
from sliceplane.store.types import Key, Record


class Core:
    """The mutable heart of a registry.  Verbs read ``store`` freely and write through the methods."""

    def __init__(self, store: Store, rng: Rng, config: RegistryConfig, tokens: TokenService | None = None) -> None:
        self.store = store
        self.rng = rng
        self.config = config
        self.tokens = tokens or NoTokens()
        self.services = ServiceLedgers(config, rng)
        self.policy = PolicyIndex()
        self.aggregation = Aggregation()
        self.quotas = QuotaIndex(store)
        self.expiry = Expiry()
        self.rebuild()

    def rebuild(self) -> None:
        """Derive the ledgers from the newest records: at start, and after staged events were forgotten."""
        self.services.reset()
        for record in self.store.iter_latest(Services.storage_key):
            self.services.on_stored(record.key, document_of(record))
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

    def check(self) -> None:
        """The ledgers hold exactly what the newest Services say, and every Event has a deadline."""
        self.quotas.check(tuple(record.key for record in self.store.iter_latest(ResourceQuotas.storage_key)))
        self.expiry.check(record.key for record in self.store.iter_latest(Events.storage_key))
        stored = [(record.key, document_of(record)) for record in self.store.iter_latest(Services.storage_key)]
        self.services.check(stored)
        self.policy.check(self._policy_objects())
        self.aggregation.check(each for each in self._policy_objects() if each[0].resource == ClusterRoles.storage_key)

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
        if resource is Services:
            self.services.on_stored(key, shaped)
        self.policy.on_stored(key, shaped)
        if key.resource == Events.storage_key:
            self.expiry.on_stored(key)
        if resource is ResourceQuotas:
            self.quotas.on_stored(key)
        if resource is ClusterRoles:
            self.aggregation.on_stored(key, shaped)
        return record

    def gather(self, keys: Iterable[Key]) -> None:
        """Stage the aggregated ClusterRoles among *keys*, and those that gather them, whose rules are not what they
        gather."""
        followers = Followers(self.aggregation, keys)
        for key in followers:
            record = self.store.latest(key)
            assert record is not None, f"{key} gathers and does not exist"
            document = document_of(record)
            before = document.get("rules")
            fill(self.store, document)
            if document.get("rules") != before:
                self._put(ClusterRoles, document)
                followers.changed(key, record.labels)

    def charge(self, quotas: tuple[Document, ...]) -> None:
        """Stage what ``QuotaIndex.admit`` returned.  Required order: before the object that it is for."""
        for quota in quotas:
            self.put(ResourceQuotas, quota)

    def remove(self, record: Record) -> Record:
        """Stage the deletion of the newest version."""
        last = self.store.stage_delete(record.key, lambda revision: restamp(record, revision))
        if record.key.resource == Services.storage_key:
            self.services.on_removed(record.key)
        self.policy.on_removed(record.key)
        if record.key.resource == ClusterRoles.storage_key:
            self.aggregation.on_removed(record.key)
            self.gather(self.aggregation.gathering(record.key, record.labels))
        if record.key.resource == Events.storage_key:
            self.expiry.on_removed(record.key)
        if record.key.resource == ResourceQuotas.storage_key:
            self.quotas.on_removed(record.key)
        return last


def key_of(target: Target) -> Key:
    namespace = target.namespace if target.resource.namespaced else ""
    return Key(target.resource.storage_key, namespace, target.name)


def missing(resource: Resource, name: str) -> StatusError:
    return not_found(resource.plural, resource.group, name)
