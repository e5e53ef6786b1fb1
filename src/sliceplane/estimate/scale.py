"""The KEP's formulas (KEP-0752, "Estimation"): writes, watch events and bytes of three scenarios in three designs.

A *design* is how many endpoints one object holds: all of them (Endpoints), B (EndpointSlice), or one.  A caller that
asks brings the sizes: ``ObjectSizes`` answers what an object with n endpoints takes at rest and as a watch event.
Every Node has one watcher, and a watcher gets each write of each object, whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

#: the KEP's "const": bytes of one endpoint
KEP_ENDPOINT_BYTES: Final = 100
#: the KEP's smallest object
KEP_OBJECT_BYTES_MIN: Final = 1000


class Design(Enum):
    ENDPOINTS = "Endpoints"
    SLICES = "EndpointSlice"
    SINGLE = "one endpoint per EndpointSlice"


class Scenario(Enum):
    CREATION = "Service Creation/Deletion"
    UPDATE = "Single Endpoint Update"
    ROLLING = "Rolling Update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """P, N and B of the KEP.  Raises ``ValueError`` for numbers that no cluster has."""

    pods: int
    nodes: int
    per_slice: int = 100

    def __post_init__(self) -> None:
        if self.pods < 1 or self.nodes < 1:
            raise ValueError(f"{self.pods} pods on {self.nodes} nodes: both must be at least 1")
        if not 1 <= self.per_slice <= 1000:
            raise ValueError(f"endpoints per slice must be between 1 and 1000, not {self.per_slice}")

    def per_object(self, design: Design) -> int:
        """Endpoints of a full object."""
        held = {Design.ENDPOINTS: self.pods, Design.SLICES: self.per_slice, Design.SINGLE: 1}[design]
        return min(held, self.pods)


class ObjectSizes(Protocol):
    """Bytes of an object with so many endpoints."""

    def object_bytes(self, design: Design, endpoints: int) -> int: ...

    def event_bytes(self, design: Design, endpoints: int) -> int:
        """The same as a watch event, framing included."""


class KepSizes:
    """What the KEP reckons with: 100 bytes an endpoint, no object below 1 KB."""

    def object_bytes(self, design: Design, endpoints: int) -> int:
        return max(KEP_OBJECT_BYTES_MIN, endpoints * KEP_ENDPOINT_BYTES)

    def event_bytes(self, design: Design, endpoints: int) -> int:
        return self.object_bytes(design, endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One column of one of the KEP's tables."""

    writes: int
    object_bytes: int
    watchers: int
    events: int
    total_bytes: int


def cost(case: Case, scenario: Scenario, design: Design, sizes: ObjectSizes) -> Cost:
    full = case.per_object(design)
    objects, rest = divmod(case.pods, full)
    event = sizes.event_bytes(design, full)
    if scenario is Scenario.CREATION:
        writes = objects + bool(rest)
        sent = objects * event + (sizes.event_bytes(design, rest) if rest else 0)
    else:
        # as in the KEP, each Pod of a rolling update is worth one write
        writes = 1 if scenario is Scenario.UPDATE else case.pods
        sent = writes * event
    return Cost(
        writes=writes,
        object_bytes=sizes.object_bytes(design, full),
        watchers=case.nodes,
        events=writes * case.nodes,
        total_bytes=sent * case.nodes,
    )
