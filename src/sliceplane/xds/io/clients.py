"""Clients of the xDS server: the state of each for the server, the status page and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from sliceplane.kit.metrics import Metrics
from sliceplane.xds.catalog import XdsCatalog
from sliceplane.xds.io.budget import account_of
from sliceplane.xds.io.connection import Call
from sliceplane.xds.io.progress import BehindCounts
from sliceplane.xds.laggards import Laggards
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.requests import ClientFacts
from sliceplane.xds.streams.status import ClientReport, TypeReport, short
from sliceplane.xds.streams.stream import AdsStream

CONVERGENCE_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class ConnectedClient:
    """A client: its call, its stream, and its location once it is admitted."""

    __slots__ = (
        "account",
        "admission",
        "behind",
        "behind_before",
        "call",
        "client",
        "is_laggard",
        "is_working",
        "since",
        "stream",
    )

    def __init__(self, call: Call, stream: AdsStream, now: float) -> None:
        self.call = call
        self.account = account_of(call.user)
        self.stream = stream
        self.since = now
        self.client: XdsClient | None = None
        #: the first revision that it lacks, now and at the last tick; ``None`` if it lacks none, or
        #: is a laggard
        self.behind: int | None = None
        self.behind_before: int | None = None
        self.is_laggard = False
        self.admission: asyncio.Task[None] | None = None
        #: its stream has work, and reading from its connection is suspended meanwhile
        self.is_working = False

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that identify the client in the log."""
        node = self.stream.node
        return {
            "client": "" if node is None else node.id[:100],
            "user": self.call.user.name,
            "peer": self.call.peer,
        }

    @property
    def claims_another_zone(self) -> bool:
        """Returns True if the client claims another zone than that of its Node."""
        return self.stream.view is not None and self.stream.view.claims_another_zone

    @property
    def name(self) -> str:
        """The name for messages: the kind of the client, its id or address, and its user."""
        kind = self.client.kind if self.client is not None else "client"
        node = self.stream.node
        return (
            f"{kind} {node.id[:60] if node is not None and node.id else self.call.peer} of "
            f"{self.call.user.name}"
        )

    def report(self, now: float) -> ClientReport:
        node = self.stream.node or ClientFacts()
        client = self.client or XdsClient(kind="grpc")
        return ClientReport(
            id=node.id,
            kind=client.kind if self.client else "",
            agent=f"{node.agent} {'.'.join(map(str, node.version)) if any(node.version) else ''}".strip(),
            user=self.call.user.name,
            peer=self.call.peer,
            node=client.node,
            zone=client.zone,
            namespace=client.namespace,
            leds=client.leds,
            listeners=client.listeners,
            connected_seconds=round(now - self.since, 3),
            behind=self.stream.behind_from is not None,
            types=tuple(
                TypeReport.of(status, now, short(status.type_url))
                for status in self.stream.status()
            ),
        )


class XdsMeters:
    """The metrics of one server.  Counters and histograms are attributes."""

    def __init__(
        self,
        catalog: XdsCatalog,
        connected: Iterable[ConnectedClient],
        behind: BehindCounts,
        laggards: Laggards[ConnectedClient],
    ) -> None:
        """*connected*: a live view of the clients."""
        metrics = self.metrics = Metrics()
        metrics.computed(
            "gauge",
            "sliceplane_xds_clients",
            "Clients that are served, by kind.",
            lambda: _count_by_kind(connected),
            "kind",
        )
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            (
                "sliceplane_xds_clients_behind",
                "Clients that have not accepted what changed last.",
                lambda: behind.clients + len(laggards),
            ),
            (
                "sliceplane_xds_clients_unacknowledged",
                (
                    "Clients that have not accepted changes for so long that drains do not wait for "
                    "them."
                ),
                lambda: laggards.abandoned,
            ),
            (
                "sliceplane_xds_clients_late",
                "Clients that have not answered for 30 seconds.",
                lambda: sum(item.stream.is_late for item in connected),
            ),
            (
                "sliceplane_xds_clients_elsewhere",
                "Clients that say another zone than their Node does.",
                lambda: sum(item.claims_another_zone for item in connected),
            ),
            (
                "sliceplane_xds_left_out_endpoints",
                (
                    "Endpoints that clients ask for and are not told, as their address is none that "
                    "every client could use."
                ),
                lambda: catalog.unusable,
            ),
            (
                "sliceplane_xds_assignments_too_large",
                (
                    "Ports whose last endpoints are left out, as a client takes no more in one "
                    "message."
                ),
                lambda: len(catalog.too_large()),
            ),
            (
                "sliceplane_xds_revision",
                "Changes of what clients are told, since the start.",
                lambda: catalog.revision,
            ),
        )
        for name, text, value in gauges:
            metrics.computed("gauge", name, text, value)
        self.gates = metrics.counter(
            "sliceplane_xds_gates_forced_total",
            "Listeners that were sent although the client had not accepted their clusters for 2 "
            "seconds.",
        )
        self.responses = metrics.counters(
            "sliceplane_xds_responses_total", "Responses that were sent.", "type"
        )
        self.refusals = metrics.counters(
            "sliceplane_xds_refusals_total", "Resources that clients refused.", "type"
        )
        self.lates = metrics.counter(
            "sliceplane_xds_late_total", "Responses without an answer for 30 seconds."
        )
        self.ended = metrics.counters(
            "sliceplane_xds_streams_ended_total", "Streams that we ended, by status.", "code"
        )
        self.convergence = metrics.histogram(
            "sliceplane_xds_convergence_seconds",
            "From a change until a client has accepted it.",
            CONVERGENCE_BUCKETS,
        )


def _count_by_kind(connected: Iterable[ConnectedClient]) -> Iterable[tuple[tuple[str, ...], float]]:
    counts: dict[str, int] = {}
    for item in connected:
        if item.client is not None:
            counts[item.client.kind] = counts.get(item.client.kind, 0) + 1
    return [((kind,), float(count)) for kind, count in sorted(counts.items())]
