"""The name server of a cluster: informers and sockets around its core.

It answers SERVFAIL until every first list is complete. Afterwards it answers even while the API
server is unavailable. ``sliceplane dns`` runs it, and so does a node proxy that also serves names.
"""

from __future__ import annotations

import asyncio
import math
import operator
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_address
from typing import Final

from sliceplane import __version__
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.consume.io.reporting import Consumer, reporting
from sliceplane.consume.progress import DNS
from sliceplane.consume.selections import ALL
from sliceplane.dns import wire
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.forwarding.forwarder import ForwardNotice
from sliceplane.dns.forwarding.upstreams import SocketAddress
from sliceplane.dns.io.sockets import (
    QUERY_BYTES_MAX,
    Bound,
    Datagrams,
    ListenError,
    Send,
    Streams,
    bound,
    here,
)
from sliceplane.dns.io.upstream import ForwardFlags, Upstreams
from sliceplane.dns.server import Forward, NameServer
from sliceplane.kit.io.interfaces import addresses
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.pages import PageMaker, follower_pages
from sliceplane.kit.metrics import DEFAULT_BUCKETS, Distribution, Kind, Metrics
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.reflect import RunningInformer

#: seconds between checks of the caches, and after which shares of work by client are reset
_CHECK_S: Final = 1.0
#: seconds beyond which a cache counts as disconnected; an idle watch is probed earlier than that
STALE_S: Final = 120.0
#: buckets of CoreDNS: sizes of messages in bytes, durations of requests in seconds
_SIZE_BUCKETS: Final = tuple(
    map(float, (0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16000, 32000, 48000, 64000))
)
_DURATION_BUCKETS: Final = (
    0.00001,
    0.00002,
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    *DEFAULT_BUCKETS,
)

_log = get_logger("dns")


def watches(zone: ZoneConfig, selector: str = "") -> tuple[Selection, ...]:
    """Returns the selections that a name server of *zone* reads.  *selector*: that of Services."""
    return (
        Selection(Namespaces),
        Selection(Services, label_selector=selector),
        Selection(EndpointSlices),
        *((Selection(Nodes),) if zone.zone_answers else ()),
        *((Selection(Pods),) if zone.pods == "verified" else ()),
    )


