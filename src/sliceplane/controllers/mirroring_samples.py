"""What the mirroring controller counts, under upstream's names, labels and buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sliceplane.endpoints.mirroring.engine import Totals
from sliceplane.endpoints.mirroring.writes import MirrorWrite, Sizes
from sliceplane.kit.samples import Family, Histogram, Sample, exponential_buckets

PREFIX: Final = "endpoint_slice_mirroring_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)
_SECONDS_BUCKETS: Final = exponential_buckets(0.001, 2, 15)


class MirroringSamples:
    """Owned by one ``EndpointSliceMirroringController``."""

    def __init__(self) -> None:
        self._added = Histogram(_PER_SYNC_BUCKETS)
        self._updated = Histogram(_PER_SYNC_BUCKETS)
        self._removed = Histogram(_PER_SYNC_BUCKETS)
        self._skipped = Histogram(_PER_SYNC_BUCKETS)
        self._seconds = Histogram(_SECONDS_BUCKETS)
        self._changes: dict[str, int] = {}

    def planned(self, sizes: Sizes) -> None:
        self._added.observe(sizes.added)
        self._updated.observe(sizes.updated)
        self._removed.observe(sizes.removed)
        self._skipped.observe(sizes.skipped)

    def performed(self, writes: Sequence[MirrorWrite]) -> None:
        """These were accepted by the server."""
        for write in writes:
            self._changes[write.verb] = self._changes.get(write.verb, 0) + 1

    def synced(self, seconds: float) -> None:
        """A sync ended, well or not."""
        self._seconds.observe(max(seconds, 0.0))

    def families(self, totals: Totals) -> tuple[Family, ...]:
        changes = tuple(Sample((verb,), count) for verb, count in sorted(self._changes.items()))
        return (
            _histogram("addresses_skipped_per_sync", "Addresses that a sync did not mirror.", self._skipped),
            Family(
                f"{PREFIX}changes", "counter", "Writes of slices that the server accepted.", ("operation",), changes
            ),
            _gauge("desired_endpoint_slices", "Slices that mirror exactly what there is.", totals.desired_slices),
            _histogram("endpoints_added_per_sync", "Endpoints added by a sync.", self._added),
            _gauge("endpoints_desired", "Endpoints that are desired.", totals.endpoints),
            _histogram("endpoints_removed_per_sync", "Endpoints removed by a sync.", self._removed),
            _histogram("endpoints_sync_duration", "Seconds from a plan to the end of its writes.", self._seconds),
            _histogram("endpoints_updated_per_sync", "Endpoints changed by a sync.", self._updated),
            _gauge("num_endpoint_slices", "Slices that exist.", totals.slices),
        )


def _gauge(name: str, help_text: str, value: float) -> Family:
    return Family(PREFIX + name, "gauge", help_text, (), (Sample((), value),))


def _histogram(name: str, help_text: str, histogram: Histogram) -> Family:
    return Family(PREFIX + name, "histogram", help_text, (), (Sample((), histogram.read()),))
