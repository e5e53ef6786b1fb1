"""The endpoints that may be used from here: the rule of ``consume.usable``, kept by differences.

A node proxy works it out for a Service at a time; here counters and one pool for each possible
answer say it in O(1), so that one changed endpoint costs the same in a Service of any size. Only
when the answer goes over to another pool is the Service walked through. ``check`` compares with the
rule itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.pool import EndpointPool
from sliceplane.consume.usable import Locality, choose, is_still_serving, outcome_of

#: how the usable endpoints were chosen
Scope = Literal["node", "zone", "all", "terminating"]


class Usable:
    """Owned by ``consume.balancing.view.BalancedService``; pickers read ``pool``, ``candidates``
    and ``is_near``.
    """

    def __init__(self, location: Locality, *, honour_hints: bool = True) -> None:
        self._location = location
        self._honour = honour_hints
        self._ready = EndpointPool()
        self._terminating = EndpointPool()
        self._on_node = EndpointPool()
        self._in_zone = EndpointPool()
        self._naming_nodes = 0
        self._naming_zones = 0
        self.scope: Scope = "all"

    @property
    def pool(self) -> EndpointPool:
        """The endpoints that may be used."""
        return self._of(self.scope)

    @property
    def candidates(self) -> EndpointPool:
        """The same, had there been no hints."""
        return self._terminating if self.scope == "terminating" else self._ready

    def is_near(self, endpoint: Endpoint) -> bool:
        """Returns True if hints keep *endpoint* for us; without honoured hints, if it is in our
        zone (or our zone is unknown).
        """
        if self.scope in ("node", "zone"):
            return endpoint.id in self.pool
        return not self._location.zone or endpoint.zone == self._location.zone

    def apply(
        self, touched: Mapping[str, Endpoint | None], visible: Mapping[str, Endpoint]
    ) -> bool:
        """*touched* endpoints are now as in *visible*.  True if the scope changed: every endpoint
        counts anew then.
        """
        for identity, before in touched.items():
            after = visible.get(identity)
            if before is not None:
                self._forget(before)
            if after is not None:
                self._add(after)
            if before is not None and (after is None or not after.ready):
                self._ready.discard(identity)
        was = self.scope
        self.scope = self._scope()
        return was != self.scope

    def _of(self, scope: Scope) -> EndpointPool:
        match scope:
            case "node":
                return self._on_node
            case "zone":
                return self._in_zone
            case "terminating":
                return self._terminating
            case "all":
                return self._ready

    def _scope(self) -> Scope:
        if not len(self._ready):
            return "terminating" if len(self._terminating) else "all"
        if self._honour and self._honours(self._location.node, self._naming_nodes, self._on_node):
            return "node"
        if self._honour and self._honours(self._location.zone, self._naming_zones, self._in_zone):
            return "zone"
        return "all"

    def _honours(self, location: str, naming: int, here: EndpointPool) -> bool:
        every_one_names = naming == len(self._ready)
        return (
            outcome_of(location, every_one_names=every_one_names, one_names_it=len(here) > 0)
            == "honoured"
        )

    def _forget(self, endpoint: Endpoint) -> None:
        # Its place in the pool of ready ones is kept for what it becomes: a change must not upset a
        # rotation.
        self._terminating.discard(endpoint.id)
        if endpoint.ready:
            self._naming_nodes -= bool(endpoint.node_hints)
            self._naming_zones -= bool(endpoint.zone_hints)
            self._on_node.discard(endpoint.id)
            self._in_zone.discard(endpoint.id)

    def _add(self, endpoint: Endpoint) -> None:
        if endpoint.ready:
            self._ready.put(endpoint)
            self._naming_nodes += bool(endpoint.node_hints)
            self._naming_zones += bool(endpoint.zone_hints)
            if self._location.node and self._location.node in endpoint.node_hints:
                self._on_node.put(endpoint)
            if self._location.zone and self._location.zone in endpoint.zone_hints:
                self._in_zone.put(endpoint)
        elif is_still_serving(endpoint):
            self._terminating.put(endpoint)

    def check(self, visible: Mapping[str, Endpoint]) -> None:
        """The pools are what the rule makes of *visible*.  O(endpoints)."""
        everything = [visible[identity] for identity in sorted(visible)]
        expected = choose(everything, self._location, honour_hints=self._honour).endpoints
        actual = sorted(self.pool.endpoints(), key=lambda endpoint: endpoint.id)
        assert tuple(actual) == expected, f"usable are {actual}, the rule says {expected}"
        for pool in (self._ready, self._terminating, self._on_node, self._in_zone):
            pool.check()
