"""The EndpointSliceMirroring controller: Endpoints of other writers in, EndpointSlices out
(KEP-0752).

Policy and state belong to ``slices.endpoints.mirroring.engine.MirrorEngine``; this module decides
*when* an object is synced. A change of it, or of its Service's selector, is synced at once; changes
of its slices wait for the batch period; a failure is retried with exponential back-off. Nothing is
written before the Endpoints controller of this process has synced all Services once, or a minute
has passed. Then every object is synced, so that obsolete slices are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.service_syncs import (
    FirstSync,
    SyncController,
    actionable_error,
    note_about,
    to_write,
)
from sliceplane.kit.delays import Backoff
from sliceplane.kit.metrics import Family, Histogram, Metrics, exponential_buckets
from sliceplane.slices.endpoints.mirroring.desired import ADDRESSES_PER_SUBSET_MAX
from sliceplane.slices.endpoints.mirroring.engine import MirrorEngine
from sliceplane.slices.endpoints.mirroring.service import MirrorLimits
from sliceplane.slices.endpoints.mirroring.writes import MirrorPlan, MirrorSizes
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.succession import SelectorChanges
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Job, Selection, Work
from sliceplane.watch.controller.own_writes import PlannedWrite

_PREFIX: Final = "endpoint_slice_mirroring_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)
_SECONDS_BUCKETS: Final = exponential_buckets(0.001, 2, 15)


class MirroringMetrics(Metrics):
    """The metrics of one ``EndpointSliceMirroringController``, with upstream's names, labels and
    buckets (``pkg/controller/endpointslicemirroring/metrics``).
    """

    def __init__(self, engine: MirrorEngine) -> None:
        super().__init__()
        self._added = self._per_sync("endpoints_added_per_sync", "Endpoints added by a sync.")
        self._updated = self._per_sync("endpoints_updated_per_sync", "Endpoints changed by a sync.")
        self._removed = self._per_sync("endpoints_removed_per_sync", "Endpoints removed by a sync.")
        self._skipped = self._per_sync(
            "addresses_skipped_per_sync", "Addresses that a sync did not mirror."
        )
        self._seconds = self.histogram(
            f"{_PREFIX}endpoints_sync_duration",
            "Seconds from a plan to the end of its writes.",
            _SECONDS_BUCKETS,
        )
        self._changes = self.counters(
            f"{_PREFIX}changes", "Writes of slices that the server accepted.", "operation"
        )
        for name, text, read in (
            (
                "desired_endpoint_slices",
                "Slices that mirror the Endpoints exactly.",
                lambda: engine.totals.desired_slices,
            ),
            ("endpoints_desired", "Endpoints that are desired.", lambda: engine.totals.endpoints),
            ("num_endpoint_slices", "Slices that exist.", lambda: engine.totals.slices),
        ):
            self.computed("gauge", _PREFIX + name, text, read)

    def _per_sync(self, name: str, text: str) -> Histogram:
        return self.histogram(_PREFIX + name, text, _PER_SYNC_BUCKETS)

    def planned(self, sizes: MirrorSizes) -> None:
        self._added.observe(sizes.added)
        self._updated.observe(sizes.updated)
        self._removed.observe(sizes.removed)
        self._skipped.observe(sizes.skipped)

    def written(self, writes: Sequence[PlannedWrite]) -> None:
        """Counts writes that the server accepted."""
        for write in writes:
            self._changes.of(write.verb).value += 1

    def synced(self, seconds: float) -> None:
        """Records the duration of a sync, successful or not."""
        self._seconds.observe(max(seconds, 0.0))


MAX_SYNCS_LIMIT: Final = 50
RETRY_BACKOFF: Final = Backoff(base_s=1.0, cap_s=100.0)
#: interval of the check if the Endpoints controller has synced all Services, and the longest wait
#: for it
FIRST_SYNC_CHECK_S: Final = 0.05
FIRST_SYNC_TIMEOUT_S: Final = 60.0
EVENT_COMPONENT: Final = "endpoint-slice-mirroring-controller"


class MirroringConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The flags ``--mirroring-...`` of kube-controller-manager, and the treatment of slices when a
    selector is added.

    ``max_endpoints_per_slice`` is our own: ``None`` means one slice for each family and set of
    ports, as upstream. Raises ``ValueError`` for values that upstream rejects.
    """

    concurrent_service_endpoint_syncs: int = 5
    max_endpoints_per_subset: int = ADDRESSES_PER_SUBSET_MAX
    max_endpoints_per_slice: int | None = None
    endpointslice_updates_batch_period_s: float = 0.0
    selector_changes: SelectorChanges = SelectorChanges.HAND_OVER

    def __post_init__(self) -> None:
        for name, value, limit in (
            (
                "mirroring-concurrent-service-endpoint-syncs",
                self.concurrent_service_endpoint_syncs,
                MAX_SYNCS_LIMIT,
            ),
            (
                "mirroring-max-endpoints-per-subset",
                self.max_endpoints_per_subset,
                ADDRESSES_PER_SUBSET_MAX,
            ),
            (
                "mirroring-max-endpoints-per-slice",
                1 if self.max_endpoints_per_slice is None else self.max_endpoints_per_slice,
                ADDRESSES_PER_SUBSET_MAX,
            ),
        ):
            if not 1 <= value <= limit:
                raise ValueError(f"{name} must be between 1 and {limit}, not {value}")


