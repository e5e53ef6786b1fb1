"""What the EndpointSlice controller counts, under upstream's names, labels and buckets (upstream:
``pkg/controller/endpointslice/metrics`` of k8s.io/endpointslice)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sliceplane.kit.metrics import DEFAULT_BUCKETS, Metrics, exponential_buckets
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.shape import HintMode, ServiceShape
from sliceplane.slices.writes import FamilyChanges, SlicePlan, SliceWrite

_PREFIX: Final = "endpoint_slice_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)

Result = Literal["success", "stale", "error"]


class SliceMetrics(Metrics):
    """Owned by one ``EndpointSliceController``."""

    def __init__(self, engine: SliceEngine) -> None:
        super().__init__()
        self._changes = self.counters(f"{_PREFIX}changes", "Writes of slices that the server accepted.", "operation")
        self._syncs = self.counters(f"{_PREFIX}syncs", "Syncs of Services by how they ended.", "result")
        self._added = self.histogram(
            f"{_PREFIX}endpoints_added_per_sync", "Endpoints added by a sync, per address type.", _PER_SYNC_BUCKETS
        )
        self._removed = self.histogram(
            f"{_PREFIX}endpoints_removed_per_sync", "Endpoints removed by a sync, per address type.", _PER_SYNC_BUCKETS
        )
        self._changed = self.histograms(
            f"{_PREFIX}endpointslices_changed_per_sync",
            "Slices written by a sync, per address type.",
            DEFAULT_BUCKETS,
            "topology",
            "traffic_distribution",
        )
        for name, text, read in (
            ("desired_endpoint_slices", "Slices that would exist with perfect packing.",
             lambda: engine.totals.fewest_slices),
            ("endpoints_desired", "Endpoints that are desired.", lambda: engine.totals.endpoints),
            ("num_endpoint_slices", "Slices that exist or are being made.", lambda: engine.totals.slices),
        ):  # fmt: skip
            self.computed("gauge", _PREFIX + name, text, read)
        self.computed(
            "gauge",
            f"{_PREFIX}services_count_by_traffic_distribution",
            "Services by the trafficDistribution that is in effect.",
            lambda: [((group,), count) for group, count in sorted(engine.distributions.items())],
            "traffic_distribution",
        )

    def planned(self, families: Sequence[FamilyChanges]) -> None:
        for family in families:
            self._added.observe(family.added)
            self._removed.observe(family.removed)

    def synced(
        self, result: Result, shape: ServiceShape | None, plan: SlicePlan, accepted: Sequence[SliceWrite] = ()
    ) -> None:
        """A sync ended, of whose writes the server *accepted* these; all of them are a "success"."""
        self._syncs.of(result).value += 1
        for write in accepted:
            self._changes.of(write.verb).value += 1
        if result == "success" and shape is not None:
            topology = "Auto" if shape.hints is HintMode.AUTO else "Disabled"
            changed = self._changed.of(topology, shape.distribution_group)
            for family in plan.families:
                changed.observe(family.writes)
