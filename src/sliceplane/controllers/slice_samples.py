"""What the EndpointSlice controller counts, under upstream's names, labels and buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from sliceplane.kit.samples import DEFAULT_BUCKETS, Family, Histogram, Labels, Sample, exponential_buckets
from sliceplane.slices.service import Totals
from sliceplane.slices.shape import HintMode, ServiceShape
from sliceplane.slices.writes import FamilyChanges, SliceWrite

PREFIX: Final = "endpoint_slice_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)

Result = Literal["success", "stale", "error"]


class SliceSamples:
    """Owned by one ``EndpointSliceController``."""

    def __init__(self) -> None:
        self._added = Histogram(_PER_SYNC_BUCKETS)
        self._removed = Histogram(_PER_SYNC_BUCKETS)
        self._changed: dict[Labels, Histogram] = {}
        self._changes: dict[str, int] = {}
        self._syncs: dict[str, int] = {}

    def planned(self, families: Sequence[FamilyChanges]) -> None:
        for each in families:
            self._added.observe(each.added)
            self._removed.observe(each.removed)

    def performed(self, writes: Sequence[SliceWrite]) -> None:
        """These were accepted by the server."""
        for write in writes:
            self._changes[write.verb] = self._changes.get(write.verb, 0) + 1

    def synced(self, result: Result) -> None:
        self._syncs[result] = self._syncs.get(result, 0) + 1

    def succeeded(self, shape: ServiceShape, families: Sequence[FamilyChanges]) -> None:
        """All writes of a sync were accepted."""
        labels = ("Auto" if shape.hints is HintMode.AUTO else "Disabled", shape.distribution_group)
        histogram = self._changed.get(labels)
        if histogram is None:
            histogram = self._changed[labels] = Histogram(DEFAULT_BUCKETS)
        for each in families:
            histogram.observe(each.writes)

    def families(self, totals: Totals, distributions: Mapping[str, int]) -> tuple[Family, ...]:
        changed = [Sample(labels, each.read()) for labels, each in sorted(self._changed.items())]
        return (
            _counts("changes", "Writes of slices that the server accepted.", "operation", self._changes, "counter"),
            _gauge("desired_endpoint_slices", "Slices that would exist with perfect packing.", totals.fewest_slices),
            _gauge("endpoints_desired", "Endpoints that are desired.", totals.endpoints),
            _histogram("endpoints_added_per_sync", "Endpoints added by a sync, per address type.", self._added),
            _histogram("endpoints_removed_per_sync", "Endpoints removed by a sync, per address type.", self._removed),
            Family(
                f"{PREFIX}endpointslices_changed_per_sync",
                "histogram",
                "Slices written by a sync, per address type.",
                ("topology", "traffic_distribution"),
                tuple(changed),
            ),
            _gauge("num_endpoint_slices", "Slices that exist or are being made.", totals.slices),
            _counts(
                "services_count_by_traffic_distribution",
                "Services by the trafficDistribution that is in effect.",
                "traffic_distribution",
                distributions,
                "gauge",
            ),
            _counts("syncs", "Syncs of Services by how they ended.", "result", self._syncs, "counter"),
        )


def slices_saved(count: int) -> Family:
    """Ours alone: there is no merging upstream."""
    name = "sliceplane_endpoint_slices_saved_total"
    return Family(name, "counter", "Slices that merging under-filled ones has saved.", (), (Sample((), count),))


def _gauge(name: str, help_text: str, value: float) -> Family:
    return Family(PREFIX + name, "gauge", help_text, (), (Sample((), value),))


def _histogram(name: str, help_text: str, histogram: Histogram) -> Family:
    return Family(PREFIX + name, "histogram", help_text, (), (Sample((), histogram.read()),))


def _counts(
    name: str, help_text: str, label: str, counts: Mapping[str, int], kind: Literal["counter", "gauge"]
) -> Family:
    samples = tuple(Sample((value,), count) for value, count in sorted(counts.items()))
    return Family(PREFIX + name, kind, help_text, (label,), samples)
