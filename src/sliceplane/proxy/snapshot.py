"""All that a data plane of one family would be told, at one moment: what renders start from."""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import Family
from sliceplane.proxy.model import PortState, ServiceChange
from sliceplane.proxy.plane import AnyNodePlane, NodePlane, NodePlaneConfig
from sliceplane.proxy.ruleset import RulesTransaction
from sliceplane.proxy.surroundings import Surroundings, ThisNode


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """What there is, in any order."""

    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    node: Node | None = None
    service_cidrs: tuple[ServiceCIDR, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """``states``: one for each service port, sorted by Service.  ``node_ports``: the addresses that node ports are on;
    ``None``: all of the node's but loopback ones."""

    family: Family
    states: tuple[PortState, ...]
    around: Surroundings
    facts: ThisNode
    node_ports: tuple[str, ...] | None


def feed(plane: AnyNodePlane, objects: NodeObjects) -> None:
    """Tells *plane* of everything; its first write is then due."""
    for service in objects.services:
        plane.on_service(None, service, 0.0)
    for endpoint_slice in objects.slices:
        plane.on_slice(None, endpoint_slice, 0.0)
    for service_cidr in objects.service_cidrs:
        plane.on_service_cidr(service_cidr.metadata.name, service_cidr, 0.0)
    if objects.node is not None:
        plane.on_node(objects.node, 0.0)
    plane.on_synced(0.0)


def snapshot(family: Family, config: NodePlaneConfig, objects: NodeObjects) -> NodeSnapshot:
    notes = _Notes()
    plane = NodePlane[_Notes, RulesTransaction](family, config, notes)
    feed(plane, objects)
    plane.take_transaction(0.0)
    return NodeSnapshot(family, tuple(notes.states), notes.around, plane.facts, plane.node_port_addresses)


class _Notes:
    """A ``proxy.ruleset.Ruleset`` that makes no rules."""

    def __init__(self) -> None:
        self.around = Surroundings()
        self.states: list[PortState] = []

    def set_surroundings(self, around: Surroundings, node_ports: tuple[str, ...]) -> bool:
        self.around = around
        return True

    def set_service(self, change: ServiceChange, node: ThisNode) -> bool:
        self.states.extend(change.ports)
        return True

    def take_transaction(self, now: float) -> None:
        """Nothing is written."""

    def on_success(self, now: float) -> None:
        """Nothing is written."""

    def on_failure(self) -> None:
        """Nothing is written."""

    def force_full(self) -> None:
        """Nothing is written."""

    @property
    def needs_full(self) -> bool:
        return True

    def next_deadline(self) -> float | None:
        return None

    def check(self) -> None:
        """Nothing is kept."""
