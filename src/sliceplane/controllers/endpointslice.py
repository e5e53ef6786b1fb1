"""The EndpointSlice controller: Services, Pods and Nodes in, EndpointSlices out (KEP-0752).

Policy and state belong to ``slices.engine.SliceEngine``; this module decides *when* a Service is
synced. A change of the Service, or one after which an endpoint must stop receiving traffic, is
synced at once. Other changes of its Pods and Nodes wait for the batch period. Changes of its slices
wait for a second: most are echoes of our own writes, and a foreign edit is often followed by
another. A failure is retried with exponential back-off. A sync costs in proportion to the changes
since the last one, so an additional sync is cheap.

A deleted Service is forgotten; the garbage collector deletes its slices by their ownerReferences. A
Service that loses its selector, or becomes an ExternalName, hands its slices over
(``slices.succession``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_MANAGED_BY, MANAGED_BY_CONTROLLER, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import TOPOLOGY_AWARE_SUBSETTING, Gates
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.api.selectors.adoption import MANAGED_BY_ADOPTED, Scope
from sliceplane.controllers.defragment import WRITES_PER_MINUTE_DEFAULT, Defragmenter
from sliceplane.controllers.mass_removal import MassRemovals
from sliceplane.controllers.other_writers import KEY as OTHER_WRITERS
from sliceplane.controllers.other_writers import ObservantController, OtherWriters
from sliceplane.controllers.service_syncs import (
    HintProblems,
    actionable_error,
    note_about,
    to_write,
)
from sliceplane.kit.metrics import DEFAULT_BUCKETS, Family, Metrics, exponential_buckets
from sliceplane.slices.adoption import EngineClaims
from sliceplane.slices.engine import MAX_ENDPOINTS_DEFAULT, MAX_ENDPOINTS_LIMIT, SliceEngine
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.service import IMMEDIATELY
from sliceplane.slices.shape import HintMode, ServiceShape
from sliceplane.slices.subsets import Subsetting
from sliceplane.slices.succession import SelectorChanges
from sliceplane.slices.writes import FamilyChanges, SlicePlan, SliceWrite
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Job, Selection, Work

_PREFIX: Final = "endpoint_slice_controller_"
_PER_SYNC_BUCKETS: Final = exponential_buckets(2, 2, 15)

Result = Literal["success", "stale", "error"]


class SliceMetrics(Metrics):
    """The metrics of one ``EndpointSliceController``, with upstream's names, labels and buckets
    (``pkg/controller/endpointslice/metrics`` of k8s.io/endpointslice).
    """

    def __init__(self, engine: SliceEngine) -> None:
        super().__init__()
        self._changes = self.counters(
            f"{_PREFIX}changes", "Writes of slices that the server accepted.", "operation"
        )
        self._syncs = self.counters(f"{_PREFIX}syncs", "Syncs of Services by result.", "result")
        self._added = self.histogram(
            f"{_PREFIX}endpoints_added_per_sync",
            "Endpoints added by a sync, per address type.",
            _PER_SYNC_BUCKETS,
        )
        self._removed = self.histogram(
            f"{_PREFIX}endpoints_removed_per_sync",
            "Endpoints removed by a sync, per address type.",
            _PER_SYNC_BUCKETS,
        )
        self._changed = self.histograms(
            f"{_PREFIX}endpointslices_changed_per_sync",
            "Slices written by a sync, per address type.",
            DEFAULT_BUCKETS,
            "topology",
            "traffic_distribution",
        )
        for name, text, read in (
            (
                "desired_endpoint_slices",
                "Slices that would exist with perfect packing.",
                lambda: engine.totals.fewest_slices,
            ),
            ("endpoints_desired", "Endpoints that are desired.", lambda: engine.totals.endpoints),
            (
                "num_endpoint_slices",
                "Slices that exist or are being created.",
                lambda: engine.totals.slices,
            ),
        ):
            self.computed("gauge", _PREFIX + name, text, read)
        self.computed(
            "gauge",
            f"{_PREFIX}services_count_by_traffic_distribution",
            "Services by effective trafficDistribution.",
            lambda: [((group,), count) for group, count in sorted(engine.distributions.items())],
            "traffic_distribution",
        )

    def planned(self, families: Sequence[FamilyChanges]) -> None:
        for family in families:
            self._added.observe(family.added)
            self._removed.observe(family.removed)

    def synced(
        self,
        result: Result,
        shape: ServiceShape | None,
        plan: SlicePlan,
        accepted: Sequence[SliceWrite] = (),
    ) -> None:
        """Counts a sync. *accepted*: the writes that the server accepted; all of them if the result
        is "success".
        """
        self._syncs.of(result).value += 1
        for write in accepted:
            self._changes.of(write.verb).value += 1
        if result == "success" and shape is not None:
            topology = "Auto" if shape.hints is HintMode.AUTO else "Disabled"
            changed = self._changed.of(topology, shape.distribution_group)
            for family in plan.families:
                changed.observe(family.writes)


#: the slices that controllers of adopted Services need: their own, and those of upstream's
_BOTH_SETS: Final = f"{LABEL_MANAGED_BY} in ({MANAGED_BY_CONTROLLER},{MANAGED_BY_ADOPTED})"
SLICE_DELAY_MIN_S: Final = 1.0
MERGE_DELAY_MIN_S: Final = 1.0
MAX_SYNCS_LIMIT: Final = 50
EVENT_COMPONENT: Final = "endpoint-slice-controller"


class EndpointSliceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of kube-controller-manager of the same names, its feature gates, the treatment of
    slices when a selector is removed, and flags of our own.

    ``subsetting``: the approach of Services without the annotation; ``None`` if the flag is absent.
    The flag or the gate enables the feature. Raises ``ValueError`` for values that upstream
    rejects, and for contradictions.
    """

    max_endpoints_per_slice: int = MAX_ENDPOINTS_DEFAULT
    concurrent_service_endpoint_syncs: int = 5
    endpointslice_updates_batch_period_s: float = 0.0
    selector_changes: SelectorChanges = SelectorChanges.HAND_OVER
    gates: Gates = msgspec.field(default_factory=Gates)
    subsetting: Subsetting | None = None
    claim_unlabelled_slices: bool = False
    defragment: bool = False
    defragment_writes_per_minute: int = WRITES_PER_MINUTE_DEFAULT
    find_heuristic: Find = find_shipped
    hold_mass_removals: bool = False
    probe_held: bool = False
    scope: Scope = Scope.SELECTING

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("max-endpoints-per-slice", self.max_endpoints_per_slice, MAX_ENDPOINTS_LIMIT),
            (
                "concurrent-service-endpoint-syncs",
                self.concurrent_service_endpoint_syncs,
                MAX_SYNCS_LIMIT,
            ),
        ):
            if not 1 <= value <= limit:
                raise ValueError(f"{name} must be between 1 and {limit}, not {value}")
        if self.defragment_writes_per_minute < 1:
            raise ValueError(
                "defragment-writes-per-minute must be positive, not "
                f"{self.defragment_writes_per_minute}"
            )
        if (
            self.subsetting is not None
            and self.gates.chosen.get(TOPOLOGY_AWARE_SUBSETTING) is False
        ):
            raise ValueError(
                f"--subsetting contradicts the feature gate {TOPOLOGY_AWARE_SUBSETTING}=false"
            )

    @property
    def approach(self) -> Subsetting:
        if self.subsetting is not None:
            return self.subsetting
        return (
            Subsetting.ORIGINAL if self.gates.enabled(TOPOLOGY_AWARE_SUBSETTING) else Subsetting.OFF
        )


