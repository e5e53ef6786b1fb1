"""The health page: red when the kernel lacks something old."""

from __future__ import annotations

import json

import aiohttp
import pytest

from sliceplane.proxy.schedule import Freshness
from sliceplane.shell.node_proxy import ProxyHealth
from sliceplane.shell.pages import serve_pages
from sliceplane.shell.proxy_healthz import health_pages

GOOD = ProxyHealth(True, True, (("IPv4", Freshness(1000.0, None, None, 0)), ("IPv6", Freshness(None, None, 1100.0, 0))))
BAD = ProxyHealth(False, True, (("IPv4", Freshness(1000.0, 1099.0, 1010.0, 7)),))


@pytest.mark.parametrize("path", ["healthz", "livez"])
async def test_page(path: str) -> None:
    health = GOOD
    async with (
        serve_pages(health_pages(lambda: health, lambda: 1100.5), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
            assert response.status == 200
            document = json.loads(await response.read())
        assert document["lastUpdated"] == "1970-01-01T00:16:40.000000Z"
        assert document["status"]["IPv6"] == {
            "lastUpdated": None,
            "healthy": True,
            "stalenessSeconds": 0.5,
            "failures": 0,
        }
        health = BAD
        async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
            assert response.status == 503
            document = json.loads(await response.read())
        assert document["status"]["IPv4"]["failures"] == 7
        assert not document["status"]["IPv4"]["healthy"]
        async with session.get(f"http://127.0.0.1:{port}/other") as response:
            assert response.status == 404
