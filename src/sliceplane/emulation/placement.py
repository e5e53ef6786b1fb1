"""The placement of Pods on emulated nodes, decided or observed, with the loads of nodes and zones;
and the Pod addresses that are taken on each node.

An address just freed is the last to be given out again, so that a client which still remembers the
old Pod does not meet a new one there at once.
"""

from __future__ import annotations

import heapq
import ipaddress
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from sliceplane.api.core import Pod
from sliceplane.emulation.nodes import EmulatedNode

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HostPort(NamedTuple):
    """A port of a node that a container wants; "" stands for every address of the node."""

    protocol: str
    address: str
    number: int


def host_ports(pod: Pod) -> frozenset[HostPort]:
    containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    return frozenset(
        HostPort(port.protocol, "" if port.host_ip in _EVERYWHERE else port.host_ip, port.host_port)
        for container in containers
        for port in container.ports or ()
        if port.host_port
    )


_EVERYWHERE: Final = ("", "0.0.0.0", "::")


def _clash(one: HostPort, other: HostPort) -> bool:
    if (one.protocol, one.number) != (other.protocol, other.number):
        return False
    return one.address == other.address or not (one.address and other.address)


class Placement:
    """Owned by the emulated kubelet. A placement counts from the decision on, not from when the
    cache shows it, so that Pods planned together spread. The nodes of each zone are kept in the
    order in which they are taken: with thousands of nodes a Pod is placed after a look at few.
    """

    def __init__(self, nodes: Iterable[EmulatedNode], zones_first: Sequence[str] = ()) -> None:
        """*zones_first*: which of two zones is taken where they have as many Pods of the owner;
        else their Nodes' loads decide.
        """
        self._rank = {zone: rank for rank, zone in enumerate(zones_first)}
        self._nodes: dict[str, EmulatedNode] = {}
        self._ordered: dict[str, list[tuple[int, int, str]]] = {}  # zone -> load, length, name
        for node in nodes:
            self._nodes[node.name] = node
            self._ordered.setdefault(node.zone, []).append((0, len(node.name), node.name))
        for ordered in self._ordered.values():
            ordered.sort()
        self._placed: dict[str, tuple[str, str, str]] = {}  # pod uid -> (node, zone, owner uid)
        self._load: dict[str, int] = {}
        self._owner_load: dict[tuple[str, str], int] = {}  # (owner uid, zone) -> Pods
        self._ports: dict[
            str, dict[str, frozenset[HostPort]]
        ] = {}  # node -> pod uid -> ports, of Pods that have any

    def node_of(self, uid: str) -> str:
        return self._placed[uid][0] if uid in self._placed else ""

    def load_of(self, node: str) -> int:
        """Returns the number of Pods that are on *node*, or will be."""
        return self._load.get(node, 0)

    def has_ports(self, node: str, ports: frozenset[HostPort]) -> bool:
        """Returns True if none of *ports* is taken on *node*."""
        taken = (
            [port for other in self._ports.get(node, {}).values() for port in other]
            if ports
            else ()
        )
        return not any(_clash(port, other) for port in ports for other in taken)

    def put(self, uid: str, node: EmulatedNode, owner: str, ports: frozenset[HostPort]) -> None:
        self.drop(uid)
        if ports:
            self._ports.setdefault(node.name, {})[uid] = ports
        self._placed[uid] = (node.name, node.zone, owner)
        self._add_load(node.name, 1)
        self._owner_load[owner, node.zone] = self._owner_load.get((owner, node.zone), 0) + 1

    def drop(self, uid: str) -> None:
        if uid not in self._placed:
            return
        node, zone, owner = self._placed.pop(uid)
        if self._ports.get(node, {}).pop(uid, None) and not self._ports[node]:
            del self._ports[node]
        self._add_load(node, -1)
        self._owner_load[owner, zone] -= 1
        if not self._owner_load[owner, zone]:
            del self._owner_load[owner, zone]

    def _add_load(self, name: str, pods: int) -> None:
        load = self.load_of(name)
        ordered = self._ordered[self._nodes[name].zone]
        del ordered[bisect_left(ordered, (load, len(name), name))]
        insort(ordered, (load + pods, len(name), name))
        self._load[name] = load + pods

    def rezone(self, node: EmulatedNode) -> None:
        """Moves *node* and its Pods to its new zone."""
        entry = (self.load_of(node.name), len(node.name), node.name)
        self._ordered[self._nodes[node.name].zone].remove(entry)
        insort(self._ordered.setdefault(node.zone, []), entry)
        self._nodes[node.name] = node
        for uid, (name, zone, owner) in list(self._placed.items()):
            if name == node.name and zone != node.zone:
                self.put(uid, node, owner, self._ports.get(name, {}).get(uid, frozenset()))

    def choose(self, owner: str, fits: Callable[[str], bool]) -> EmulatedNode | None:
        """Returns the first node that *fits*: fewest Pods of the owner in the zone, then fewest on
        the node, then by name.
        """
        equals: dict[tuple[int, int], list[list[tuple[int, int, str]]]] = {}
        for zone, ordered in self._ordered.items():
            rank = (self._owner_load.get((owner, zone), 0), self._rank.get(zone, 0))
            equals.setdefault(rank, []).append(ordered)
        for rank in sorted(equals):
            for _, _, name in heapq.merge(*equals[rank]):
                if fits(name):
                    return self._nodes[name]
        return None

    def check(self) -> None:
        load: dict[str, int] = {}
        for node, _zone, _owner in self._placed.values():
            load[node] = load.get(node, 0) + 1
        assert load == {node: count for node, count in self._load.items() if count}, (
            f"{load} != {self._load}"
        )
        ordered = {
            zone: sorted(
                (self.load_of(name), len(name), name)
                for name, node in self._nodes.items()
                if node.zone == zone
            )
            for zone in self._ordered
        }
        assert ordered == self._ordered, f"{ordered} != {self._ordered}"
        assert all(uids.keys() <= self._placed.keys() for uids in self._ports.values()), (
            f"{self._ports}"
        )
        assert sum(self._owner_load.values()) == len(self._placed), (
            f"{self._owner_load} != {self._placed}"
        )


