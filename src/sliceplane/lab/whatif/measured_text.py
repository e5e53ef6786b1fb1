"""The answer of ``what-if measured``, as text for users and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sliceplane.api.findings.wording import part
from sliceplane.consume.demand import MEASURED, is_measured
from sliceplane.diagnose.zone_loads import HintLoads, factor
from sliceplane.kit.columns import table
from sliceplane.lab.whatif.assumptions import percent, zone_name
from sliceplane.lab.whatif.measured import MeasuredPrediction
from sliceplane.lab.whatif.text import bullet, in_zone, wrapped


def as_text(prediction: MeasuredPrediction, width: int | None) -> str:
    """Returns the answer as text."""
    demand = prediction.demand
    values = prediction.values
    blocks = [
        [
            f"Service {prediction.service.metadata.key}: hints by measured zones",
            prediction.origin,
            *wrapped(f"{demand.origin}.", width),
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
        [line for sentence in _sentences(prediction) for line in wrapped(sentence, width)],
        [
            "Not known",
            *(line for sentence in prediction.unknown for line in bullet(sentence, width)),
        ],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _zones(prediction: MeasuredPrediction) -> Iterator[tuple[str, ...]]:
    for zone in prediction.zones:
        yield (
            zone_name(zone),
            percent(prediction.demand.parts[zone]) if zone in prediction.demand.parts else "-",
            f"{prediction.endpoints.get(zone, 0):,}",
            factor(prediction.before.load(zone)),
            factor(prediction.after.load(zone)),
        )


def _value(value: HintLoads) -> tuple[str, ...]:
    remark = f"no hints: {value.problem}" if value.problem else in_zone(value.shares)
    return value.name, factor(value.shares.greatest[0]), percent(value.shares.leaving), remark


def _sentences(prediction: MeasuredPrediction) -> Iterator[str]:
    after = prediction.after.greatest[0]
    allowed = prediction.allowed
    total = sum(prediction.endpoints.values())
    yield (
        f"The load is that of the busiest endpoint; 1 x is an even share, and {allowed:g} x is "
        "allowed (sliceplane.dev/max-overload)."
    )
    if prediction.is_worse:
        yield f"No hints keep the load within {allowed:g} x: {factor(after)} is the least found."
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