class EndpointSliceController(ObservantController):
    """The controller. Jobs are keyed ``namespace/name`` of the Service."""

    def __init__(
        self, config: EndpointSliceConfig | None = None, problems: HintProblems | None = None
    ) -> None:
        """*problems* receives the reasons why Services have no hints."""
        self._config = config or EndpointSliceConfig()
        adopts = self._config.scope is Scope.ADOPTED
        super().__init__(
            ControllerInfo(
                name="endpointslice-controller",
                aliases=("endpointslice",),
                watches=(
                    Selection(Services),
                    Selection(Pods),
                    Selection(Nodes),
                    Selection(EndpointSlices, label_selector=_BOTH_SETS if adopts else ""),
                ),
                queue="endpoint_slice",
            ),
            max_in_progress=self._config.concurrent_service_endpoint_syncs,
            plans_per_batch=None,
        )
        self._engine = SliceEngine(
            *(
                self._config.max_endpoints_per_slice,
                self._config.gates,
                self._config.find_heuristic,
            ),
            subsetting=self._config.approach,
            claims=EngineClaims(self._config.scope, self._config.claim_unlabelled_slices),
            selector_changes=self._config.selector_changes,
            retain_by_default=self._config.hold_mass_removals,
        )
        self._batch_period_s = self._config.endpointslice_updates_batch_period_s
        self._others = OtherWriters(EndpointSlices, EVENT_COMPONENT)
        self._removals = MassRemovals(self._engine, probes=self._config.probe_held)
        self._problems = problems or HintProblems()
        self._problems.begin()
        self._metrics = SliceMetrics(self._engine)
        self._metrics.include(self._removals.families)
        self._merges = (
            Defragmenter(self._config.defragment_writes_per_minute)
            if self._config.defragment
            else None
        )
        if self._merges is not None:
            self._metrics.include(self._merges.metrics.families)

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Pod():
                touched = self._engine.on_pod(*change.typed(Pod), missing=change.missing)
                self.add_touched(touched, self._batch_period_s, now)
            case Service() as service:
                self._on_service(service, gone=change.new is None, now=now)
            case Node():
                touched = self._engine.on_node(*change.typed(Node), missing=change.missing)
                self.add_touched(touched, self._batch_period_s, now)
            case EndpointSlice():
                self._on_slice(*change.typed(EndpointSlice), now=now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_service(self, service: Service, *, gone: bool, now: float) -> None:
        self._removals.on_service(service, gone=gone)
        if gone:
            self._engine.on_service_gone(service.metadata.namespace, service.metadata.name)
            self.add((service.metadata.key,), 0.0, now)
        else:
            self.add(self._engine.on_service(service), 0.0, now)

    def _on_slice(
        self, old: EndpointSlice | None, new: EndpointSlice | None, *, now: float
    ) -> None:
        keys = self._engine.on_slice(old, new)
        self.add(keys, max(SLICE_DELAY_MIN_S, self._batch_period_s), now)
        if not self._synced or old is None or new is None or not self._engine.is_ours(new):
            return
        # A drain annotates slices, and is no controller.
        if keys and _content(old) != _content(new):
            for key in keys:
                if not self._engine.is_writing(key):
                    self.note_edit(key, new.metadata, now)

    # -- work

    def take_work(self, now: float, max_jobs: int) -> Work:
        unconverged = self._engine.take_unconverged() if self._synced else ()
        if unconverged:
            self.add(unconverged, 0.0, now)
        work = super().take_work(now, max_jobs)
        relist = self._removals.take_relist()
        return msgspec.structs.replace(work, relist=relist) if relist else work

    def job(self, key: str, now: float) -> Job | None:
        if key == OTHER_WRITERS:
            return self.edit_job(now)
        if self._removals.is_own(key):
            job = self._removals.job(key, now)
            if job is None:
                self.end(key, failed=False, deadline=self._removals.next_probe(), now=now)
            return job
        plan = self._engine.plan(key, now)
        self._removals.on_notices(plan.notices)
        for removal_key, delay_s in self._removals.keys_after_plan(key, now):
            self.add((removal_key,), delay_s, now)
        if not plan.stale:
            self._problems.set(key, plan.hint_problems)
        self._metrics.planned(plan.families)
        for problem in plan.problems:
            self._warn(key, problem)
        if self._merges is not None:
            plan = self._merge(self._merges, key, plan, now)
        if plan.writes:
            self.note_own_write(key, now)
            writes = tuple(
                to_write(EndpointSlices, write, write.content.values()) for write in plan.writes
            )
            return Job(key=key, writes=writes, token=plan)
        if plan.notices:
            self._report_notices(key, plan.notices)
        self._metrics.synced("stale" if plan.stale else "success", self._engine.shape(key), plan)
        self._end(key, failed=plan.stale, now=now)
        return None

    def _merge(self, merges: Defragmenter, key: str, plan: SlicePlan, now: float) -> SlicePlan:
        """Returns *plan*, or a plan that merges slices if *plan* has no writes and the Service has
        been quiet.
        """
        if plan.writes or plan.stale:
            merges.changed(key, now)
            return plan
        if not self._engine.surplus(key):
            merges.forget(key)
            return plan
        if merges.wait(key, now):
            return plan
        merged = self._engine.merge(key, merges.budget(now), at_least_one=merges.is_full(now))
        merges.spend(len(merged.writes))
        return msgspec.structs.replace(merged, notices=plan.notices) if merged.writes else plan

    def on_done(self, done: Done, now: float) -> None:
        plan = done.job.token
        if done.job.key == OTHER_WRITERS:
            self.on_edit_read(done, now)
            return
        if self._removals.is_own(done.job.key):
            self.add(self._removals.on_done(done, now), 0.0, now)
            self.end(done.job.key, failed=done.error is not None, deadline=None, now=now)
            return
        assert isinstance(plan, SlicePlan), f"job {done.job.key} has a foreign token {plan!r}"
        error = actionable_error(done)
        accepted = plan.writes[: len(done.results)]
        if plan.saves and self._merges is not None:
            self._merges.slices_saved.value += sum(write.verb == "delete" for write in accepted)
        shape = self._engine.shape(done.job.key)
        self._metrics.synced("success" if error is None else "error", shape, plan, accepted)
        if error is not None:
            self._report_error(done.job.key, plan.writes[len(done.results)], error)
        if plan.notices:
            self._report_notices(done.job.key, plan.notices)
        self._engine.finish(done.job.key, plan, done.results, error, now)
        self._end(done.job.key, failed=error is not None, now=now)

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*self._metrics.families(), *super().samples(now))

    def _end(self, key: str, *, failed: bool, now: float) -> None:
        failed = failed and self._engine.shape(key) is not None
        deadline = self._engine.deadline(key)
        self.end(key, failed=failed, deadline=deadline, now=now)
        if deadline == IMMEDIATELY:
            self.add((key,), 0.0, now)  # the plan that has just succeeded postponed writes
        if self._merges is not None and self._merges.is_pending(key):
            # The Service is quiet, but the budget of writes was too small for the next step.
            wait = self._merges.wait(key, now) or self._merges.wait_for_writes(
                self._merges.budget(now) + 1, now
            )
            self.add((key,), max(wait, MERGE_DELAY_MIN_S), now)

    # -- Events

    def _report_error(self, key: str, write: SliceWrite, error: StatusError) -> None:
        if error.reason == "Conflict":
            return  # another writer was first; the retry builds on its version
        subject = f"{write.name} EndpointSlice" if write.name else "EndpointSlice"
        self._warn(key, f"failed to {write.verb} {subject} for Service {key}: {error.message}")

    def _warn(self, key: str, problem: str) -> None:
        message = f"Error updating Endpoint Slices for Service {key}: {problem}"
        self._report_notices(key, (Notice(True, "FailedToUpdateEndpointSlices", message),))

    def _report_notices(self, key: str, notices: tuple[Notice, ...]) -> None:
        shape = self._engine.shape(key)
        if shape is None:
            return
        meta = ObjectMeta(namespace=shape.namespace, name=shape.name, uid=shape.uid)
        self._notes.extend(
            note_about(
                *(Services, meta),
                component=EVENT_COMPONENT,
                reason=notice.reason,
                message=notice.message,
                warning=notice.warning,
            )
            for notice in notices
        )

    def check(self) -> None:
        super().check()
        self._engine.check()


def _content(observed: EndpointSlice) -> tuple[object, ...]:
    return observed.endpoints, observed.ports, observed.metadata.labels
