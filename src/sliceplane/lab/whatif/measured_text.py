"""The answer of ``what-if measured``, as text for users and as a document for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

from sliceplane.api.findings.wording import part
from sliceplane.consume.balancing.shares import TrafficShares
from sliceplane.consume.demand import MEASURED, is_measured
from sliceplane.kit.columns import table
from sliceplane.lab.whatif.assumptions import percent, zone_name
from sliceplane.lab.whatif.measured import MeasuredPrediction, PredictedValue
from sliceplane.lab.whatif.text import in_zone

_WIDTH: Final = 100


def as_text(prediction: MeasuredPrediction, width: int | None) -> str:
    """Returns the answer as text."""
    demand = prediction.demand
    values = prediction.values
    blocks = [
        [
            f"Service {prediction.service.metadata.key}: hints by measured zones",
            prediction.origin,
            *_wrapped(f"{demand.origin}.", width),
        ],
        list(
            table(
                ("by zone", "connections", "endpoints", "load now", "with Measured"),
                list(_zones(prediction)),
                width=width,
            )
        ),
        list(
            table(
                ("", "greatest load", "leaves its zone", ""),
                [_value(value) for value in values],
                width=width,
            )
        ),
        [line for sentence in _sentences(prediction) for line in _wrapped(sentence, width)],
        [
            "Not known",
            *(
                line
                for sentence in prediction.unknown
                for line in _wrapped(sentence, width, "  - ", "    ")
            ),
        ],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _zones(prediction: MeasuredPrediction) -> Iterator[tuple[str, ...]]:
    for zone in prediction.zones:
        yield (
            zone_name(zone),
            percent(prediction.demand.parts[zone]) if zone in prediction.demand.parts else "-",
            f"{prediction.endpoints.get(zone, 0):,}",
            _load(prediction.before, zone),
            _load(prediction.after, zone),
        )


def _load(shares: TrafficShares, zone: str) -> str:
    load = shares.load(zone)
    return f"{float(load):.2f} x" if load else "-"


def _value(value: PredictedValue) -> tuple[str, ...]:
    load = value.shares.greatest[0]
    remark = f"no hints: {value.problem}" if value.problem else in_zone(value.shares)
    return value.name, f"{float(load):.2f} x", percent(value.shares.leaving), remark


def _sentences(prediction: MeasuredPrediction) -> Iterator[str]:
    after = prediction.after.greatest[0]
    allowed = prediction.allowed
    total = sum(prediction.endpoints.values())
    yield (
        f"The load is that of the busiest endpoint; 1 x is an even share, and {allowed:g} x is "
        "allowed (sliceplane.dev/max-overload)."
    )
    if prediction.is_worse:
        yield f"No hints keep the load within {allowed:g} x: {float(after):.2f} x is the least found."
    if not prediction.moved:
        yield "No endpoint gets other hints."
    else:
        yield (
            f"{part(prediction.moved, total, 'endpoint', 'gets')} other hints, in steps of a tenth "
            f"of them, 10 s apart: {prediction.annotation}."
        )
    meta = prediction.service.metadata
    if not is_measured(prediction.service):
        yield (
            f"To ask for it: kubectl annotate service -n {meta.namespace} {meta.name} "
            f"service.kubernetes.io/topology-mode={MEASURED}"
        )


def _wrapped(sentence: str, width: int | None, first: str = "", later: str = "  ") -> list[str]:
    return textwrap.wrap(
        sentence,
        width or _WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )


def as_document(prediction: MeasuredPrediction) -> dict[str, Any]:
    """Returns the JSON document."""
    return {
        "service": prediction.service.metadata.key,
        "origin": prediction.origin,
        "demand": {
            "origin": prediction.demand.origin,
            "zones": {zone: float(share) for zone, share in prediction.demand.parts.items()},
        },
        "endpoints": dict(prediction.endpoints),
        "values": [
            {
                "name": value.name,
                "greatestLoad": float(value.shares.greatest[0]),
                "leavesItsZone": float(value.shares.leaving),
                "loads": {zone: float(value.shares.load(zone)) for zone in prediction.zones},
                "problem": value.problem,
            }
            for value in prediction.values
        ],
        "allowedLoad": prediction.allowed,
        "endpointsWithOtherHints": prediction.moved,
        "measuredShares": prediction.annotation,
        "unknown": list(prediction.unknown),
    }
