"""Slips of a view's user: each is told at once and in words, none is a view that stays empty or a
wait without end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.client.conftest import Writer, endpoint
from tests.server.serving import Server

from sliceplane.client import EndpointView, HttpClient, NoEndpoint, NotReady, SyncEndpointView


@pytest.mark.parametrize(
    ("service", "options", "sentence"),
    [
        ("", {}, "'' is no name of a Service"),
        ("Web", {}, "'Web' is no name of a Service"),
        ("web.shop", {}, "'web.shop' is no name of a Service"),
        ("web", {"namespace": ""}, "'' is no name of a namespace"),
        ("web", {"port": 0}, "0 is no number of a port"),
        ("web", {"port": 70000}, "70000 is no number of a port"),
        ("web", {"protocol": "tcp"}, "protocol is 'tcp', it must be one of TCP, UDP, SCTP"),
        ("web", {"family": "ipv4"}, "family is 'ipv4', it must be None or one of IPv4, IPv6"),
    ],
)
async def test_what_no_service_can_be(
    client: HttpClient, live: Server, service: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        EndpointView(client, service, **options)
    with (
        pytest.raises(ValueError, match=f"^{sentence}$"),
        SyncEndpointView(service, path=live.plane.kubeconfig, **options),
    ):
        pass


async def test_a_view_that_was_not_started(client: HttpClient) -> None:
    view = EndpointView(client, "web")
    with pytest.raises(ValueError, match="not started"):
        await view.wait_ready(1)
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="not started"):
            async for _ in view:
                pass
    await view.close()


async def test_no_service_of_that_name(client: HttpClient, writer: Writer) -> None:
    async with EndpointView(client, "webb", writer.namespace) as view:
        await view.wait_synced(60)
        with pytest.raises(
            NoEndpoint,
            match=f"{writer.namespace}/webb has no EndpointSlices: is that the Service's name",
        ):
            view.random().pick()


def test_the_synchronous_face_after_its_end(live: Server) -> None:
    with SyncEndpointView("web", path=live.plane.kubeconfig) as view:
        pass
    view.close()
    assert view.endpoints == ()
    with pytest.raises(NotReady, match="the view is closed: "):
        view.wait_ready(1)
    assert list(view.changes()) == []


async def test_what_was_known_is_ready_after_the_end(live: Server, writer: Writer) -> None:
    await writer.put("a", endpoint(1))

    def use() -> None:
        with SyncEndpointView("web", writer.namespace, path=live.plane.kubeconfig) as view:
            view.wait_ready(10)
        view.wait_ready(1)
        assert [each.pod for each in view.endpoints] == ["web-1"]

    await asyncio.to_thread(use)


def test_nobody_waits_for_a_thread_that_ended(live: Server) -> None:
    """Closed while others begin to wait: each of them comes to an end, whichever was first."""

    def wait(view: SyncEndpointView) -> None:
        with pytest.raises(NotReady):
            view.wait_ready(3600, count=9)
        ended.append(len(list(view.changes())))

    ended: list[int] = []
    for number in range(20):
        with SyncEndpointView("web", path=live.plane.kubeconfig) as view:
            waiting = [threading.Thread(target=wait, args=(view,), daemon=True) for _ in range(2)]
            for each in waiting:
                each.start()
            time.sleep(number % 5 * 0.001)
        for each in waiting:
            each.join(60)
    assert ended == [0] * 40
