"""An informer over each real client: after a lot of churn its view is what the server has."""

from __future__ import annotations

import asyncio
import time

from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.reflect import RunningInformer, loop_clock


async def test_an_informer_follows_a_real_server(client: Client, namespace: str) -> None:
    view: dict[str, str] = {}

    def on_changes(changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            metadata = change.object.metadata
            if change.new is None:
                del view[metadata.name]
            else:
                view[metadata.name] = metadata.resource_version

    async def put(name: str) -> None:
        await client.create(ConfigMaps, namespace, codec.encode({"metadata": {"name": name}}))

    for number in range(3):
        await put(f"before-{number}")
    informer: RunningInformer[Object] = RunningInformer(
        client,
        Selection(ConfigMaps, namespace),
        clock=loop_clock(time.time()),
        rng=Rng(1),
        kind=Object,
    )
    informer.add_handler(on_changes, lambda: None)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.wait_synced(), 60)
    assert sorted(view) == ["before-0", "before-1", "before-2"]
    for number in range(10):
        await put(f"after-{number}")
        await client.patch(
            ConfigMaps, namespace, f"after-{number}", b'{"data":{"x":"1"}}', patch_type="merge"
        )
        if number % 2:
            await client.delete(ConfigMaps, namespace, f"after-{number}")
    page = await client.list(Selection(ConfigMaps, namespace))
    there = [codec.decode(item, Object).metadata for item in page.items]
    wanted = {metadata.name: metadata.resource_version for metadata in there}
    await eventually(lambda: view, lambda held: held == wanted)
    assert informer.reflector.counters.failures == 0
    informer.reflector.check()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
