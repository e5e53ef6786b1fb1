"""The measured locations of clients: a Prometheus server's answer to a query, or a page of metrics.

The zone of a series is its label ``zone``, or the only label whose name ends in ``_zone``; series
of one zone are summed. Only proportions count, so any figure that grows with the requests is
suitable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isfinite
from typing import Any, Final

from sliceplane.api.findings.wording import some
from sliceplane.diagnose.explain.scrape import sample_of

_LABEL: Final = "zone"
_ENDING: Final = "_zone"
_BY_ZONE: Final = "ask Prometheus for sum by (zone) (rate(...)) at one moment: /api/v1/query"


class BadTraffic(Exception):
    """The line or series with an error, and the remedy, as a sentence."""


def zones_of(text: str) -> dict[str, Fraction]:
    """Returns the traffic by zone. Raises ``BadTraffic``."""
    series = _answered(text) if text.lstrip().startswith("{") else _page(text)
    traffic_by_zone: dict[str, Fraction] = {}
    for where, zone, value in series:
        if not isfinite(value) or value < 0:
            raise BadTraffic(f"{where}: {value} is no amount of traffic: {_BY_ZONE}")
        traffic_by_zone[zone] = traffic_by_zone.get(zone, Fraction(0)) + Fraction(str(value))
    if not any(traffic_by_zone.values()):
        raise BadTraffic(f"no series with a zone has traffic: {_BY_ZONE}")
    return traffic_by_zone


def _answered(text: str) -> Iterator[tuple[str, str, float]]:
    """Reads an answer of ``/api/v1/query``: prometheus.io, "HTTP API", "Instant queries"."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadTraffic(
            f"line {error.lineno}: {error.msg}: save Prometheus' answer as it is"
        ) from error
    if answer.get("status") == "error":
        raise BadTraffic(
            f"Prometheus refused the query: {answer.get('error') or answer.get('errorType')}"
        )
    data = answer.get("data")
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind != "vector":
        what = f"a {kind}" if isinstance(kind, str) else "no answer of Prometheus"
        raise BadTraffic(f"this is {what}: {_BY_ZONE}")
    for number, series in enumerate(data.get("result") or (), 1):
        where = f"series {number}"
        try:
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            value = float(series["value"][1])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise BadTraffic(f"{where} has no labels and value: {_BY_ZONE}") from error
        yield where, _zone(where, labels), value


def _page(text: str) -> Iterator[tuple[str, str, float]]:
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number}"
        sample = sample_of(line.strip())
        if sample is None:
            raise BadTraffic(f'{where}: this is no sample: write NAME{{zone="ZONE"}} NUMBER')
        name, (labels, value) = sample
        names[name] = where
        if len(names) > 1:
            raise BadTraffic(
                f"{where}: {some(sorted(names))} are several metrics: leave one of them in the file"
            )
        yield where, _zone(where, labels), value


def _zone(where: str, labels: Mapping[str, Any]) -> str:
    if _LABEL in labels:
        return str(labels[_LABEL])
    names = [name for name in sorted(labels) if name.endswith(_ENDING)]
    if len(names) == 1:
        return str(labels[names[0]])
    if names:
        raise BadTraffic(f"{where}: {some(names)} all tell a zone: sum by one of them, as zone")
    has = some(sorted(labels), verb_of_one="is") if labels else "none is"
    raise BadTraffic(
        f"{where}: no label zone, nor one that ends in {_ENDING} ({has} there): {_BY_ZONE}"
    )
