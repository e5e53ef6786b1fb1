"""The report of a shadow run: differences as findings, which ``explain`` and ``lint`` print, too,
and as JSON lines for programs. ``explain`` reads these lines back.
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

#: added to a summary if no slice is managed
NO_CONTROLLER: Final = (
    "Nobody seems to write EndpointSlices here: no slice says that it is managed by\n"
    f"{MANAGED_BY_CONTROLLER}.  Does an EndpointSlice controller run?"
)
#: differences that depend on the Service, not on its Pods
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
#: entries of a finding
EVIDENCE_MAX: Final = 3


class ShadowSummary(msgspec.Struct, frozen=True):
    """The state of a run. ``differing``: services with standing differences; ``pending``:
    differences within the grace period; ``beyond``: differences only counted; ``managed``: slices
    of the compared controller.
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
        summary = f"{count(self.differences + self.beyond, 'difference')} in {where}{waiting}"
        return summary + (f"\n{NO_CONTROLLER}" if self.lacks_controller else "")

    @property
    def lacks_controller(self) -> bool:
        """Returns True if there are differences, and no slice is labelled as the controller's."""
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
    """Yields findings in the order of *standing*; differences of one service with the same kind and
    sentence are one finding.
    """
    groups: dict[tuple[str, ...], list[StandingDifference]] = {}
    for entry in standing:
        difference = entry.difference
        # Missing and stale endpoints are grouped without their addresses, which differ.
        alike = (
            _sentence("", difference)
            if difference.pod
            else f"{difference.subject} {_sentence('', difference)}"
        )
        groups.setdefault((entry.key, difference.address_type, difference.kind, alike), []).append(
            entry
        )
    for members in groups.values():
        yield _finding(members, now)


def _finding(members: list[StandingDifference], now: float | None) -> Finding:
    """*now* ``None``: the age is reported in a field of its own."""
    namespace, _, name = members[0].key.partition("/")
    first = members[0].difference
    names = [member.difference.pod or member.difference.subject or name for member in members]
    subjects = some(names, EVIDENCE_MAX)
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
        sentence=f"{_sentence(subjects, first)}{family}{age}",
        evidence=tuple(_evidence(service, member.difference) for member in members[:EVIDENCE_MAX]),
        remedy=cause_of(code).remedy,
    )


def _sentence(subjects: str, difference: SliceDifference) -> str:
    match difference.kind:
        case DifferenceKind.ENDPOINT_MISSING:
            return f"not in the slices: {subjects}"
        case DifferenceKind.ENDPOINT_STALE:
            return f"in the slices, and should not be: {subjects}"
        case DifferenceKind.ENDPOINT_DUPLICATE:
            return f"several times in the slices: {subjects}"
        case kind:
            return (
                f"{kind} of {subjects}: {clipped(difference.actual)}, should be "
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
        expected=difference.desired,
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
    """Returns the findings at the end of the last run in *lines*. A truncated line, as a full disk
    leaves it, and a foreign one are skipped.
    """
    standing: dict[Finding, None] = {}
    is_over = False
    for text in lines:
        try:
            entry = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            continue
        if entry.finding is not None:
            if is_over:
                standing, is_over = {}, False
            if entry.event == "appeared":
                standing[entry.finding] = None
            else:
                standing.pop(entry.finding, None)
        is_over = is_over or entry.event == "summary"
    return tuple(standing)
