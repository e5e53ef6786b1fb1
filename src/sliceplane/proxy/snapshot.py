"""All that a data plane of one family would be told, at one moment: what renders start from."""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import Family
from sliceplane.proxy.model import PortState, ServiceChange
from sliceplane.proxy.plane import Plane, PlaneConfig
from sliceplane.proxy.surroundings import NodeFacts, Surroundings


@dataclass(frozen=True, slots=True)
class Objects:
    """What there is, in any order."""

    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    node: Node | None = None
    service_cidrs: tuple[ServiceCIDR, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``states``: one for each service port, sorted by Service.  ``node_ports``: the addresses that node ports are on;
    ``None``: all of the node's but loopback ones."""

    family: Family
    states: tuple[PortState, ...]
    around: Surroundings
    facts: NodeFacts
    node_ports: tuple[str, ...] | None


def feed(plane: Plane, objects: Objects) -> None:
    """Tells *plane* of everything; its first write is then due."""
    for service in objects.services:
        plane.on_service(None, service, 0.0)
    for each in objects.slices:
        plane.on_slice(None, each, 0.0)
    for service_cidr in objects.service_cidrs:
        plane.on_service_cidr(service_cidr.metadata.name, service_cidr, 0.0)
    if objects.node is not None:
        plane.on_node(objects.node, 0.0)
    plane.on_synced(0.0)


def snapshot(family: Family, config: PlaneConfig, objects: Objects) -> Snapshot:
    plane = _Noted(family, config)
    feed(plane, objects)
    return plane.read()


class _Notes:
    """A ``proxy.plane.Ruleset`` that makes no rules."""

    def __init__(self) -> None:
        self.around = Surroundings()
        self.facts = NodeFacts()
        self.states: list[PortState] = []

    def set_surroundings(self, around: Surroundings, node_ports: tuple[str, ...]) -> bool:
        self.around = around
        return True

    def set_service(self, change: ServiceChange, node: NodeFacts) -> bool:
        self.facts = node
        self.states.extend(change.ports)
        return True

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


class _Noted(Plane):
    def __init__(self, family: Family, config: PlaneConfig) -> None:
        self._notes = _Notes()
        super().__init__(family, config, self._notes)

    def read(self) -> Snapshot:
        self._take_up()
        notes = self._notes
        return Snapshot(self.family, tuple(notes.states), notes.around, notes.facts, self.node_port_addresses)
