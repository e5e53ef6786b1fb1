"""A shadow run in words: differences as findings, which ``explain`` and ``lint`` print, too; JSON
lines for programs, and back again for who explains a Service that a shadow looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.discovery import MANAGED_BY_CONTROLLER
from sliceplane.api.findings.codes import cause_of
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import clipped, count, lasting, some
from sliceplane.diagnose.shadow.differences import DifferenceKind, SliceDifference
from sliceplane.diagnose.shadow.ledger import DifferenceLedger, News, StandingDifference
from sliceplane.kit.times import format_micro_time

#: what follows from a summary without a single slice
NO_CONTROLLER: Final = (
    "Nobody seems to write EndpointSlices here: no slice says that it is managed by\n"
    f"{MANAGED_BY_CONTROLLER}.  Does an EndpointSlice controller run?"
)
#: what the Service decides, and not its Pods
_OF_SERVICE: Final = {
    DifferenceKind.HINT_MISSING,
    DifferenceKind.HINT_UNEXPECTED,
    DifferenceKind.HINTS,
    DifferenceKind.PORTS,
    DifferenceKind.LABELS,
    DifferenceKind.MANAGED_BY,
    DifferenceKind.OWNER,
    DifferenceKind.ADDRESS_TYPE,
}
#: entries of a finding that are shown
_SHOWN_MAX: Final = 3


class ShadowSummary(msgspec.Struct, frozen=True):
    """Where a run stands. ``differing``: services of which a difference stands; ``pending``:
    differences within the grace period; ``beyond``: only counted; ``managed``: slices there are of
    the controller that is compared.
    """

    services: int
    differing: int
    comparisons: int
    differences: int
    pending: int
    beyond: int
    managed: int

    @property
    def text(self) -> str:
        waiting = f", {self.pending} younger than the grace period" if self.pending else ""
        part = (
            f"{self.differing} of " if self.differences and self.differing != self.services else ""
        )
        where = (
            f"{part}{count(self.services, 'service')} after {count(self.comparisons, 'comparison')}"
        )
        said = f"{count(self.differences + self.beyond, 'difference')} in {where}{waiting}"
        return said + (f"\n{NO_CONTROLLER}" if self.lacks_controller else "")

    @property
    def lacks_controller(self) -> bool:
        """Services lack what is due to them, and no slice says that a controller made it."""
        return bool(self.differences) and not self.managed


def summary_of(ledger: DifferenceLedger, services: int) -> ShadowSummary:
    standing = sum(1 for _ in ledger.standing())
    return ShadowSummary(
        services,
        ledger.differing,
        ledger.compared,
        standing,
        ledger.pending,
        ledger.beyond,
        ledger.managed,
    )


def findings(standing: Iterable[StandingDifference], now: float) -> Iterator[Finding]:
    """In the order of *standing*; differences of one service that have their kind in common, and
    what is said of them, are one finding.
    """
    groups: dict[tuple[str, ...], list[StandingDifference]] = {}
    for entry in standing:
        difference = entry.difference
        # Of what is missing, and of what is too much, the addresses are each endpoint's own.
        alike = (
            _said("", difference)
            if difference.pod
            else f"{difference.subject} {_said('', difference)}"
        )
        groups.setdefault((entry.key, difference.address_type, difference.kind, alike), []).append(
            entry
        )
    for members in groups.values():
        yield _finding(members, now)


def _finding(members: list[StandingDifference], now: float | None) -> Finding:
    """*now* ``None``: its age is told beside it."""
    namespace, _, name = members[0].key.partition("/")
    first = members[0].difference
    names = [member.difference.pod or member.difference.subject or name for member in members]
    who = some(names, _SHOWN_MAX)
    family = f" ({first.address_type})" if first.address_type else ""
    age = "" if now is None else f", for {lasting(now - min(member.since for member in members))}"
    code = (
        "E16"
        if first.kind in _OF_SERVICE
        else "E12"
        if first.kind is DifferenceKind.ENDPOINT_DUPLICATE
        else "E1"
    )
    service = ObjectName("services", "Service", namespace, name)
    return Finding(
        code=code,
        subject=service,
        sentence=f"{_said(who, first)}{family}{age}",
        evidence=tuple(_evidence(service, member.difference) for member in members[:_SHOWN_MAX]),
        remedy=cause_of(code).remedy,
    )


def _said(who: str, difference: SliceDifference) -> str:
    match difference.kind:
        case DifferenceKind.ENDPOINT_MISSING:
            return f"not in the slices: {who}"
        case DifferenceKind.ENDPOINT_STALE:
            return f"in the slices, and should not be: {who}"
        case DifferenceKind.ENDPOINT_DUPLICATE:
            return f"several times in the slices: {who}"
        case kind:
            return (
                f"{kind} of {who}: {clipped(difference.actual)}, should be "
                f"{clipped(difference.desired)}"
            )


def _evidence(service: ObjectName, difference: SliceDifference) -> Evidence:
    what, _, name = difference.subject.partition(" ")
    of_slice = ObjectName("endpointslices.discovery.k8s.io", what, service.namespace, name)
    return Evidence(
        subject=of_slice if what == "EndpointSlice" else service,
        field=f"endpoints[{difference.pod}] {difference.kind}"
        if difference.pod
        else difference.kind,
        value=difference.actual,
        wanted=difference.desired,
    )


def line(news: News) -> str:
    """One piece of news for people."""
    finding = _finding([news.standing], news.at)
    return (
        f"{format_micro_time(news.at)} {news.what} {finding.code} {news.standing.key}: "
        f"{finding.sentence}"
    )


# For programs


class _Line(msgspec.Struct, frozen=True):
    event: str = ""
    finding: Finding | None = None


def json_line(news: News) -> bytes:
    return msgspec.json.encode(
        {
            "time": format_micro_time(news.at),
            "event": news.what,
            "kind": news.standing.difference.kind,
            "since": format_micro_time(news.standing.since),
            "finding": _finding([news.standing], None).as_document(),
        }
    )


def json_summary(summary: ShadowSummary, now: float) -> bytes:
    return msgspec.json.encode(
        {"time": format_micro_time(now), "event": "summary", **msgspec.to_builtins(summary)}
    )


def findings_of_lines(lines: Iterable[bytes]) -> tuple[Finding, ...]:
    """Returns the findings at the end of the last run in *lines*. A line that is cut, or none of a
    shadow's, is passed over: a full disk leaves such.
    """
    standing: dict[Finding, None] = {}
    is_over = False
    for text in lines:
        try:
            told = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            continue
        if told.finding is not None:
            if is_over:
                standing, is_over = {}, False
            if told.event == "appeared":
                standing[told.finding] = None
            else:
                standing.pop(told.finding, None)
        is_over = is_over or told.event == "summary"
    return tuple(standing)
