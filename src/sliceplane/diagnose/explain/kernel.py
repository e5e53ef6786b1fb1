"""Facts read of the kernel of this machine, which is a node: ``explain --kernel``.  ``None``:
not read.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.node.conntrack import UdpFlow


class BridgePort(NamedTuple):
    """An interface that is a port of a bridge.  ``hairpin``: the bridge sends back what came from
    it.
    """

    name: str
    bridge: str
    hairpin: bool


class RuleSet(NamedTuple):
    """Somebody's rules for Services. ``title``: what they are called; ``ours``: our node proxy wrote
    them; ``removal``: the command that takes them away.
    """

    title: str
    ours: bool
    removal: str


class IpvsServer(NamedTuple):
    """Where ipvs leads a Service's address."""

    service: tuple[str, int]
    address: str
    weight: int


def parse_ipvs(text: str) -> tuple[IpvsServer, ...]:
    """``/proc/net/ip_vs``: a line for each virtual server, and one with an arrow for each server
    behind it.
    """
    servers: list[IpvsServer] = []
    service: tuple[str, int] | None = None
    for words in (line.split() for line in text.splitlines()):
        if words[:1] in (["TCP"], ["UDP"], ["SCTP"]):
            service = _ipvs_address(words[1])
        elif words[:1] == ["->"] and service is not None and len(words) > 3:
            behind = _ipvs_address(words[1])
            if behind is not None and words[3].isdecimal():
                servers.append(IpvsServer(service, behind[0], int(words[3])))
    return tuple(servers)


def _ipvs_address(text: str) -> tuple[str, int] | None:
    """``0A600001:0050`` or ``[fd00:0000:...:0001]:0050``."""
    ip, _, port = text.rpartition(":")
    try:
        address = (
            ip_address(ip.strip("[]")) if ip.startswith("[") else ip_address(bytes.fromhex(ip))
        )
        return str(address), int(port, 16)
    except ValueError:
        return None


class KernelFacts(msgspec.Struct, frozen=True):
    """``promiscuous``: bridges that take everything, which leads back as ``hairpin`` does.
    ``bridge_calls``: whether packets within a bridge go through NAT: the value of
    bridge-nf-call-iptables, 0 without br_netfilter. ``flows``: UDP flows, and how many of each;
    ``connections``: the same of TCP, those that are established. ``offloading``: VXLAN interfaces
    that leave checksums to the device; ``release``: of Linux; ``node_port_addresses``: where our
    nftables serve node ports, if not everywhere. ``rules``: where our rules lead the cluster IPs.
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
    unread: tuple[str, ...] = ()

    @property
    def bridges(self) -> dict[str, tuple[BridgePort, ...]]:
        """Ports of the bridges that join several: one port alone, as of a tunnel, has nobody to
        talk with.
        """
        ports = self.bridge_ports or ()
        of_bridge = {
            name: tuple(port for port in ports if port.bridge == name)
            for name in sorted({p.bridge for p in ports})
        }
        return {name: several for name, several in of_bridge.items() if len(several) > 1}
