"""A node proxy follows the server once its watches are open: a right to list alone brings no
change.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.api.scheme import Services
from sliceplane.cli.run import proxy as proxy_command
from sliceplane.kit.rng import Rng
from sliceplane.node.io.inputs import InputHandlers, Inputs
from sliceplane.node.io.node_proxy import watches
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.reflect import loop_clock


async def test_it_follows_nothing_while_a_watch_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        plain_watch = client.watch
        forbidden = [Services.key]
        refused: list[str] = []

        def watch(selection: Any, **how: Any) -> Any:
            if selection.resource.key in forbidden:
                refused.append(selection.resource.key)
                raise StatusError(403, "Forbidden", "services is forbidden: cannot watch")
            return plain_watch(selection, **how)

        monkeypatch.setattr(client, "watch", watch)
        synced: set[str] = set()
        inputs = Inputs(
            client,
            watches("node-1", Gates()),
            InputHandlers(lambda *_: None, lambda *_: None, synced.add, lambda _: None),
            clock=loop_clock(1000.0),
            rng=Rng(1),
        )
        running = asyncio.create_task(inputs.run())
        following = asyncio.create_task(inputs.followed())
        try:
            await eventually(lambda: len(synced) == 4 and len(refused) >= 2)
            assert not following.done(), "all was listed, and no change of a Service would be seen"
            forbidden.clear()
            await asyncio.wait_for(following, 60)
        finally:
            running.cancel()
            following.cancel()
            await asyncio.gather(running, following, return_exceptions=True)


async def test_the_command_is_ready_once_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it has listed and written alone."""
    said: list[str] = []
    monkeypatch.setattr(proxy_command, "print_ready", said.append)
    watches_open = asyncio.Event()

    class Written:
        """A proxy that has written its rules."""

        async def wait_ready(self, *, following: bool = False) -> None:
            if following:
                await watches_open.wait()

        def counts(self) -> dict[str, tuple[int, int]]:
            return {"IPv4": (7, 1)}

    line_printer = asyncio.create_task(proxy_command._print_ready(Written(), "node-1"))  # type: ignore[arg-type]  # its part
    for _ in range(5):
        await asyncio.sleep(0)
    assert said == []
    watches_open.set()
    await asyncio.wait_for(line_printer, 60)
    assert said == ["node=node-1 ipv4-services=7"]
