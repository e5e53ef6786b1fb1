"""A cluster without sockets or a clock: the production registry, store and controllers on virtual time.

Everything is instant and nothing is lost here: each commit is durable at once and reaches every controller
before the next one is planned.  Time moves only when nobody has anything to do, and then straight to the
earliest deadline.  So a test reads as a story: do something, ``settle``, look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource, by_storage_key
from sliceplane.controllers.base import Controller, Done, EventNote, Job, Watched, Write
from sliceplane.controllers.failed_writes import as_told
from sliceplane.informer.changes import Change
from sliceplane.kit.rng import Rng
from sliceplane.registry.config import RegistryConfig
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import Body, Context, ListOptions, Target, User, WriteOptions
from sliceplane.registry.types import DeleteOptions as Deletion
from sliceplane.store.mvcc import Store
from sliceplane.store.types import EventType, StoreEvent

START = 1_800_000_000.0  # 2027-01-15, far from any boundary
ADMIN = User(name="admin", groups=("system:masters",))
#: steps without rest before ``settle`` says that the controllers run in a circle
STEPS_MAX = 100_000


class Cluster:
    """Made by one test or simulation, which alone calls it."""

    def __init__(self, *controllers: Controller, seed: int = 1, config: RegistryConfig | None = None) -> None:
        self.now = START
        #: how far the server's clock is ahead of everybody else's
        self.server_ahead_s = 0.0
        self.store = Store()
        self.registry = Registry(self.store, rng=Rng(seed), config=config)
        self.controllers = controllers
        self.notes: list[EventNote] = []
        #: every write that a controller made, with its answer's code
        self.writes: list[tuple[str, Write]] = []
        self.registry.bootstrap(self.now)
        self._publish()
        for controller in controllers:
            self._feed(controller)

    def replace(self, *controllers: Controller) -> None:
        """Kill the controllers at this moment and start these in their place."""
        self.controllers = controllers
        for controller in controllers:
            self._feed(controller)

    def _feed(self, controller: Controller) -> None:
        for watched in controller.info.watches:
            projection = watched.resource.projection
            for record in self.store.list(watched.resource.storage_key).records:
                new: Object = decode(record.body, projection)
                controller.on_change(Change(watched.resource.key, None, new), self.now)
        controller.on_synced(self.now)

    # The user's side

    def create(self, resource: Resource, document: Document, namespace: str = "default") -> Document:
        target = Target(resource=resource, namespace=namespace if resource.namespaced else "")
        return self._perform("create", target, document)

    def patch(
        self, resource: Resource, name: str, change: Document, *, namespace: str = "default", subresource: str = ""
    ) -> Document:
        """A merge patch."""
        return self._perform("patch", self._target(resource, name, namespace, subresource), change)

    def delete(self, resource: Resource, name: str, namespace: str = "default", **options: Any) -> Document:
        return self._perform("delete", self._target(resource, name, namespace), options)

    def get(self, resource: Resource, name: str, namespace: str = "default") -> Document:
        context = Context(now=self.now + self.server_ahead_s, user=ADMIN)
        return decode_document(self.registry.get(context, self._target(resource, name, namespace)).body)

    def list(self, resource: Resource, namespace: str = "default", **options: Any) -> list[Document]:
        target = Target(resource=resource, namespace=namespace if resource.namespaced else "")
        found = self.registry.list(
            Context(now=self.now + self.server_ahead_s, user=ADMIN), target, ListOptions(**options)
        )
        return [decode_document(record.body) for record in found.records]

    @staticmethod
    def _target(resource: Resource, name: str, namespace: str, subresource: str = "") -> Target:
        return Target(
            resource=resource,
            namespace=namespace if resource.namespaced else "",
            name=name,
            subresource=subresource,
        )

    def _perform(self, verb: str, target: Target, document: Document) -> Document:
        write = Write(
            verb=verb,  # type: ignore[arg-type]  # the three verbs above
            resource=target.resource,
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            body=encode(document),
        )
        return decode_document(self.write(write))

    # The controllers' side

    def write(self, write: Write) -> bytes:
        """Perform *write* and publish it.  Raises ``StatusError``."""
        context = Context(now=self.now + self.server_ahead_s, user=ADMIN)
        target = self._target(write.resource, write.name, write.namespace, write.subresource)
        options = WriteOptions()
        if write.verb == "get":
            return self.registry.get(context, target).body
        if write.verb == "create":
            outcome = self.registry.create(context, target, Body(document=decode_document(write.body)), options)
        elif write.verb == "update":
            outcome = self.registry.update(context, target, Body(document=decode_document(write.body)), options)
        elif write.verb == "patch":
            outcome = self.registry.patch(context, target, write.patch_type, write.body, options)
        else:
            given = decode_document(write.body) if write.body else {}
            preconditions = given.get("preconditions", {})
            outcome = self.registry.delete(
                context,
                target,
                Deletion(
                    grace_period_s=given.get("gracePeriodSeconds"),
                    propagation=given.get("propagationPolicy"),
                    precondition_uid=preconditions.get("uid"),
                    precondition_resource_version=preconditions.get("resourceVersion"),
                ),
            )
        self._publish()
        return outcome.body

    def _publish(self) -> None:
        self.store.take_staged()
        for event in self.store.on_durable(self.store.staged_revision):
            for controller in getattr(self, "controllers", ()):
                self._deliver(controller, event)

    def _deliver(self, controller: Controller, event: StoreEvent) -> None:
        resource = by_storage_key(event.record.key.resource)
        if not _watches(controller.info.watches, resource):
            return
        projection = resource.projection
        old = decode(event.previous.body, projection) if event.previous else None
        if event.type is EventType.DELETED:
            # An informer has the last version with the deletion's own resourceVersion.
            gone: Object = decode(event.record.body, projection)
            controller.on_change(Change(resource.key, gone, None), self.now)
        else:
            new: Object = decode(event.record.body, projection)
            controller.on_change(Change(resource.key, old, new), self.now)

    def _run(self, controller: Controller, job: Job) -> None:
        results: list[bytes] = []
        error: StatusError | None = None
        for write in job.writes:
            try:
                results.append(self.write(write))
                self.writes.append(("ok", write))
            except StatusError as failure:
                self.writes.append((failure.reason, write))
                if failure.reason not in write.tolerate:
                    error = as_told(write, failure)
                    break
                results.append(b"")
        controller.on_done(Done(job, tuple(results), error), self.now)

    def settle(self, *, limit_s: float = 600.0) -> float:
        """Run until nobody has anything to do before ``now + limit_s``.  Returns how many seconds passed."""
        began, deadline = self.now, self.now + limit_s
        for _ in range(STEPS_MAX):
            if self._work():
                continue
            moments = [moment for moment in (one.next_deadline() for one in self.controllers) if moment is not None]
            upcoming = min(moments, default=None)
            if upcoming is None or upcoming > deadline:
                return self.now - began
            self.now = max(self.now, upcoming)
        raise AssertionError(f"no rest after {STEPS_MAX} steps; last writes: {self.writes[-6:]}")

    def _work(self) -> bool:
        """One round of every controller; whether anything was done."""
        busy = False
        for controller in self.controllers:
            work = controller.take_work(self.now, 16)
            self.notes.extend(work.notes)
            for job in work.jobs:
                self._run(controller, job)
            busy = busy or bool(work.jobs)
        return busy

    def check(self) -> None:
        self.store.check()
        self.registry.check()
        for controller in self.controllers:
            controller.check()


def _watches(watches: Iterable[Watched], resource: Resource) -> bool:
    return any(watched.resource is resource for watched in watches)
