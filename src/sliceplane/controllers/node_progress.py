"""How many nodes hold a revision: the Leases of node proxies (``proxy.progress``), read together.

Clocks of machines differ, so a Lease lives as long as it says from the moment at which *we* saw it change.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from sliceplane.api.core import Lease
from sliceplane.proxy.progress import (
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    revision_of,
)

#: the sorted list of all revisions is made anew at most so often: thousands of nodes, and as many Services that ask
REFRESH_S: Final = 1.0


class Lag(NamedTuple):
    behind: int
    nodes: int


class _Node(NamedTuple):
    revision: int
    until: float


class NodeProgress:
    """Owned by ``TrafficDistributionController``."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._sorted: list[int] = []
        self._sorted_at = float("-inf")

    def on_lease(self, name: str, new: Lease | None, now: float) -> bool:
        """True: this is the first node, or the last one went."""
        before = bool(self._nodes)
        if new is None or (new.metadata.labels or {}).get(LABEL_COMPONENT) != COMPONENT:
            self._nodes.pop(name, None)
        else:
            revision = revision_of((new.metadata.annotations or {}).get(ANNOTATION_REVISION, ""))
            self._nodes[name] = _Node(revision, now + (new.spec.lease_duration_seconds or LEASE_DURATION_S))
        if before is not bool(self._nodes):
            self._sorted_at = float("-inf")
        return before is not bool(self._nodes)

    def lag(self, revision: int, now: float) -> Lag:
        """How many of the nodes that live do not hold *revision*.  O(log nodes), O(nodes) once in ``REFRESH_S``."""
        if now - self._sorted_at >= REFRESH_S:
            self._nodes = {name: node for name, node in self._nodes.items() if node.until > now}
            self._sorted = sorted(node.revision for node in self._nodes.values())
            self._sorted_at = now
        return Lag(bisect_left(self._sorted, revision), len(self._sorted))
