"""Findings for people: a word, then what it is about, wrapped below itself.

    cause    B1 certain: 0 of 14 Pods match; 5 match all but app: they have web, not webb
    seen     Service shop/cart spec.selector app=webb, written by helm at 02:09:41
    so       no slice has endpoints
    remedy   kubectl -n shop patch service cart -p '{"spec":{"selector":{"app":"web"}}}'

A remedy that is a command is one line however long it is, so that it can be pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.findings.finding import COMMANDS, Evidence, Finding
from sliceplane.api.findings.wording import lasting, some
from sliceplane.kit.columns import table
from sliceplane.kit.terminal_text import printable

_WORD_WIDTH: Final = 9
_HEADS: Final = ("SEVERITY", "CODE", "SERVICE", "FINDING")
#: findings of one code that are printed whole
ALIKE_MAX: Final = 5


def lines_of(finding: Finding, word: str, width: int | None) -> Iterator[str]:
    """*word* stands before the sentence: "cause", or what the finding is to the reader."""
    yield from fact(
        word, f"{finding.code} {finding.certainty}: {finding.sentence}{age_text(finding)}", width
    )
    for entry in finding.evidence:
        yield from fact("seen", evidence_text(entry), width)
    if finding.effect:
        yield from fact("so", finding.effect, width)
    if finding.remedy:
        yield from fact(
            "remedy", finding.remedy, None if finding.remedy.startswith(COMMANDS) else width
        )


def listed(findings: Iterable[Finding], width: int | None) -> Iterator[str]:
    """Many, in the order that they have: of each code the first whole, in paragraphs, and how many
    more there are.
    """
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, alike in by_code.items():
        for finding in alike[:ALIKE_MAX]:
            yield ""
            yield from lines_of(finding, word_of(finding), width)
        if len(alike) > ALIKE_MAX:
            yield from fact(
                "", f"and {len(alike) - ALIKE_MAX:,} more of {code} (--output json has all)", width
            )


def rows(
    findings: Iterable[Finding], width: int | None, rows_max: int | None = None
) -> Iterator[str]:
    """A row for each, in the order that they have; objects of which one sentence holds are in one
    row.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for entry in findings:
        name = str(entry.subject).removeprefix("Service ")
        alike.setdefault(
            (word_of(entry), entry.code, f"{entry.sentence}{age_text(entry)}"), []
        ).append(name)
    if alike:
        cells = [
            (severity, code, some(names, 1), sentence)
            for (severity, code, sentence), names in alike.items()
        ]
        yield from table(_HEADS, cells, width=width, rows_max=rows_max)


def word_of(finding: Finding) -> str:
    """Its severity, or ``young``."""
    return "young" if finding.too_young is not None else finding.severity


def age_text(finding: Finding) -> str:
    """`` (12 s old; judged after 60 s)``; "" for what is old enough to be judged."""
    young = finding.too_young
    if young is None:
        return ""
    return (
        f" ({lasting(young.age_seconds)} old; judged after {lasting(young.judged_after_seconds)})"
    )


def fact(
    word: str, text: str, width: int | None, *, word_width: int = _WORD_WIDTH
) -> Iterator[str]:
    """*text* after *word*; *width* ``None``: however long it is.  A line of *text* is no line of
    the program's.
    """
    text = printable(text)
    if width is None:
        yield f"{word:<{word_width}}{text}".rstrip()
        return
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=f"{word:<{word_width}}",
        subsequent_indent=" " * word_width,
        break_long_words=False,
        break_on_hyphens=False,
    )


def evidence_text(entry: Evidence) -> str:
    value = f" {entry.value}" if entry.value else ""
    was = f", was {entry.was}" if entry.was else ""
    expected = f", should be {entry.expected}" if entry.expected else ""
    writer = f", written by {entry.writer}" if entry.writer else ""
    written = f" at {entry.written}" if entry.written else ""
    return f"{entry.subject} {entry.field}{value}{was}{expected}{writer}{written}"
