"""Facts about the kernel of this machine, which is a node: ``explain --kernel``. ``None``: not
read.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.node.conntrack import UdpFlow


class BridgePort(NamedTuple):
    """An interface that is a port of a bridge. ``hairpin``: the bridge may send a packet back out
    of its ingress port.
    """

    name: str
    bridge: str
    hairpin: bool


class RuleSet(NamedTuple):
    """The rules for Services of one proxy. ``title``: their name; ``ours``: our node proxy wrote
    them; ``removal``: the command that removes them.
    """

    title: str
    ours: bool
    removal: str


class IpvsServer(NamedTuple):
    """A destination of a Service's address in ipvs."""

    service: tuple[str, int]
    address: str
    weight: int


def parse_ipvs(text: str) -> tuple[IpvsServer, ...]:
    """Parses ``/proc/net/ip_vs``: a line for each virtual server, and one with an arrow for each
    real server.
    """
    servers: list[IpvsServer] = []
    service: tuple[str, int] | None = None
    for fields in (line.split() for line in text.splitlines()):
        if fields[:1] in (["TCP"], ["UDP"], ["SCTP"]):
            service = _ipvs_address(fields[1])
        elif fields[:1] == ["->"] and service is not None and len(fields) > 3:
            behind = _ipvs_address(fields[1])
            if behind is not None and fields[3].isdecimal():
                servers.append(IpvsServer(service, behind[0], int(fields[3])))
    return tuple(servers)


def _ipvs_address(text: str) -> tuple[str, int] | None:
    """Parses ``0A600001:0050`` or ``[fd00:0000:...:0001]:0050``."""
    ip, _, port = text.rpartition(":")
    try:
        address = (
            ip_address(ip.strip("[]")) if ip.startswith("[") else ip_address(bytes.fromhex(ip))
        )
        return str(address), int(port, 16)
    except ValueError:
        return None


class KernelFacts(msgspec.Struct, frozen=True):
    """``promiscuous``: promiscuous bridges, which have the effect of ``hairpin``. ``bridge_calls``:
    packets within a bridge pass NAT (the value of bridge-nf-call-iptables, 0 without br_netfilter).
    ``flows``: UDP flows with their counts; ``connections``: established TCP connections likewise.
    ``offloading``: VXLAN interfaces that leave checksums to the device; ``release``: of Linux;
    ``node_port_addresses``: addresses at which our nftables serve node ports, if not all.
    ``rules``: destinations of the cluster IPs by its rules; ``hairpins``: those targets that
    reach themselves by it. ``host_name`` and ``addresses`` are those of this machine.
    """

    flows_count: int | None = None
    flows_max: int | None = None
    bridge_ports: tuple[BridgePort, ...] | None = None
    promiscuous: frozenset[str] = frozenset()
    bridge_calls: bool | None = None
    rule_sets: tuple[RuleSet, ...] | None = None
    flows: tuple[tuple[UdpFlow, int], ...] | None = None
    connections: tuple[tuple[UdpFlow, int], ...] | None = None
    ipvs: tuple[IpvsServer, ...] = ()
    offloading: tuple[str, ...] = ()
    release: str = ""
    node_port_addresses: tuple[str, ...] = ()
    rules: tuple[tuple[ClusterDestination, frozenset[ServedTarget]], ...] | None = None
    hairpins: tuple[tuple[ClusterDestination, frozenset[ServedTarget]], ...] | None = None
    host_name: str = ""
    addresses: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()

    @property
    def bridges(self) -> dict[str, tuple[BridgePort, ...]]:
        """Ports by bridge, for bridges with several ports: a single port, as of a tunnel, has no
        peer.
        """
        ports = self.bridge_ports or ()
        of_bridge = {
            name: tuple(port for port in ports if port.bridge == name)
            for name in sorted({p.bridge for p in ports})
        }
        return {name: members for name, members in of_bridge.items() if len(members) > 1}
