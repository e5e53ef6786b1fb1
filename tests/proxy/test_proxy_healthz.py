"""The health page: red when the kernel lacks something old."""

from __future__ import annotations

import json
from collections.abc import Callable

import aiohttp
import pytest

from sliceplane.kit.io.pages import serve_pages
from sliceplane.node.io.healthz import ProxyHealth, health_pages, metrics_pages
from sliceplane.node.io.metrics import ProxyMetrics
from sliceplane.node.schedule import Freshness

GOOD = ProxyHealth(
    True,
    True,
    (("IPv4", Freshness(1000.0, None, None, 0)), ("IPv6", Freshness(None, None, 1100.0, 0))),
)
BAD = ProxyHealth(False, True, (("IPv4", Freshness(1000.0, 1099.0, 1010.0, 7)),))


class Told:
    """A proxy that says what it is told to."""

    def __init__(
        self, health: Callable[[], ProxyHealth], unanswered: str = "", refused: str = ""
    ) -> None:
        self.health = health
        self.metrics = ProxyMetrics()
        self._unanswered = unanswered
        self._refused = refused

    async def unanswered(self) -> str:
        return self._unanswered

    def refused(self) -> str:
        return self._refused


@pytest.mark.parametrize("path", ["healthz", "livez"])
async def test_page(path: str) -> None:
    health = GOOD
    async with (
        serve_pages(health_pages(Told(lambda: health), lambda: 1100.5), "127.0.0.1", 0) as port,
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


async def ask(told: Told, path: str) -> tuple[int, str]:
    pages = {**health_pages(told, lambda: 1100.5), "/metrics": metrics_pages(told)["/metrics"]}
    async with (
        serve_pages(pages, "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, (await response.read()).decode()


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
async def test_a_server_that_does_not_answer_is_a_reason(path: str) -> None:
    code, body = await ask(Told(lambda: GOOD, "the API server did not answer"), path)
    assert code == 503
    assert json.loads(body)["reasons"] == ["the API server did not answer"]


async def test_a_right_that_is_missing_restarts_no_proxy() -> None:
    why = "services are not watched: services is forbidden"
    for path, code in (("/healthz", 503), ("/livez", 200)):
        answer, body = await ask(Told(lambda: GOOD, why, why), path)
        assert (answer, json.loads(body)["healthy"], json.loads(body)["reasons"]) == (
            code,
            False,
            [why],
        )
    assert (await ask(Told(lambda: BAD, why, why), "/livez"))[0] == 503, (
        "rules are not written either"
    )
    both = f"{why}; nodes are not watched: connection refused"
    assert (await ask(Told(lambda: GOOD, both), "/livez"))[0] == 503


async def test_a_node_that_is_going_is_for_load_balancers_only() -> None:
    going = ProxyHealth(True, True, GOOD.families, node_terminating=True)
    code, body = await ask(Told(lambda: going), "/healthz")
    document = json.loads(body)
    assert (code, document["nodeEligible"], document["healthy"]) == (503, False, True)
    code, body = await ask(Told(lambda: going), "/livez")
    assert code == 200
    assert "nodeEligible" not in json.loads(body)


async def test_answers_are_counted() -> None:
    told = Told(lambda: BAD)
    await ask(told, "/healthz")
    await ask(told, "/livez")
    _, text = await ask(told, "/metrics")
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1.0' in text
    assert 'kubeproxy_proxy_livez_total{code="503"} 1.0' in text
