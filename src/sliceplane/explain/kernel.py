"""What was read of the kernel of this machine, which is a node: ``explain --kernel``.  ``None``: not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sliceplane.proxy.conntrack import UdpFlow


class BridgePort(NamedTuple):
    """An interface that is a port of a bridge.  ``hairpin``: the bridge sends back what came from it."""

    name: str
    bridge: str
    hairpin: bool


class RuleSet(NamedTuple):
    """Somebody's rules for Services.  ``told``: what they are called; ``ours``: our node proxy wrote them; ``removal``:
    the command that takes them away."""

    told: str
    ours: bool
    removal: str


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """``promiscuous``: bridges that take everything, which leads back as ``hairpin`` does.  ``bridge_calls``: whether
    packets within a bridge go through NAT: the value of bridge-nf-call-iptables, 0 without br_netfilter.  ``flows``:
    UDP flows, and how many of each."""

    flows_count: int | None = None
    flows_max: int | None = None
    bridge_ports: tuple[BridgePort, ...] | None = None
    promiscuous: frozenset[str] = frozenset()
    bridge_calls: bool | None = None
    rule_sets: tuple[RuleSet, ...] | None = None
    flows: tuple[tuple[UdpFlow, int], ...] | None = None
    unread: tuple[str, ...] = ()

    @property
    def bridges(self) -> dict[str, tuple[BridgePort, ...]]:
        """Ports of the bridges that join several: one port alone, as of a tunnel, has nobody to talk with."""
        ports = self.bridge_ports or ()
        of_bridge = {
            name: tuple(port for port in ports if port.bridge == name) for name in sorted({p.bridge for p in ports})
        }
        return {name: several for name, several in of_bridge.items() if len(several) > 1}
