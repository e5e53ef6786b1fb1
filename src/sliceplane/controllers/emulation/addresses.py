"""Pod addresses of emulated nodes: which are taken, which comes next.

An address just freed is the last to be given out again, so that a client which still remembers the old Pod
does not meet a new one there at once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from sliceplane.controllers.emulation.nodes import EmulatedNode


class PodAddresses:
    """Owned by the emulated kubelet."""

    def __init__(self, nodes: Iterable[EmulatedNode]) -> None:
        self._networks = {node.name: tuple(ipaddress.ip_network(cidr) for cidr in node.pod_cidrs) for node in nodes}
        self._cursor: dict[ipaddress.IPv4Network | ipaddress.IPv6Network, int] = {}
        self._taken: dict[str, set[str]] = {}  # address -> uids of Pods that hold it
        self._held: dict[str, tuple[str, ...]] = {}  # uid -> addresses

    def hold(self, uid: str, addresses: tuple[str, ...]) -> None:
        """The Pod has these addresses; another kubelet may have given them."""
        if self._held.get(uid) == addresses or not addresses:
            return
        self.release(uid)
        self._held[uid] = addresses
        for address in addresses:
            self._taken.setdefault(address, set()).add(uid)

    def assign(self, uid: str, node: str) -> tuple[str, ...]:
        """The Pod's addresses: those that it holds, else fresh ones; () if the node has none left."""
        if uid in self._held:
            return self._held[uid]
        free = [self._next(network) for network in self._networks[node]]
        addresses = tuple(address for address in free if address is not None)
        if len(addresses) != len(free):
            return ()
        self.hold(uid, addresses)
        return addresses

    def room(self, node: str) -> int:
        """How many Pods can have addresses on *node* at a time."""
        return min((_size(network) for network in self._networks[node]), default=0)

    def release(self, uid: str) -> None:
        for address in self._held.pop(uid, ()):
            holders = self._taken[address]
            holders.discard(uid)
            if not holders:
                del self._taken[address]

    def _next(self, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str | None:
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
        for uid, addresses in self._held.items():
            for address in addresses:
                inverse.setdefault(address, set()).add(uid)
        assert inverse == self._taken, f"{inverse} != {self._taken}"


def _size(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> int:
    return max(min(network.num_addresses, 65536) - 3, 0)
