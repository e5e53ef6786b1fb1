"""The part of the cluster that all Services of a slice engine share, and the engine's settings."""

from __future__ import annotations

import msgspec

from sliceplane.slices.facts import NodeFacts
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.hinting.topology import ZoneShares
from sliceplane.slices.removing.guard import RemovalBurst
from sliceplane.slices.subsets import NodeZones
from sliceplane.slices.succession import SelectorChanges
from sliceplane.watch.controller.own_writes import PendingWrites


class SliceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a slice engine.

    ``find`` resolves the heuristic that a Service names. ``retain_by_default``: mass removals are
    retained where neither the Service nor its Namespace has the annotation.
    """

    max_endpoints: int
    find: Find
    selector_changes: SelectorChanges
    retain_by_default: bool


class ClusterFacts:
    """Facts of Nodes, Namespaces and all Services together. Owned by ``SliceEngine``; Services read
    it, and count ready and lost endpoints in ``burst``.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.zones = ZoneShares()
        self.node_zones = NodeZones()
        self.burst = RemovalBurst()
        #: own writes of all Services that the cache does not show yet
        self.pending = PendingWrites()
        #: ``requests_retention`` of each Namespace, and the time at which it was read
        self.namespaces: dict[str, tuple[bool | None, float]] = {}

    def set_node(self, name: str, facts: NodeFacts | None) -> tuple[bool, bool]:
        """Stores the Node *name*; ``None`` removes it. Returns two flags: the zones' shares of CPU
        changed; the set of zones changed. Costs O(1).
        """
        old = self.nodes.get(name)
        if facts is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = facts
        return self.zones.replace(old, facts), self.node_zones.replace(old, facts)

    def check(self) -> None:
        """Asserts that the sums by zone follow from the Nodes. Costs O(nodes)."""
        fresh = ZoneShares()
        for facts in self.nodes.values():
            fresh.replace(None, facts)
        assert self.zones.shares == fresh.shares, (
            f"shares {self.zones.shares} should be {fresh.shares}"
        )
        assert self.zones.views == fresh.views, f"zones {self.zones.views} should be {fresh.views}"
        self.pending.check()
