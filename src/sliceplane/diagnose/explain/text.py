"""The output for people: an explanation (the cause, other findings, well links, unchecked links),
and the status of a cluster (a line for each part, with a mark if it is bad, then the worst
findings).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from sliceplane.api.findings.codes import SEVERITIES
from sliceplane.api.findings.finding import Finding, TooYoung
from sliceplane.api.findings.text import age_text, fact, lines_of, rows, word_of
from sliceplane.api.findings.wording import (
    count,
    explain_command,
    grant_command,
    lasting,
    resources_by_verb,
)
from sliceplane.diagnose.explain.question import Explanation
from sliceplane.diagnose.explain.status import PlaneStatus

#: kinds that ``explain`` takes
_EXPLAINED: Final = ("Service", "Pod", "Node")
#: findings besides the cause that are printed in full; JSON has all
ALSO_MAX: Final = 4


def as_text(explanation: Explanation, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are as long as they come."""
    return "\n".join(_lines(explanation, width))


def _lines(explanation: Explanation, width: int | None) -> Iterator[str]:
    """Yields a paragraph for each finding; notes, state and checked links are in one."""
    cause = explanation.cause
    if cause is not None:
        yield from lines_of(cause, "cause", width)
    elif explanation.is_blind:
        yield from fact(
            "unknown", f"{explanation.question}: too little could be read to tell", width
        )
    else:
        yield from fact("verdict", f"{explanation.question}: {_verdict(explanation)}", width)
    others = [finding for finding in explanation.findings if finding is not cause]
    are_aside = cause is not None or explanation.is_blind
    notes = [finding for finding in others[:ALSO_MAX] if word_of(finding) == "note" and are_aside]
    for finding in others[:ALSO_MAX]:
        if finding not in notes:
            yield ""
            yield from lines_of(
                finding, word_of(finding) if finding.severity == "note" else "also", width
            )
    below = list(_below(explanation, notes, len(others), width))
    if below and explanation.findings:
        yield ""
    yield from below


def _verdict(explanation: Explanation) -> str:
    waits = [
        young.judged_after_seconds - young.age_seconds for young in map(_age, explanation.too_young)
    ]
    if waits:
        return f"too young to judge; ask again in {lasting(max(waits) + 1)}"
    verdict = "nothing is wrong"
    verdict += " in what was looked at" if explanation.unchecked else ""
    return f"{verdict} but what is noted" if explanation.findings else verdict


def _age(finding: Finding) -> TooYoung:
    assert finding.too_young is not None, f"{finding} can be judged"
    return finding.too_young


def _below(
    explanation: Explanation, notes: list[Finding], others: int, width: int | None
) -> Iterator[str]:
    for finding in notes:
        # Beside a cause a note is one line; its page and JSON have the rest.
        yield from fact("note", f"{finding.code} {finding.certainty}: {finding.sentence}", width)
    if others > ALSO_MAX:
        yield from fact("", f"and {others - ALSO_MAX} more (--output json has all)", width)
    if explanation.summary:
        yield from fact("state", explanation.summary, width)
    if explanation.well:
        yield from fact("well", ", ".join(explanation.well), width)
    yield from _unread_lines(explanation, width)


def _unread_lines(explanation: Explanation, width: int | None) -> Iterator[str]:
    for number, phrase in enumerate(explanation.unchecked):
        yield from fact("" if number else "not seen", phrase, width)
    yield from _rights_lines("rights", explanation.missing_rights, width)


def _rights_lines(
    label: str, rights: Sequence[str], width: int | None, **word_width: int
) -> Iterator[str]:
    """*rights*: "VERB RESOURCE ..."; the commands that grant them are not broken into lines."""
    if rights:
        sentence = f"to see all of it you need: {', '.join(rights)}"
        yield from fact(label, sentence, width, **word_width)
    for verb, resources in resources_by_verb(rights).items():
        yield from fact("", f"to grant it: {grant_command(verb, resources)}", None, **word_width)


