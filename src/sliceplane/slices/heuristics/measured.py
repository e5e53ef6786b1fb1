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

import re
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from msgspec.structs import replace

from sliceplane.api.core import Service
from sliceplane.api.findings.wording import clipped
from sliceplane.consume.demand import CONNECTIONS, MEASURED, REQUESTS, is_measured
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.kit.names import check_label_value
from sliceplane.slices.heuristics.balanced import Balanced
from sliceplane.slices.heuristics.types import Allocation, ServiceView, ZoneView

ANNOTATION_SHARES: Final = "sliceplane.dev/measured-shares"
#: a share is a number of these parts
PARTS: Final = 64
_LENGTH_MAX: Final = PARTS * 80
_SHARE: Final = re.compile(f"([^=]+)=([0-9]{{1,2}})/{PARTS}")
#: in the annotation of the demand's source: fixed shares
_WEIGHTS: Final = "weights:"
_WEIGHT: Final = re.compile(r"\s*([^=]+)=([0-9]{1,9})\s*")


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
    shares = _read_zones(text, _SHARE) if len(text) <= _LENGTH_MAX else {}
    return shares if sum(shares.values()) == PARTS else {}


def measured_shares(service: Service) -> dict[str, int]:
    """Returns the parts by zone in effect; empty if the Service does not ask, or none are."""
    annotations = service.metadata.annotations or {}
    return read_shares(annotations.get(ANNOTATION_SHARES, "")) if is_measured(service) else {}


def read_weights(source: str) -> dict[str, int]:
    """Returns the weights by zone of ``weights: zone-a=3,zone-b=1``, the source of a Service's demand;
    empty if *source* is another, or malformed.
    """
    text = source.removeprefix(_WEIGHTS)
    weights = _read_zones(text, _WEIGHT) if text != source else {}
    return weights if any(weights.values()) else {}


def source_problem(source: str) -> str:
    """Returns a sentence about the source of a Service's demand; "": it is valid."""
    if source in (CONNECTIONS, REQUESTS) or read_weights(source):
        return ""
    return (
        f"{ANNOTATION_DEMAND} is {clipped(source)!r}, not {CONNECTIONS}, {REQUESTS} or "
        f'"{_WEIGHTS} zone-a=3,zone-b=1"'
    )


def _read_zones(text: str, form: re.Pattern[str]) -> dict[str, int]:
    """Returns numbers by zone; empty if an entry does not have the *form*, or repeats a zone."""
    numbers: dict[str, int] = {}
    for match in map(form.fullmatch, text.split(",")):
        if match is None or check_label_value(match[1]) or match[1] in numbers:
            return {}
        numbers[match[1]] = int(match[2])
    return numbers


def write_shares(shares: Mapping[str, int]) -> str:
    return ",".join(f"{zone}={parts}/{PARTS}" for zone, parts in sorted(shares.items()))
