"""A simulator that finds nothing may be blind: each of these faults in production code is found
within a few seeds.

Every mutation is a mistake that somebody made before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from sliceplane.consume.progress import Progress
from sliceplane.consume.selections import Union
from sliceplane.controllers.objects import garbage_collector
from sliceplane.controllers.objects.ownership import OwnershipGraph
from sliceplane.controllers.objects.pod_garbage_collector import PodGarbageCollector
from sliceplane.emulation.deployments import strategy
from sliceplane.emulation.placement import PodAddresses
from sliceplane.kit.workqueue import WorkQueue
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.proxies import SimulatedProxy, SliceHistory
from sliceplane.lab.sim.roster import CLASSIC
from sliceplane.lab.sim.simulation import Options, Simulation
from sliceplane.slices import service as slice_service
from sliceplane.slices.endpoints.engine import EndpointsState
from sliceplane.slices.endpoints.mirroring import service as mirroring
from sliceplane.slices.endpoints.mirroring.desired import Mirror
from sliceplane.slices.packing import packer as packing
from sliceplane.watch import unconfirmed
from sliceplane.watch.cache import Cache, Mark
from sliceplane.watch.controller.base import Work
from sliceplane.watch.controller.expectations import Expectations
from sliceplane.watch.reflector import Reflector

SEEDS = 12


def found(
    faults: str = "heavy",
    steps: int = 50,
    *,
    first: int = 1,
    controllers: tuple[str, ...] = CLASSIC,
) -> set[str]:
    """Which invariant a seed of the classic workload breaks; *first*, which did so when it was
    tried, comes first.
    """
    for seed in (first, *range(1, SEEDS + 1)):
        chosen = parse_faults(faults)
        options = Options(
            seed=seed, steps=steps, faults=chosen, controllers=controllers, workload="classic"
        )
        violation = Simulation(options).run().violation
        if violation is not None:
            return {violation.invariant}
    return set()


def test_a_delete_lost_in_a_relist(monkeypatch: pytest.MonkeyPatch) -> None:
    """production-stack#1091: the informer takes a new list and forgets what is not in it any
    more.
    """
    original = Cache.replace

    def replace(self: Cache[Any], items: Any) -> Any:
        return tuple(change for change in original(self, items) if change.new is not None)

    monkeypatch.setattr(Cache, "replace", replace)
    assert found("none,watch-cut=0.05,compaction=0.3")


def test_an_expired_version_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """fabric8#7896: after a 410 the watch is tried again with the version that was refused."""
    original = Reflector.on_watch_ended

    def on_watch_ended(self: Reflector[Any], now: float, error: Any = None) -> None:
        version = self._version
        original(self, now, error)
        self._version = version

    monkeypatch.setattr(Reflector, "on_watch_ended", on_watch_ended)
    assert found("none,compaction=0.3") & {
        "caches-current",
        "convergence",
        "quiescence",
        "no-part-fails",
    }


def test_an_own_create_that_the_cache_does_not_show_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kubernetes/kubernetes#93374, for Pods: without read-your-writes a ReplicaSet makes too
    many.
    """
    monkeypatch.setattr(Expectations, "pending", lambda self, key, now: None)
    assert found("none,watch-delay=0.9", 25, first=5) & {
        "no-part-fails",
        "bounded-writes",
        "replicas",
        "quiescence",
    }


def test_a_full_slice_is_filled_further(monkeypatch: pytest.MonkeyPatch) -> None:
    original = packing.SlicePacker.__init__

    def init(self: Any, ports: Any, most: int, **options: Any) -> None:
        original(self, ports, most + 1, **options)

    monkeypatch.setattr(packing.SlicePacker, "__init__", init)
    assert found("none", first=4) & {"slice-maximum", "convergence"}


def test_a_failed_sync_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#127429: one 409, and the endpoint stays wrong until something else
    happens.
    """
    monkeypatch.setattr(WorkQueue, "add_rate_limited", lambda self, key, now: None)
    assert found(first=3) - {"no-part-fails"}


def test_an_endpoint_moves_by_way_of_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """nacos#10209, kubernetes/kubernetes#23034: a restart that empties what it finds and fills it
    again.
    """
    original = slice_service.ServiceState._plan_family

    def plan_family(self: Any, shape: Any, family: Any, writes: Any) -> Any:
        changes = original(self, shape, family, writes)
        if not getattr(self, "_emptied", True):
            self._emptied = True
            writes[:] = [
                slice_service.delete_slice(each) for _, each in sorted(self.slices.items())
            ]
        return changes

    monkeypatch.setattr(slice_service.ServiceState, "_plan_family", plan_family)
    monkeypatch.setattr(slice_service.ServiceState, "_emptied", False, raising=False)
    assert found("none,crash=0.5", first=2) & {"no-lost-endpoint"}


def test_the_collector_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        garbage_collector.GarbageCollector, "take_work", lambda self, now, most: Work()
    )
    assert found("none") & {
        "no-dead-owner",
        "replicas",
        "namespaces-end",
        "deleted-services-leave-nothing",
    }


