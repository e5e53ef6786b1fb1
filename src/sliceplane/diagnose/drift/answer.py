"""The answer of ``sliceplane drift``: a row for each node and findings; as a document, and as lines
for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.text import fact, lines_of
from sliceplane.diagnose.drift.relays import RelayRow
from sliceplane.kit.columns import table

#: rows of the table; further nodes that are in step are only counted
ROWS_MAX = 200


State = Literal[
    "in step",
    "catching up",
    "behind",
    "lost an event",
    "kernel differs",
    "stopped",
    "never told",
    "unknown",
    "emulated",
]
#: the worst first; a node gets the first state that applies to it
ORDER: Final[tuple[State, ...]] = (
    "lost an event",
    "kernel differs",
    "stopped",
    "behind",
    "never told",
    "unknown",
    "catching up",
    "emulated",
    "in step",
)


class DriftRow(NamedTuple):
    """``cache`` and ``kernel`` are verdicts for people; ``behind_s`` is 0 if nothing is missing, or
    if its age is unknown.
    """

    node: str
    state: State
    revision: int
    behind: int
    behind_s: float
    report_age_s: float | None
    cache: str
    kernel: str


class Drift(msgspec.Struct, frozen=True):
    """``rows``: the worst first, then by name. ``relays``: a tree."""

    rows: tuple[DriftRow, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]
    relays: tuple[RelayRow, ...] = ()

    @property
    def differs(self) -> bool:
        return any(row.state in ORDER[:4] for row in self.rows) or bool(self.findings)

    @property
    def is_blind(self) -> bool:
        """Returns True if the state of a node is not known or too young to judge, or no node can
        report one.
        """
        return all(row.state == "emulated" for row in self.rows) or any(
            row.state in ("unknown", "never told", "catching up") for row in self.rows
        )

    def as_document(self) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    "node": row.node,
                    "state": row.state,
                    "revision": row.revision,
                    "objectsBehind": row.behind,
                    "secondsBehind": round(row.behind_s, 1),
                    "secondsSinceReport": None
                    if row.report_age_s is None
                    else round(row.report_age_s, 1),
                    "cache": row.cache,
                    "kernel": row.kernel,
                }
                for row in self.rows
            ],
            "relays": [row.as_document() for row in self.relays],
            "findings": [finding.as_document() for finding in self.findings],
            "notLookedAt": list(self.unchecked),
        }


def as_text(drift: Drift, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are not wrapped."""
    return "\n".join(_lines(drift, width))


def _lines(drift: Drift, width: int | None) -> Iterator[str]:
    if drift.rows:
        heads = ("NODE", "STATE", "VERSION", "REPORTED", "BEHIND", "CACHE", "KERNEL")
        yield from table(
            heads, [_cells(row) for row in drift.rows], rows_max=ROWS_MAX, elsewhere="--output json"
        )
    else:
        yield "no node reports here; 'sliceplane observe' does it on nodes with kube-proxy"
    for finding in drift.findings:
        yield from lines_of(finding, "cause", width)
    for phrase in drift.unchecked:
        yield from fact("not seen", phrase, width)


def _cells(row: DriftRow) -> tuple[str, ...]:
    reported = "never" if row.report_age_s is None else f"{row.report_age_s:.0f} s ago"
    behind = f"{row.behind}, {row.behind_s:.0f} s" if row.behind else "-"
    return (row.node, row.state, str(row.revision or "-"), reported, behind, row.cache, row.kernel)