class _MirrorToken(msgspec.Struct, frozen=True):
    plan: MirrorPlan
    began: float


class EndpointSliceMirroringController(SyncController):
    """The controller. Jobs are keyed ``namespace/name`` of the Endpoints."""

    def __init__(
        self, config: MirroringConfig | None = None, first_sync: FirstSync | None = None
    ) -> None:
        self._config = config or MirroringConfig()
        super().__init__(
            ControllerInfo(
                name="endpointslice-mirroring-controller",
                aliases=("endpointslicemirroring", "endpointslicemirroring-controller"),
                watches=(
                    Selection(Services),
                    Selection(EndpointsObjects),
                    Selection(EndpointSlices),
                ),
                queue="endpoint_slice_mirroring",
            ),
            max_in_progress=self._config.concurrent_service_endpoint_syncs,
            backoff=RETRY_BACKOFF,
        )
        hand_over = self._config.selector_changes is SelectorChanges.HAND_OVER
        limits = MirrorLimits(
            self._config.max_endpoints_per_subset, self._config.max_endpoints_per_slice
        )
        self._engine = MirrorEngine(limits, hand_over=hand_over)
        self._metrics = MirroringMetrics(self._engine)
        self._first_sync = first_sync or FirstSync()
        self._started = False
        self._checked_at = 0.0
        self._first_sync_deadline = 0.0

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Service():
                self.add(self._engine.on_service(*change.typed(Service)), 0.0, now)
            case Endpoints() as observed:
                _, new = change.typed(Endpoints)
                self.add(self._engine.on_endpoints(new, observed.metadata.key), 0.0, now)
            case EndpointSlice():
                batch = self._config.endpointslice_updates_batch_period_s
                self.add(self._engine.on_slice(*change.typed(EndpointSlice)), batch, now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        self._checked_at = now
        self._first_sync_deadline = now + FIRST_SYNC_TIMEOUT_S

    # -- work

    def take_work(self, now: float, max_jobs: int) -> Work:
        if self._synced:
            self._checked_at = now
            self._started = (
                self._started or self._first_sync.over or now >= self._first_sync_deadline
            )
        return super().take_work(now, max_jobs) if self._started else Work()

    def job(self, key: str, now: float) -> Job | None:
        plan = self._engine.plan(key, now)
        if plan.sizes is not None:
            self._metrics.planned(plan.sizes)
        for notice in plan.notices:
            self._warn(key, notice)
        if plan.writes:
            writes = tuple(to_write(EndpointSlices, write) for write in plan.writes)
            return Job(key=key, writes=writes, token=_MirrorToken(plan, now))
        self._metrics.synced(0.0)
        self._end(key, failed=plan.stale, now=now)
        return None

    def on_done(self, done: Done, now: float) -> None:
        token = done.job.token
        assert isinstance(token, _MirrorToken), f"job {done.job.key} has a foreign token {token!r}"
        plan = token.plan
        self._engine.finish(done.job.key, plan, done.results, done.error, now)
        self._metrics.synced(now - token.began)
        if plan.counted:
            self._metrics.written(plan.writes[: len(done.results)])
        self._end(done.job.key, failed=actionable_error(done) is not None, now=now)
        if plan.proof and done.error is None:
            self.add((done.job.key,), 0.0, now)

    def _end(self, key: str, *, failed: bool, now: float) -> None:
        failed = failed and self._engine.has_state(key)
        self.end(key, failed=failed, deadline=self._engine.deadline(key), now=now)

    def next_deadline(self) -> float | None:
        if self._synced and not self._started:
            return self._checked_at + FIRST_SYNC_CHECK_S
        return super().next_deadline()

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*self._metrics.families(), *super().samples(now))

    # -- Events

    def _warn(self, key: str, notice: Notice) -> None:
        endpoints = self._engine.endpoints(key)
        assert endpoints is not None, f"{key} is not mirrored and has a warning: {notice}"
        endpoints_meta = endpoints.metadata
        meta = ObjectMeta(
            namespace=endpoints_meta.namespace, name=endpoints_meta.name, uid=endpoints_meta.uid
        )
        note = note_about(
            EndpointsObjects,
            meta,
            component=EVENT_COMPONENT,
            reason=notice.reason,
            message=notice.message,
        )
        self._notes.append(note)

    def check(self) -> None:
        super().check()
        self._engine.check()
