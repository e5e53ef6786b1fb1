"""Where a client is, from the address that its query comes from: its node and its zone.

The first that is known counts: the zone that an administrator gave to its range; the endpoint that
has this address; the node whose Pod range it is in, the longest first; the node whose own address
it is (host network, translated addresses, a cache on the node). Where nothing is known the answer
is not narrowed.
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
    """Values by network; the longest network that holds an address counts."""

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


class _NodePlace(NamedTuple):
    zone: str
    pod_cidrs: tuple[str, ...]
    addresses: tuple[str, ...]


class Places:
    """Owned by ``dns.view``.  *of_endpoint*: where the endpoint at an address is, if one is
    there.
    """

    def __init__(
        self, client_zones: Iterable[tuple[Network, str]], of_endpoint: Callable[[bytes], Locality]
    ) -> None:
        self._client_zones = Ranges(client_zones)
        self._of_endpoint = of_endpoint
        self._nodes: dict[str, _NodePlace] = {}
        #: made when they are asked for: a list of nodes, and what their kubelets tell all the time,
        #: costs little
        self._ranges: tuple[Ranges[str], dict[bytes, str]] | None = None

    def on_node(self, name: str, node: Node | None) -> None:
        place = None if node is None else _place_of(node)
        if place != self._nodes.get(name):
            self._nodes.pop(name, None)
            if place is not None:
                self._nodes[name] = place
            self._ranges = None

    def _by_address(self) -> tuple[Ranges[str], dict[bytes, str]]:
        """Nodes by the ranges of their Pods, and by their own addresses."""
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
        place = self._of_endpoint(packed)
        if place != NOWHERE:
            return place if place.zone else self.of_node(place.node)
        pods, own = self._by_address()
        node = pods.get(packed) or own.get(packed)
        return NOWHERE if node is None else self.of_node(node)

    def of_node(self, name: str) -> Locality:
        node = self._nodes.get(name)
        return Locality(node=name, zone="" if node is None else node.zone)

    def is_in_cluster(self, packed: bytes) -> bool:
        """A Pod or a node that we know of."""
        pods, own = self._by_address()
        return pods.get(packed) is not None or packed in own


def _place_of(node: Node) -> _NodePlace:
    spec = node.spec
    cidrs = spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())
    addresses = tuple(
        entry.address for entry in node.status.addresses or () if entry.type == "InternalIP"
    )
    return _NodePlace((node.metadata.labels or {}).get(LABEL_ZONE, ""), tuple(cidrs), addresses)
