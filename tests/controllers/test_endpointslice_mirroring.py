"""The mirroring controller between a lagging cache and a failing server: what users were bitten by,
hosts rely on.
"""

from __future__ import annotations

import pytest
from tests.controllers.mirrored_plane import SKIPPED, Plane, custom, subset
from tests.slices.fake_cluster import FakeCluster, make_service, replace

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpointslice_mirroring import (
    FIRST_SYNC_TIMEOUT_S,
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.controllers.service_syncs import PLANS_PER_TURN, FirstSync

# Caches, answers, failures


def test_slice_changes_wait_for_the_batch_period_and_others_do_not() -> None:
    plane = Plane(custom(), config=MirroringConfig(endpointslice_updates_batch_period_s=5.0))
    plane.settle()
    plane.cluster.remove(EndpointSlices, "shop", plane.one().metadata.name)
    plane.deliver()
    assert plane.jobs(4.0) == ()
    assert len(plane.jobs(1.5)) == 1
    plane.cluster.put(custom(subset("192.0.2.2"), name="other"))
    plane.show(make_service("other", selector=None))
    assert len(plane.jobs()) == 1


# The start


def test_nothing_is_mirrored_before_the_endpoints_controllers_first_sync() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert controller.take_work(1000.0, 10).jobs == ()
    deadline = controller.next_deadline()
    assert deadline is not None
    assert controller.take_work(deadline, 10).jobs == ()
    first_sync.end()
    assert len(controller.take_work(deadline, 10).jobs) == 1
    first_sync.begin()
    cluster.put(custom(subset("192.0.2.3"), name="other"))
    cluster.put(make_service("other", selector=None))
    cluster.deliver(controller, deadline)
    assert len(controller.take_work(deadline, 10).jobs) == 1, (
        "an Endpoints controller that starts again stops nobody"
    )


def test_first_sync_that_never_ends_is_not_waited_for_for_ever() -> None:
    first_sync = FirstSync()
    first_sync.begin()
    controller = EndpointSliceMirroringController(None, first_sync)
    cluster = FakeCluster()
    cluster.put(make_service(selector=None))
    cluster.put(custom())
    cluster.start(controller, 1000.0)
    assert len(controller.take_work(1000.0 + FIRST_SYNC_TIMEOUT_S, 10).jobs) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"max_endpoints_per_subset": 0},
        {"max_endpoints_per_subset": 1001},
        {"concurrent_service_endpoint_syncs": 51},
    ],
)
def test_config_refuses_what_upstream_refuses(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mirroring"):
        MirroringConfig(**values)  # type: ignore[arg-type]  # integers


def test_kubernetes_128928_churn_leaves_nothing_behind() -> None:
    """kubernetes/kubernetes#128928."""
    plane = Plane()
    for number in range(100):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(custom(name=f"s{number}"))
    plane.settle()
    assert len(plane.slices()) == 100
    assert plane.controller._engine.totals == (100, 100, 100)
    for number in range(100):
        plane.cluster.remove(EndpointsObjects, "shop", f"s{number}")
        plane.cluster.remove(Services, "shop", f"s{number}")
    plane.settle()
    assert (plane.controller._engine._states, plane.controller._engine._selecting) == (
        {},
        {"shop/web": False},
    )
    assert plane.controller._engine.totals == (0, 0, 0)


def test_a_start_with_much_to_look_at_gives_others_their_turn() -> None:
    plane = Plane()
    for number in range(2 * PLANS_PER_TURN):
        plane.cluster.put(make_service(f"s{number}", selector=None))
        plane.cluster.put(replace(custom(name=f"s{number}"), subsets=None))
    plane.begin()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() == plane.now, "there is more, at once"
    assert plane.controller._queue.depth == PLANS_PER_TURN
    assert plane.jobs() == ()
    assert plane.jobs() == ()
    assert plane.controller.next_deadline() is None


# Figures


def test_figures_are_upstreams() -> None:
    plane = Plane(custom(subset("192.0.2.1", "192.0.2.2", "x")))
    plane.settle()
    plane.put(custom(subset("192.0.2.1", "192.0.2.3")))
    plane.put(custom(labels=SKIPPED))
    found = {family.name: family for family in plane.controller.samples(plane.now)}
    prefix = "endpoint_slice_mirroring_controller_"
    assert {name for name in found if name.startswith(prefix)} == {
        prefix + name
        for name in (
            *(
                "addresses_skipped_per_sync",
                "changes",
                "desired_endpoint_slices",
                "endpoints_added_per_sync",
            ),
            *("endpoints_desired", "endpoints_removed_per_sync", "endpoints_sync_duration"),
            *("endpoints_updated_per_sync", "num_endpoint_slices"),
        )
    }
    changes = {sample.labels: sample.value for sample in found[prefix + "changes"].samples}
    assert changes == {("create",): 1, ("update",): 1}, (
        "what goes because nothing is mirrored is not counted"
    )
    assert found[prefix + "endpoints_added_per_sync"].samples[0].value.total == 3  # type: ignore[union-attr]
    assert found[prefix + "endpoints_removed_per_sync"].samples[0].value.total == 1  # type: ignore[union-attr]
    assert found[prefix + "addresses_skipped_per_sync"].samples[0].value.total >= 1  # type: ignore[union-attr]
    assert found["workqueue_depth"].samples[0].labels == ("endpoint_slice_mirroring",)
