"""The Leases of nodes' reports behind a relay: kept in memory, and one Lease written for all.

Writes of ``kube-node-lease/sliceplane-proxy-NODE`` (and of ``sliceplane-relay-NAME``, a relay behind
this one) are carried out by the registry of our API server over a store of their own, so patches,
conflicts and errors are those of any server. The versions of these Leases alone are the relay's. A
Lease that cannot be aggregated, or for which no room is left, is passed on like any other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from sliceplane.api.codec import UNREADABLE, decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.resource import Resource
from sliceplane.api.scheme import EndpointSlices, Leases, Namespaces, Nodes, Services
from sliceplane.api.users import User
from sliceplane.consume.drain.relayed import ANNOTATION_NODES, RELAY_PREFIX
from sliceplane.consume.drain.relays import RelayReport
from sliceplane.consume.progress import ANNOTATION_PROGRESS, LEASE_NAMESPACE, LEASE_PREFIX
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.kit.shares import Shares
from sliceplane.relay.io.parent import Parent
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.relay.reports import STOPPED_KEPT_S, NodeReports
from sliceplane.server.io.offload.service import OffloadService
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.request import Receive, Request, ResourcePath, Route
from sliceplane.server.io.requests.resources import ResourceHandlers
from sliceplane.server.io.requests.response import Response
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, Context, DeleteOptions, Target, WriteOptions
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key
from sliceplane.watch.io.base import Unreachable

T = TypeVar("T")

#: of all Leases in memory, shared by the addresses of children
LEASES_BYTES_MAX: Final = 64 * 1024 * 1024
#: of one write that is read here; a longer one is passed on
BODY_BYTES_MAX: Final = 512 * 1024
STEP_S: Final = 0.25
RETRY_S: Final = 2.0
#: the resources with which reports are compared
NEEDED: Final[tuple[Resource, ...]] = (EndpointSlices, Services, Nodes)
_WRITER: Final = User(name="system:relay", groups=("system:masters",))

_log = get_logger("relay")


class ReplayedBody:
    """A request's ``receive`` whose body may be read before it is served or passed on."""

    def __init__(self, receive: Receive, bodies: Shares, child: str) -> None:
        """*bodies*: charged with what was read, until ``close``."""
        self._receive = receive
        self._bodies = bodies
        self._child = child
        self._messages: list[Any] = []
        self._size = 0

    async def __call__(self) -> Any:
        return self._messages.pop(0) if self._messages else await self._receive()

    async def peek(self) -> bytes | None:
        """Returns the whole body; ``None``: it is too long.  Raises ``OverCapacity``."""
        read: list[Any] = []
        while self._size <= BODY_BYTES_MAX and (not read or read[-1].get("more_body", False)):
            message = await self._receive()
            read.append(message)
            size = len(message.get("body", b""))
            if size and not self._bodies.take(self._child, size):
                raise OverCapacity
            self._size += size
        self._messages += read
        whole = b"".join(message.get("body", b"") for message in read)
        return None if self._size > BODY_BYTES_MAX else whole

    def close(self) -> None:
        if self._size:
            self._bodies.release(self._child, self._size)


class MemoryWrites:
    """The committer of a store that nothing makes durable, and that nobody watches."""

    staleness_s = 0.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        return self.commit(step)

    def commit(self, step: Callable[[], T]) -> T:
        result = step()
        store = self._store
        store.end_step()
        store.take_staged()
        store.on_durable(store.staged_revision)
        store.compact(store.revision)
        return result

    async def current(self) -> None:
        return


class _Kept(NamedTuple):
    """A Lease in memory: who is charged with it, and when it was written."""

    child: str
    size: int
    at: float


