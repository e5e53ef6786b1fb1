"""The answer for programs: always the same members in the same order; shares and factors are
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sliceplane.consume.balancing.shares import OVERLOAD, TrafficShares
from sliceplane.lab.whatif.picture import Loads, Picture
from sliceplane.lab.whatif.prediction import Moment, Prediction, WhatIfRun, Written
from sliceplane.lab.whatif.verify import WhatIfOutcome, compared, is_as_predicted


def as_document(prediction: Prediction, real: WhatIfOutcome | None = None) -> dict[str, Any]:
    """Returns the JSON document. *real*: the recorded outcome, for comparison."""
    price = prediction.question.price
    leaving = prediction.after.shares.leaving
    return {
        "service": prediction.question.service.metadata.key,
        "changes": list(prediction.question.changes.texts),
        "origin": prediction.origin,
        "assumptions": list(prediction.assumed),
        "before": _picture(prediction.before),
        "after": _picture(prediction.after),
        "written": written_document(prediction.written),
        "writtenOfAllServices": written_document(prediction.all_written),
        "ranges": _ranges(prediction),
        "pending": written_document(prediction.pending),
        "ifClientsStay": None if prediction.stays is None else _loads(prediction.stays),
        "moments": [_moment(moment) for moment in prediction.moments],
        "controllerTells": list(prediction.notes),
        "chance": {
            "connections": prediction.question.clients.connections,
            "bound": prediction.chance,
        },
        "overloadThreshold": float(OVERLOAD),
        "capacity": _number(prediction.question.clients.capacity),
        "cost": {
            "perGigabyte": float(price.per_gb),
            "priceOf": price.of,
            "gigabytes": float(price.gigabytes) or None,
            "before": float(price.gigabytes * prediction.before.shares.leaving * price.per_gb)
            if price.gigabytes
            else None,
            "after": float(price.gigabytes * leaving * price.per_gb) if price.gigabytes else None,
        },
        "happened": None if real is None else _outcome(prediction, real),
    }


def _outcome(prediction: Prediction, real: WhatIfOutcome) -> dict[str, Any]:
    figures = compared(prediction, real)
    return {
        "asForeseen": is_as_predicted(figures),
        "figures": [
            {
                "what": figure.what,
                "least": _plain(figure.least),
                "most": _plain(figure.most),
                "happened": _plain(figure.actual),
                "asForeseen": figure.is_as_predicted,
            }
            for figure in figures
        ],
        "problem": real.problem,
    }


def _ranges(prediction: Prediction) -> dict[str, Any]:
    """Returns the minimum and maximum of the figures that differ between the runs."""
    read: dict[str, Callable[[WhatIfRun], int]] = {
        "writes": lambda run: run.written.writes,
        "creates": lambda run: run.written.creates,
        "updates": lambda run: run.written.updates,
        "deletes": lambda run: run.written.deletes,
        "events": lambda run: run.written.events,
        "bytesJson": lambda run: run.written.json,
        "bytesProtobuf": lambda run: run.written.protobuf,
        "slices": lambda run: run.slices,
        "readyEndpoints": lambda run: run.ready.total(),
    }
    between = {name: prediction.between(figure) for name, figure in read.items()}
    return {name: [least, most] for name, (least, most) in between.items() if least != most}


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "seconds": moment.after_s,
        "readyEndpoints": moment.picture.ready.total(),
        "failing": float(moment.failing),
        "inside": _loads(moment.picture.loads),
        "written": written_document(moment.written),
    }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _plain(value: Any) -> int | float:
    return value if isinstance(value, int) else float(value)


def _picture(picture: Picture) -> dict[str, Any]:
    return {
        "slices": picture.slices,
        "watchers": picture.watchers,
        "oneEndpointChanges": {
            "json": float(picture.each_json),
            "protobuf": float(picture.each_protobuf),
        },
        "zones": {
            zone: {
                "clients": float(picture.clients.get(zone, 0)),
                "readyEndpoints": picture.ready[zone],
                "connections": float(picture.shares.of_zone(zone)),
                "load": float(picture.shares.load(zone)),
            }
            for zone in picture.zones
        },
        "inside": _loads(picture.loads),
        "outside": None if picture.outside is None else _shares(picture.outside),
    }


def _loads(loads: Loads) -> dict[str, Any]:
    fix = loads.fix
    return {
        **_shares(loads.shares),
        "requests": _number(loads.rate),
        "used": float(loads.used),
        "podsThatMendOverload": None if fix is None else dict(sorted(fix.items())),
    }


def _shares(shares: TrafficShares) -> dict[str, Any]:
    factor, zone = shares.greatest
    return {
        "leaving": float(shares.leaving),
        "dropped": float(shares.dropped),
        "greatestLoad": float(factor),
        "greatestLoadZone": zone,
        "flows": [
            {"from": source, "to": to, "share": float(share)}
            for (source, to), share in shares.flows.items()
        ],
    }


def written_document(written: Written) -> dict[str, Any]:
    return {
        "writes": written.writes,
        "creates": written.creates,
        "updates": written.updates,
        "deletes": written.deletes,
        "events": written.events,
        "bytes": {"json": written.json, "protobuf": written.protobuf},
        "seconds": written.took_s,
    }
