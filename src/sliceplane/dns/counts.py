"""Metrics of a name server, under CoreDNS's names where CoreDNS has them."""

from __future__ import annotations

from sliceplane.dns import wire
from sliceplane.dns.clients import ClientRights
from sliceplane.dns.kept import KeptResults
from sliceplane.kit.metrics import Count, Metrics


class DnsCounts(Metrics):
    """Owned by one ``NameServer``. *zone*: its first one, with a final dot."""

    def __init__(self, zone: str, kept: KeptResults) -> None:
        super().__init__()
        self._zone = zone
        #: by transport, True for IPv4, and type; types without a name are b""
        self.requests: dict[tuple[str, bool, bytes], int] = {}
        #: by True for answers of our own zones, and response code
        self._responses: dict[tuple[bool, int], int] = {}
        self._do_requests: Count = self.counter(
            "coredns_dns_do_requests_total", "Queries with the bit DO."
        )
        self.computed(
            "counter",
            "coredns_dns_requests_total",
            "Queries.",
            self._request_rows,
            *("server", "zone", "view", "proto", "family", "type"),
        )
        self.computed(
            "counter",
            "coredns_dns_responses_total",
            "Answers.",
            self._response_rows,
            *("server", "zone", "view", "rcode", "plugin"),
        )
        self.limited = self.counters(
            "sliceplane_dns_limited_total",
            "Answers that the rate limit kept back, or sent as truncated.",
            "outcome",
        )
        self.over_share = self.counters(
            "sliceplane_dns_over_share_total",
            "Queries of clients that had used their share of work.",
            "outcome",
        )
        for results, read in (
            ("results", lambda: float(kept.result_bytes)),
            ("denials", lambda: float(kept.denial_bytes)),
        ):
            self.computed(
                "gauge",
                f"sliceplane_dns_kept_{results}_bytes",
                f"Memory of {results} kept by name.",
                read,
            )

    def on_request(self, transport: str, rights: ClientRights, kind: bytes, *, do: bool) -> None:
        key = (transport, len(rights.packed) == 4, kind)
        self.requests[key] = self.requests.get(key, 0) + 1
        if do:
            self._do_requests.value += 1

    def on_response(self, rcode: int, *, ours: bool = True) -> None:
        key = (ours, rcode)
        self._responses[key] = self._responses.get(key, 0) + 1

    def _request_rows(self) -> list[tuple[tuple[str, ...], float]]:
        counts: dict[tuple[str, ...], float] = {}
        for (transport, four, kind), count in sorted(self.requests.items()):
            name = wire.TYPE_NAMES.get(int.from_bytes(kind, "big"), "other")
            labels = ("dns://", ".", "", transport, "1" if four else "2", name)
            counts[labels] = counts.get(labels, 0) + count
        return list(counts.items())

    def _response_rows(self) -> list[tuple[tuple[str, ...], float]]:
        rows: list[tuple[tuple[str, ...], float]] = []
        for (ours, rcode), count in sorted(self._responses.items()):
            zone, plugin = (self._zone, "kubernetes") if ours else (".", "forward")
            name = wire.RCODE_NAMES.get(rcode, str(rcode))
            rows.append((("dns://", zone, "", name, plugin), count))
        return rows
