"""Estimates as tables for people and as plain values for programs.

A table has the KEP's five quantities in the KEP's three columns.  Under the two quantities that depend on how large
an object is, two more lines give what our own objects come to, in JSON and in protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sliceplane.documents.wire import ENCODINGS, human_bytes
from sliceplane.estimate.kep import QUANTITIES, SAMPLES, Cell, Line, SampleCase
from sliceplane.estimate.objects import ENDPOINTS_CAPACITY, RealSizes
from sliceplane.estimate.scale import Case, Cost, Design, KepSizes, ObjectSizes, Scenario, cost
from sliceplane.kit.columns import table

_LABELS: Final = {"json": "  ours, JSON", "protobuf": "  ours, protobuf"}
_ORDERS: Final = {sample.case: sample for sample in SAMPLES}[SAMPLES[0].case].tables


def kep_samples(*, hints: bool = False, width: int | None = None) -> str:
    """Both sample cases as the KEP has them, and our real sizes beneath the KEP's."""
    return "\n\n".join(_case_text(sample.title, sample.case, sample, hints=hints, width=width) for sample in SAMPLES)


def custom(case: Case, *, hints: bool = False, width: int | None = None) -> str:
    """The KEP's formulas for *case*, with the KEP's sizes and with ours."""
    title = f"{case.pods:,} endpoints, {case.nodes:,} nodes"
    return _case_text(title, case, None, hints=hints, width=width)


def as_document(case: Case, *, hints: bool = False) -> dict[str, Any]:
    """``{"case": ..., "scenarios": {scenario: {design: {"kep" | "json" | "protobuf": costs}}}}``."""
    sizes: dict[str, ObjectSizes] = {
        "kep": KepSizes(),
        **{encoding: RealSizes(encoding, hints=hints) for encoding in ENCODINGS},
    }
    return {
        "case": {"pods": case.pods, "nodes": case.nodes, "endpointsPerSlice": case.per_slice, "hints": hints},
        "scenarios": {
            scenario.value: {
                design.value: {name: _cost_document(cost(case, scenario, design, size)) for name, size in sizes.items()}
                for design in Design
            }
            for scenario in Scenario
        },
    }


def _cost_document(amount: Cost) -> dict[str, int]:
    return {
        "writes": amount.writes,
        "objectBytes": amount.object_bytes,
        "watchersPerObject": amount.watchers,
        "watchEvents": amount.events,
        "totalBytes": amount.total_bytes,
    }


def _case_text(title: str, case: Case, sample: SampleCase | None, *, hints: bool, width: int | None) -> str:
    blocks = [title]
    for scenario in Scenario:
        kep = _kep_lines(case, scenario) if sample is None else sample.tables[scenario]
        blocks.append(f"{scenario.value}\n{_table(case, scenario, kep, hints=hints, width=width)}")
    if case.pods > ENDPOINTS_CAPACITY:
        cut = {
            encoding: RealSizes(encoding).object_bytes(Design.ENDPOINTS, ENDPOINTS_CAPACITY) for encoding in ENCODINGS
        }
        blocks.append(
            f"The Endpoints object is shown whole.  Since 1.22 it is cut at {ENDPOINTS_CAPACITY:,} addresses:"
            f" {human_bytes(cut['json'])} in JSON, {human_bytes(cut['protobuf'])} in protobuf."
        )
    return "\n\n".join(blocks)


def _kep_lines(case: Case, scenario: Scenario) -> tuple[Line, ...]:
    """The KEP's orders of growth with the figures of *case*."""
    costs = [cost(case, scenario, design, KepSizes()) for design in Design]
    figures = (
        [f"{amount.writes:,}" for amount in costs],
        [f"~{human_bytes(amount.object_bytes)}" for amount in costs],
        [f"{amount.watchers:,}" for amount in costs],
        [f"{amount.events:,}" for amount in costs],
        [f"~{human_bytes(amount.total_bytes)}" for amount in costs],
    )
    lines = []
    for line, values in zip(_ORDERS[scenario], figures, strict=True):
        first, second, third = (Cell(cell.order, value) for cell, value in zip(line, values, strict=True))
        lines.append((first, second, third))
    return tuple(lines)


def _table(case: Case, scenario: Scenario, kep: Sequence[Line], *, hints: bool, width: int | None) -> str:
    columns = ("Endpoints", _column(case.per_slice), _column(1))
    rows: list[tuple[str, ...]] = []
    ours = {
        encoding: [cost(case, scenario, design, RealSizes(encoding, hints=hints)) for design in Design]
        for encoding in ENCODINGS
    }
    for number, (quantity, line) in enumerate(zip(QUANTITIES, kep, strict=True)):
        rows.append((quantity, *(f"{cell.order:<8} {cell.figure}" for cell in line)))
        for encoding in ENCODINGS:
            indent = " " * 9
            if number == 1:
                sizes = (human_bytes(amount.object_bytes) for amount in ours[encoding])
                rows.append((_LABELS[encoding], *(indent + size for size in sizes)))
            elif number == 4:
                totals = (human_bytes(amount.total_bytes) for amount in ours[encoding])
                rows.append((_LABELS[encoding], *(indent + total for total in totals)))
    whole = list(table(("", *columns), rows))
    if width is None or max(map(len, whole)) <= width:
        return "\n".join(whole)
    # One design after the other: figures that are read down need no room beside each other.
    return "\n".join(
        line
        for number, column in enumerate(columns, 1)
        for line in (f"  {column}", *table((), [(row[0], row[number]) for row in rows], indent="    "))
    )


def _column(per_slice: int) -> str:
    return f"{per_slice} {'Endpoint' if per_slice == 1 else 'Endpoints'} per EndpointSlice"
