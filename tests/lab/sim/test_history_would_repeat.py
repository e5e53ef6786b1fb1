"""A regression test that cannot fail tells nothing: each historic bug, put back into the code,
fails its test.

Each is put back as small as it was: a comparison left out, an error that takes others along, a
retry not made.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import pytest
from tests.controllers import (
    test_endpoints_controller,
    test_endpointslice_controller,
    test_endpointslice_mirroring,
)
from tests.lab.sim import test_history_endpoints as classic
from tests.lab.sim import test_history_endpointslice as slices
from tests.lab.sim import test_selector_life as selectors
from tests.watch.controller import test_event_cost as costs

from sliceplane.api.core import Pod
from sliceplane.api.discovery import ANNOTATION_OVER_CAPACITY
from sliceplane.kit.containers import Passed
from sliceplane.kit.workqueue import WorkQueue
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.server import Server
from sliceplane.server.registry.kinds.network import endpoint_slice as slice_rules
from sliceplane.server.registry.kinds.network import endpoints
from sliceplane.server.registry.validation import addresses
from sliceplane.slices.endpoints.engine import EndpointsEngine, EndpointsState
from sliceplane.slices.endpoints.mirroring.engine import MirrorEngine
from sliceplane.slices.endpoints.mirroring.service import MirrorState
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.pod_routes import UNTOUCHED, SelectorIndex
from sliceplane.slices.service import ServiceState
from sliceplane.slices.writes import SlicePlan
from sliceplane.watch.cache import Cache
from sliceplane.watch.controller.own_writes import OwnWrites
from sliceplane.watch.reflector import Reflector, ReflectorConfig

Patch = pytest.MonkeyPatch
_Remembering: Final = type(lru_cache(int))


def a_relist_forgets_silently(patch: Patch) -> None:
    original = Cache.replace
    patch.setattr(
        Cache,
        "replace",
        lambda self, items: tuple(c for c in original(self, items) if c.new is not None),
    )


def silence_is_not_noticed(patch: Patch) -> None:
    init = Reflector.__init__
    patient = ReflectorConfig(idle_timeout_s=1e9)
    patch.setattr(Reflector, "__init__", lambda self, cache, rng: init(self, cache, rng, patient))


def a_watch_begins_now(patch: Patch) -> None:
    """What happened while there was no watch is nobody's."""
    watch = Server.watch
    patch.setattr(
        Server,
        "watch",
        lambda self, watched, _, timeout: watch(self, watched, str(self.store.revision), timeout),
    )


def a_refused_version_is_tried_again(patch: Patch) -> None:
    original = Reflector.on_watch_ended

    def on_watch_ended(self: Any, now: float, error: Any = None) -> None:
        version = self._version
        original(self, now, error)
        self._version = version

    patch.setattr(Reflector, "on_watch_ended", on_watch_ended)


def a_conflict_is_the_end(patch: Patch) -> None:
    """Nothing is tried again, and what the cache shows of our slices wakes nobody up."""
    on_slice = SliceEngine.on_slice
    patch.setattr(WorkQueue, "add_rate_limited", lambda self, key, now: 0.0)
    patch.setattr(SliceEngine, "on_slice", lambda self, old, new: on_slice(self, old, new)[:0])


def the_cache_alone_is_believed(patch: Patch) -> None:
    """Answers to own writes are thrown away."""
    patch.setattr(OwnWrites, "succeeded", lambda self, write, answer, read, now: "")


def a_full_object_is_not_looked_at(patch: Patch) -> None:
    desired = EndpointsState._desired

    def skip(self: Any, *args: Any) -> Any:
        full = self._meta is not None and ANNOTATION_OVER_CAPACITY in (self._meta.annotations or {})
        return None if full else desired(self, *args)

    patch.setattr(EndpointsState, "_desired", skip)


def one_endpoint_left_out_holds_up_all(patch: Patch) -> None:
    plan = ServiceState.plan

    def whole(self: Any, now: float) -> SlicePlan:
        return SlicePlan(stale=True) if self.members and self.members._skipped else plan(self, now)

    patch.setattr(ServiceState, "plan", whole)


