"""The outcome of a case, and the report of a consumer in text, Markdown and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from sliceplane.lab.conformance.model import Belief
from sliceplane.lab.conformance.steps import Case, Claim, Step

Outcome = Literal["passed", "failed", "not asked"]
#: maximum addresses that a sentence names; further ones are counted
_NAMED = 4
_PARTICULARS = re.compile(
    r"^after [0-9.]+ s |(\[[0-9a-f:]+\]|[0-9.]+):[0-9]+(, | and [0-9]+ more)?"
)


class CaseVerdict(msgspec.Struct, frozen=True):
    """*why* is a sentence: the believed and the correct endpoints, or why the case was not run.
    *history*: the shortened steps that led there, one per line.
    """

    case: Case
    outcome: Outcome
    why: str = ""
    history: tuple[str, ...] = ()
    seconds: float = 0.0


class ConsumerReport(msgspec.Struct, frozen=True):
    consumer: str
    claims: frozenset[Claim]
    verdicts: tuple[CaseVerdict, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(verdict.outcome == outcome for verdict in self.verdicts)

    @property
    def failed(self) -> bool:
        return self.count("failed") > 0

    @property
    def summary(self) -> str:
        judged = len(self.verdicts) - self.count("not asked")
        skipped = f", {self.count('not asked')} not asked" if self.count("not asked") else ""
        return f"{self.consumer}: {self.count('passed')} of {judged} cases passed{skipped}"

    def document(self) -> dict[str, Any]:
        return {
            "consumer": self.consumer,
            "claims": sorted(self.claims),
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "notAsked": self.count("not asked"),
            "cases": [
                {
                    "name": verdict.case.name,
                    "title": verdict.case.title,
                    "cites": list(verdict.case.cites),
                    "outcome": verdict.outcome,
                    "why": verdict.why,
                    "history": list(verdict.history),
                    "seconds": round(verdict.seconds, 2),
                }
                for verdict in self.verdicts
            ],
        }

    def text(self) -> str:
        lines = []
        for verdict in self.verdicts:
            if verdict.outcome == "passed":
                continue
            lines.append(f"{verdict.outcome:9} {verdict.case.name}: {verdict.case.title}")
            lines.append(f"          {verdict.why}")
            lines += [
                f"            {number}. {line}" for number, line in enumerate(verdict.history, 1)
            ]
            if verdict.outcome == "failed":
                lines.append(f"          seen in {', '.join(verdict.case.cites)}")
        return "\n".join([*lines, self.summary])

    def markdown(self) -> str:
        claims = ", ".join(sorted(self.claims)) or "nothing beyond ready endpoints"
        lines = [f"# {self.consumer}", "", f"{self.summary}. It claims {claims}.", ""]
        lines += ["| case | outcome | |", "|---|---|---|"]
        lines += [
            f"| {v.case.name} | {v.outcome} | {v.why if v.outcome != 'passed' else ''} |"
            for v in self.verdicts
        ]
        for verdict in self.verdicts:
            if verdict.outcome != "failed":
                continue
            lines += [
                "",
                f"## {verdict.case.name}",
                "",
                f"{verdict.case.title} ({', '.join(verdict.case.cites)}).",
                "",
            ]
            lines += [f"{number}. {line}" for number, line in enumerate(verdict.history, 1)]
            lines += ["", verdict.why]
        return "\n".join(lines) + "\n"


def difference(believed: Belief | None, right: Belief) -> str:
    """Returns the error as one sentence."""
    if believed is None:
        return "it told no belief"
    parts = []
    if missing := right - believed:
        parts.append(f"lacks {_some(missing)}")
    if extra := believed - right:
        parts.append(f"still has {_some(extra)}")
    return f"it {' and '.join(parts)}"


def missing_temporarily(lost: Belief) -> str:
    return f"lost {_some(lost)} for a while, though it was right all the time"


def strip_particulars(fault: str) -> str:
    """Returns *fault* without its addresses and its patience, for comparison with the fault of a
    shorter history.
    """
    return _PARTICULARS.sub("", fault)


def history(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(str(step) for step in steps)


def _some(addresses: Iterable[str]) -> str:
    ordered = sorted(addresses)
    text = ", ".join(ordered[:_NAMED])
    return text if len(ordered) <= _NAMED else f"{text} and {len(ordered) - _NAMED} more"
