"""What the mirroring controller counts, under upstream's names, labels and buckets (upstream:
``pkg/controller/endpointslicemirroring/metrics``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sliceplane.api.own_writes import PlannedWrite
from sliceplane.endpoints.mirroring.engine import MirrorEngine
from sliceplane.endpoints.mirroring.writes import MirrorSizes
from sliceplane.kit.metrics import Histogram, Metrics, exponential_buckets

_PREFIX: Final = "endpoint_slice_mirroring_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)
_SECONDS_BUCKETS: Final = exponential_buckets(0.001, 2, 15)


class MirroringMetrics(Metrics):
    """Owned by one ``EndpointSliceMirroringController``."""

    def __init__(self, engine: MirrorEngine) -> None:
        super().__init__()
        self._added = self._per_sync("endpoints_added_per_sync", "Endpoints added by a sync.")
        self._updated = self._per_sync("endpoints_updated_per_sync", "Endpoints changed by a sync.")
        self._removed = self._per_sync("endpoints_removed_per_sync", "Endpoints removed by a sync.")
        self._skipped = self._per_sync("addresses_skipped_per_sync", "Addresses that a sync did not mirror.")
        self._seconds = self.histogram(
            f"{_PREFIX}endpoints_sync_duration", "Seconds from a plan to the end of its writes.", _SECONDS_BUCKETS
        )
        self._changes = self.counters(f"{_PREFIX}changes", "Writes of slices that the server accepted.", "operation")
        for name, text, read in (
            ("desired_endpoint_slices", "Slices that mirror exactly what there is.",
             lambda: engine.totals.desired_slices),
            ("endpoints_desired", "Endpoints that are desired.", lambda: engine.totals.endpoints),
            ("num_endpoint_slices", "Slices that exist.", lambda: engine.totals.slices),
        ):  # fmt: skip
            self.computed("gauge", _PREFIX + name, text, read)

    def _per_sync(self, name: str, text: str) -> Histogram:
        return self.histogram(_PREFIX + name, text, _PER_SYNC_BUCKETS)

    def planned(self, sizes: MirrorSizes) -> None:
        self._added.observe(sizes.added)
        self._updated.observe(sizes.updated)
        self._removed.observe(sizes.removed)
        self._skipped.observe(sizes.skipped)

    def performed(self, writes: Sequence[PlannedWrite]) -> None:
        """These were accepted by the server."""
        for write in writes:
            self._changes.of(write.verb).value += 1

    def synced(self, seconds: float) -> None:
        """A sync ended, well or not."""
        self._seconds.observe(max(seconds, 0.0))
