"""The report for people: findings, writers, clients, and the verdict as the last line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sliceplane.api.findings.text import fact, listed
from sliceplane.diagnose.audit.verdict import Report
from sliceplane.kit.columns import Row, table

#: rows of one table; the JSON output has all
ROWS_MAX: Final = 20


def as_text(report: Report, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are not wrapped."""
    return "\n".join(_lines(report, width))


def _lines(report: Report, width: int | None) -> Iterator[str]:
    counts = report.counts
    log = report.log
    read = f"read {counts['services']:,} Services, {counts['endpoints']:,} Endpoints"
    yield f"{read}, {counts['endpointslices']:,} EndpointSlices"
    if log is not None:
        yield f"read {log.lines:,} lines of audit log" + (
            f", from {log.begins} to {log.ends}" if log.begins else ""
        )
        if log.unreadable:
            yield f"  {log.unreadable:,} of these lines could not be read"
    for plural, number in report.unreadable.items():
        yield f"  {number:,} {plural} could not be read"
    yield from listed(report.findings, width)
    if report.writers:
        yield ""
        yield "writers of addresses, by field manager: number of objects"
        rows = [
            (
                writer.manager or "(no name)",
                *map(_number, (writer.selecting, writer.others, writer.locks, writer.slices)),
                writer.last,
            )
            for writer in report.writers
        ]
        heads = (
            "MANAGER",
            "ENDPOINTS OF SELECTORS",
            "OTHER ENDPOINTS",
            "LOCKS",
            "SLICES",
            "LAST WRITE",
        )
        yield from _table(heads, rows, width)
    if report.clients:
        yield ""
        yield "clients of Endpoints, by the audit log: number of requests"
        yield from _table(
            ("USER", "PROGRAM", "READS", "REQUESTS", "LAST", "DEPENDS ON THE CONTROLLER"),
            _clients(report),
            width,
        )
    yield ""
    yield from fact("", report.verdict, width, word_width=0)


def _clients(report: Report) -> list[tuple[str, ...]]:
    ordered = sorted(
        report.clients, key=lambda row: (not row.concerned, row.client.user, row.client.agent)
    )
    return [
        (
            row.client.user or "(nobody)",
            row.client.agent or "(no name)",
            row.reads,
            ", ".join(f"{number:,} {verb}" for verb, number in sorted(row.client.requests.items())),
            row.client.last,
            "yes" if row.concerned else "no",
        )
        for row in ordered
    ]


def _table(heads: Row, rows: Sequence[Row], width: int | None) -> Iterator[str]:
    return table(
        heads, rows, indent="  ", width=width, rows_max=ROWS_MAX, elsewhere="--output json has all"
    )


def _number(value: int) -> str:
    return f"{value:,}" if value else "-"