def a_zone_that_comes_late_is_not_seen(patch: Patch) -> None:
    on_node = SliceEngine.on_node

    def once(self: SliceEngine, old: Any, new: Any, *, missing: bool = False) -> Any:
        return UNTOUCHED if old is not None else on_node(self, old, new, missing=missing)

    patch.setattr(SliceEngine, "on_node", once)


def pods_are_told_apart_by_address(patch: Patch) -> None:
    """The last one to be seen with an address has it."""
    from sliceplane.slices.members import SliceMembers

    put = SliceMembers.set

    def by_address(self: Any, pod: Any) -> Any:
        for other in list(self._pods):
            if other != pod.name and self._pods[other].pod.status.pod_ip == pod.pod.status.pod_ip:
                return put(self, self._pods[other])
        return put(self, pod)

    patch.setattr(SliceMembers, "set", by_address)


def nobody_hands_over(patch: Patch) -> None:
    """Slices of a Service without selector are left where they are, whoever has made others."""
    patch.setattr(ServiceState, "on_successor", lambda self, observed: False)
    patch.setattr("sliceplane.slices.service.HAND_OVER_TIMEOUT_S", 1e9)


def finished_pods_stay(patch: Patch) -> None:
    patch.setattr(Pod, "has_ended", property(lambda _pod: False))


def a_restart_begins_with_nothing(patch: Patch) -> None:
    """What others made before is deleted and made again."""
    from sliceplane.slices import service

    plan_family = ServiceState._plan_family

    def empty_first(self: Any, shape: Any, family: Any, writes: Any) -> Any:
        changes = plan_family(self, shape, family, writes)
        if not self._emptied:
            self._emptied = True
            writes[:] = [service.delete_slice(each) for _, each in sorted(self.slices.items())]
        return changes

    patch.setattr(ServiceState, "_plan_family", empty_first)
    patch.setattr(ServiceState, "_emptied", False, raising=False)


def own_creates_are_forgotten(patch: Patch) -> None:
    succeeded = OwnWrites.succeeded

    def forget(self: Any, write: Any, answer: bytes, read: Any, now: float) -> str:
        return "" if write.verb == "create" else succeeded(self, write, answer, read, now)

    patch.setattr(OwnWrites, "succeeded", forget)


def a_hundred_ports_are_the_limit(patch: Patch) -> None:
    patch.setattr(slice_rules, "PORTS_MAX", 100)


def nothing_is_forgotten(patch: Patch) -> None:
    for engine in (SliceEngine, EndpointsEngine, MirrorEngine):
        patch.setattr(engine, "_drop_if_empty", lambda self, state: None)


def every_selector_is_looked_at(patch: Patch) -> None:
    """As where all of a namespace's Services are gone through for each Pod."""

    def matching(self: Any, namespace: str, labels: dict[str, str]) -> Any:
        found = {}
        for (space, _), (pair, selector) in self._filed.items():
            keys = tuple(sorted(selector))
            if space == namespace and all(labels.get(key) == selector[key] for key in keys):
                found |= self._buckets[(space, *pair)][keys][tuple(selector[key] for key in keys)]
        return found

    patch.setattr(SelectorIndex, "matching", matching)


def any_address_will_do(patch: Patch) -> None:
    for rules in (addresses, slice_rules):
        patch.setattr(rules, "special_problem", lambda address: "")
    # They would answer from what they know.
    patch.setattr(addresses, "plain_version", lambda text: 0)
    patch.setattr(slice_rules, "_PLAIN", Passed(1, lambda endpoint: False))
    patch.setattr(endpoints, "_SPELLED", Passed(1, lambda ip: False))
    patch.setattr(endpoints, "_FINE", Passed(1, lambda address: False))


def any_service_is_good_enough(patch: Patch) -> None:
    """Endpoints are mirrored whether there is a Service or not."""
    patch.setattr(MirrorState, "_is_mirrored", property(lambda self: self.endpoints is not None))


def selector_goes_and_comes() -> None:
    selectors.test_kubernetes_103804_a_selector_goes_and_comes_and_traffic_has_somewhere_to_go(0, 1)


