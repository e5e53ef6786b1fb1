"""The machine's clock is set while the plane runs: watches, informers and controllers go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import eventually

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.server.store.hub import BOOKMARK_PERIOD_S

START = 1_800_000_000.0
POD = {
    "metadata": {"name": "p", "labels": {"app": "web"}},
    "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
}
READY = {
    "status": {
        "phase": "Running",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
}
SERVICE = {
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
}


@pytest.mark.looptime
@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
async def test_a_ready_pod_reaches_its_slice_after_the_clock_was_set(jump_s: float) -> None:
    ahead = 0.0
    loop = asyncio.get_running_loop()
    began = loop.time()
    service = ControllerService(default_controllers())
    config = PlaneConfig(secure_port=0, data_dir="memory:")
    async with ServerPlane(
        config, (service,), clock=lambda: START + ahead + loop.time() - began
    ) as plane:
        client = plane.client("test")
        await client.create(Nodes, "", encode({"metadata": {"name": "n"}}))
        await client.create(Services, "default", encode(SERVICE))
        await asyncio.sleep(30)
        ahead = jump_s
        await asyncio.sleep(30)
        watches = len(plane.hub)
        await client.create(Pods, "default", encode(POD))
        await client.patch(
            Pods, "default", "p", encode(READY), patch_type="strategic", subresource="status"
        )
        slices = Selection(EndpointSlices, label_selector="kubernetes.io/service-name=web")
        await eventually(
            lambda: client.list(slices),
            lambda page: any(decode_document(item)["endpoints"] for item in page.items),
        )
        assert len(plane.hub) == watches, "no watch ended because of the clock"
        due = plane.hub.next_deadline()
        assert due is not None
        assert 0 < due - loop.time() <= BOOKMARK_PERIOD_S, (
            "bookmarks go on, and no watch is over before its time"
        )
