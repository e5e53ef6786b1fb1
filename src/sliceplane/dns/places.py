"""Where a client is, from the address that its query comes from: its node and its zone.

The first that is known counts: the zone that an administrator gave to its range; the endpoint that has this address;
the node whose Pod range it is in, the longest first; the node whose own address it is (host network, translated
addresses, a cache on the node).  Where nothing is known the answer is not narrowed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.kit.ip import Network, parse_lenient, parse_network_lenient
from sliceplane.proxy.usable import Locality

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
        self._by_length.setdefault(length, {})[int(network.network_address) >> length[1]] = value
        self._by_length = dict(sorted(self._by_length.items()))

    def get(self, packed: bytes) -> T | None:
        number = int.from_bytes(packed, "big")
        for (octets, shift), values in self._by_length.items():
            if octets == len(packed):
                value = values.get(number >> shift)
                if value is not None:
                    return value
        return None


class Places:
    """Owned by ``dns.view``.  *of_endpoint*: where the endpoint at an address is, if one is there."""

    def __init__(self, client_zones: Iterable[tuple[Network, str]], of_endpoint: Callable[[bytes], Locality]) -> None:
        self._client_zones = Ranges(client_zones)
        self._of_endpoint = of_endpoint
        self._nodes: dict[str, Node] = {}
        self._pod_ranges: Ranges[str] = Ranges()
        self._addresses: dict[bytes, str] = {}

    def on_node(self, name: str, node: Node | None) -> None:
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        self._pod_ranges = Ranges()
        self._addresses = {}
        for known in sorted(self._nodes):
            spec = self._nodes[known].spec
            for text in spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ()):
                network = parse_network_lenient(text)
                if network is not None:
                    self._pod_ranges.put(network, known)
            for entry in self._nodes[known].status.addresses or ():
                address = parse_lenient(entry.address) if entry.type == "InternalIP" else None
                if address is not None:
                    self._addresses.setdefault(address.packed, known)

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
        node = self._pod_ranges.get(packed) or self._addresses.get(packed)
        return NOWHERE if node is None else self.of_node(node)

    def of_node(self, name: str) -> Locality:
        node = self._nodes.get(name)
        labels = node.metadata.labels if node is not None else None
        return Locality(node=name, zone=(labels or {}).get(LABEL_ZONE, ""))

    def is_in_cluster(self, packed: bytes) -> bool:
        """A Pod or a node that we know of."""
        return self._pod_ranges.get(packed) is not None or packed in self._addresses
