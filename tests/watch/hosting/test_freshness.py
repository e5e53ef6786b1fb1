"""What health pages of controllers say when caches are old: which, since when, why; and who is
started anew for it.
"""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.waiting import eventually
from tests.watch.hosting.test_older_clusters import Older

from sliceplane.api.errors import StatusError, forbidden, unauthorized, unreachable
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, Resource, Services
from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.freshness import complaint, stuck
from sliceplane.controllers.io.standalone import Standalone
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.actions import Counters
from sliceplane.watch.controller.base import Selection
from sliceplane.watch.controller.events import RecorderStatus
from sliceplane.watch.io.hosting.host import HostStatus
from sliceplane.watch.io.hosting.informers import InformerStatus
from sliceplane.watch.io.hosting.loop_shell import ControllerTally
from sliceplane.watch.io.hosting.runner import ControllerStatus

NOW = 1_800_000_000.0
FORBIDDEN = forbidden("endpointslices", "discovery.k8s.io", "", "no RBAC policy matched")


def informer(
    resource: Resource, age: float, error: StatusError | None = None, **scope: str
) -> InformerStatus:
    said = None if error is None else (error, NOW - age)
    return InformerStatus(
        Selection(resource, **scope), age < math.inf, age, 3, 0, "7", Counters(), said
    )


def status(*informers: InformerStatus) -> HostStatus:
    filled = all(each.synced for each in informers)
    controller = ControllerStatus(
        "endpointslice-controller", True, filled, 0, 0, ControllerTally(), ""
    )
    return HostStatus(informers, (controller,), RecorderStatus(0, 0, 0, 0, 0), NOW)


def test_a_right_that_was_taken_away_is_named_with_its_cache_and_its_time_and_no_restart_is_asked_for() -> (
    None
):
    found = status(informer(Pods, 3.0), informer(EndpointSlices, 270.0, FORBIDDEN))
    text = complaint(found)
    assert text.startswith(
        "the cache of endpointslices.discovery.k8s.io was last known current 270 s ago, at "
        "2027-01-15T07:55:30Z: "
    ), text
    assert "no RBAC policy matched" in text
    assert text.endswith("(403 Forbidden)"), text
    assert stuck(found) == "", "a restart gives no rights"


def test_a_server_that_is_away_for_long_is_a_reason_to_begin_anew_as_before() -> None:
    away = informer(Services, 270.0, unreachable("connection refused"))
    assert "services was last known current 270 s ago" in stuck(status(away, informer(Pods, 3.0)))
    assert "connection refused" in stuck(status(away))
    assert stuck(status(informer(Services, 200.0, unreachable("connection refused")))) == "", (
        "not yet"
    )
    assert "its watch is silent" in stuck(status(informer(Services, 270.0)))
    assert stuck(status(informer(Services, 270.0, unauthorized()))), (
        "credentials are read at the start"
    )


def test_one_lost_right_does_not_hide_a_cache_that_is_stuck() -> None:
    both = status(informer(EndpointSlices, 900.0, FORBIDDEN), informer(Pods, 270.0))
    assert "endpointslices" in complaint(both)
    assert "pods was last" in complaint(both)
    assert "pods was last" in stuck(both)
    assert "endpointslices" not in stuck(both)


def test_many_stale_caches_are_named_up_to_a_few_the_oldest_first() -> None:
    ages = {Services: 300.0, Pods: 400.0, Nodes: 500.0, EndpointSlices: 600.0}
    leases = informer(Leases, 700.0, namespace="kube-node-lease", label_selector="a=b")
    text = complaint(status(*(informer(each, age) for each, age in ages.items()), leases))
    assert text.startswith(
        "the cache of leases.coordination.k8s.io (kube-node-lease, a=b) was last"
    )
    assert text.index("endpointslices") < text.index("nodes")
    assert text.endswith("; and 2 more")


@pytest.mark.looptime
async def test_controllers_that_may_not_read_from_the_start_say_what_and_why() -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = Older(plane.client("system:admin"), {EndpointSlices.key: FORBIDDEN})
        running = Standalone(client, default_controllers()[:1], None)  # type: ignore[arg-type]
        task = asyncio.create_task(running.run())
        try:
            await eventually(lambda: client.refused)
            await asyncio.sleep(1)
            pages = running.pages()
            ready = pages["/readyz"]()
            assert not ready.healthy
            text = ready.body.decode()
            assert (
                "caches of endpointslice-controller are not filled "
                "(endpointslices.discovery.k8s.io: " in text
            )
            assert "no RBAC policy matched (403 Forbidden))" in text
            assert pages["/livez"]().healthy
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
