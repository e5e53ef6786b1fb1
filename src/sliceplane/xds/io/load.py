"""Requests of clients by Service and zone, from load reports (``envoy.service.load_stats.v3``): the
demand of Services with measured zones whose annotation ``sliceplane.dev/demand`` is ``requests``.

A client opens a stream beside its aggregated one, names its node, and is told which clusters to
report and how often (``messages.load_request``). Each further message has the requests since the one
before (``requests.read_load_stats``). The sums grow as long as the server runs, like the counters of
nodes (``consume.demand``), and are reported in the server's Lease with the zone of the clients.

A client may report whatever it wants. So it is admitted like one of an aggregated stream, reports for
the zone in which it is located, which has a Node, and for Services that it may see; one report counts
up to ``requests.LOAD_REQUESTS_MAX``. While no Service wants reports, a client waits without a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.users import User
from sliceplane.watch.io.base import Unreachable
from sliceplane.xds.catalog import XdsCatalog
from sliceplane.xds.io.admission import AdmissionConfig, NotAdmitted, locate_client
from sliceplane.xds.io.connection import Call
from sliceplane.xds.names import parse_key
from sliceplane.xds.streams.actions import VisibleNamespaces
from sliceplane.xds.streams.messages import (
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    load_request,
)
from sliceplane.xds.streams.requests import ClientFacts, RequestError, read_load_stats

#: seconds between two reports, at least: a faster client is refused
INTERVAL_S_MIN: Final = 1.0
LOAD_PATH: Final = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"


@dataclass(slots=True)
class _LoadStream:
    """``visible``: ``None`` until the client is admitted. ``requested``: the last request."""

    admission: asyncio.Task[None] | None = None
    visible: VisibleNamespaces | None = None
    zone: str = ""
    requested: frozenset[str] = frozenset()
    reported_at: float = 0.0


class LoadStreams:
    """Owned by one ``XdsServer``, which calls it. *visibility* returns what a user may see, once
    the catalog is complete; it raises ``StatusError`` and ``Unreachable``.
    """

    def __init__(
        self,
        catalog: XdsCatalog,
        config: AdmissionConfig,
        clock: Callable[[], float],
        visibility: Callable[[User], Awaitable[VisibleNamespaces]],
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._visibility = visibility
        self._streams: dict[Call, _LoadStream] = {}
        #: requests since the start, by ``ZONE/UID``
        self._totals: Counter[str] = Counter()

    def opened(self, call: Call) -> None:
        self._streams[call] = _LoadStream()

    def closed(self, call: Call) -> None:
        stream = self._streams.pop(call, None)
        if stream is not None and stream.admission is not None:
            stream.admission.cancel()

    def message(self, call: Call, data: bytes) -> None:
        stream = self._streams.get(call)
        if stream is None:
            return
        try:
            node, requests = read_load_stats(data)
        except RequestError as error:
            self._end(call, INVALID_ARGUMENT, str(error))
            return
        if stream.admission is None:
            stream.admission = asyncio.create_task(self._admit(call, stream, node or ClientFacts()))
            return
        if stream.visible is None:
            return  # reports of what was not requested
        now = self._clock()
        if now - stream.reported_at < INTERVAL_S_MIN:
            call.count_limit("load-reports")
            self._end(call, RESOURCE_EXHAUSTED, f"more than one load report in {INTERVAL_S_MIN} s")
            return
        stream.reported_at = now
        for cluster in requests.keys() & stream.requested & self._catalog.measured.keys():
            key = f"{stream.zone}/{self._catalog.measured[cluster]}"
            self._totals[key] += requests[cluster]

    async def _admit(self, call: Call, stream: _LoadStream, node: ClientFacts) -> None:
        try:
            client = locate_client(node, call.user, self._config)
            stream.visible = await self._visibility(call.user)
        except NotAdmitted as error:
            self._end(call, PERMISSION_DENIED, str(error))
            return
        except (StatusError, Unreachable) as error:
            self._end(call, UNAVAILABLE, f"what {call.user.name} may see is not known: {error}")
            return
        stream.zone = self._catalog.zone_of(client)
        self._request(call, stream)

    def _request(self, call: Call, stream: _LoadStream) -> None:
        """Requests reports of the Services that want them, if these changed."""
        assert stream.visible is not None, "the client is admitted"
        clusters = frozenset(
            name
            for name in self._catalog.measured
            if (key := parse_key(name)) is not None
            and stream.visible.includes(key.service.namespace)
        )
        if stream.zone and clusters != stream.requested:
            stream.requested = clusters
            call.send(load_request(clusters))

    async def review(self) -> None:
        """Requests reports of the Services that clients may see now, where these changed."""
        for call, stream in list(self._streams.items()):
            if stream.visible is None:
                continue
            with suppress(StatusError, Unreachable):
                stream.visible = await self._visibility(call.user)
            if call in self._streams:
                self._request(call, stream)

    def counts(self) -> dict[str, int]:
        """Returns the totals of the Services that want reports; forgets all others."""
        uids = frozenset(self._catalog.measured.values())
        for key in [key for key in self._totals if key.rpartition("/")[2] not in uids]:
            del self._totals[key]
        return self._totals

    def _end(self, call: Call, status: int, text: str) -> None:
        self.closed(call)
        call.finish(status, text)
