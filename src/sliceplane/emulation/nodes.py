"""The emulated Nodes with zones and pod address ranges, and how long things take on them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_ZONE
from sliceplane.api.meta import Document
from sliceplane.kit.ip import parse_strict
from sliceplane.kit.names import check_dns_subdomain, check_label_value, check_qualified_name
from sliceplane.kit.times import format_time

LABEL_EMULATED = "emulation.sliceplane.dev/node"
#: "true" or "false" on a Pod overrules the emulation's own idea of its readiness
ANNOTATION_READY = "emulation.sliceplane.dev/ready"
#: how long a deleted Pod lives on at most, by default
TERMINATION_S = 2.0
LABEL_REGION = "topology.kubernetes.io/region"
NODES_MAX = 250  # one /24 of the pod range each
#: three are left for the network, its gateway and broadcast
POD_CIDR_ADDRESSES_MIN = 4
_MEMBERS = {"name", "zone", "region", "labels", "podCIDRs", "address"}


class EmulatedNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    zone: str = ""
    region: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    pod_cidrs: tuple[str, ...] = ()
    #: at most one of each family
    addresses: tuple[str, ...] = ()

    def all_labels(self) -> dict[str, str]:
        labels = {LABEL_EMULATED: "true", LABEL_HOSTNAME: self.name, "kubernetes.io/os": "linux"}
        if self.zone:
            labels[LABEL_ZONE] = self.zone
        if self.region:
            labels[LABEL_REGION] = self.region
        return {**labels, **self.labels}


class EmulationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. ``termination_s`` bounds a Pod's own grace period from above, so that a
    laptop need not wait 30 s for nothing. ``ready_by_default`` False: a Pod becomes ready when it
    is annotated so.
    """

    nodes: tuple[EmulatedNode, ...]
    start_s: float = 0.0
    ready_s: float = 0.0
    termination_s: float = TERMINATION_S
    ready_by_default: bool = True


def _defaults(index: int, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "podCIDRs": [f"10.244.{index}.0/24", f"fd00:10:244:{index:x}::/64"],
        "address": [f"192.0.2.{index}", f"2001:db8::{index:x}"],
    }


def make_nodes(count: int, zones: Iterable[str]) -> tuple[EmulatedNode, ...]:
    """*count* nodes ``node-1`` .., spread over *zones* in turn.  Raises ``ValueError`` with a
    sentence.
    """
    names = list(zones)
    entries = [
        {"name": f"node-{index}", **({"zone": names[(index - 1) % len(names)]} if names else {})}
        for index in range(1, count + 1)
    ]
    return parse_nodes(entries)


def parse_nodes(entries: Any) -> tuple[EmulatedNode, ...]:
    """Nodes from the list in an ``--emulate-file``.  Raises ``ValueError`` that names the entry and
    the fault.
    """
    if not isinstance(entries, list) or not entries:
        raise ValueError("expected a list of nodes, each with at least a name")
    if len(entries) > NODES_MAX:
        raise ValueError(f"{len(entries)} nodes asked for; at most {NODES_MAX} can be emulated")
    nodes: list[EmulatedNode] = []
    for index, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ValueError(f"node {index}: expected a mapping with a name, got {entry!r}")
        name = entry["name"]
        unknown = sorted(set(entry) - _MEMBERS)
        if unknown:
            raise ValueError(
                f"node {name}: unknown member {unknown[0]!r}; known are "
                f"{', '.join(sorted(_MEMBERS))}"
            )
        nodes.append(_node(index, name, {**_defaults(index, name), **entry}))
    names = [node.name for node in nodes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"node {repeated[0]}: named more than once")
    return tuple(nodes)


def _node(index: int, name: str, entry: dict[str, Any]) -> EmulatedNode:
    """Raises ``ValueError`` that names the node and the fault."""
    zone, region = (str(entry.get(member) or "") for member in ("zone", "region"))
    labels = entry.get("labels") or {}
    cidrs = entry["podCIDRs"]
    addresses = [entry["address"]] if isinstance(entry["address"], str) else entry["address"]
    if not isinstance(labels, dict):
        raise ValueError(f"node {name}: labels: expected a mapping, got {labels!r}")
    labels = {str(key): str(value) for key, value in labels.items()}
    for problem in (
        *check_dns_subdomain(name),
        *(fault for key in labels for fault in check_qualified_name(key)),
        *(
            fault
            for value in (zone, region, *labels.values())
            for fault in check_label_value(value)
        ),
    ):
        raise ValueError(f"node {name}: {problem}")
    if not isinstance(cidrs, list) or not cidrs or not all(isinstance(cidr, str) for cidr in cidrs):
        raise ValueError(f"node {name}: podCIDRs: expected a list of address ranges, got {cidrs!r}")
    for cidr in cidrs:
        try:
            network = ipaddress.ip_network(cidr)
        except ValueError as error:
            raise ValueError(f"node {name}: podCIDRs: {error}") from error
        if network.num_addresses < POD_CIDR_ADDRESSES_MIN:
            raise ValueError(f"node {name}: podCIDRs: {cidr} has room for no Pod")
    families = [ipaddress.ip_network(cidr).version for cidr in cidrs]
    if addresses == _defaults(index, name)["address"]:
        # A node has an address of each family that its Pods have.
        addresses = [
            address for address in addresses if ipaddress.ip_address(address).version in families
        ]
    return EmulatedNode(
        name=name,
        zone=zone,
        region=region,
        labels=labels,
        pod_cidrs=tuple(cidrs),
        addresses=_checked_addresses(name, addresses),
    )


def _checked_addresses(name: str, addresses: Any) -> tuple[str, ...]:
    """Raises ``ValueError`` that names the node and the fault."""
    if not isinstance(addresses, list) or not addresses:
        raise ValueError(
            f"node {name}: address: {addresses!r} is not an IP address or a list of them"
        )
    families = set()
    for address in addresses:
        parsed = parse_strict(address) if isinstance(address, str) else None
        if parsed is None:
            raise ValueError(f"node {name}: address: {address!r} is not an IP address")
        families.add(parsed.version)
    if len(families) != len(addresses):
        raise ValueError(f"node {name}: address: at most one of IPv4 and one of IPv6 can be given")
    return tuple(addresses)


def node_document(node: EmulatedNode) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.all_labels()},
        "spec": {"podCIDR": node.pod_cidrs[0], "podCIDRs": list(node.pod_cidrs)},
    }


def node_status(node: EmulatedNode, now: float) -> Document:
    stamp = format_time(now)
    resources = {"cpu": "4", "memory": "16Gi", "pods": "250"}
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            # They are told apart by their types, and two have one.
            {"$patch": "replace"},
            *({"type": "InternalIP", "address": address} for address in node.addresses),
            {"type": "Hostname", "address": node.name},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "EmulatedNodeReady",
                "message": "emulated by sliceplane",
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": stamp,
            }
        ],
        "nodeInfo": {
            "kubeletVersion": "sliceplane-emulated",
            "osImage": "emulated",
            "containerRuntimeVersion": "emulated",
        },
    }
