"""The metrics of a relay: how far its memory is, and what became of its clients' watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from sliceplane.api.requests import Selection
from sliceplane.kit.metrics import Labels, Metrics
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.parts import name_of

Kind = Literal["counter", "gauge"]


class Followed(Protocol):
    """A parent's resource, as metrics and reports read it."""

    mirror: ResourceMirror

    @property
    def silence_s(self) -> float:
        """Seconds since the mirror was last known to have all that the parent has."""

    @property
    def trouble(self) -> str:
        """Why reads from memory may be too old; "" if they are not."""


def declare_metrics(
    metrics: Metrics, parents: Mapping[Selection, Followed], moves: Callable[[], int]
) -> None:
    """Declares the metrics of a relay that follows *parents*."""

    def declare(kind: Kind, name: str, text: str, value: Callable[[Followed], float]) -> None:
        def rows() -> Iterator[tuple[Labels, float]]:
            for part, parent in parents.items():
                yield (name_of(part),), value(parent)

        metrics.computed(kind, name, text, rows, "resource")

    declare(
        "gauge",
        "sliceplane_relay_silence_seconds",
        "How long ago memory was last known to have all that the parent has.",
        lambda parent: parent.silence_s,
    )
    declare(
        "gauge",
        "sliceplane_relay_watches",
        "Open watches of children.",
        lambda parent: len(parent.mirror.hub),
    )
    declare(
        "counter",
        "sliceplane_relay_slow_watches_total",
        "Watches of children ended since they were too slow.",
        lambda parent: parent.mirror.hub.overflowed.value,
    )
    declare(
        "counter",
        "sliceplane_relay_bridged_lists_total",
        "Lists after a lost watch whose difference reached open watches as events.",
        lambda parent: parent.mirror.bridged,
    )
    declare(
        "counter",
        "sliceplane_relay_resets_total",
        "Times that all watches of children ended with 410.",
        lambda parent: parent.mirror.resets,
    )
    metrics.computed(
        "counter",
        "sliceplane_relay_catch_ups_total",
        "Fetches of events from before the history.",
        lambda: [
            ((name_of(part), result), count)
            for part, parent in parents.items()
            for result, count in parent.mirror.earlier.results
        ],
        "resource",
        "result",
    )
    metrics.computed(
        "counter",
        "sliceplane_relay_moves_total",
        "Times that another parent was followed.",
        moves,
    )
