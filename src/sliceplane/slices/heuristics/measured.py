"""``sliceplane.dev/Measured``: ``Balanced`` by the connections that start in each zone, instead of by
the zones' CPU.

``controllers.measured`` measures the connections and writes each decision into the annotation
``sliceplane.dev/measured-shares`` of the Service: ``zone-a=41/64,zone-b=15/64,zone-c=8/64``. So this
heuristic stays a pure function. A zone that the annotation does not name has no share. Without a
valid annotation, or if none of its zones has ready Nodes, the shares are those of CPU.

Zones lend equal parts of their endpoints, since demand may change places: a zone that keeps the part
k of its endpoints has at most 1 / k times the load of ``PreferSameZone``, whatever comes.

Shares measure where connections start, which does not depend on the hints: following them cannot
make them change, so decisions do not oscillate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from msgspec.structs import replace

from sliceplane.consume.demand import MEASURED
from sliceplane.kit.names import check_label_value
from sliceplane.slices.heuristics.balanced import Balanced
from sliceplane.slices.heuristics.types import Allocation, ServiceView, ZoneView

ANNOTATION_SHARES: Final = "sliceplane.dev/measured-shares"
#: a share is a number of these parts
PARTS: Final = 64
_LENGTH_MAX: Final = PARTS * 80


class MeasuredZones:
    """A ``ZonalHeuristic`` whose hints move gradually if only the annotation changed."""

    name: Final = MEASURED
    kind: Literal["zonal"] = "zonal"
    is_gradual: ClassVar[bool] = True

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        shares = read_shares(service.annotations.get(ANNOTATION_SHARES, ""))
        if any(zone.name in shares for zone in zones):
            zones = tuple(replace(zone, share=shares.get(zone.name, 0) / PARTS) for zone in zones)
        return Balanced(lends_evenly=True).allocate(service, endpoints, zones)


def read_shares(text: str) -> dict[str, int]:
    """Returns the parts by zone; empty if *text* is not an annotation whose parts add up."""
    shares: dict[str, int] = {}
    for entry in text.split(",") if len(text) <= _LENGTH_MAX else ():
        zone, _, share = entry.partition("=")
        parts = share.removesuffix(f"/{PARTS}")
        is_number = parts != share and parts.isascii() and parts.isdecimal() and len(parts) <= 2
        if not zone or check_label_value(zone) or not is_number or zone in shares:
            return {}
        shares[zone] = int(parts)
    return shares if sum(shares.values()) == PARTS else {}


def write_shares(shares: Mapping[str, int]) -> str:
    return ",".join(f"{zone}={parts}/{PARTS}" for zone, parts in sorted(shares.items()))
