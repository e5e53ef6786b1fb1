"""Derives a packet on a node from a query: its sender, its destination, and the node that handles
it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.findings.wording import CHOICES_MAX, no_such, some
from sliceplane.consume.model import ServedPort, ServiceKey
from sliceplane.consume.servicemap import service_ports, why_not_served
from sliceplane.diagnose.trace.cluster import TracedCluster, node_addresses, role_of
from sliceplane.diagnose.trace.question import (
    OUTSIDE_ADDRESSES,
    AddressTarget,
    NameTarget,
    Question,
    Unanswerable,
    family_of,
    joined,
)
from sliceplane.kit.ip import Family
from sliceplane.node.nft.trace import Packet, Path

#: ingress interface of packets of a node's own Pods, for detectors that match interfaces; the real
#: name does not matter
POD_INTERFACE: Final = "pods"

SourceKind = Literal["Pod", "Node", "other"]


class Flight(msgspec.Struct, frozen=True):
    """One packet and the node that handles it. ``source_name`` is "" for an address unknown to the
    cluster.
    """

    family: Family
    packet: Packet
    path: Path
    node: Node
    source_kind: SourceKind
    source_name: str
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> frozenset[str]:
        return frozenset(node_addresses(self.node, self.family))


def resolve(question: Question, cluster: TracedCluster) -> Flight:
    """Raises ``Unanswerable``."""
    family = family_of(question.source)
    protocol = question.protocol or "TCP"
    if isinstance(question.to, NameTarget):
        port = _port_of(question, question.to, cluster, family)
        ip = port.cluster_ip
        number = port.port
        protocol = port.name.protocol  # type: ignore[assignment]  # one of the three
    else:
        ip = question.to.ip
        number = _number(question.to, cluster)
    if family_of(ip) != family:
        raise Unanswerable(
            f"{question.source} is {family} and {ip} is {family_of(ip)}: no packet has both"
        )
    _check_address(ip, number, cluster)
    resolved = _resolve_node(question, ip, cluster)
    pod = cluster.pod_of(question.source)
    is_own_pod = (
        resolved.kind == "Pod"
        and pod is not None
        and pod.spec.node_name == resolved.node.metadata.name
    )
    packet = Packet(
        question.source, ip, protocol.lower(), number, iif=POD_INTERFACE if is_own_pod else ""
    )
    path: Path = (
        "local" if question.source in node_addresses(resolved.node, family) else "forwarded"
    )
    return Flight(family, packet, path, resolved.node, resolved.kind, resolved.name, resolved.notes)


# The destination


def _port_of(
    question: Question, to: NameTarget, cluster: TracedCluster, family: Family
) -> ServedPort:
    service = _service_of(to, cluster)
    ports = service_ports(service, family)
    if not ports:
        raise Unanswerable(
            f"Service {to} has no {family} address, and {question.source} is {family}"
        )
    matching = [
        port
        for port in ports
        if to.port in {"", port.name.port, str(port.port)}
        and question.protocol in {None, port.name.protocol}
    ]
    choices = some(
        [f"{port.name.port or port.port}/{port.name.protocol}" for port in ports], CHOICES_MAX
    )
    if not matching:
        which = "/".join(filter(None, (to.port, question.protocol)))
        raise Unanswerable(f"Service {to} has no port {which}; it has {choices}")
    if len(matching) > 1:
        # One number for two protocols counts as one port: a client means TCP.
        as_tcp = [port for port in matching if port.name.protocol == "TCP"]
        if len(as_tcp) != 1 or not to.port:
            raise Unanswerable(f"Service {to} has several ports, name one: {choices}")
        matching = as_tcp
    return matching[0]


def _service_of(to: NameTarget, cluster: TracedCluster) -> Service:
    service = cluster.by_key.get(ServiceKey(to.namespace, to.name))
    if service is None:
        raise Unanswerable(no_such("Service", str(to), map(str, cluster.by_key)))
    why = why_not_served(service)
    if why:
        raise Unanswerable(f"no proxy serves Service {to}: {why}")
    return service


def _number(to: AddressTarget, cluster: TracedCluster) -> int:
    if to.port:
        return to.port
    family = family_of(to.ip)
    choices = [
        f"{port.port}/{port.name.protocol}"
        for key in cluster.by_key
        for port in cluster.ports(key, family)
        if role_of(port, to.ip, 0)
    ]
    ports = f"; Services have {some(choices)} at {to.ip}" if choices else ""
    raise Unanswerable(f"--to {to.ip} lacks a port, {joined(to.ip, 80)} is one with it{ports}")


def _check_address(ip: str, port: int, cluster: TracedCluster) -> None:
    if not cluster.roles(ip, port):
        unknown = "" if not cluster.unread else f" (not looked at: {some(cluster.unread)})"
        raise Unanswerable(
            f"{ip} is nothing here: no cluster IP, external IP or load balancer address of a "
            f"Service, no address of a Pod or Node, and in no range of cluster IPs{unknown}"
        )


# The node


class _ResolvedNode(msgspec.Struct, frozen=True):
    node: Node
    kind: SourceKind = "other"
    name: str = ""
    notes: tuple[str, ...] = ()


def _resolve_node(question: Question, ip: str, cluster: TracedCluster) -> _ResolvedNode:
    """Resolves the node: the requested one, else the sender's, else the one that has the
    destination address.
    """
    source = question.source
    home = cluster.node_of(source)
    pod = cluster.pod_of(source)
    kind: SourceKind = "Node" if home is not None else "Pod" if pod is not None else "other"
    name = home.metadata.name if home is not None else pod.metadata.key if pod is not None else ""
    home_name = (
        home.metadata.name if home is not None else pod.spec.node_name if pod is not None else ""
    )
    node_name = question.node or home_name
    notes = []
    if not node_name:
        addressed = cluster.node_of(ip) or _entrance(question, cluster)
        if addressed is None:
            unread = f" ({some(cluster.unread)})" if cluster.unread else ""
            description = (
                f"Pod {name}, which is on no node yet"
                if pod is not None
                else f"no address of a Pod or Node{unread}"
            )
            raise Unanswerable(
                f"{source} is {description}: say with --node which node the packet comes to"
            )
        node_name = addressed.metadata.name
        if source in OUTSIDE_ADDRESSES.values() and len(cluster.nodes) > 1:
            notes.append(
                f"a client outside may enter at any node; this is the answer for {node_name}, "
                "--node selects another"
            )
    node = cluster.node_by_name.get(node_name)
    if node is None:
        raise Unanswerable(no_such("Node", node_name, cluster.node_by_name))
    if home_name and home_name != node_name:
        notes.append(
            f"{kind} {name} is on node {home_name}: its packets meet the rules there first"
        )
    addressed = cluster.node_of(ip)
    if addressed is not None and addressed.metadata.name != node_name:
        other = addressed.metadata.name
        notes.append(
            f"{ip} is an address of node {other}: --node {other} shows what becomes of the packet "
            "there"
        )
    return _ResolvedNode(node, kind, name, tuple(notes))


def _entrance(question: Question, cluster: TracedCluster) -> Node | None:
    """Returns the node where a client outside enters by default: the first Ready one, else the
    first. ``None`` for other senders.
    """
    if question.source not in OUTSIDE_ADDRESSES.values():
        return None
    if not cluster.nodes:
        raise Unanswerable(
            "there is no Node, so no node proxy leads packets: sliceplane up --proxy registers "
            "this host"
        )
    nodes = cluster.node_by_name.values()
    return next((node for node in nodes if node.is_ready), next(iter(nodes)))
