"""Samples of a metrics page (Prometheus text format) that ``status`` needs."""

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
    by_name: dict[str, list[ScrapedSample]] = {}
    for name, sample in _lines(page, names):
        by_name.setdefault(name, []).append(sample)
    return by_name


def total(by_name: Mapping[str, list[ScrapedSample]], name: str) -> float | None:
    """Returns the sum of the series of *name*; ``None``: it has none."""
    of_name = by_name.get(name)
    return sum(sample.value for sample in of_name) if of_name else None


def sample_of(line: str) -> tuple[str, ScrapedSample] | None:
    """Parses a sample and its name; ``None``: the line is no sample."""
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
        # Most lines of a large page have other names: skip the pattern for them.
        if (
            line.partition("{")[0].partition(" ")[0] in names
            and (sample := sample_of(line)) is not None
        ):
            yield sample
