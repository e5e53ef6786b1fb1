"""Samples of a metrics page (Prometheus text format), as far as a screen needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ScrapedSample(NamedTuple):
    labels: Mapping[str, str]
    value: float


def samples(page: str, names: frozenset[str]) -> dict[str, list[ScrapedSample]]:
    """Returns the samples of *names*, in the order of the page; other lines are skipped."""
    found: dict[str, list[ScrapedSample]] = {}
    for name, sample in _lines(page, names):
        found.setdefault(name, []).append(sample)
    return found


def total(found: Mapping[str, list[ScrapedSample]], name: str) -> float | None:
    """The sum of its series; ``None``: there is none."""
    of_name = found.get(name)
    return sum(sample.value for sample in of_name) if of_name else None


def sample_of(line: str) -> tuple[str, ScrapedSample] | None:
    """Its name and itself; ``None``: the line is none."""
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    return match["name"], ScrapedSample(dict(_LABEL.findall(match["labels"] or "")), value)


def _lines(page: str, names: frozenset[str]) -> Iterator[tuple[str, ScrapedSample]]:
    for line in page.splitlines():
        # Most of a large page is of other names: the pattern is not for them.
        if (
            line.partition("{")[0].partition(" ")[0] in names
            and (found := sample_of(line)) is not None
        ):
            yield found
