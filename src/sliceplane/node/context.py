"""The node context: inputs of the rules besides Services, derived from flags and the observed node
(upstream: ``pkg/proxy/util/localdetector.go``).

Every back end translates these values in its own way; they do not depend on nft or iptables.

Every part may change while the proxy runs: a Node is registered late, its Pod range is assigned
later still, an administrator adds an address to an interface. The rules follow immediately, without
a restart.
"""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

from sliceplane.kit.ip import Family, canonical_with_family, networks

DetectLocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]

#: in ``node_port_addresses``: the Node's own first address of each family
PRIMARY = "primary"


class Detector(msgspec.Struct, frozen=True):
    """Identifies traffic of this node's Pods: by source network, or by input interface (a name that
    may end with ``*``). Exactly one is set.
    """

    network: str = ""
    interface: str = ""

    def check(self) -> None:
        assert bool(self.network) != bool(self.interface), f"{self} needs exactly one of the two"


class NodeContext(msgspec.Struct, frozen=True):
    """The node context of the rules, besides Services, in one IP family."""

    #: node ports are on listed addresses only; otherwise on all of the host's but loopback ones
    node_ports_listed: bool = False
    #: ``None``: traffic of Pods cannot be identified, and is masqueraded only if that is required
    detector: Detector | None = None
    #: all traffic to cluster IPs is masqueraded
    masquerade_all: bool = False
    #: ranges of cluster IPs, disjoint, in canonical form
    service_networks: tuple[str, ...] = ()


class LocalNode(msgspec.Struct, frozen=True):
    """The facts about the node that rules of Services use, in one IP family."""

    ip: str = ""
    detector: Detector | None = None


class RulesConfig(msgspec.Struct, frozen=True):
    """Flags, under upstream's names.  ``node_port_addresses``: networks, or ``primary`` alone."""

    masquerade_all: bool = False
    detect_local_mode: DetectLocalMode = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    pod_bridge_interface: str = ""
    pod_interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    #: the node's address of its family, which overrides its Node's; "" if not set
    bind_address: str = ""


class NodeNetwork(msgspec.Struct, frozen=True):
    """Observed addresses and networks of the node in one family, in canonical form."""

    ip: str = ""
    pod_networks: tuple[str, ...] = ()
    interface_addresses: tuple[str, ...] = ()
    service_networks: tuple[str, ...] = ()


def own_address(config: RulesConfig, family: Family, of_node: str) -> str:
    """Returns the node's address of *family*; *of_node* is its Node's."""
    bound = canonical_with_family(config.bind_address) if config.bind_address else None
    return bound[1] if bound is not None and bound[0] == family else of_node


def build_context(config: RulesConfig, family: Family, node: NodeNetwork) -> NodeContext:
    return NodeContext(
        node_ports_listed=node_port_addresses(config, family, node) is not None,
        detector=_detector(config, family, node),
        masquerade_all=config.masquerade_all,
        service_networks=node.service_networks,
    )


def node_port_addresses(
    config: RulesConfig, family: Family, node: NodeNetwork
) -> tuple[str, ...] | None:
    """Returns the addresses that node ports are served on, sorted; ``None``: all but loopback ones.

    It is ``None`` for a family without a configured network, or with /0; and for ``primary`` while
    the Node has no address of the family.
    """
    if PRIMARY in config.node_port_addresses:
        return (node.ip,) if node.ip else None
    configured = networks(config.node_port_addresses, family)
    if not configured or any(network.endswith("/0") for network in configured):
        return None
    within = [ipaddress.ip_network(network) for network in configured]
    own = {ipaddress.ip_address(address) for address in node.interface_addresses}
    matching = [
        address
        for address in own
        if not address.is_loopback and any(address in network for network in within)
    ]
    return tuple(str(address) for address in sorted(matching, key=int))


def _detector(config: RulesConfig, family: Family, node: NodeNetwork) -> Detector | None:
    match config.detect_local_mode:
        case "ClusterCIDR":
            ranges = networks(config.cluster_cidrs, family)
            return Detector(network=ranges[0]) if ranges else None
        case "NodeCIDR":
            return Detector(network=node.pod_networks[0]) if node.pod_networks else None
        case "BridgeInterface":
            return Detector(interface=config.pod_bridge_interface)
        case "InterfaceNamePrefix":
            return Detector(interface=f"{config.pod_interface_name_prefix}*")
