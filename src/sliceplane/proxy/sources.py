"""Who may use a load balancer's addresses (``loadBalancerSourceRanges``, reference A6)."""

from __future__ import annotations

import ipaddress

from sliceplane.kit.ip import networks
from sliceplane.proxy.model import ServicePort


def allowed_sources(port: ServicePort, node_ip: str) -> tuple[str, ...]:
    """Disjoint networks in canonical form; empty: everybody.  *node_ip* "": not known.

    A node that is a client may send with one of those addresses as its source, so they are allowed where it is.
    """
    ranges = port.source_ranges
    if not ranges or not node_ip or not _contains(ranges, node_ip):
        return ranges
    if ":" in node_ip:
        return networks((*ranges, *(f"{ip}/128" for ip in port.vips)), "IPv6")
    return networks((*ranges, *(f"{ip}/32" for ip in port.vips)), "IPv4")


def _contains(ranges: tuple[str, ...], ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    return any(address in ipaddress.ip_network(network) for network in ranges)
