"""Requests of clients by Service and zone, from load reports (``envoy.service.load_stats.v3``): the
demand of Services with measured zones whose annotation ``sliceplane.dev/demand`` is ``requests``.

A client opens a stream, names its node, and is told which clusters to report and how often
(``load_request``). Each further message has the requests since the one before
(``requests.read_load_stats``). The sums grow as long as the server runs, like the counters of nodes
(``consume.demand``), and are reported in the server's Lease with the zone of the clients.

A client may report whatever it wants. So a zone counts only if a Node is in it, a cluster only if
the client may see its Service, and one report only up to ``requests.LOAD_REQUESTS_MAX``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sliceplane.xds.wire import integer, message, text

#: seconds between two reports of a client, as nodes read their counters
INTERVAL_S: Final = 10
#: seconds between two reports, at least: a faster client is refused
INTERVAL_S_MIN: Final = 1.0


def load_request(clusters: Collection[str]) -> bytes:
    """Encodes the LoadStatsResponse that requests reports of *clusters*."""
    names = [text(1, name) for name in sorted(clusters)]
    return b"".join((*names, message(2, integer(1, INTERVAL_S))))
