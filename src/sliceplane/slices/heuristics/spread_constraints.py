"""``sliceplane.dev/SpreadConstraints``: an endpoint serves the domain over which its Pod was
spread.

KEP-4444, "Making Traffic Distribution directly aware of Topology Spread Constraints": an author who
spreads Pods over zones wants each zone to serve itself; likewise over nodes and over regions. The
KEP uses a node selector as the hint; the API has zones and nodes, which are equivalent for the
three standard keys:

    topology.kubernetes.io/zone      the endpoint's zone
    kubernetes.io/hostname           the endpoint's zone and node, as PreferSameNode
    topology.kubernetes.io/region    every zone of the endpoint's region

If a Pod has several constraints, the narrowest counts: a Pod that is spread over zones and nodes
serves its node first, and its zone if a node there has no endpoint. Hints cannot express other
keys, which are ignored; a Pod without a constraint gets no hints.
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.api.discovery import HINTS_MAX
from sliceplane.slices.heuristics.types import (
    EndpointLocation,
    HeuristicError,
    Hints,
    ServiceView,
    ZoneView,
)

KEY_ZONE: Final = "topology.kubernetes.io/zone"
KEY_REGION: Final = "topology.kubernetes.io/region"
KEY_HOSTNAME: Final = "kubernetes.io/hostname"


class SpreadConstraints:
    """A ``LocalHeuristic`` that follows topology spread constraints."""

    name: Final = "sliceplane.dev/SpreadConstraints"
    kind: Literal["local"] = "local"

    def hints(
        self, service: ServiceView, endpoint: EndpointLocation, zones: tuple[ZoneView, ...]
    ) -> Hints:
        keys = endpoint.topology_keys
        own = (endpoint.zone,) if endpoint.zone else ()
        if KEY_HOSTNAME in keys and endpoint.node:
            return Hints(own, (endpoint.node,))
        if KEY_ZONE in keys:
            return Hints(own)
        if KEY_REGION in keys and endpoint.region:
            return Hints(self._zones_of(endpoint, zones))
        return Hints()

    @staticmethod
    def _zones_of(endpoint: EndpointLocation, zones: tuple[ZoneView, ...]) -> tuple[str, ...]:
        inside = {zone.name for zone in zones if zone.region == endpoint.region}
        if endpoint.zone:
            inside.add(endpoint.zone)
        if len(inside) > HINTS_MAX:
            raise HeuristicError(
                f"region {endpoint.region} has {len(inside)} zones, and an endpoint can have "
                f"hints for {HINTS_MAX}"
            )
        return tuple(sorted(inside))
