"""The API server of a simulation: production registry, store and hub; a commit is durable at once.

Requests arrive through ``network``, which alone knows about loss.  This file only performs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.controllers.base import Watched, Write
from sliceplane.kit.rng import Rng
from sliceplane.registry.decoding import body_of_json
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import (
    Context,
    DeleteOptions,
    ListOptions,
    ListOutcome,
    Outcome,
    Target,
    User,
    WatchOptions,
    WriteOptions,
)
from sliceplane.registry.versions import shown_body
from sliceplane.sim.agenda import Agenda, Alarm
from sliceplane.store.hub import Hub
from sliceplane.store.mvcc import Store
from sliceplane.store.types import EventType, Key, Record, StoreEvent
from sliceplane.store.watcher import Interest, Watcher

ADMIN = User(name="admin", groups=("system:masters",))


class _Bodies:
    """The representation of watches here: the stored body."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    def event(self, kind: EventType, record: Record) -> bytes:
        return shown_body(self._resource, record.body)

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return encode({"kind": self._resource.kind, "metadata": {"resourceVersion": str(revision)}})


@lru_cache
def _encoder(resource: Resource) -> _Bodies:
    return _Bodies(resource)


class OpenTokens:
    """A ``TokenService`` without a key: a token is its claims, to be read by anybody.  There are no strangers here."""

    issuer = "https://simulated"
    audiences: tuple[str, ...] = (issuer,)

    def sign(self, claims: Document) -> str:
        return encode(claims).decode()

    def read(self, token: str) -> Document | User | None:
        try:
            return decode_document(token.encode())
        except ValueError:
            return None


class Server:
    """Owned by one simulation.  ``listeners`` are told of every commit, after the watches."""

    def __init__(self, agenda: Agenda, rng: Rng) -> None:
        self._agenda = agenda
        #: how far this machine's clock is ahead of the controllers'
        self.ahead_s = 0.0
        self.store = Store()
        self.registry = Registry(self.store, rng=rng, tokens=OpenTokens())
        self.hub = Hub(self.store)
        self.listeners: list[Callable[[StoreEvent], None]] = []
        self._alarm = Alarm(agenda, self._tick)
        self.registry.bootstrap(self._clock())
        self._publish()

    def _clock(self) -> float:
        return self._agenda.now + self.ahead_s

    def _context(self) -> Context:
        return Context(now=self._clock(), user=ADMIN)

    # -- writes -----------------------------------------------------------------------------------------

    def perform(self, write: Write) -> bytes:
        """Raises ``StatusError``."""
        if write.verb == "get":
            target = Target(resource=write.resource, namespace=write.namespace, name=write.name)
            return self.registry.get(self._context(), target).body
        outcome = self._apply(write)
        self._publish()
        return outcome.body

    def _apply(self, write: Write) -> Outcome:
        context, options = self._context(), WriteOptions(field_validation="Strict")
        target = Target(
            resource=write.resource, namespace=write.namespace, name=write.name, subresource=write.subresource
        )
        if write.verb in ("create", "update"):
            verb = self.registry.create if write.verb == "create" else self.registry.update
            return verb(context, target, body_of_json(write.resource, write.subresource, write.body), options)
        if write.verb == "patch":
            return self.registry.patch(context, target, write.patch_type, write.body, options)
        given = decode_document(write.body) if write.body else {}
        preconditions = given.get("preconditions", {})
        deletion = DeleteOptions(
            grace_period_s=given.get("gracePeriodSeconds"),
            propagation=given.get("propagationPolicy"),
            precondition_uid=preconditions.get("uid"),
            precondition_resource_version=preconditions.get("resourceVersion"),
        )
        return self.registry.delete(context, target, deletion)

    def _publish(self) -> None:
        self.store.take_staged()
        events = self.store.on_durable(self.store.staged_revision)
        self.hub.publish(events)
        for event in events:
            for listener in self.listeners:
                listener(event)

    # -- reads ------------------------------------------------------------------------------------------

    def page(self, watched: Watched, limit: int, continue_token: str) -> ListOutcome:
        """Raises ``StatusError``."""
        options = ListOptions(
            label_selector=watched.label_selector,
            field_selector=watched.field_selector,
            limit=limit,
            continue_token=continue_token,
        )
        return self.registry.list(
            self._context(), Target(resource=watched.resource, namespace=watched.namespace), options
        )

    def watch(self, watched: Watched, version: str, timeout_s: int) -> Watcher:
        """Raises ``StatusError``.  The caller sets ``notify`` and takes."""
        options = WatchOptions(
            label_selector=watched.label_selector,
            field_selector=watched.field_selector,
            resource_version=version,
            allow_bookmarks=True,
            timeout_s=timeout_s,
        )
        target = Target(resource=watched.resource, namespace=watched.namespace)
        plan = self.registry.watch_plan(self._context(), target, options)
        interest = Interest(
            resource=plan.resource.storage_key,
            encoder=_encoder(plan.resource),
            namespace=plan.namespace,
            name=plan.name,
            matches=plan.matches,
            selector=plan.selector,
        )
        now = self._agenda.now
        watcher = self.hub.subscribe(
            interest, now=now, since=plan.since, initial=plan.initial, bookmarks=True, ends_at=now + timeout_s
        )
        self._alarm.set(self.hub.next_deadline())
        return watcher

    def records(self, resource: Resource, namespace: str = "") -> tuple[Record, ...]:
        """The truth, for people and invariants; no request."""
        return self.store.list(resource.storage_key, namespace=namespace).records

    def documents(self, resource: Resource, namespace: str = "") -> list[Document]:
        return [decode_document(record.body) for record in self.records(resource, namespace)]

    def find(self, resource: Resource, namespace: str, name: str) -> Document | None:
        record = self.store.get(Key(resource.storage_key, namespace, name))
        return None if record is None else decode_document(record.body)

    # -- time -------------------------------------------------------------------------------------------

    def forget_history(self) -> None:
        self.store.compact(self.store.revision)

    def _tick(self) -> None:
        self.hub.on_tick(self._agenda.now)
        self._alarm.set(self.hub.next_deadline())

    def check(self) -> None:
        self.store.check()
        self.registry.check()
        self.hub.check()


def described(error: StatusError) -> str:
    """For the trace."""
    return f"{error.code}/{error.reason}"
