"""The comparison of a prediction with a recording of the controllers that made the change.

The slices of the Service are followed from the snapshot on. An object that a recording contains
twice (several controllers, a list after a restart) is counted once, by its version. No recording
contains the destinations of connections: both sides use the final slices and the assumed clients. A
value within a predicted range counts as predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.balancing.shares import TrafficShares, kinds_of, ready_by_zone, shares
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.lab.whatif.assumptions import percent
from sliceplane.lab.whatif.picture import family_of
from sliceplane.lab.whatif.prediction import Prediction, WhatIfRun
from sliceplane.lab.whatif.state import ClusterState, WhatIfError
from sliceplane.watch.cache import Change
from sliceplane.watch.recorder.blocks import RecordingError
from sliceplane.watch.recorder.entries import Changed, LoopBegan
from sliceplane.watch.recorder.file import Recording

LOAD: Final = "greatest load"


class WhatIfOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded outcome of a change. ``problem``: why the recording is incomplete, or ""."""

    creates: int
    updates: int
    deletes: int
    slices: int
    ready: Counter[str]
    shares: TrafficShares
    problem: str


def read_outcome(
    prediction: Prediction, before: ClusterState, recording: Recording
) -> WhatIfOutcome:
    """Reads the outcome from *recording*. *before*: the snapshot of the prediction. Raises
    ``WhatIfError``.
    """
    meta = prediction.question.service.metadata
    slices = {key.partition("/")[2]: item for key, item in before.slices(meta.namespace, meta.name)}
    counted: Counter[str] = Counter()
    start = next((at for at, segment in enumerate(recording.segments) if segment.whole), 0)
    try:
        for entry in entries(recording, start):
            if isinstance(entry, LoopBegan):
                check_beginning(entry, before, meta.namespace, meta.name)
            for change in _changes(entry, meta.namespace, meta.name):
                _follow(slices, change, before.revision, counted)
    except RecordingError as error:
        raise WhatIfError(f"the recording cannot be read: {error}") from error
    kinds = kinds_of(
        sorted(slices.items()),
        family_of(prediction.question.service),
        by_node=prediction.after.policy == "Local",
        by_subset=prediction.running.subsetting.by_zone,
    )
    return WhatIfOutcome(
        creates=counted["create"],
        updates=counted["update"],
        deletes=counted["delete"],
        slices=len(slices),
        ready=ready_by_zone(kinds),
        shares=shares(
            kinds, prediction.after.client_locations, local=prediction.after.policy == "Local"
        ),
        problem=recording.problem,
    )


def check_beginning(entry: LoopBegan, before: ClusterState, namespace: str, name: str) -> None:
    """Raises ``WhatIfError`` if the initial objects of a controller have slices newer than the
    snapshot.
    """
    for change in entry.objects:
        if _is_of(change, namespace, name) and change.object.metadata.revision > before.revision:
            raise WhatIfError(
                "the recording begins after the snapshot and after the first change of the "
                "Service's slices: what was "
                "between is not in it"
            )


def _changes(entry: Any, namespace: str, name: str) -> Iterator[Change[Object]]:
    if isinstance(entry, Changed) and _is_of(entry.change, namespace, name):
        yield entry.change


def _is_of(change: Change[Object], namespace: str, name: str) -> bool:
    meta = change.object.metadata
    labels = meta.labels or {}
    of_kind = change.resource == EndpointSlices.key and meta.namespace == namespace
    return of_kind and labels.get(LABEL_SERVICE_NAME) == name


def _follow(
    slices: dict[str, EndpointSlice], change: Change[Object], revision: int, counted: Counter[str]
) -> None:
    name = change.object.metadata.name
    last = slices.get(name)
    if not isinstance(change.new, EndpointSlice):
        old = change.object.metadata.revision
        if last is not None and old >= last.metadata.revision:
            counted["delete"] += 1
            del slices[name]
    elif change.new.metadata.revision > (
        revision if last is None else max(revision, last.metadata.revision)
    ):
        counted["create" if last is None else "update"] += 1
        slices[name] = change.new


class Figure(NamedTuple):
    """One figure: the predicted minimum and maximum, and the actual value."""

    what: str
    least: int | Fraction
    most: int | Fraction
    actual: int | Fraction

    @property
    def is_as_predicted(self) -> bool:
        return self.least <= self.actual <= self.most


def compared(prediction: Prediction, real: WhatIfOutcome) -> tuple[Figure, ...]:
    zones = sorted({zone for run in prediction.runs for zone in run.ready} | {*real.ready})
    return (
        Figure("slices made", *prediction.between(lambda run: run.written.creates), real.creates),
        Figure(
            "slices updated", *prediction.between(lambda run: run.written.updates), real.updates
        ),
        Figure(
            "slices deleted", *prediction.between(lambda run: run.written.deletes), real.deletes
        ),
        Figure("slices in the end", *prediction.between(lambda run: run.slices), real.slices),
        *(
            Figure(
                f"ready endpoints, {zone or '(no zone)'}",
                *prediction.between(partial(_ready, zone)),
                real.ready[zone],
            )
            for zone in zones
        ),
        Figure(
            "leaves its zone", *prediction.between(lambda run: run.leaving), real.shares.leaving
        ),
        Figure(LOAD, *prediction.between(lambda run: run.greatest), real.shares.greatest[0]),
    )


def _ready(zone: str, run: WhatIfRun) -> int:
    return run.ready[zone]


def is_as_predicted(figures: tuple[Figure, ...]) -> bool:
    return all(figure.is_as_predicted for figure in figures)


def rows(figures: tuple[Figure, ...]) -> Iterator[tuple[str, str, str, str]]:
    for figure in figures:
        predicted = ranged(*(_text(figure.what, value) for value in (figure.least, figure.most)))
        yield (
            figure.what,
            predicted,
            _text(figure.what, figure.actual),
            "." if figure.is_as_predicted else "differs",
        )


def ranged(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _text(what: str, value: int | Fraction) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{float(value):.2f} x" if what == LOAD else percent(value)
