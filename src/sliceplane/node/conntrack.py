"""UDP flows that lead to endpoints that are gone (upstream: ``pkg/proxy/conntrack/cleanup.go``).

The kernel translates the first packet of a flow and remembers; a UDP client that keeps its socket
is led to the endpoint of its first packet as long as it goes on sending, whatever the rules say by
then. So after a write, the flows to UDP service ports are compared with the endpoints that serve
*now*, and those that lead elsewhere are forgotten: the client's next packet is a first one.

This reconciles what is there with what may be; it does not follow events, of which one that is
missed would never come again. Of a service port without endpoints, or that was taken away, every
flow is forgotten (kubernetes/kubernetes#139628, #141371): its client is refused then, and learns of
it, instead of talking into the void. Flows that never had anything to do with a Service are left
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sliceplane.consume.model import NodeEndpoint, ServedPort, canonical_of
from sliceplane.kit.ip import Family

#: an address and a port
Place = tuple[str, int]


class UdpFlow(NamedTuple):
    """A UDP flow: where it was sent, and who answers.  All flows that agree in both are judged
    alike.
    """

    sent_to: Place
    answered_by: Place


class TrackedFlow(NamedTuple):
    """One entry of the table: its judgement, and what names it to the kernel."""

    flow: UdpFlow
    client: Place
    zone: int = 0


class Expected:
    """The endpoints that may answer, by destination.

    All addresses of a service port share one set of endpoints: a thousand external IPs of a Service
    with a hundred thousand endpoints cost a thousand references.
    """

    def __init__(self) -> None:
        self._by_place: dict[Place, tuple[frozenset[Place], ...]] = {}
        self._by_node_port: dict[int, tuple[frozenset[Place], ...]] = {}

    def add(self, port: ServedPort, endpoints: Iterable[NodeEndpoint]) -> None:
        """A UDP service port and all its endpoints: serving ones may answer, whatever hints and
        policies say, and no other.
        """
        assert port.name.protocol == "UDP", f"{port.name} is {port.name.protocol}"
        serving = frozenset(
            (endpoint.ip, endpoint.port) for endpoint in endpoints if endpoint.serving
        )
        more = (serving,) if serving else ()
        for ip in (port.cluster_ip, *port.external_ips, *port.vips):
            place = (ip, port.port)
            self._by_place[place] = self._by_place.get(place, ()) + more
        if port.node_port:
            self._by_node_port[port.node_port] = self._by_node_port.get(port.node_port, ()) + more

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def is_stale(self, flow: UdpFlow) -> bool:
        """Returns True if *flow* uses an observed service port, but leads to none of its endpoints;
        also if it was not translated at all.
        """
        serving = self._by_place.get(flow.sent_to)
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
    """One line of ``conntrack -L`` as an entry; ``None`` if it is not of a UDP flow of the
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
    """One line of ``conntrack -L``; ``None`` if it is not of a flow of *protocol* (of "tcp" an
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