def event_cost_of(make: Callable[[], Any]) -> Callable[[], None]:
    return lambda: (
        costs.test_kubernetes_134739_a_pod_event_costs_the_same_in_a_namespace_of_any_size(make)
    )


BUGS: tuple[tuple[Callable[[Patch], None], Callable[[], None]], ...] = (
    (
        a_relist_forgets_silently,
        slices.test_kubernetes_115658_a_delete_in_a_watch_gap_is_told_by_the_next_list,
    ),
    (
        a_refused_version_is_tried_again,
        slices.test_fabric8_7896_a_history_that_is_gone_is_listed_anew_within_a_bound,
    ),
    (silence_is_not_noticed, slices.test_kopf_585_a_half_open_connection_is_found_out_by_silence),
    (
        the_cache_alone_is_believed,
        slices.test_kubernetes_127429_what_was_written_counts_before_the_cache_shows_it,
    ),
    (
        a_conflict_is_the_end,
        slices.test_kubernetes_127429_ready_not_ready_ready_within_the_lag_and_one_conflict,
    ),
    (
        a_full_object_is_not_looked_at,
        classic.test_kubernetes_127370_over_a_thousand_addresses_and_back,
    ),
    (
        one_endpoint_left_out_holds_up_all,
        slices.test_kubernetes_107927_a_pod_on_an_unknown_node_degrades_alone,
    ),
    (
        a_zone_that_comes_late_is_not_seen,
        slices.test_kubernetes_123401_the_zone_label_comes_after_the_node,
    ),
    (
        pods_are_told_apart_by_address,
        slices.test_kubernetes_135334_a_ghost_and_a_live_pod_with_one_address,
    ),
    (nobody_hands_over, selector_goes_and_comes),
    (
        any_service_is_good_enough,
        classic.test_llmkube_895_a_mirror_ends_with_its_service_and_does_not_come_back,
    ),
    (
        a_watch_begins_now,
        slices.test_cilium_48050_a_deletion_while_the_api_is_away_and_nothing_after_it,
    ),
    (
        finished_pods_stay,
        slices.test_kubernetes_109414_the_address_of_a_failed_pod_is_given_to_another,
    ),
    (finished_pods_stay, classic.test_kubernetes_109414_the_address_of_a_failed_pod_is_not_told),
    (
        a_restart_begins_with_nothing,
        slices.test_nacos_10209_a_restart_pushes_nothing_empty_and_writes_nothing,
    ),
    (
        nothing_is_forgotten,
        test_endpoints_controller.test_kubernetes_128928_churn_leaves_nothing_behind,
    ),
    (
        nothing_is_forgotten,
        test_endpointslice_controller.test_kubernetes_128928_churn_leaves_nothing_behind,
    ),
    (
        nothing_is_forgotten,
        test_endpointslice_mirroring.test_kubernetes_128928_churn_leaves_nothing_behind,
    ),
    (every_selector_is_looked_at, event_cost_of(SliceEngine)),
    (every_selector_is_looked_at, event_cost_of(EndpointsEngine)),
    (
        any_address_will_do,
        classic.test_kubernetes_102106_special_addresses_are_refused_and_nobody_mirrors_them,
    ),
    (a_hundred_ports_are_the_limit, slices.test_kubernetes_99382_more_than_a_hundred_ports),
    (
        own_creates_are_forgotten,
        slices.test_kubernetes_93374_own_creates_that_the_cache_does_not_show_are_not_repeated,
    ),
)


@pytest.fixture(autouse=True)
def nothing_is_known_from_a_bug() -> Iterator[None]:
    """What was remembered while a rule was broken is forgotten: later tests run in the same
    process.
    """
    yield
    for each in gc.get_objects():
        if type(each) is Passed:
            each._passed.clear()
        elif type(each) is _Remembering:
            each.cache_clear()


@pytest.mark.parametrize(
    ("bug", "scenario"), BUGS, ids=[f"{b.__name__}-{s.__name__}" for b, s in BUGS]
)
def test_a_bug_put_back_is_found(
    bug: Callable[[Patch], None], scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, Broken, pytest.fail.Exception)):
        scenario()
