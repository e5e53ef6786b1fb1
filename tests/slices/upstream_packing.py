"""Upstream's packing (``staging/src/k8s.io/endpointslice/reconciler.go``) as a machine of its own,
over a history.

It keeps its own slices, shares no code with the engine or with ``slices.oracle``, and is as plain
as the text. Where upstream leaves the choice to the order of a map it takes the oldest slice first,
and counts in ``most_bytes`` what the largest of those that it may choose would have cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: identity -> the endpoint's JSON
Endpoints = dict[str, bytes]
Ports = Any
#: bytes of a slice besides its endpoints, about; the same for everybody
FRAME_BYTES = 600


@dataclass
class Slice:
    name: int
    ports: Ports
    endpoints: Endpoints
    labels: dict[str, str]


@dataclass
class Upstream:
    """The slices of one service and one address type."""

    most: int
    slices: list[Slice] = field(default_factory=list)
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    sent_bytes: int = 0
    #: no less than ``sent_bytes``: had each choice among equally full slices taken the largest in
    #: bytes
    most_bytes: int = 0
    _named: int = 0

    @property
    def writes(self) -> int:
        return self.creates + self.updates + self.deletes

    def adopt(self, found: list[tuple[Ports, Endpoints, dict[str, str]]]) -> None:
        """Go on from these slices, in their order (after something that the text says nothing
        of).
        """
        self.slices = []
        for ports, endpoints, labels in found:
            self._named += 1
            self.slices.append(Slice(self._named, ports, dict(endpoints), labels))

    def taken(self) -> list[tuple[Ports, Endpoints, dict[str, str]]]:
        """What ``adopt`` takes."""
        return [(each.ports, each.endpoints, each.labels) for each in self.slices]

    def sync(self, desired: Mapping[Ports, Endpoints], labels: dict[str, str]) -> None:
        create: list[tuple[Ports, Endpoints]] = []
        update: list[Slice] = []
        delete: list[Slice] = []
        for ports, endpoints in desired.items():
            self._pack(ports, dict(endpoints), labels, create, update, delete)
        delete += [each for each in self.slices if each.ports not in desired]
        if len(delete) == len(self.slices) and not create:
            if (
                len(delete) == 1
                and not delete[0].ports
                and not delete[0].endpoints
                and delete[0].labels == labels
            ):
                delete = []
            else:
                create.append((frozenset(), {}))
        while create and delete:
            recycled = delete.pop(0)
            recycled.ports, recycled.endpoints = create.pop()
            update.append(recycled)
        self._write(create, update, delete, labels)

    def _pack(
        self,
        ports: Ports,
        waiting: Endpoints,
        labels: dict[str, str],
        create: list[tuple[Ports, Endpoints]],
        update: list[Slice],
        delete: list[Slice],
    ) -> None:
        unchanged: list[Slice] = []
        changed: list[Slice] = []
        for each in self.slices:
            if each.ports != ports:
                continue
            kept = {name: waiting.pop(name) for name in each.endpoints if name in waiting}
            if kept != each.endpoints and not kept:
                delete.append(each)
            elif kept != each.endpoints:
                each.endpoints = kept
                changed.append(each)
            elif each.labels != labels:
                changed.append(each)
            else:
                unchanged.append(each)
        for each in sorted(changed, key=lambda one: -len(one.endpoints)):
            while waiting and len(each.endpoints) < self.most:
                name = next(iter(waiting))
                each.endpoints[name] = waiting.pop(name)
        while waiting:
            fitting = [
                each for each in unchanged if len(each.endpoints) + len(waiting) <= self.most
            ]
            if len(waiting) < self.most and fitting:
                fullest = max(fitting, key=lambda one: len(one.endpoints))
                equal = [each for each in fitting if len(each.endpoints) == len(fullest.endpoints)]
                self.most_bytes += max(map(size, equal)) - size(fullest)
                fullest.endpoints.update(waiting)
                changed.append(fullest)
                waiting = {}
            else:
                names = list(waiting)[: self.most]
                create.append((ports, {name: waiting.pop(name) for name in names}))
        update += changed

    def _write(
        self,
        create: list[tuple[Ports, Endpoints]],
        update: list[Slice],
        delete: list[Slice],
        labels: dict[str, str],
    ) -> None:
        for ports, endpoints in create:
            self._named += 1
            self.slices.append(Slice(self._named, ports, endpoints, labels))
        for each in update:
            each.labels = labels
        written = FRAME_BYTES * (len(create) + len(update))
        written += sum(sum(map(len, endpoints.values())) for _, endpoints in create) + sum(
            map(size, update)
        )
        self.sent_bytes += written
        self.most_bytes += written
        gone = {each.name for each in delete}
        self.slices = [each for each in self.slices if each.name not in gone]
        self.creates += len(create)
        self.updates += len(update)
        self.deletes += len(delete)


def size(found: Slice) -> int:
    """Bytes of its endpoints."""
    return sum(map(len, found.endpoints.values()))
