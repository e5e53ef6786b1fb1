"""A running plane forgets Events after an hour, and counts them."""

from __future__ import annotations

import asyncio

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Events
from sliceplane.server.io.config import Periods
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.server.registry.expiry import EVENT_TTL_S

START = 1_800_000_000.0


@pytest.mark.looptime
async def test_an_event_is_gone_after_an_hour() -> None:
    loop, ahead_s, look_s = asyncio.get_running_loop(), 0.0, Periods().expiry_s
    config = PlaneConfig(data_dir="memory:", secure_port=0)
    async with ServerPlane(config, clock=lambda: START + ahead_s + loop.time()) as plane:
        client = plane.client("tester")
        event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
        await client.create(Events, "default", encode(event))
        await asyncio.sleep(2 * look_s)
        ahead_s = EVENT_TTL_S - 5 * look_s
        await asyncio.sleep(2 * look_s)
        assert await client.get(Events, "default", "e")
        ahead_s = EVENT_TTL_S
        await asyncio.sleep(2 * look_s)
        with pytest.raises(StatusError, match="not found"):
            await client.get(Events, "default", "e")
        samples = {family.name: family.samples for family in plane.metrics.families()}
        assert [sample.value for sample in samples["sliceplane_expired_events_total"]] == [1]
