"""``EndpointView``: one Service's endpoints, kept current, for one event loop.

An informer over the Service's slices feeds ``consume.balancing.view.BalancedService``, which holds
all state; here are the task, the waiting and the words. Whatever the server does, the last known
endpoints stay: an API server that is away must not empty a Service. ``staleness`` says how old they
are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from types import TracebackType
from typing import Self

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.service_rules import PROTOCOLS, is_port
from sliceplane.consume.balancing import pickers, ring
from sliceplane.consume.balancing.merge import PortChoice
from sliceplane.consume.balancing.model import Endpoint, ViewChange
from sliceplane.consume.balancing.usable import Scope
from sliceplane.consume.balancing.view import BalancedService
from sliceplane.consume.io.client.informer import Informer, StandardLog, new_rng
from sliceplane.consume.io.client.picking import Picker
from sliceplane.consume.usable import Locality
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.kit.names import check_dns_label
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client
from sliceplane.watch.reflector import IDLE_TIMEOUT_S


class NotReady(TimeoutError):
    """``wait_ready`` waited in vain.  The text says for what."""


class EndpointView:
    """The endpoints of *service*, each Pod once. Use as an ``async with`` block; *client* is not
    closed by it.

    *port* is the name of a Service's port, a number that is taken as it is, or ``None`` where there
    is only one. *node* and *zone* say where we are: hints for them are honoured as a node proxy
    does, all or nothing; without them, or with *honour_hints* false, every ready endpoint is used.
    *family* limits to one address family; ``None`` takes both and gives IPv4 for a Pod that has
    both.

    *tells* is a name of its own for this view, of the Pod that it is in, say. The Lease
    ``sliceplane-view-SERVICE-NAME`` in the Service's namespace then says how far the view is, for
    which drain barriers wait, and counts the requests of *zone*, for measured zones.

    Raises ``ValueError`` for what no Service can be or have.
    """

    def __init__(
        self,
        client: Client,
        service: str,
        namespace: str = "default",
        *,
        port: str | int | None = None,
        protocol: str = "TCP",
        node: str = "",
        zone: str = "",
        family: Family | None = None,
        honour_hints: bool = True,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        seed: int | None = None,
        lock: AbstractContextManager[object] | None = None,
        tells: str = "",
    ) -> None:
        _check(service, namespace, port, protocol, family)
        if tells and check_dns_label(tells):
            raise ValueError(f"{tells!r} is no name of a view")
        self.service = service
        self.namespace = namespace
        self._lock = lock if lock is not None else nullcontext()
        self._rng = new_rng(seed)
        self._location = Locality(node, zone)
        self._view = BalancedService(
            PortChoice(port, protocol),
            family=family,
            location=self._location,
            honour_hints=honour_hints,
        )
        self._informer: Informer[EndpointSlice] = Informer(
            client,
            EndpointSlices,
            kind=EndpointSlice,
            namespace=namespace,
            label_selector=f"{LABEL_SERVICE_NAME}={service}",
            idle_timeout_s=idle_timeout_s,
            seed=self._rng.bits64(),
        )
        self._informer.add_handler(self._on_changes, on_synced=self._wake)
        self._zone = zone
        self._closed = False
        self._wakers: list[asyncio.Event] = []
        self._client = client
        self._consumer_name = tells
        self._reporting = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.start()
        if self._consumer_name:
            await self._start_reporting()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to follow.  Once; ``async with`` does it."""
        self._informer.start()

    async def close(self) -> None:
        """Stop following; what was known stays readable, and ``async for`` comes to its end.
        Idempotent.
        """
        self._closed = True
        await self._reporting.aclose()
        await self._informer.close()
        self._wake()

    async def _start_reporting(self) -> None:
        from sliceplane.consume.io.client.view_report import ReportedView
        from sliceplane.consume.io.reporting import reporting

        key = f"{self.namespace}/{self.service}"
        zone = self._location.zone
        consumer = ReportedView(self._consumer_name, key, self._informer, self._view, zone)
        await self._reporting.enter_async_context(
            reporting(self._client, consumer, self._rng.fork(), consumer.clock)
        )

    # State

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints, whatever their conditions, in the order of ids: one whole state."""
        with self._lock:
            return self._view.endpoints

    @property
    def usable(self) -> tuple[Endpoint, ...]:
        """The endpoints that picks choose from: ready and hinted for us; or terminating, where none
        is ready.
        """
        with self._lock:
            return self._view.usable()

    @property
    def scope(self) -> Scope:
        """How ``usable`` was chosen: ``node`` or ``zone`` hints, ``all`` ready ones, or
        ``terminating`` ones.
        """
        with self._lock:
            return self._view.scope

    @property
    def synced(self) -> bool:
        """The first list is here.  An empty view before that means nothing."""
        return self._informer.synced

    def staleness(self) -> float:
        """Seconds since the endpoints were last known to be what the server held; ``math.inf``
        before the first list.

        See ``Informer.staleness``.
        """
        return self._informer.staleness()

    @property
    def last_error(self) -> StatusError | None:
        """Why the last list or watch failed; ``None`` once things go well again."""
        return self._informer.last_error

    async def wait_synced(self, timeout: float | None = None) -> None:
        """Until the first list is here.  Raises ``TimeoutError``."""
        await self._informer.wait_synced(timeout)

    async def wait_ready(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Until *count* endpoints may be used. Raises ``NotReady`` (a ``TimeoutError``) after
        *timeout* seconds, and when the view is closed meanwhile.
        """
        waker = self._add_waker()
        try:
            async with asyncio.timeout(timeout):
                while not self._is_ready(count):
                    waker.clear()
                    await waker.wait()
        except NotReady:
            raise
        except TimeoutError as error:
            raise NotReady(f"after {timeout:g} s: {self._why_none(count)}") from error
        finally:
            self._wakers.remove(waker)

    async def __aiter__(self) -> AsyncIterator[ViewChange]:
        """Yields the changes since the last turn; the first turn yields the whole state. Ends when
        the view is closed.

        Applying each change keeps exactly ``endpoints``. A loop that is slow gets one difference
        for all that happened meanwhile. Each ``async for`` is a reader of its own.
        """
        # Without the informer it would wait for ever.
        if not self._informer.started:
            raise ValueError("the view was not started: use it in an async with block")
        with self._lock:
            reader = self._view.add_reader()
        waker = self._add_waker()
        try:
            while True:
                waker.clear()
                with self._lock:
                    change = self._view.take(reader)
                if change:
                    yield change
                elif self._closed:
                    return
                else:
                    await waker.wait()
        finally:
            self._wakers.remove(waker)
            with self._lock:
                self._view.remove_reader(reader)

    # Picks

    def random(self) -> Picker:
        """Each usable endpoint with the same chance."""
        return self._picker(pickers.Random(self._rng.fork()))

    def round_robin(self) -> Picker:
        """One after another, beginning anywhere."""
        return self._picker(pickers.RoundRobin(self._rng.fork()))

    def least_outstanding(self) -> Picker:
        """One of those with the fewest leases; by chance among equals."""
        return self._picker(pickers.LeastOutstanding(self._rng.fork()))

    def consistent_hash(self, *, load_factor: float = ring.LOAD_FACTOR) -> Picker:
        """The same key to the same endpoint, while others come and go; none gets more than
        *load_factor* times the mean of leases (``math.inf``: no bound).
        """
        return self._picker(ring.ConsistentHash(load_factor=load_factor))

    def zone_first(self, *, spill_at: int = pickers.SPILL_REQUESTS) -> Picker:
        """The least loaded of our zone; another zone's only while each of ours has *spill_at*
        leases.
        """
        return self._picker(pickers.ZoneFirst(self._rng.fork(), spill_at=spill_at))

    def _picker(self, core: pickers.PickStrategy) -> Picker:
        return Picker(self._view, core, self._lock, self._why_none, time.monotonic)

    # Inside

    def _on_changes(self, changes: tuple[Change[EndpointSlice], ...]) -> None:
        with self._lock:
            changed = self._view.on_changes(changes)
            zones = (
                {endpoint.zone for endpoint in self._view.endpoints if endpoint.zone}
                if self._zone
                else set()
            )
        if zones:
            if self._zone not in zones:
                StandardLog().warning(
                    "no endpoint is in the zone of this view",
                    service=f"{self.namespace}/{self.service}",
                    zone=self._zone,
                    zones=", ".join(sorted(zones)[:8]),
                )
            self._zone = ""  # one look is enough to find a name that is misspelt
        if changed:
            self._wake()

    def _is_ready(self, count: int) -> bool:
        """Returns True if *count* endpoints may be used. Raises ``NotReady`` if they never will:
        the view is closed.
        """
        ready = self.synced and self._view.usable_count >= count
        if self._closed and not ready:
            raise NotReady(f"the view is closed: {self._why_none(count)}")
        return ready

    def _add_waker(self) -> asyncio.Event:
        waker = asyncio.Event()
        self._wakers.append(waker)
        return waker

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def _why_none(self, count: int = 1) -> str:
        name = f"{self.namespace}/{self.service}"
        if not self.synced:
            return f"the endpoints of {name} are not known yet{self._informer.trouble()}"
        if self._view.problem:
            return f"{name}: {self._view.problem}"
        endpoints = self._view.endpoints
        usable = self._view.usable_count
        if not len(self._informer):
            return f"{name} has no EndpointSlices: is that the Service's name, and has it Pods?"
        if not endpoints:
            return f"{name} has no endpoints"
        if usable:
            return f"{name} has {usable} usable endpoints of the {count} asked for"
        return f"{name} has {len(endpoints)} endpoints, none of which is ready"


def _check(
    service: str, namespace: str, port: str | int | None, protocol: str, family: str | None
) -> None:
    """Checks a program's own settings: a slip would be a view that stays empty and never says
    why.
    """
    for what, name in (("Service", service), ("namespace", namespace)):
        if check_dns_label(name):
            raise ValueError(f"{name!r} is no name of a {what}")
    if isinstance(port, int) and not is_port(port):
        raise ValueError(f"{port} is no number of a port")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {protocol!r}, it must be one of {', '.join(PROTOCOLS)}")
    if family not in (None, *FAMILIES):
        raise ValueError(f"family is {family!r}, it must be None or one of {', '.join(FAMILIES)}")
