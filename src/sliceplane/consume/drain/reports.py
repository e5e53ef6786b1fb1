"""Reports on demand in a server's memory: what consumers told last, and what barriers want to hear.

Two requests that the server holds, and no write. A *consumer* (a node proxy, say) posts its report
to ``PROGRESS_PATH/NAMESPACE/NAME``, which is its Lease, and is answered when a barrier wants more
than the report says: with the versions that it wants. When it holds them it posts again. A
*barrier* posts to ``PROGRESS_PATH`` what it wants, and up to which report it has heard, and is
answered with the reports that came since, when there is one.

The memory says nothing of who there is: Leases do. So it may be lost, or be another server's, and a
barrier is late by it and never wrong. A report counts as the Lease would, and takes the same right:
to patch that Lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.consume.progress import (
    FEW_NODES,
    LEASE_NAMESPACE,
    REPORTS_PER_S,
    Place,
    ProgressReport,
)
from sliceplane.consume.selections import needed

#: between two looks at many nodes
LOOK_S: Final = 0.25
#: how long a request is held at most, and a consumer's is
HELD_S_MAX: Final = 60.0
CONSUMER_HELD_S: Final = 50.0
#: what a barrier wants besides is told with its next question
BARRIER_HELD_S: Final = 0.2
_PAUSE_S: Final = 0.005
#: nodes that have not told by then are asked by an annotation: they may be another server's clients
MEMORY_S: Final = 0.5
#: consumers that are remembered; the one that told longest ago goes first
CONSUMERS_MAX: Final = 20_000
#: bytes that their reports count for together; beyond it the oldest go, too
REPORTS_BYTES_MAX: Final = 64 * 1024 * 1024
BODY_BYTES_MAX: Final = 64 * 1024
#: questions that count at a time
QUESTIONS_MAX: Final = 1_000
#: versions that one of them names: a barrier asks for each resource and reading once
PLACES_MAX: Final = 64
#: what a report takes in memory, for each byte of its body and besides
_BYTES_EACH: Final = 4
_BYTES_BESIDE: Final = 1024


class Versions(msgspec.Struct, frozen=True, omit_defaults=True):
    """By resource and reading."""

    endpointslices: dict[str, int] = {}
    services: dict[str, int] = {}

    def places(self) -> dict[Place, int]:
        resources = ((EndpointSlices, self.endpointslices), (Services, self.services))
        return {
            (resource.plural, name): version
            for resource, of in resources
            for name, version in of.items()
        }


def versions_of(places: Mapping[Place, int]) -> Versions:
    readings: dict[str, dict[str, int]] = {EndpointSlices.plural: {}, Services.plural: {}}
    for (plural, name), version in sorted(places.items()):
        readings[plural][name] = version
    return Versions(readings[EndpointSlices.plural], readings[Services.plural])


class ConsumerPost(msgspec.Struct, frozen=True, rename="camel"):
    """The report that a consumer posts."""

    report: ProgressReport
    wait_seconds: float = 0.0


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer to a consumer: the versions that it must hold when it posts again; none: the time
    was over. ``spread_seconds``: over how long consumers are to spread that.
    """

    versions: Versions = Versions()
    spread_seconds: int = 0


class BarrierQuestion(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The question that a barrier posts. ``after``: the number of the last answer that it was
    given.
    """

    versions: Versions = Versions()
    after: int = 0
    wait_seconds: float = 0.0


class Heard(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer to a barrier, by the keys of Leases."""

    number: int = 0
    reports: dict[str, ProgressReport] = {}


posts: Final = msgspec.json.Decoder(ConsumerPost)
questions: Final = msgspec.json.Decoder(BarrierQuestion)
wanteds: Final = msgspec.json.Decoder(Wanted)
heards: Final = msgspec.json.Decoder(Heard)


def pause_s(nodes: int) -> float:
    """Between an answer and the next question: reports come one after the other."""
    return _PAUSE_S if nodes <= FEW_NODES else LOOK_S


def question(goal: Mapping[Place, int], after: int) -> Write:
    """A server without such a memory tolerates it."""
    body = encode(BarrierQuestion(versions_of(goal), after, BARRIER_HELD_S))
    none_here = ("NotFound", "Forbidden", "MethodNotAllowed")
    return Write(
        verb="ask", resource=Leases, namespace=LEASE_NAMESPACE, body=body, tolerate=none_here
    )


class _Told(NamedTuple):
    number: int
    report: ProgressReport
    size_bytes: int


class _Open(NamedTuple):
    until: float
    places: dict[Place, int]


class Reports:
    """Owned by one server.  *number*: where reports are counted from, higher than any before a
    restart.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        #: by key of the Lease, the newest last
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._bytes = 0
        self._questions: list[_Open] = []
        self._places: dict[Place, int] = {}

    def __len__(self) -> int:
        return len(self._told)

    def on_report(self, name: str, report: ProgressReport, body_bytes: int = 0) -> None:
        """*body_bytes*: the size of the request that brought it."""
        self._number += 1
        told = _Told(self._number, report, _BYTES_BESIDE + _BYTES_EACH * body_bytes)
        before = self._told.pop(name, None)
        self._bytes += told.size_bytes - (before.size_bytes if before is not None else 0)
        self._told[name] = told
        while len(self._told) > CONSUMERS_MAX or self._bytes > REPORTS_BYTES_MAX:
            _, oldest = self._told.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def check(self) -> None:
        held = sum(told.size_bytes for told in self._told.values())
        assert self._bytes == held <= REPORTS_BYTES_MAX, (
            f"{self._bytes} are counted, {held} are held"
        )

    def on_question(self, asked: BarrierQuestion, now: float) -> None:
        """It counts for as long as it is held, and a little longer: the next one is on its way."""
        until = now + min(asked.wait_seconds, HELD_S_MAX) + 1.0
        self._questions = [known for known in self._questions if known.until > now][
            -QUESTIONS_MAX + 1 :
        ]
        self._questions.append(_Open(until, asked.versions.places()))
        self._places = {}
        for known in self._questions:
            for place, version in known.places.items():
                self._places[place] = max(version, self._places.get(place, 0))

    def wanted(self, name: str, now: float) -> Wanted | None:
        """Returns the versions that barriers want and *name* has not reported; ``None``: there are
        none.
        """
        if not self._questions or self._questions[-1].until <= now or name not in self._told:
            return None
        held = self._told[name].report.revisions()
        missing = {place: needed(place, self._places) for place in held}
        missing = {place: version for place, version in missing.items() if held[place] < version}
        if not missing:
            return None
        return Wanted(
            versions_of(missing), 0 if len(self) <= FEW_NODES else -(-len(self) // REPORTS_PER_S)
        )

    def since(self, number: int) -> Heard:
        """O(reports since)."""
        reports: dict[str, ProgressReport] = {}
        for name in reversed(self._told):
            told = self._told[name]
            if told.number <= number <= self._number:
                break
            reports[name] = told.report
        return Heard(self._number, dict(sorted(reports.items())))