def as_list(explanation: Explanation, width: int | None = None, *, notes: bool = False) -> str:
    """Returns a row for each finding, the worst first, Services with one sentence in one row; then
    sums, and failed reads. Without *notes* notes are only counted.
    """
    return "\n".join(_rows(explanation, width, notes))


def _rows(explanation: Explanation, width: int | None, notes: bool) -> Iterator[str]:
    findings = explanation.findings
    if entries := [entry for entry in findings if notes or word_of(entry) != "note"]:
        yield from rows(entries, width)
        yield ""
    sums = Counter(word_of(entry) for entry in findings)
    severities = (
        SEVERITIES if notes else [severity for severity in SEVERITIES if severity != "note"]
    )
    summary = ", ".join(count(sums[severity], severity) for severity in severities)
    summary += f", {sums['young']:,} too young to judge" if sums["young"] else ""
    summary += f" in {count(explanation.services, 'Service')}"
    is_partial = explanation.unchecked or explanation.is_blind
    summary += ", of what was looked at" if is_partial else ""
    if sums["note"] and not notes:
        summary += f"; {count(sums['note'], 'note')} besides, which --notes shows"
    yield from fact("", summary, width, word_width=0)
    first = next(iter(explanation.findings), None)
    if first is not None and first.severity != "note" and first.subject.kind in _EXPLAINED:
        yield from fact("", f"what to do: {explain_command(first.subject)}", None, word_width=0)
    yield from _unread_lines(explanation, width)


#: lines of one part; JSON has all
LINES_MAX: Final = 5
_WORD_WIDTH: Final = 15
_MARKS: Final = {"well": " ", "attention": "!", "unknown": "?"}


def status_as_text(status: PlaneStatus, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are as long as they come."""
    return "\n".join(_status_lines(status, width))


def _status_lines(status: PlaneStatus, width: int | None) -> Iterator[str]:
    for part in status.parts:
        if part.is_absent:
            continue
        lines = list(part.lines[:LINES_MAX]) or ["not looked at"]
        if len(part.lines) > LINES_MAX:
            lines[-1] = f"and {len(part.lines) - LINES_MAX + 1} more (--output json has all)"
        for number, line in enumerate(lines):
            label = f"{_MARKS[part.state]} {part.name}" if number == 0 else ""
            yield from fact(label, line, width, word_width=_WORD_WIDTH)
        yield from (f"  {line}" for line in part.table)
    scope = f"in {count(status.services, 'Service')}"
    young = f"{status.too_young:,} too young to judge" if status.too_young else ""
    if status.is_blind:
        yield from fact("? Services", "not looked at", width, word_width=_WORD_WIDTH)
    elif not status.findings:
        qualifier = " in what was looked at" if status.missing_rights else ""
        yield from fact(
            "  Services", f"nothing wrong {scope}{qualifier}", width, word_width=_WORD_WIDTH
        )
    elif status.too_young == len(status.findings) + status.more:
        yield from fact("? Services", f"{young} {scope}", width, word_width=_WORD_WIDTH)
    else:
        number = len(status.findings) + status.more - status.too_young
        sentence = f"{number:,} {'error or warning' if number == 1 else 'errors and warnings'}"
        sentence += f", {young} {scope}" if young else f" {scope}"
        yield from fact("! Services", sentence, width, word_width=_WORD_WIDTH)
    for finding in status.findings:
        sentence = (
            f"{word_of(finding)} {finding.code} {finding.subject}: "
            f"{finding.sentence}{age_text(finding)}"
        )
        yield from fact("", sentence, width, word_width=_WORD_WIDTH)
    if status.more:
        yield from fact(
            "", f"and {status.more} more: sliceplane lint", width, word_width=_WORD_WIDTH
        )
    for number, phrase in enumerate(status.unchecked):
        yield from fact("" if number else "  not seen", phrase, width, word_width=_WORD_WIDTH)
    yield from _rights_lines("  rights", status.missing_rights, width, word_width=_WORD_WIDTH)
