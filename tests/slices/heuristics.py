"""Heuristics for tests: good ones, bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.heuristics.types import (
    Allocation,
    EndpointLocation,
    Heuristic,
    HeuristicError,
    Hints,
    Portion,
    ServiceView,
    ZoneView,
)


class TwoZones:
    """Half of a zone's endpoints are for it alone, the others for it and the next zone."""

    name = "test.dev/TwoZones"
    kind: Literal["zonal"] = "zonal"

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        names = [zone.name for zone in zones]
        found = {}
        for zone, count in endpoints.items():
            own = (zone,) if zone else ()
            others = (
                tuple(sorted({zone, names[(names.index(zone) + 1) % len(names)]}))
                if zone in names
                else ()
            )
            found[zone] = (Portion(count // 2, own), Portion(count - count // 2, others))
        return found


class NoThrees:
    """Gives up where a zone has three endpoints, badly where one has two."""

    name = "test.dev/NoThrees"
    kind: Literal["zonal"] = "zonal"

    def allocate(
        self, service: ServiceView, endpoints: Mapping[str, int], zones: tuple[ZoneView, ...]
    ) -> Allocation:
        if 3 in endpoints.values():
            raise HeuristicError(f"{sorted(endpoints.items())} has a three")
        if 2 in endpoints.values():
            raise KeyError("a two")
        return {
            zone: (Portion(count, (zone,) if zone else ()),) for zone, count in endpoints.items()
        }


class Local:
    """Answers what it is made with."""

    name = "test.dev/Local"
    kind: Literal["local"] = "local"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[EndpointLocation] = []

    def hints(
        self, service: ServiceView, endpoint: EndpointLocation, zones: tuple[ZoneView, ...]
    ) -> Hints:
        self.asked.append(endpoint)
        found = self.answer(endpoint, zones) if callable(self.answer) else self.answer
        assert found is None or isinstance(found, Hints | str), found
        return found  # type: ignore[return-value]  # bad ones answer anything


OURS: dict[str, Heuristic] = {each.name: each for each in (TwoZones(), NoThrees())}


def find(name: str) -> Heuristic | str:
    return OURS.get(name) or find_shipped(name)
