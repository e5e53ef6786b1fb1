"""The report of one run at scale, and of runs of growing size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sliceplane.kit.columns import notes, table
from sliceplane.lab.sim.scale.measures import quantile
from sliceplane.lab.sim.scale.plan import MEASURED, ScalePlan
from sliceplane.lab.sim.scale.run import ScaleOutcome, ScalePart
from sliceplane.lab.wire import human_bytes

_WIDTH: Final = 80


def title(plan: ScalePlan) -> str:
    servers = "1 server" if plan.servers == 1 else f"{plan.servers} servers"
    return (
        f"{plan.nodes:,} nodes in {plan.zones} zones, {plan.pods:,} Pods in {plan.services:,} "
        f"Services, {servers}, "
        f"seed {plan.seed}"
    )


def as_text(outcome: ScaleOutcome, width: int | None, real_s: float | None = None) -> str:
    plan = outcome.plan
    rows = list(zip(*map(_column, outcome.parts), strict=True))
    lines = [title(plan), ""]
    cells = [(name, *row) for name, row in zip(_ROWS, rows, strict=True)]
    lines += table(("", *(_head(part.name) for part in outcome.parts)), cells, width=width)
    lines += ["", *_verdict(outcome)]
    summary = (
        f"{outcome.slices:,} slices of {outcome.slice_bytes:,.0f} bytes at the end; "
        f"{outcome.replaced:,} Pods were "
        f"replaced and {outcome.marked:,} marked; {outcome.commands:,} commands for the kernels "
        f"of {plan.sampled} "
        "sampled nodes."
    )
    lines += notes([summary], width or _WIDTH)
    if outcome.memory:
        lines += ["", "Memory of this process:"]
        lines += table(
            (), [(f"{mib:,.0f} MiB", part) for part, mib in outcome.memory.items()], indent="  "
        )
    lines += ["", "Computed with (make bench, or --cost):"]
    lines += table((), list(_costs(plan)), indent="  ", width=width)
    clock = "" if real_s is None else f" in {real_s:,.0f} s"
    lines += ["", f"{outcome.virtual_s:,.0f} s of virtual time{clock}; trace {outcome.digest}"]
    return "\n".join(lines)


_ROWS: Final = (
    "virtual time",
    "  queues empty after",
    "writes",
    "  of slices",
    "watch events to nodes",
    "bytes to nodes",
    "  to each node",
    "  in the busiest second",
    "  in lists",
    "watches lost",
    "busy: server",
    "  controller",
    "Pod changed, slice stored: median",
    "  p99",
    "  99 % of nodes told: median",
    "  p99",
    "  in a sampled kernel: p99",
    "waiting: Services, max",
    "  p99",
    "  events unread by it, max",
    "  requests, max",
    "  events for a node, max",
    "  bytes for a node, max",
)


def _head(name: str) -> str:
    return (
        name.replace("the controller ", "")
        .replace("Services are ", "")
        .replace("a zone is ", "zone ")
    )


def _column(part: ScalePart) -> tuple[str, ...]:
    ages = part.ages
    lengths = part.lengths
    return (
        f"{part.duration_s:,.0f} s",
        "never" if part.drained_s is None else f"{part.drained_s:,.0f} s",
        f"{part.writes:,}",
        f"{part.slice_writes:,}",
        f"{part.events:,}",
        human_bytes(part.sent_bytes),
        human_bytes(part.node_bytes),
        human_bytes(part.busiest_bytes_s),
        human_bytes(part.listed_bytes),
        f"{part.lost_watches:,}",
        f"{part.server_busy:.0%}",
        f"{part.controller_busy:.0%}",
        _age(ages.committed, 0.5),
        _age(ages.committed, 0.99),
        _age(ages.reported, 0.5),
        _age(ages.reported, 0.99),
        _age(ages.kernel, 0.99),
        f"{max(lengths.syncs, default=0):,}",
        f"{quantile(lengths.syncs, 0.99):,.0f}",
        f"{max(lengths.inbox, default=0):,}",
        f"{max(lengths.requests, default=0):,}",
        f"{max(lengths.events, default=0):,}",
        human_bytes(max(lengths.size_bytes, default=0)),
    )


def _age(values: Sequence[float], share: float) -> str:
    return f"{quantile(values, share):,.3f} s" if values else ""


def _verdict(outcome: ScaleOutcome) -> Iterator[str]:
    if outcome.wrong:
        yield "Wrong at the end:"
        yield from (f"  {text}" for text in outcome.wrong)
    if not outcome.broken:
        yield "Every budget holds."
        return
    yield "Breaks, the first one first:"
    yield from table((), [(f"{at:,.0f} s", text) for at, text in outcome.broken], indent="  ")


def _costs(plan: ScalePlan) -> Iterator[tuple[str, ...]]:
    for name, (unit, scale, text, where) in MEASURED.items():
        yield f"{getattr(plan.costs, name) * scale:g} {unit}", text, where


_GROWTH: Final = (
    "NODES",
    "PODS",
    "SLICES",
    "TOLD P99",
    "QUEUE",
    "BUSY",
    "BUSIEST SECOND",
    "MEMORY",
    "BREAKS FIRST",
)


def growth_text(outcomes: Sequence[ScaleOutcome], width: int | None) -> str:
    """Returns a table with a row for each size; ages and queues are those of the worst part."""
    rows = [_growth_row(outcome) for outcome in outcomes]
    return "\n".join(table(_GROWTH, rows, width=width))


def _growth_row(outcome: ScaleOutcome) -> tuple[str, ...]:
    parts = outcome.parts
    first = next(iter([*outcome.wrong, *(text for _, text in outcome.broken)]), "nothing")
    return (
        f"{outcome.plan.nodes:,}",
        f"{outcome.plan.pods:,}",
        f"{sum(part.slice_writes for part in parts):,}",
        f"{max(quantile(part.ages.reported, 0.99) for part in parts):,.2f} s",
        human_bytes(max(max(part.lengths.size_bytes, default=0) for part in parts)),
        f"{max(part.server_busy for part in parts):.0%}",
        human_bytes(max(part.busiest_bytes_s for part in parts)),
        f"{sum(outcome.memory.values()):,.0f} MiB",
        first,
    )
