"""The plan and the answer of a drain, for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sliceplane.api.findings.text import fact
from sliceplane.api.findings.wording import count, some
from sliceplane.consume.drain.answer import (
    CANNOT_COUNT,
    NAMED_MAX,
    NEVER_REPORTED,
    DrainAnswer,
    DrainPlan,
    PortImpact,
    UndoAnswer,
    sentence,
)
from sliceplane.kit.columns import table

_HEADS = ("Service", "port", "family", "ready now", "without them", "")
_WORD_WIDTH = 13
_REMEDIES = {
    NEVER_REPORTED: "run 'sliceplane observe' on nodes with kube-proxy",
    CANNOT_COUNT: "run 'sliceplane observe --conntrack' there, or a newer 'sliceplane proxy'",
}


def plan_lines(plan: DrainPlan, width: int | None) -> Iterator[str]:
    """*width*: columns of the screen; ``None``: as wide as they come."""
    services = {impact.service for impact in plan.services}
    ready = f"ready in {count(len(services), 'Service')}" if services else "ready in no Service"
    yield f"{plan.what}: {count(len(plan.pods), 'Pod')}, {ready}"
    if plan.services:
        rows = [
            (impact.service, impact.port, impact.family, *_numbers(impact))
            for impact in plan.services
        ]
        yield from table(_HEADS, rows, indent="  ", width=width)
    for why in dict.fromkeys(missing.why for missing in plan.unknown):
        nodes = [missing.node for missing in plan.unknown if missing.why == why]
        clause = why if len(nodes) == 1 else re.sub(r"^it ", "they ", why)
        yield from fact(
            "  not known", f"{some(nodes, NAMED_MAX)}: {clause}", width, word_width=_WORD_WIDTH
        )
        if why in _REMEDIES:
            yield from fact("  remedy", _REMEDIES[why], width, word_width=_WORD_WIDTH)
    for phrase in plan.unreadable:
        yield from fact("  not seen", phrase, width, word_width=_WORD_WIDTH)


def answer_text(answer: DrainAnswer | UndoAnswer) -> Iterator[tuple[str, str]]:
    """Heads and what follows them, a line each."""
    if isinstance(answer, DrainAnswer):
        for pod in answer.pods:
            yield pod.pod, sentence(pod)
        if answer.refused:
            yield answer.what, f"refused: {answer.refused}"
        elif answer.is_dry_run:
            yield answer.what, "it can be drained; nothing was marked (--dry-run)"
        elif not answer.pods:
            yield answer.what, "nothing to drain: it has no Pods"
    elif not answer.taken_back and not answer.marked:
        yield answer.what, "no Pod has a mark"
    if answer.taken_back:
        yield "marks", f"taken back from {count(len(answer.taken_back), 'Pod')}"
    if answer.marked:
        yield "marks", f"NOT taken back, so out of their Services: {', '.join(answer.marked)}"
    if isinstance(answer, DrainAnswer):
        if answer.ignores_marks:
            why = "Pods were removed first, since the controller of their slices ignores marks"
            yield "mechanism", f"{why}: their preStop hook must outlast the barrier"
        yield from (("not covered", phrase) for phrase in answer.not_covered)
        yield from (("not seen", phrase) for phrase in answer.unreadable)


def emptied_text(impacts: Iterable[PortImpact]) -> str:
    """The ports that have no ready endpoint left, as the end of a sentence."""
    return some([impact.text for impact in impacts], NAMED_MAX)


def _numbers(impact: PortImpact) -> tuple[str, str, str]:
    local = f"none on {some(impact.nodes)} (policy Local)" if impact.nodes else ""
    return f"{impact.ready:,}", f"{impact.left:,}", local or ("" if impact.left else "the last")
