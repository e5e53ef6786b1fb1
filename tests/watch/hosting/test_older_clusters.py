"""Clusters that are older than ServiceCIDR (networking.k8s.io/v1, Kubernetes 1.33), or keep it from
their readers.

A real plane, of which ServiceCIDRs are hidden as an older kube-apiserver (404) or a narrow role
(403) hides them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.proxy.test_node_proxy_shell import Runner
from tests.waiting import eventually

from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Resource, ServiceCIDRs, Services
from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.standalone import reconcile_until_idle
from sliceplane.kit.rng import Rng
from sliceplane.node.io.healthz import health_document
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import ProxyTiming
from sliceplane.node.io.render import objects_from
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.hosting.informers import CannotRead, check_readable

#: as kube-apiserver answers for a path that it does not have
NOT_SERVED = StatusError(404, "NotFound", "the server could not find the requested resource")
NOT_ALLOWED = forbidden("servicecidrs", "networking.k8s.io", "", "no RBAC policy matched")


class Older:
    """The client of a cluster that *hides* kinds, by key."""

    def __init__(self, client: Client, hides: dict[str, StatusError]) -> None:
        self._client = client
        self.hides = hides
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _look(self, resource: Resource) -> None:
        if resource.key in self.hides:
            self.refused += 1
            raise self.hides[resource.key]

    async def list(self, selection: Selection, **options: Any) -> Any:
        self._look(selection.resource)
        return await self._client.list(selection, **options)

    @asynccontextmanager
    async def watch(self, selection: Selection, **options: Any) -> AsyncIterator[Any]:
        self._look(selection.resource)
        async with self._client.watch(selection, **options) as messages:
            yield messages


@pytest.fixture(params=[NOT_SERVED, NOT_ALLOWED], ids=["404", "403"])
async def older(request: pytest.FixtureRequest) -> AsyncIterator[Older]:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        yield Older(plane.client("system:admin"), {ServiceCIDRs.key: request.param})


@asynccontextmanager
async def proxying(client: Any) -> AsyncIterator[NodeProxy]:
    timing = ProxyTiming(absent_kind_period_s=0.02)
    proxy = make_proxy("node-1", Nftables(Runner()), families=("IPv4",), timing=timing)
    task = asyncio.create_task(proxy.follow(client, Rng(1)))
    try:
        async with asyncio.timeout(60):
            await proxy.wait_ready()
            yield proxy
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_node_proxy_of_an_older_cluster_is_healthy_and_says_once_what_it_does_without(
    older: Older, capsys: pytest.CaptureFixture[str]
) -> None:
    async with proxying(older) as proxy:
        await eventually(lambda: older.refused, lambda refused: refused >= 10)
        unanswered = await proxy.unanswered()
        document = health_document(proxy.health(), 0.0, unanswered)
    assert document["healthy"], document
    assert document["inputStalenessSeconds"] is not None
    told = [line for line in capsys.readouterr().err.splitlines() if ServiceCIDRs.key in line]
    assert len(told) == 1, told
    assert "level=info" in told[0]


async def test_service_cidrs_that_come_with_an_upgrade_reach_the_rules(
    older: Older, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxying(older) as proxy:
        (plane,) = proxy._planes
        seen: list[Any] = []
        monkeypatch.setattr(plane, "on_service_cidr", lambda name, cidr, now: seen.append(cidr))
        assert not seen
        older.hides.clear()
        await eventually(lambda: seen)


async def test_a_kind_that_is_needed_still_turns_health_red(older: Older) -> None:
    async with proxying(older) as proxy:
        older.hides[Services.key] = forbidden("services", "", "", "no RBAC policy matched")
        assert proxy._inputs is not None
        informer = next(each for each in proxy._inputs._informers if each.resource is Services)
        informer._failed("a watch failed", older.hides[Services.key])
        why = await proxy.unanswered()
        assert "services are not watched" in why
        assert proxy.refused() == why, "no restart mends it"


async def test_render_trace_and_the_look_before_once_do_without_too(older: Older) -> None:
    client: Any = older
    assert (await objects_from(client, "")).service_cidrs == ()
    await check_readable(client, [Selection(ServiceCIDRs), Selection(Services)])
    older.hides[Services.key] = forbidden("services", "", "", "no RBAC policy matched")
    with pytest.raises(CannotRead, match="services"):
        await check_readable(client, [Selection(ServiceCIDRs), Selection(Services)])
    with pytest.raises(StatusError):
        await objects_from(client, "")


async def test_controllers_of_an_older_cluster_come_to_an_end(older: Older) -> None:
    client: Any = older
    summary = await reconcile_until_idle(client, default_controllers(), timeout_s=20)
    assert summary.unfinished == ()