class Resolver:
    """The running name server.  Call ``listen``, run ``follow`` until cancelled, then ``close``."""

    def __init__(
        self,
        zone: ZoneConfig,
        config: AnswerConfig,
        *,
        clock: Callable[[], float],
        forward: ForwardFlags | None = None,
    ) -> None:
        self.server: Final = NameServer(zone, config)
        self._clock = clock
        #: only the rate limit needs the time of a query
        self._is_limited = config.rate > 0
        self._informers: list[RunningInformer[Object]] = []
        self._datagrams: list[Datagrams] = []
        self._streams = Streams(self._on_query, self._on_forward)
        self._upstreams = (
            None
            if forward is None
            else Upstreams(
                forward, clock=clock, own=self._is_own, is_own_name=self.server.view.is_own
            )
        )
        self._listening: tuple[tuple[str, int], ...] = ()
        self._fed_staleness_s: Callable[[], float] | None = None
        self._ready = asyncio.Event()
        #: numbers of messages by size
        self._query_sizes = [0] * (QUERY_BYTES_MAX + 1)
        self._answer_sizes = [0] * (wire.TCP_BYTES + 1)
        self._duration_counts = [0] * (len(_DURATION_BUCKETS) + 1)
        self._duration_sum_s = 0.0
        self.stopping = False
        self.metrics = self._declare_metrics()

    def _declare_metrics(self) -> Metrics:
        metrics = Metrics()
        metrics.include(self.server.metrics.families)
        if self._upstreams is not None:
            metrics.include(self._upstreams.metrics.families)
        labels = ("server", "zone", "view")
        metrics.gauges(
            "coredns_build_info", "Which program this is.", "version", "revision", "goversion"
        ).of(f"sliceplane-{__version__}", "", "").value = 1
        enabled = metrics.gauges("coredns_plugin_enabled", "What it does.", *labels, "name")
        for plugin in (
            "kubernetes",
            *(("forward", "cache", "hosts") if self._upstreams is not None else ()),
        ):
            enabled.of(*_ALL, plugin).value = 1
        self._panics = metrics.counter(
            "coredns_panics_total", "Faults of this program that a query met."
        )
        metrics.computed(
            "histogram",
            "coredns_dns_request_duration_seconds",
            "From a wake to its answers, for each of these.",
            lambda: [
                (
                    _ALL,
                    Distribution(
                        _DURATION_BUCKETS, tuple(self._duration_counts), self._duration_sum_s
                    ),
                )
            ],
            *labels,
        )
        for name, what, sizes in (
            ("request", "Queries", self._query_sizes),
            ("response", "Answers", self._answer_sizes),
        ):
            read = partial(_sizes, sizes)
            metrics.computed(
                "histogram", f"coredns_dns_{name}_size_bytes", f"{what} by size.", read, *labels
            )
        metrics.computed(
            "gauge", "sliceplane_dns_staleness_seconds", "Age of the oldest cache.", self._ages
        )
        self._declare_sockets(metrics)
        return metrics

    def _declare_sockets(self, metrics: Metrics) -> None:
        streams = self._streams
        rows: tuple[tuple[Kind, str, str, Callable[[], int]], ...] = (
            (
                "gauge",
                "sliceplane_dns_connections",
                "Connections that are open.",
                lambda: streams.open_count,
            ),
            (
                "counter",
                "sliceplane_dns_connections_refused_total",
                "Connections beyond the limits.",
                lambda: streams.refused,
            ),
            (
                "counter",
                "sliceplane_dns_connections_dropped_total",
                "Idle connections closed to make room for others.",
                lambda: streams.dropped,
            ),
            (
                "counter",
                "sliceplane_dns_datagrams_lost_total",
                "Answers that a socket did not take.",
                lambda: sum(datagrams.lost for datagrams in self._datagrams),
            ),
        )
        for kind, name, text, count in rows:
            metrics.computed(kind, name, text, count)

    # -- the cluster

    async def follow(
        self, client: Client, rng: Rng, selections: Iterable[Selection], *, reported_as: str = ""
    ) -> None:
        """Runs informers of *selections* and background tasks until cancelled.

        Other resources come by ``on_changes``. *reported_as*: the unique name under which the
        server reports its progress, so that barriers of drains wait for it; "" for none.
        """
        for selection in selections:
            informer = RunningInformer[Object](client, selection, clock=self._clock, rng=rng.fork())
            informer.add_handler(self.on_changes, self.on_list)
            self._informers.append(informer)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            if reported_as:
                slices = next(item for item in self._informers if item.resource is EndpointSlices)
                consumer = Consumer(DNS, reported_as, {ALL: slices}, self._clock)
                await stack.enter_async_context(
                    reporting(client, consumer, rng.fork(), self._clock)
                )
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer {informer.resource.key}")
            group.create_task(self._check_caches(), name="dns: check of the caches")
            if self._upstreams is not None:
                group.create_task(self._upstreams.follow(), name="dns: files of the forwarder")
                recorder = EventRecorder(client, clock=self._clock)
                group.create_task(recorder.run(), name="dns: Events")
                group.create_task(
                    self._record_problems(self._upstreams, recorder),
                    name="dns: Events of the forwarder",
                )

    def on_attached(self, staleness: Callable[[], float]) -> None:
        """Registers another reader, which also calls ``on_changes``.  *staleness* returns the age
        of its caches in seconds, infinity before its first lists are complete.
        """
        self._fed_staleness_s = staleness

    def on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        self.server.apply(changes, self._clock())

    def on_list(self) -> None:
        """Notes that an informer has synced.  A kind that the server may not list counts as synced."""
        is_fed = self._fed_staleness_s is None or math.isfinite(self._fed_staleness_s())
        is_listed = bool(self._informers) and all(
            informer.synced or informer.absent for informer in self._informers
        )
        if is_fed and is_listed and not self._ready.is_set():
            self.server.on_synced()
            self._ready.set()

    async def _check_caches(self) -> None:
        while True:
            overloads = [datagrams.is_overloaded() for datagrams in self._datagrams]
            self.server.on_second(is_overloaded=any(overloads))
            self.server.on_stale(stale=self._ready.is_set() and self.staleness_s() > STALE_S)
            self.on_list()
            await asyncio.sleep(_CHECK_S)

    async def _record_problems(self, upstreams: Upstreams, recorder: EventRecorder) -> None:
        """Records each problem of the forwarder once, as an Event on the Service of the name
        server.
        """
        recorded: ForwardNotice | None = None
        while True:
            service = self.server.view.service("kube-system", "kube-dns")
            if upstreams.problem is not recorded and service is not None:
                recorded = upstreams.problem
                if recorded is not None:
                    note = EventNote(
                        regarding=service,
                        regarding_resource=Services,
                        type="Warning",
                        reason=recorded.reason,
                        note=recorded.text,
                        component="sliceplane-dns",
                        action="Forward",
                    )
                    recorder.record(note)
            await asyncio.sleep(_CHECK_S)

    def staleness_s(self) -> float:
        """Returns the age of the oldest cache in seconds; 0 if the watch that feeds it is open."""
        ages = [informer.staleness() for informer in self._informers if not informer.absent]
        if self._fed_staleness_s is not None:
            ages.append(self._fed_staleness_s())
        return max(ages, default=math.inf)

    def _ages(self) -> list[tuple[tuple[str, ...], float]]:
        age = self.staleness_s()
        return [((), age)] if math.isfinite(age) else []

    async def wait_ready(self) -> None:
        await self._ready.wait()

    # -- sockets

    async def listen(
        self,
        addresses: tuple[tuple[str, int], ...],
        within: Callable[[Callable[[], Bound]], Awaitable[Bound]] = here,
        *,
        shared: bool = False,
    ) -> tuple[tuple[str, int], ...]:
        """Opens the sockets and returns their addresses.

        *within* opens sockets, possibly in another network namespace. *shared*: see ``bound``.
        Raises ``ListenError``, and ``OSError`` if that namespace cannot be entered.
        """
        listening = []
        for address, port in addresses:
            datagrams, stream = await within(partial(bound, address, port, shared=shared))
            self._datagrams.append(
                Datagrams(datagrams, self._on_query, self._on_forward, self._on_batch)
            )
            await self._streams.serve(stream)
            listening.append((address, datagrams.getsockname()[1]))
        self._listening = tuple(listening)
        if self._upstreams is not None:
            try:
                self._upstreams.begin()
            except (OSError, ValueError) as error:
                raise ListenError(
                    f"names outside the cluster cannot be forwarded: {error}"
                ) from error
        return self._listening

    def _is_own(self, server: SocketAddress) -> bool:
        """Returns True if a query to *server* would come back to this server."""
        hosts = [address for address, port in self._listening if port == server.port]
        if server.host in hosts:
            return True
        if not {"0.0.0.0", "::"} & set(hosts):
            return False
        return ip_address(server.host).is_loopback or server.host in addresses(ipv6=True)

    async def close(self) -> None:
        for datagrams in self._datagrams:
            datagrams.close()
        await self._streams.close()
        if self._upstreams is not None:
            self._upstreams.close()

    def _on_query(self, packet: bytes, client: str, over_tcp: bool) -> bytes | Forward | None:
        self._query_sizes[len(packet)] += 1
        try:
            now = self._clock() if self._is_limited else 0.0
            answer = self.server.answer(packet, client, "tcp" if over_tcp else "udp", now)
        except Exception as error:
            self._panics.value += 1
            _log.error(
                "a query failed unexpectedly",
                client=client,
                query=packet[:64].hex(),
                exc_info=error,
            )
            answer = _encode_failure(packet)
        if isinstance(answer, bytes):
            self._answer_sizes[len(answer)] += 1
        return answer

    def _on_forward(self, forward: Forward, send: Send) -> None:
        assert self._upstreams is not None, "the server returns Forward only with upstreams"

        def answered(answer: bytes) -> None:
            self.server.metrics.on_response(answer[3] & 15, ours=False)
            self._answer_sizes[len(answer)] += 1
            send(answer)

        is_queried = self._upstreams.ask(
            forward.question,
            answered,
            size=forward.question.payload_of(forward.transport),
            account=forward.account,
            target=forward.target,
            before=forward.before,
        )
        if is_queried:
            self.server.on_upstream_query(forward)

    def _on_batch(self, count: int, took_s: float) -> None:
        self._duration_counts[bisect_left(_DURATION_BUCKETS, took_s / count)] += count
        self._duration_sum_s += took_s

    def pages(self) -> dict[str, PageMaker]:
        return follower_pages(lambda: self.stopping, self._ready.is_set)


_ALL: Final = ("dns://", ".", "")


def _sizes(counts_by_size: list[int]) -> list[tuple[tuple[str, ...], Distribution]]:
    ends = [int(bound) + 1 for bound in _SIZE_BUCKETS]
    counts = [
        sum(counts_by_size[start:end]) for start, end in zip([0, *ends], [*ends, None], strict=True)
    ]
    total = sum(map(operator.mul, counts_by_size, range(len(counts_by_size))))
    return [(_ALL, Distribution(_SIZE_BUCKETS, tuple(counts), float(total)))]


def _encode_failure(packet: bytes) -> bytes | None:
    question = wire.read_query(packet)
    return wire.error(question, wire.SERVFAIL) if isinstance(question, wire.DnsQuestion) else None
