"""Requests of clients by Service and zone, from load reports (``envoy.service.load_stats.v3``): the
demand of Services with measured zones whose annotation ``sliceplane.dev/demand`` is ``requests``.

A client opens a stream, names its node, and is told which clusters to report and how often
(``load_request``). Each further message has the requests since the one before (``read_load``). The
sums grow as long as the server runs, like the counters of nodes (``consume.demand``), and are
reported in the server's Lease with the zone of the clients.

A client may report whatever it wants. So a zone counts only if a Node is in it, a cluster only if
the client may see its Service, and one report only up to ``REQUESTS_MAX``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sliceplane.xds.streams.requests import ClientFacts, read_load_stats
from sliceplane.xds.wire import integer, message, text

#: seconds between two reports of a client, as nodes read their counters
INTERVAL_S: Final = 10
#: seconds between two reports, at least: a faster client is refused
INTERVAL_S_MIN: Final = 1.0
#: requests to one Service in one report that count
REQUESTS_MAX: Final = 1_000_000 * INTERVAL_S


class LoadReport(NamedTuple):
    """``node``: only in the first message of a stream. ``requests``: by cluster, since the last
    message.
    """

    node: ClientFacts | None
    requests: dict[str, int]


def read_load(data: bytes) -> LoadReport:
    """Decodes a LoadStatsRequest. Raises ``RequestError``."""
    node, stats = read_load_stats(data)
    requests: dict[str, int] = {}
    for cluster, count in stats:
        requests[cluster] = min(requests.get(cluster, 0) + count, REQUESTS_MAX)
    return LoadReport(node, requests)


def load_request(clusters: Collection[str]) -> bytes:
    """Encodes the LoadStatsResponse that requests reports of *clusters*."""
    names = [text(1, name) for name in sorted(clusters)]
    return b"".join((*names, message(2, integer(1, INTERVAL_S))))


class LoadTotals:
    """Requests since the start of the server, by zone and UID. Owned by one server."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}

    def add(self, zone: str, uid: str, requests: int) -> None:
        """Adds *requests* from *zone* to the Service whose UID begins with *uid*."""
        if requests:
            key = f"{zone}/{uid}"
            self._totals[key] = self._totals.get(key, 0) + requests

    def counts(self, uids: Collection[str]) -> dict[str, int]:
        """Returns the totals by ``ZONE/UID`` of the Services *uids*; forgets all others."""
        self._totals = {
            key: count for key, count in self._totals.items() if key.rpartition("/")[2] in uids
        }
        return self._totals
