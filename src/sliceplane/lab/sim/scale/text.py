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
    if plan.relays:
        above = [f"{count:,} + " for count in plan.relays_by_level[:-1]]
        servers += f", {''.join(above)}{plan.relays:,} relays"
    return (
        f"{plan.nodes:,} nodes in {plan.zones} zones, {plan.pods:,} Pods in {plan.services:,} "
        f"Services, {servers}, "
        f"seed {plan.seed}"
    )


def as_text(outcome: ScaleOutcome, width: int | None, real_s: float | None = None) -> str:
    plan = outcome.plan
    columns = [_column(part, plan) for part in outcome.parts]
    lines = [title(plan), ""]
    cells = [(name, *(column[name] for column in columns)) for name in columns[0]]
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


def _head(name: str) -> str:
    return (
        name.replace("the controller ", "")
        .replace("a relay is ", "relay ")
        .replace("Services are ", "")
        .replace("a zone is ", "zone ")
    )


def _column(part: ScalePart, plan: ScalePlan) -> dict[str, str]:
    ages, lengths, leaves, seconds = part.ages, part.lengths, part.leaves, part.duration_s
    cells = {
        "virtual time": f"{seconds:,.0f} s",
        "  queues empty after": "never" if part.drained_s is None else f"{part.drained_s:,.0f} s",
        "writes": f"{part.writes:,}",
        "  of slices": f"{part.slice_writes:,}",
        "watch events to nodes": f"{leaves.events:,}",
        "bytes to nodes": human_bytes(leaves.sent_bytes),
        "  to each node": human_bytes(part.node_bytes),
        "  in the busiest second": human_bytes(part.busiest_bytes_s),
        "  in lists": human_bytes(leaves.listed_bytes),
        "watches lost": f"{part.roots.lost_watches + part.relays.lost_watches:,}",
        "busy: server": f"{part.roots.busy_s / seconds:.0%}",
        "  controller": f"{part.controller_busy:.0%}",
        "Pod changed, slice stored: median": _age(ages.committed, 0.5),
        "  p99": _age(ages.committed, 0.99),
        "  99 % of nodes told: median": _age(ages.reported, 0.5),
        "  99 % of nodes told: p99": _age(ages.reported, 0.99),
        "  all nodes told: median": _age(ages.everywhere, 0.5),
        "  all nodes told: p99": _age(ages.everywhere, 0.99),
        "  in a sampled kernel: p99": _age(ages.kernel, 0.99),
    }
    if plan.relays:
        cells |= {
            "relays: busiest": f"{part.relays.busy_s / seconds:.0%}",
            "  bytes from the server": human_bytes(part.roots.sent_bytes),
            "  lists at the server": f"{part.roots.lists:,}",
            "  catch-ups": f"{part.relays.catch_ups:,}",
            "  lists at relays": f"{part.relays.lists:,}",
            "  nodes back after a kill": "" if part.back_s is None else f"{part.back_s:,.1f} s",
        }
        for level in range(1, plan.levels + 1):
            found = ages.relays.get(level, ())
            cells[f"  slice stored, at level {level}: median"] = _age(found, 0.5)
            cells[f"  slice stored, at level {level}: p99"] = _age(found, 0.99)
    return cells | {
        "waiting: Services, max": f"{lengths.syncs:,}",
        "  events unread by it, max": f"{lengths.inbox:,}",
        "  requests, max": f"{lengths.requests:,}",
        "  events for a node, max": f"{lengths.events:,}",
        "  bytes for a node, max": human_bytes(lengths.size_bytes),
    }


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
        human_bytes(max(part.lengths.size_bytes for part in parts)),
        f"{max(part.roots.busy_s / part.duration_s for part in parts):.0%}",
        human_bytes(max(part.busiest_bytes_s for part in parts)),
        f"{sum(outcome.memory.values()):,.0f} MiB",
        first,
    )
