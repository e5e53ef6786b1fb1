"""Which nodes hold a revision: the Leases of node proxies (``proxy.progress``), read together.

Clocks of machines differ, so a Lease lives as long as it says from the moment at which *we* saw it change.

**Stopped or removed?**  A Lease that ran out is of a proxy that stopped, or of a node that is gone.  A proxy lets its
Node own the Lease, so the garbage collector takes the Lease with the Node: one that ran out, has such an owner and is
still there, is of a node whose rules stay as the proxy left them.  That node counts, with the revision that it had, for
``STOPPED_KEPT_S``; an operator who takes proxies away deletes the Leases, or waits for so long.  Without an owner (a
proxy on a machine that is no Node) it cannot be told, and it counts no more.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from sliceplane.api.core import Lease
from sliceplane.api.meta import revision_of
from sliceplane.proxy.progress import (
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_PREFIX,
)

#: the sorted list of all revisions is made anew at most so often: thousands of nodes, and as many Services that ask
REFRESH_S: Final = 1.0
#: a proxy that has not reported for so long was taken away on purpose
STOPPED_KEPT_S: Final = 86_400.0
#: nodes that a sentence names
NAMED_MAX: Final = 3


class Lag(NamedTuple):
    """``examples``: nodes that are behind, those that are furthest first, ``NAMED_MAX`` at most, each with what is to
    be said of it.  ``reporting``: how many of the ``nodes`` are heard of."""

    behind: int
    nodes: int
    reporting: int
    examples: tuple[str, ...]

    @property
    def text(self) -> str:
        """The nodes that are behind: the first few, and how many more; "" if none is."""
        more = self.behind - len(self.examples)
        return ", ".join(self.examples) + (f" and {more} more" if more else "")


class _Node(NamedTuple):
    name: str
    revision: int
    until: float
    kept: float

    def shown(self, now: float) -> str:
        return self.name if self.until > now else f"{self.name} (its proxy stopped reporting)"


class NodeProgress:
    """Owned by ``TrafficDistributionController``."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._sorted: list[tuple[int, str]] = []
        self._sorted_at = float("-inf")
        self._reporting = 0

    def on_lease(self, name: str, new: Lease | None, now: float) -> bool:
        """True: this is the first node, or the last one went."""
        before = bool(self._nodes)
        if new is None or (new.metadata.labels or {}).get(LABEL_COMPONENT) != COMPONENT:
            self._nodes.pop(name, None)
        else:
            revision = revision_of((new.metadata.annotations or {}).get(ANNOTATION_REVISION, ""))
            until = now + (new.spec.lease_duration_seconds or LEASE_DURATION_S)
            owned = any(owner.kind == "Node" for owner in new.metadata.owner_references or ())
            node = new.spec.holder_identity or name.removeprefix(LEASE_PREFIX)
            self._nodes[name] = _Node(node, revision, until, until + STOPPED_KEPT_S if owned else until)
        if before is not bool(self._nodes):
            self._sorted_at = float("-inf")
        return before is not bool(self._nodes)

    def lag(self, revision: int, now: float) -> Lag:
        """Which of the nodes do not hold *revision*.  O(log nodes), O(nodes) once in ``REFRESH_S``."""
        if now - self._sorted_at >= REFRESH_S:
            self._nodes = {name: node for name, node in self._nodes.items() if node.kept > now}
            self._sorted = sorted((node.revision, name) for name, node in self._nodes.items())
            self._reporting = sum(node.until > now for node in self._nodes.values())
            self._sorted_at = now
        behind = bisect_left(self._sorted, (revision, ""))
        examples = [self._nodes[name] for _, name in self._sorted[: min(behind, NAMED_MAX)] if name in self._nodes]
        return Lag(behind, len(self._sorted), self._reporting, tuple(node.shown(now) for node in examples))
