"""gRPC for Go and for Python, and Envoy, in two zones: each goes where hints lead its zone, or its
node, and follows a rolling change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.peers import programs
from tests.peers.loopback import RunningPods, live, network, pods
from tests.peers.test_envoy import Envoy, running
from tests.waiting import eventually
from tests.xds.conftest import (
    GrpcProgram,
    Served,
    Shop,
    client,
    endpoint,
    grpc_program,
    served,
    shop,
)

from sliceplane.api import codec
from sliceplane.client import Nodes, Services

__all__ = ["client", "live", "network", "pods", "served", "shop"]

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.timeout(1500)]

MODULE = Path(__file__).with_name("grpcxds")
ZONES = ("a", "b")
#: of a zone each
PODS = {"a": ("10.128.1.1", "10.128.1.2"), "b": ("10.128.2.1", "10.128.2.2")}
ALL = {address for addresses in PODS.values() for address in addresses}
CALLS = 12


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return programs.build(MODULE, tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def fetched(go_program: str) -> None:
    """Before the network, which has no way out to a proxy of modules."""
    programs.envoy()


def host(address: str, **members: Any) -> dict[str, Any]:
    zone = next(zone for zone, addresses in PODS.items() if address in addresses)
    return endpoint(address, f"pod-{address}", zone=zone, nodeName=f"node-{zone}", **members)


def hinted(address: str, kind: str) -> dict[str, Any]:
    """*kind*: ``forZones`` or ``forNodes``."""
    made = host(address)
    made["hints"] = {kind: [{"name": made["zone"] if kind == "forZones" else made["nodeName"]}]}
    return made


class Clients:
    """In each zone, on its node."""

    def __init__(
        self, shop: Shop, envoys: dict[str, Envoy], callers: dict[str, list[GrpcProgram]]
    ) -> None:
        self._shop = shop
        self._envoys = envoys
        self._callers = callers
        self._target = f"xds:///web.{shop.namespace}:80"

    async def called(self, zone: str) -> list[set[str]]:
        """Who answers each program; empty where a call fails."""
        seen = []
        for program in self._callers[zone]:
            told = await program.ask("call", self._target, CALLS)
            seen.append(set() if told["failed"] else set(told["answered"]))
        return seen

    async def first_call_s(self, zone: str) -> float:
        """Of the slowest program."""
        return max(
            [(await program.ask("call", self._target, 1))["s"] for program in self._callers[zone]]
        )

    async def go_to(self, **wanted: set[str]) -> None:
        """Those of each zone, Envoy as well."""
        for zone, addresses in wanted.items():
            await eventually(
                lambda zone=zone: self.called(zone),
                lambda seen, all_=addresses: seen == [all_, all_],
            )
            envoy = self._envoys[zone]
            places = {f"{address}:9090" for address in addresses}
            await eventually(
                lambda envoy=envoy: envoy.endpoints(f"{self._shop.namespace}/web:http"),
                lambda seen, places=places: seen == places,
                ignoring=(OSError,),
            )


@pytest_asyncio.fixture
async def clients(
    tmp_path: Path, served: Served, shop: Shop, pods: RunningPods, go_program: str
) -> AsyncIterator[Clients]:
    for zone in ZONES:
        labels = {"topology.kubernetes.io/zone": zone}
        body = {"metadata": {"name": f"node-{zone}", "labels": labels}}
        await shop.client.create(Nodes, "", codec.encode(body))
    async with AsyncExitStack() as stack:
        envoys: dict[str, Envoy] = {}
        callers: dict[str, list[GrpcProgram]] = {}
        for number, zone in enumerate(ZONES):
            metadata = {"node_name": f"node-{zone}"}
            wish = served.wish(
                node_id=f"envoy-{zone}", admin_port=19000 + number, zone=zone, metadata=metadata
            )
            envoys[zone] = await stack.enter_async_context(running(tmp_path, wish))
            callers[zone] = []
            for name, command in (("go", (go_program,)), ("python", ())):
                wish = served.wish(node_id=f"{name}-{zone}", zone=zone, metadata=metadata)
                callers[zone].append(
                    await stack.enter_async_context(grpc_program(tmp_path, wish, *command))
                )
        yield Clients(shop, envoys, callers)
    for zone in ZONES:
        await shop.client.delete(Nodes, "", f"node-{zone}")


async def test_clients_go_where_hints_lead_them_and_everywhere_without(
    shop: Shop, clients: Clients
) -> None:
    await shop.service()
    await shop.slice("web-1", 9090, *[hinted(address, "forZones") for address in sorted(ALL)])
    await clients.go_to(a=set(PODS["a"]), b=set(PODS["b"]))
    # One of them has none: hints count for all or for nobody.
    first, *others = sorted(ALL)
    await shop.slice(
        "web-1", 9090, host(first), *[hinted(address, "forZones") for address in others]
    )
    await clients.go_to(a=ALL, b=ALL)
    await shop.slice("web-1", 9090, *[hinted(address, "forNodes") for address in sorted(ALL)])
    await clients.go_to(a=set(PODS["a"]), b=set(PODS["b"]))
    await shop.slice("web-1", 9090, *map(host, sorted(ALL)))
    await shop.service(internalTrafficPolicy="Local")
    await clients.go_to(a=set(PODS["a"]), b=set(PODS["b"]))


async def test_a_rolling_change_is_followed_and_the_last_that_serves_is_used(
    shop: Shop, clients: Clients
) -> None:
    await shop.service()
    left = sorted(ALL)
    await shop.slice("web-1", 9090, *map(host, left))
    await clients.go_to(a=ALL, b=ALL)
    going = {"ready": False, "serving": True, "terminating": True}
    while len(left) > 1:
        gone = left.pop(0)
        await shop.slice("web-1", 9090, host(gone, conditions=going), *map(host, left))
        await clients.go_to(a=set(left), b=set(left))
    await shop.slice("web-1", 9090, host(left[0], conditions=going))
    await clients.go_to(a=set(left), b=set(left))
    await shop.delete(Services, "web")
    await eventually(lambda: clients.called("a"), lambda seen: seen == [set(), set()])


async def test_a_name_that_leads_nowhere_fails_at_once_and_works_when_the_service_comes(
    shop: Shop, clients: Clients
) -> None:
    """gRPC on its own would wait for 15 s."""
    assert await clients.first_call_s("a") < 10.0
    assert await clients.called("a") == [set(), set()]
    await shop.service()
    await shop.slice("web-1", 9090, *map(host, sorted(ALL)))
    await clients.go_to(a=ALL, b=ALL)
