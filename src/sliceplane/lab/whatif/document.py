"""The answer for programs: the same members in the same order each time; shares and factors are
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sliceplane.consume.balancing.shares import OVERLOAD, TrafficShares
from sliceplane.lab.whatif.picture import Loads, Picture
from sliceplane.lab.whatif.prediction import Moment, Prediction, WhatIfRun, Written
from sliceplane.lab.whatif.verify import Happened, compared, is_as_foreseen


def as_document(found: Prediction, real: Happened | None = None) -> dict[str, Any]:
    """*real*: what happened, where one may compare."""
    price = found.question.price
    leaving = found.after.shares.leaving
    return {
        "service": found.question.service.metadata.key,
        "changes": list(found.question.changes.words),
        "origin": found.origin,
        "assumptions": list(found.assumed),
        "before": _picture(found.before),
        "after": _picture(found.after),
        "written": written_document(found.written),
        "writtenOfAllServices": written_document(found.everything),
        "ranges": _ranges(found),
        "pending": written_document(found.pending),
        "ifClientsStay": None if found.stays is None else _loads(found.stays),
        "moments": [_moment(moment) for moment in found.moments],
        "controllerTells": list(found.notes),
        "chance": {"connections": found.question.clients.connections, "bound": found.chance},
        "overloadThreshold": float(OVERLOAD),
        "capacity": _number(found.question.clients.capacity),
        "cost": {
            "perGigabyte": float(price.per_gb),
            "priceOf": price.of,
            "gigabytes": float(price.gigabytes) or None,
            "before": float(price.gigabytes * found.before.shares.leaving * price.per_gb)
            if price.gigabytes
            else None,
            "after": float(price.gigabytes * leaving * price.per_gb) if price.gigabytes else None,
        },
        "happened": None if real is None else _happened(found, real),
    }


def _happened(found: Prediction, real: Happened) -> dict[str, Any]:
    figures = compared(found, real)
    return {
        "asForeseen": is_as_foreseen(figures),
        "figures": [
            {
                "what": figure.what,
                "least": _plain(figure.least),
                "most": _plain(figure.most),
                "happened": _plain(figure.happened),
                "asForeseen": figure.is_as_foreseen,
            }
            for figure in figures
        ],
        "problem": real.problem,
    }


def _ranges(found: Prediction) -> dict[str, Any]:
    """Figures that are not the same in each way in which the change may come about: the least and
    the most.
    """
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
    between = {name: found.between(figure) for name, figure in read.items()}
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
            {"from": came, "to": to, "share": float(share)}
            for (came, to), share in shares.flows.items()
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
