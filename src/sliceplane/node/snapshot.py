"""The input of a data plane of one family at one moment, for renders."""

from __future__ import annotations

import msgspec

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import PortState
from sliceplane.kit.ip import Family
from sliceplane.node.context import LocalNode, NodeContext
from sliceplane.node.plane import AnyNodePlane


class NodeObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster that a node reads, in any order."""

    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    node: Node | None = None
    service_cidrs: tuple[ServiceCIDR, ...] = ()


class NodeSnapshot(msgspec.Struct, frozen=True):
    """The data for a render. ``states``: one for each service port, sorted by Service.
    ``node_ports``: the addresses of node ports; ``None``: all of the node's but loopback ones.
    """

    family: Family
    states: tuple[PortState, ...]
    context: NodeContext
    facts: LocalNode
    node_ports: tuple[str, ...] | None


def feed(plane: AnyNodePlane, objects: NodeObjects) -> None:
    """Passes all *objects* to *plane*; then its first write is due."""
    for service in objects.services:
        plane.on_service(None, service, 0.0)
    for endpoint_slice in objects.slices:
        plane.on_slice(None, endpoint_slice, 0.0)
    for service_cidr in objects.service_cidrs:
        plane.on_service_cidr(service_cidr.metadata.name, service_cidr, 0.0)
    if objects.node is not None:
        plane.on_node(objects.node, 0.0)
    plane.on_synced(0.0)


def snapshot(plane: AnyNodePlane) -> NodeSnapshot:
    """Returns the data for a render of a *plane* that has all objects, for any back end."""
    tracker = plane.tracker
    states = tuple(state for key in tracker.services() for state in tracker.state(key))
    return NodeSnapshot(plane.family, states, plane.context, plane.facts, plane.node_port_addresses)