class PodAddresses:
    """Owned by the emulated kubelet."""

    def __init__(self, nodes: Iterable[EmulatedNode]) -> None:
        self._cidrs = {node.name: node.pod_cidrs for node in nodes}
        #: of the nodes that were asked about
        self._networks: dict[str, tuple[Network, ...]] = {}
        self._cursor: dict[Network, int] = {}
        self._taken: dict[str, set[str]] = {}  # address -> uids of Pods that have it
        self._addresses: dict[str, tuple[str, ...]] = {}  # uid -> addresses

    def record(self, uid: str, addresses: tuple[str, ...]) -> None:
        """Records the Pod's addresses, which another kubelet may have assigned."""
        if self._addresses.get(uid) == addresses or not addresses:
            return
        self.release(uid)
        self._addresses[uid] = addresses
        for address in addresses:
            self._taken.setdefault(address, set()).add(uid)

    def assign(self, uid: str, node: str) -> tuple[str, ...]:
        """Returns the Pod's addresses, new ones if it has none; () if the node's pool is empty."""
        if uid in self._addresses:
            return self._addresses[uid]
        free = [self._next(network) for network in self._networks_of(node)]
        addresses = tuple(address for address in free if address is not None)
        if len(addresses) != len(free):
            return ()
        self.record(uid, addresses)
        return addresses

    def room(self, node: str) -> int:
        """Returns how many Pods can have addresses on *node* at a time."""
        return min((_size(network) for network in self._networks_of(node)), default=0)

    def _networks_of(self, node: str) -> tuple[Network, ...]:
        if node not in self._networks:
            cidrs = self._cidrs[node]
            self._networks[node] = tuple(ipaddress.ip_network(cidr) for cidr in cidrs)
        return self._networks[node]

    def release(self, uid: str) -> None:
        for address in self._addresses.pop(uid, ()):
            holders = self._taken[address]
            holders.discard(uid)
            if not holders:
                del self._taken[address]

    def _next(self, network: Network) -> str | None:
        # The first two addresses are left for the network and its gateway, the last for broadcast.
        size = _size(network)
        start = self._cursor.get(network, 0)
        for step in range(size):
            index = (start + step) % size
            address = str(network[index + 2])
            if address not in self._taken:
                self._cursor[network] = (index + 1) % size
                return address
        return None

    def check(self) -> None:
        inverse: dict[str, set[str]] = {}
        for uid, addresses in self._addresses.items():
            for address in addresses:
                inverse.setdefault(address, set()).add(uid)
        assert inverse == self._taken, f"{inverse} != {self._taken}"


def _size(network: Network) -> int:
    return max(min(network.num_addresses, 65536) - 3, 0)
