"""The API server of a simulation: production registry, store and hub; a commit is durable at once.

Requests arrive through ``network``, which alone simulates loss. This module only executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import NOT_REFUSED, PortProbe, Selection, Verb, Write, listed_items
from sliceplane.api.scheme import Resource
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.scheduler import Alarm, Scheduler
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.direct import interest_of, step_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Context,
    ListOptions,
    ListOutcome,
    Target,
    WatchOptions,
    WriteOptions,
)
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.snapshot import restored
from sliceplane.server.store.types import Key, Record, StoreEvent
from sliceplane.server.store.watcher import Watcher

ADMIN: Final = User(name="admin", groups=("system:masters",))


class OpenTokens:
    """A ``TokenService`` without a key: a token is its claims as plain text."""

    issuer = "https://simulated"
    audiences: tuple[str, ...] = (issuer,)

    def sign(self, claims: Document) -> str:
        return encode(claims).decode()

    def read(self, token: str) -> Document | User | None:
        try:
            return decode_document(token.encode())
        except ValueError:
            return None


def request(
    verb: Verb,
    resource: Resource,
    namespace: str,
    document: Document | None = None,
    *,
    name: str = "",
    subresource: str = "",
) -> Write:
    """Returns a request of a user."""
    body = document
    if verb == "create" and document is not None and not subresource:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
    return Write(
        verb=verb,
        resource=resource,
        namespace=namespace if resource.namespaced else "",
        name=name,
        subresource=subresource,
        body=b"" if body is None else encode(body),
    )


class Server:
    """The server. Owned by one simulation. ``listeners`` are called for every commit, after the
    watches.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: Rng,
        config: RegistryConfig | None = None,
        records: Sequence[Record] = (),
        *,
        revision: int = 1,
        field_manager: str = "",
    ) -> None:
        """*records*: the initial objects, at *revision* at least. *field_manager*: the manager of
        all writers.
        """
        self._scheduler = scheduler
        self._options = WriteOptions(field_validation="Strict", field_manager=field_manager)
        #: seconds by which the server's clock is ahead of the controllers'
        self.ahead_s = 0.0
        revision = max([revision, *(record.revision for record in records)])
        self.store = Store.restore(restored(records), revision, revision)
        self.registry = Registry(self.store, rng=rng, config=config, tokens=OpenTokens())
        self.hub = Hub(self.store)
        #: addresses of Pods that take no connections
        self.refusing: set[str] = set()
        self.listeners: list[Callable[[StoreEvent], None]] = []
        self._alarm = Alarm(scheduler, self._tick)
        self.registry.bootstrap(self._clock())
        self._publish()

    def _clock(self) -> float:
        return self._scheduler.now + self.ahead_s

    def _context(self) -> Context:
        return Context(now=self._clock(), user=ADMIN)

    # Requests of clients

    def execute(self, write: Write) -> bytes:
        """Executes a write, or one of the reads. Raises ``StatusError``."""
        if write.verb == "probe":
            return (
                b""
                if msgspec.json.decode(write.body, type=PortProbe).ip in self.refusing
                else NOT_REFUSED
            )
        if write.verb == "list":
            listed = self.page(
                Selection(write.resource, write.namespace, write.label_selector), 0, ""
            )
            return listed_items(record.body for record in listed.records)
        if write.verb == "get":
            target = Target(resource=write.resource, namespace=write.namespace, name=write.name)
            return self.registry.get(self._context(), target).body
        outcome = step_of(self.registry, self._context(), write, self._options)()
        self._publish()
        return outcome.body

    def _publish(self) -> None:
        self.store.take_staged()
        events = self.store.on_durable(self.store.staged_revision)
        self.hub.publish(events)
        for event in events:
            for listener in self.listeners:
                listener(event)

    def page(self, selection: Selection, limit: int, continue_token: str) -> ListOutcome:
        """Returns one page of a list. Raises ``StatusError``."""
        return self.page_of(self.registry, selection, limit, continue_token)

    def page_of(
        self, registry: Registry, selection: Selection, limit: int, continue_token: str
    ) -> ListOutcome:
        """Returns a page of what *registry* serves. Raises ``StatusError``."""
        options = ListOptions(
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            limit=limit,
            continue_token=continue_token,
        )
        target = Target(resource=selection.resource, namespace=selection.namespace)
        return registry.list(self._context(), target, options)

    def watch(self, selection: Selection, version: str, timeout_s: int) -> Watcher:
        """Opens a watch. Raises ``StatusError``. The caller sets ``notify`` and takes events."""
        options = WatchOptions(
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            resource_version=version,
            allow_bookmarks=True,
            timeout_s=timeout_s,
        )
        target = Target(resource=selection.resource, namespace=selection.namespace)
        plan = self.registry.watch_plan(self._context(), target, options)
        now = self._scheduler.now
        watcher = self.hub.subscribe(
            interest_of(plan),
            now=now,
            since=plan.since,
            initial=plan.initial,
            bookmarks=True,
            ends_at=now + timeout_s,
        )
        self._alarm.set(self.hub.next_deadline())
        return watcher

    # Access for invariants

    def records(self, resource: Resource, namespace: str = "") -> tuple[Record, ...]:
        """Returns the stored objects, without a request."""
        return self.store.list(resource.storage_key, namespace=namespace).records

    def documents(self, resource: Resource, namespace: str = "") -> list[Document]:
        return [decode_document(record.body) for record in self.records(resource, namespace)]

    def find(self, resource: Resource, namespace: str, name: str) -> Document | None:
        record = self.store.get(Key(resource.storage_key, namespace, name))
        return None if record is None else decode_document(record.body)

    # Time

    def forget_history(self) -> None:
        self.store.compact(self.store.revision)

    def _tick(self) -> None:
        self.hub.on_tick(self._scheduler.now)
        self._alarm.set(self.hub.next_deadline())

    def check(self) -> None:
        self.store.check()
        self.registry.check()
        self.hub.check()


def described(error: StatusError) -> str:
    """Returns an error as the trace shows it."""
    return f"{error.code}/{error.reason}"
