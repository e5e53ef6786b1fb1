"""An explanation for people: the cause first, then what else, what is well, and what was not looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from sliceplane.explain.question import Explanation
from sliceplane.findings.codes import SEVERITIES
from sliceplane.findings.text import fact, lines_of
from sliceplane.findings.wording import count
from sliceplane.kit.columns import table

#: findings besides the cause that are printed whole; JSON has all
ALSO_MAX: Final = 4


def as_text(explanation: Explanation, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are as long as they come."""
    return "\n".join(_lines(explanation, width))


def _lines(explanation: Explanation, width: int | None) -> Iterator[str]:
    cause = explanation.cause
    if cause is not None:
        yield from lines_of(cause, "cause", width)
    elif explanation.is_blind:
        yield from fact("unknown", f"{explanation.question}: too little could be read to tell", width)
    else:
        yield from fact("verdict", f"{explanation.question}: nothing is wrong as far as one can see", width)
    others = [finding for finding in explanation.findings if finding is not cause]
    for finding in others[:ALSO_MAX]:
        if finding.severity == "note" and cause is not None:
            # Beside a cause a note is a side line; its page and JSON have the rest.
            yield from fact("note", f"{finding.code} {finding.certainty}: {finding.sentence}", width)
        else:
            yield from lines_of(finding, "note" if finding.severity == "note" else "also", width)
    if len(others) > ALSO_MAX:
        yield from fact("", f"and {len(others) - ALSO_MAX} more (--output json has all)", width)
    if explanation.story:
        yield from fact("state", explanation.story, width)
    if explanation.well:
        yield from fact("well", ", ".join(explanation.well), width)
    for number, phrase in enumerate(explanation.not_looked_at):
        yield from fact("" if number else "not seen", phrase, width)
    if explanation.missing_rights:
        yield from fact("rights", f"to see all of it you need: {', '.join(explanation.missing_rights)}", width)


def as_list(explanation: Explanation, width: int | None = None) -> str:
    """A row for each finding, the worst first; then sums, and what was not seen."""
    return "\n".join(_rows(explanation, width))


def _rows(explanation: Explanation, width: int | None) -> Iterator[str]:
    findings = explanation.findings
    if findings:
        rows = [(entry.severity, entry.code, str(entry.subject), entry.sentence) for entry in findings]
        yield from table(("SEVERITY", "CODE", "OBJECT", "FINDING"), rows, width=width)
    sums = Counter(entry.severity for entry in findings)
    told = [count(sums[severity], severity) for severity in SEVERITIES]
    yield f"{', '.join(told)} in {count(explanation.services, 'Service')}"
    for phrase in explanation.not_looked_at:
        yield from fact("not seen", phrase, width)
    if explanation.missing_rights:
        yield from fact("rights", f"to see all of it you need: {', '.join(explanation.missing_rights)}", width)