def test_a_rollout_forgets_that_its_deployment_was_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "resize", lambda *_: ())
    assert found("none") & {"deployments-true"}


def test_an_address_is_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodAddresses, "record", lambda self, uid, addresses: None)
    assert found("none,crash=0.3", first=2) & {"one-address-one-pod", "no-part-fails"}


def test_a_collector_believes_a_cache_that_does_not_show_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kubernetes#88097: dependents seen before their owner, and collected at once."""
    monkeypatch.setattr(OwnershipGraph, "is_gone", lambda self, claim: self.find(claim) is None)
    assert found("none,watch-delay=0.9", 25, first=8) & {"no-premature-collection"}


OLDER = (*CLASSIC, "endpoints", "endpointslice-mirroring")


def test_endpoints_are_written_once_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desired = EndpointsState._desired

    def once(self: Any, *args: Any) -> Any:
        return None if self._meta is not None else desired(self, *args)

    monkeypatch.setattr(EndpointsState, "_desired", once)
    assert found("none", controllers=OLDER) == {"endpoints-true"}


def test_nothing_is_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "mirror_of", lambda endpoints, most: Mirror())
    assert found("none", first=3, controllers=OLDER) == {"mirror-true"}


def test_pods_of_a_node_that_is_gone_are_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodGarbageCollector, "check", lambda self: None)
    monkeypatch.setattr(PodGarbageCollector, "_quarantine", lambda self, node, now: None)
    assert found("none", controllers=(*CLASSIC, "pod-garbage-collector")) == {"no-orphaned-pod"}


def found_by_proxies(seeds: Iterable[int] = range(1, 7)) -> set[str]:
    """As ``found``, in the full workload, where there are node proxies; few controllers, since it
    is not about them.
    """
    chosen = parse_faults("normal")
    names = ("endpointslice", "kubelet", "replicaset", "deployment", "traffic-distribution")
    for seed in seeds:
        options = Options(seed=seed, steps=50, faults=chosen, controllers=names, workload="full")
        violation = Simulation(options).run().violation
        if violation is not None:
            return {violation.invariant}
    return set()


def test_a_version_is_told_that_came_while_rules_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_written(self: Progress, family: Any) -> None:
        self._applied_by_family[family] = dict(self._observed)

    monkeypatch.setattr(Progress, "on_written", on_written)
    assert found_by_proxies() == {"mark-never-early"}


def test_a_slice_that_left_every_reading_stays_in_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Union.on_change

    def on_change(self: Union, selection: str, old: Any, new: Any) -> Any:
        return None if new is None else original(self, selection, old, new)

    monkeypatch.setattr(Union, "on_change", on_change)
    assert found_by_proxies() == {"mark-never-early"}


def test_the_greatest_version_of_all_readings_is_told_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one watch showed says nothing of another."""
    original = Progress.on_mark

    def on_mark(self: Progress, resource: str, selection: str, mark: Mark | None) -> None:
        original(self, resource, selection, mark)
        newest = max(applied.revision for applied in self._observed.values())
        self._observed = {
            scope: applied._replace(revision=newest) for scope, applied in self._observed.items()
        }

    monkeypatch.setattr(Progress, "on_mark", on_mark)
    assert found_by_proxies((3, *range(1, 7))) & {"mark-never-early", "mark-digest-true"}


def test_a_lost_event_is_named_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimulatedProxy._on_changes
    seen = Counter[str]()

    def on_changes(self: SimulatedProxy, name: str, changes: Any) -> None:
        seen[self.actor] += 1
        original(self, name, () if seen[self.actor] == 30 else changes)

    monkeypatch.setattr(SimulatedProxy, "_on_changes", on_changes)
    monkeypatch.setattr(
        SimulatedProxy, "_check", lambda self, told: None
    )  # the simulator knows it sooner
    assert found_by_proxies() == {"no-false-alarm"}, (
        "the controllers name it, and this time they are right"
    )


def test_bookmarks_are_not_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of another zone is deleted: only a bookmark says that this concerns nothing that is
    read here.
    """
    original = Reflector.on_watch_event

    def on_watch_event(self: Reflector[Any], kind: str, body: bytes, now: float) -> None:
        reached = self.reached
        original(self, kind, body, now)
        if kind == "BOOKMARK":
            self.reached = reached

    def last(self: SliceHistory, reading: str) -> int:
        return max((commits[-1].revision for commits in self._commits.values()), default=0)

    monkeypatch.setattr(SliceHistory, "last", last)
    seeds = (1,)  # at which it shows: what is true of it with bookmarks must be false without
    assert found_by_proxies(seeds) == set(), (
        "bookmarks raise every reading to the last commit of all"
    )
    monkeypatch.setattr(Reflector, "on_watch_event", on_watch_event)
    assert found_by_proxies(seeds) == {"mark-reaches-all"}


def test_half_a_list_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that was cut short takes endpoints from traffic that are alive."""
    monkeypatch.setattr(unconfirmed, "part_kept", lambda held, items: 1.0)
    assert found("none,short-list=1,compaction=0.3", first=2) & {
        "no-lost-endpoint",
        "caches-current",
    }
