"""UDP flows that lead to removed endpoints (upstream: ``pkg/proxy/conntrack/cleanup.go``).

The kernel translates the first packet of a flow and tracks it. A UDP client that keeps its socket
reaches the endpoint of its first packet as long as it sends, whatever the rules are by then. So
after a write, the flows to UDP service ports are compared with the *present* serving endpoints. Those
that lead elsewhere are deleted, and the client's next packet is a first one.

This reconciles the actual flows with the valid ones; it does not depend on events, which could be
missed. All flows of a service port without endpoints, or of a removed one, are deleted
(kubernetes/kubernetes#139628, #141371): then the client is refused and notices it, while an old flow
would lead nowhere. Flows that do not belong to a Service are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sliceplane.consume.model import NodeEndpoint, ServedPort, canonical_of
from sliceplane.kit.ip import Family

#: an address and a port
SocketAddress = tuple[str, int]


class UdpFlow(NamedTuple):
    """A UDP flow: its destination, and the endpoint that answers.  These two decide if it is stale."""

    sent_to: SocketAddress
    answered_by: SocketAddress


class TrackedFlow(NamedTuple):
    """One entry of the table: its flow, and the client and zone that identify it to the kernel."""

    flow: UdpFlow
    client: SocketAddress
    zone: int = 0


class OpenFlow(NamedTuple):
    """An open flow; ``is_translated``: its client sent to another address or port than that of the
    endpoint that answers, such as a Service's.
    """

    answered_by: SocketAddress
    is_tcp: bool
    is_translated: bool


class Expected:
    """The endpoints that may answer, by destination.

    All addresses of a service port share one set of endpoints: a thousand external IPs of a Service
    with a hundred thousand endpoints cost a thousand references.
    """

    def __init__(self) -> None:
        self._by_address: dict[SocketAddress, tuple[frozenset[SocketAddress], ...]] = {}
        self._by_node_port: dict[int, tuple[frozenset[SocketAddress], ...]] = {}

    def add(self, port: ServedPort, endpoints: Iterable[NodeEndpoint]) -> None:
        """Adds a UDP service port with all its endpoints: only serving ones may answer, regardless of
        hints and policies.
        """
        assert port.name.protocol == "UDP", f"{port.name} is {port.name.protocol}"
        serving = frozenset(
            (endpoint.ip, endpoint.port) for endpoint in endpoints if endpoint.serving
        )
        more = (serving,) if serving else ()
        for ip in (port.cluster_ip, *port.external_ips, *port.vips):
            address = (ip, port.port)
            self._by_address[address] = self._by_address.get(address, ()) + more
        if port.node_port:
            self._by_node_port[port.node_port] = self._by_node_port.get(port.node_port, ()) + more

    def __bool__(self) -> bool:
        return bool(self._by_address)

    def is_stale(self, flow: UdpFlow) -> bool:
        """Returns True if *flow* uses an observed service port, but leads to none of its endpoints;
        also if it was not translated at all.
        """
        serving = self._by_address.get(flow.sent_to)
        if serving is None:
            serving = self._by_node_port.get(flow.sent_to[1])
        return serving is not None and not any(
            flow.answered_by in endpoints for endpoints in serving
        )


_LINE = re.compile(
    r"^(?:udp\s|tcp\s.*?\bESTABLISHED\s).*?\bsrc=(?P<client>\S+) dst=(?P<to>\S+) sport=(?P<sport>\d+)"
    r" dport=(?P<port>\d+).*?\bsrc=(?P<by>\S+) dst=\S+ sport=(?P<from>\d+) dport=\d+"
)
_ZONE = re.compile(r"\bzone=(\d+)")


def parse_tracked(line: str, family: Family) -> TrackedFlow | None:
    """Parses one line of ``conntrack -L`` as an entry; ``None`` if it is no UDP flow of the
    family.
    """
    flow = parse_flow(line, family)
    match = _LINE.match(line) if flow is not None else None
    client = canonical_of(match["client"], family) if match is not None else None
    if flow is None or match is None or client is None:
        return None
    zone = _ZONE.search(line, match.end())
    return TrackedFlow(flow, (client, int(match["sport"])), int(zone[1]) if zone is not None else 0)


def parse_flow(line: str, family: Family, protocol: str = "udp") -> UdpFlow | None:
    """Parses one line of ``conntrack -L``; ``None`` if it is no flow of *protocol* (for "tcp" an
    established one) and the family.
    """
    match = _LINE.match(line) if line.startswith(protocol) else None
    if match is None:
        return None
    sent_to = canonical_of(match["to"], family)
    answered_by = canonical_of(match["by"], family)
    if sent_to is None or answered_by is None:
        return None
    return UdpFlow((sent_to, int(match["port"])), (answered_by, int(match["from"])))
