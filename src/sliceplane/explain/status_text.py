"""The status of a cluster for people: a word for each part, what is bad marked, then the worst findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.explain.status import PlaneStatus
from sliceplane.findings.text import fact
from sliceplane.findings.wording import count

#: lines of one part; JSON has all
LINES_MAX: Final = 5
_WORD_WIDTH: Final = 15
_MARKS: Final = {"well": " ", "attention": "!", "unknown": "?"}


def as_text(status: PlaneStatus, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are as long as they come."""
    return "\n".join(_lines(status, width))


def _lines(status: PlaneStatus, width: int | None) -> Iterator[str]:
    for part in status.parts:
        shown = list(part.lines[:LINES_MAX]) or ["not looked at"]
        if len(part.lines) > LINES_MAX:
            shown[-1] = f"and {len(part.lines) - LINES_MAX + 1} more (--output json has all)"
        for number, line in enumerate(shown):
            word = f"{_MARKS[part.state]} {part.name}" if number == 0 else ""
            yield from fact(word, line, width, word_width=_WORD_WIDTH)
    looked = f"in {count(status.services, 'Service')}"
    if status.is_blind:
        yield from fact("? Services", "not looked at", width, word_width=_WORD_WIDTH)
    elif not status.findings:
        yield from fact("  Services", f"nothing wrong {looked}", width, word_width=_WORD_WIDTH)
    else:
        number = len(status.findings) + status.more
        said = f"{number:,} {'error or warning' if number == 1 else 'errors and warnings'} {looked}"
        yield from fact("! Services", said, width, word_width=_WORD_WIDTH)
    for finding in status.findings:
        said = f"{finding.severity} {finding.code} {finding.subject}: {finding.sentence}"
        yield from fact("", said, width, word_width=_WORD_WIDTH)
    if status.more:
        yield from fact("", f"and {status.more} more: sliceplane lint", width, word_width=_WORD_WIDTH)
    for number, phrase in enumerate(status.not_looked_at):
        yield from fact("" if number else "  not seen", phrase, width, word_width=_WORD_WIDTH)
    if status.missing_rights:
        said = f"to see all of it you need: {', '.join(status.missing_rights)}"
        yield from fact("  rights", said, width, word_width=_WORD_WIDTH)