class ReportLeases:
    """Owned by one relay; ``run`` is one task."""

    def __init__(
        self,
        name: str,
        client: ParentClient,
        offload: OffloadService,
        clock: Callable[[], float],
        *,
        rng: Rng,
        describe: Callable[[], RelayReport],
    ) -> None:
        """*name*: of the relay, unique among all of the cluster.  *clock* does not jump.
        *describe* returns what the relay reports of itself.
        """
        self.core = NodeReports(name)
        self._describe = describe
        self._client = client
        self._clock = clock
        # Later than versions of before a restart, which clients may have kept.
        first = int(clock() * 1000)
        self._store = Store(revision=first, compacted=first)
        self._registry = Registry(
            self._store, rng=rng, config=RegistryConfig(object_bytes_max=4 * LEASES_BYTES_MAX)
        )
        self._writes = MemoryWrites(self._store)
        namespace: Document = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": LEASE_NAMESPACE},
        }
        context, target = self._context(), Target(resource=Namespaces)
        body = Body(document=namespace)
        self._writes.commit(lambda: self._registry.create(context, target, body, WriteOptions()))
        self._handlers = ResourceHandlers(self._registry, self._store, self._writes, clock, offload)
        self._kept: dict[str, _Kept] = {}
        self.bytes = Shares(LEASES_BYTES_MAX)
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_relay_aggregated_nodes",
            "Nodes whose reports are part of the relay's Lease.",
            lambda: len(self.core),
        )
        #: a Lease may be due
        self.due = asyncio.Event()
        self._version = ""
        self._last_warning = ""

    def follow(self, parent: Parent) -> None:
        """Compares reports with what *parent*'s mirror has, one of ``NEEDED``."""
        core, clock = self.core, self._clock

        def on_changes(changes: Any) -> None:
            for change in changes:
                core.on_change(change, clock())

        parent.informer.add_handler(
            on_changes, lambda: None, lambda mark: core.on_mark(mark, clock())
        )

    # Requests

    @staticmethod
    def concerns(request: Request, path: ResourcePath) -> bool:
        """Returns True for a request of one Lease that reports."""
        return (
            (path.group, path.version, path.plural) == (Leases.group, Leases.version, Leases.plural)
            and path.namespace == LEASE_NAMESPACE
            and path.name.startswith((LEASE_PREFIX, RELAY_PREFIX))
            and not (path.subresource or path.overlong or path.legacy_watch)
            and request.method in ("GET", "PUT", "PATCH", "DELETE")
            and not request.query.flag("watch")
            and not request.headers_of(b"impersonate-")
        )

    def has(self, name: str) -> bool:
        return name in self._kept

    async def keeps(self, request: Request, name: str, receive: ReplayedBody) -> bool:
        """Returns True if the request is served here.  Raises ``OverCapacity``."""
        is_kept = name in self._kept
        if request.method in ("GET", "DELETE"):
            return is_kept
        body = await receive.peek()
        try:
            lease = decode(body or b"", Lease)
        except UNREADABLE:
            return is_kept and body is not None
        annotations = lease.metadata.annotations or {}
        if not annotations.keys() & {ANNOTATION_PROGRESS, ANNOTATION_NODES}:
            return is_kept  # a patch of something else
        if (
            lease.metadata.name == name
            and self.core.accepts(lease)
            and (is_kept or self.bytes.has_room(request.client_address))
        ):
            return True
        self.core.on_passed(name)
        return False

    async def respond(self, request: Request, route: Route) -> Response:
        """Raises ``StatusError``.  The parent has authorized the request."""
        request.user = _WRITER
        response = await self._handlers.respond(request, route)
        if route.verb != "get":
            self._note(route.target.name, request.client_address)
        return response

    def _note(self, name: str, child: str) -> None:
        record = self._store.get(_key(name))
        before = self._kept.pop(name, None)
        if before is not None:
            self.bytes.add(before.child, -before.size)
        if record is None:
            self.core.forget(name)
            return
        now = self._clock()
        self._kept[name] = _Kept(child, len(record.body), now)
        self.bytes.add(child, len(record.body))
        lease = decode(record.body, Lease)
        if self.core.accepts(lease):
            self.core.on_lease(lease, now)

    def _context(self) -> Context:
        return Context(now=self._clock(), user=_WRITER)

    # The relay's own Lease

    async def run(self) -> None:
        """Writes it whenever it is due, until cancelled."""
        self.core.relays.on_own(self._describe())
        while not await self._restore():
            await asyncio.sleep(RETRY_S)
        while True:
            own = replace(self._describe(), nodes=len(self.core))
            self.core.relays.on_own(own)
            document = self.core.take_lease(self._clock())
            if document is not None:
                await self._write(document)
                self._drop_old()
            with suppress(TimeoutError):
                async with asyncio.timeout(STEP_S):
                    await self.due.wait()
            self.due.clear()

    async def _restore(self) -> bool:
        """Reads the Lease of before.  Returns False if the parent gives no answer."""
        try:
            body = await self._client.get(Leases, LEASE_NAMESPACE, self.core.lease)
            lease = decode(body, Lease)
        except (StatusError, Unreachable, *UNREADABLE) as error:
            is_new = isinstance(error, StatusError) and error.code == 404
            if not is_new:
                self._warn(str(error))
            return is_new
        self._version = lease.metadata.resource_version
        self.core.restore(lease, self._clock())
        return True

    async def _write(self, document: Document) -> None:
        name, metadata = self.core.lease, document["metadata"]
        try:
            try:
                # Another relay of the same name would make this one's nodes vanish.
                known = {"resourceVersion": self._version} if self._version else {}
                changed = {**metadata, **known}
                body = encode({**document, "metadata": changed})
                answer = await self._client.perform(_write_of(name, body))
            except StatusError as error:
                if error.code != 404:
                    raise
                write = _write_of(name, encode(document), patch_type="apply", force=True)
                answer = await self._client.perform(write)
            self._version = decode(answer, Lease).metadata.resource_version
            self._last_warning = ""
        except (StatusError, Unreachable, *UNREADABLE) as error:
            self.core.on_failure()
            problem = str(error)
            if isinstance(error, StatusError) and error.code == 409:
                problem = f"another relay writes it, too: give each its own name ({error})"
                await self._restore()
            self._warn(problem)

    def _warn(self, problem: str) -> None:
        if problem != self._last_warning:
            _log.warning("reports of nodes", lease=self.core.lease, problem=problem)
        self._last_warning = problem

    def _drop_old(self) -> None:
        """Removes Leases of nodes that are gone, and of relays that stopped long ago."""
        now = self._clock()
        old = [
            name
            for name, kept in self._kept.items()
            if now - kept.at > STOPPED_KEPT_S
            or (name.startswith(LEASE_PREFIX) and not self.core.has(name))
        ]
        for name in old:
            context, target = self._context(), _target(name)
            self._writes.commit(
                lambda context=context, target=target: self._registry.delete(  # type: ignore[misc]
                    context, target, DeleteOptions()
                )
            )
            self._note(name, "")


def _key(name: str) -> Key:
    return Key(Leases.storage_key, LEASE_NAMESPACE, name)


def _target(name: str) -> Target:
    return Target(resource=Leases, namespace=LEASE_NAMESPACE, name=name)


def _write_of(name: str, body: bytes, **options: Any) -> Write:
    return Write(
        verb="patch",
        resource=Leases,
        namespace=LEASE_NAMESPACE,
        name=name,
        body=body,
        **options,
    )
