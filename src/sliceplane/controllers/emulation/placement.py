"""Which emulated node each Pod is on, decided or already known, and how loaded nodes and zones are."""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.controllers.emulation.nodes import EmulatedNode


class Placement:
    """Owned by the emulated kubelet.  A placement counts from the decision on, not from when the cache shows
    it, so that Pods planned together spread."""

    def __init__(self) -> None:
        self._placed: dict[str, tuple[str, str, str]] = {}  # pod uid -> (node, zone, owner uid)
        self._load: dict[str, int] = {}
        self._owner_load: dict[tuple[str, str], int] = {}  # (owner uid, zone) -> Pods

    def node_of(self, uid: str) -> str:
        return self._placed[uid][0] if uid in self._placed else ""

    def load_of(self, node: str) -> int:
        """How many Pods are on *node*, or will be."""
        return self._load.get(node, 0)

    def put(self, uid: str, node: EmulatedNode, owner: str) -> None:
        self.drop(uid)
        self._placed[uid] = (node.name, node.zone, owner)
        self._load[node.name] = self._load.get(node.name, 0) + 1
        self._owner_load[owner, node.zone] = self._owner_load.get((owner, node.zone), 0) + 1

    def drop(self, uid: str) -> None:
        if uid not in self._placed:
            return
        node, zone, owner = self._placed.pop(uid)
        self._load[node] -= 1
        self._owner_load[owner, zone] -= 1
        if not self._owner_load[owner, zone]:
            del self._owner_load[owner, zone]

    def choose(self, fitting: Iterable[EmulatedNode], owner: str) -> EmulatedNode:
        """Fewest Pods of the owner in the zone, then fewest on the node, then by name."""
        return min(
            fitting,
            key=lambda node: (
                self._owner_load.get((owner, node.zone), 0),
                self._load.get(node.name, 0),
                len(node.name),
                node.name,
            ),
        )

    def check(self) -> None:
        load: dict[str, int] = {}
        for node, _zone, _owner in self._placed.values():
            load[node] = load.get(node, 0) + 1
        assert load == {node: count for node, count in self._load.items() if count}, f"{load} != {self._load}"
        assert sum(self._owner_load.values()) == len(self._placed), f"{self._owner_load} != {self._placed}"
