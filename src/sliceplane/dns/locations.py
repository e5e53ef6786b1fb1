"""The location of a client (its node and zone), derived from the source address of its query.

The first match counts: the zone that an administrator configured for the range; the endpoint with
this address; the node with the longest Pod range that contains it; the node with this address (host
network, translated addresses, a cache on the node). Without a match the answer is not narrowed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.consume.usable import Locality
from sliceplane.kit.ip import Network, parse_lenient, parse_network_lenient

T = TypeVar("T")
NOWHERE = Locality()


class Ranges(Generic[T]):
    """Values by network; the longest network that contains an address counts."""

    def __init__(self, ranges: Iterable[tuple[Network, T]] = ()) -> None:
        #: by octets of an address and length of the prefix, the longest first
        self._by_length: dict[tuple[int, int], dict[int, T]] = {}
        for network, value in ranges:
            self.put(network, value)

    def put(self, network: Network, value: T) -> None:
        length = (len(network.network_address.packed), network.max_prefixlen - network.prefixlen)
        if length not in self._by_length:
            self._by_length[length] = {}
            self._by_length = dict(sorted(self._by_length.items()))
        self._by_length[length][int(network.network_address) >> length[1]] = value

    def get(self, packed: bytes) -> T | None:
        number = int.from_bytes(packed, "big")
        for (octets, shift), values in self._by_length.items():
            if octets == len(packed):
                value = values.get(number >> shift)
                if value is not None:
                    return value
        return None


class _NodeLocation(NamedTuple):
    zone: str
    pod_cidrs: tuple[str, ...]
    addresses: tuple[str, ...]


class ClientLocations:
    """Owned by ``dns.view``.  *of_endpoint* returns the location of the endpoint with an address,
    ``NOWHERE`` if there is none.
    """

    def __init__(
        self, client_zones: Iterable[tuple[Network, str]], of_endpoint: Callable[[bytes], Locality]
    ) -> None:
        self._client_zones = Ranges(client_zones)
        self._of_endpoint = of_endpoint
        self._nodes: dict[str, _NodeLocation] = {}
        #: built at the first query after a change: a list of nodes, and the frequent updates of
        #: their kubelets, cost little
        self._ranges: tuple[Ranges[str], dict[bytes, str]] | None = None

    def on_node(self, name: str, node: Node | None) -> None:
        location = None if node is None else _location_of(node)
        if location != self._nodes.get(name):
            self._nodes.pop(name, None)
            if location is not None:
                self._nodes[name] = location
            self._ranges = None

    def _by_address(self) -> tuple[Ranges[str], dict[bytes, str]]:
        """Returns the names of nodes by the ranges of their Pods, and by their own addresses."""
        if self._ranges is None:
            pods: Ranges[str] = Ranges()
            own: dict[bytes, str] = {}
            for name in sorted(self._nodes):
                for text in self._nodes[name].pod_cidrs:
                    network = parse_network_lenient(text)
                    if network is not None:
                        pods.put(network, name)
                for text in self._nodes[name].addresses:
                    address = parse_lenient(text)
                    if address is not None:
                        own.setdefault(address.packed, name)
            self._ranges = pods, own
        return self._ranges

    def of(self, client: str) -> Locality:
        try:
            packed = ipaddress.ip_address(client.partition("%")[0]).packed
        except ValueError:
            return NOWHERE
        zone = self._client_zones.get(packed)
        if zone is not None:
            return Locality(zone=zone)
        locality = self._of_endpoint(packed)
        if locality != NOWHERE:
            return locality if locality.zone else self.of_node(locality.node)
        pods, own = self._by_address()
        node = pods.get(packed) or own.get(packed)
        return NOWHERE if node is None else self.of_node(node)

    def of_node(self, name: str) -> Locality:
        node = self._nodes.get(name)
        return Locality(node=name, zone="" if node is None else node.zone)

    def is_in_cluster(self, packed: bytes) -> bool:
        """Returns True for an address of a node, or in the Pod range of one."""
        pods, own = self._by_address()
        return pods.get(packed) is not None or packed in own


def _location_of(node: Node) -> _NodeLocation:
    spec = node.spec
    cidrs = spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())
    addresses = tuple(
        entry.address for entry in node.status.addresses or () if entry.type == "InternalIP"
    )
    return _NodeLocation((node.metadata.labels or {}).get(LABEL_ZONE, ""), tuple(cidrs), addresses)
