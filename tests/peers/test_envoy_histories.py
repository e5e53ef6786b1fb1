"""Random histories of one Envoy that takes endpoints one by one and one that takes them together,
over connections that break anywhere and servers that end: behind each, their ``/clusters`` are what
the API means for their places.

``XDS_HISTORIES=1000`` makes it as many; all have the same plane, Envoys and objects, so that each
begins where the last one ended. ``XDS_HISTORIES_SEED`` begins with another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.peers.test_envoy import Envoy, running
from tests.ports import free_port
from tests.waiting import eventually
from tests.xds.conftest import Shop, client, live, shop, xds_server

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.client import EndpointSlices, HttpClient, Nodes, Services
from sliceplane.xds.bootstrap import BootstrapOptions
from sliceplane.xds.catalog import XdsConfig
from sliceplane.xds.streams.status import ClientReport

__all__ = ["client", "live", "shop"]

pytestmark = [pytest.mark.peer, pytest.mark.asyncio, pytest.mark.timeout(7200)]

HISTORIES = int(os.environ.get("XDS_HISTORIES", "6"))
FIRST_SEED = int(os.environ.get("XDS_HISTORIES_SEED", "1"))
SERVICES = ("api", "cart", "web")
ZONES = ("a", "b", "c")
NODES = ("n1", "n2", "n3")
#: ready, serving, terminating, and how often
CONDITIONS = {
    (True, True, False): 6,
    (False, False, False): 1,
    (False, True, True): 2,
    (False, False, True): 1,
}
#: steps, and how often
STEPS = {
    "scale": 3,
    "flip": 4,
    "move": 3,
    "service": 2,
    "hints": 1,
    "rezone": 1,
    "drop": 1,
    "zone": 1,
    "cut": 2,
    "cut soon": 3,
    "restart": 1,
    "replica": 1,
    "breathe": 1,
}


@dataclass
class Model:
    """What is in the API."""

    #: by name: the members of ``spec`` that are not always the same
    services: dict[str, dict[str, str]] = field(default_factory=dict)
    #: by Service and slice: the endpoints by number
    slices: dict[tuple[str, str], dict[int, dict[str, Any]]] = field(default_factory=dict)
    zones_of_nodes: dict[str, str] = field(default_factory=dict)

    def endpoints(self, service: str) -> dict[int, dict[str, Any]]:
        return {
            number: held
            for (of, _), many in self.slices.items()
            if of == service
            for number, held in many.items()
        }

    def meant(self, namespace: str, node: str) -> dict[str, dict[str, str]]:
        """By cluster: for each address its zone, as a client on *node* should have them."""
        zone = self.zones_of_nodes[node]
        return {
            f"{namespace}/{service}:http": {
                f"{held['addresses'][0]}:9000": held["zone"]
                for held in _usable(list(self.endpoints(service).values()), node, zone, spec)
            }
            for service, spec in self.services.items()
        }


def _usable(
    endpoints: list[dict[str, Any]], node: str, zone: str, spec: dict[str, str]
) -> list[dict[str, Any]]:
    """The rules of Services (kubernetes.io, "Service Internal Traffic Policy", "Topology Aware
    Routing"; KEP-1669).
    """
    is_local = spec["internalTrafficPolicy"] == "Local"
    if is_local:
        endpoints = [held for held in endpoints if held["nodeName"] == node]
    ready = [held for held in endpoints if held["conditions"]["ready"]]
    if not ready:
        return [
            held
            for held in endpoints
            if held["conditions"]["serving"] and held["conditions"]["terminating"]
        ]
    for hint, place in (("forNodes", node), ("forZones", zone)) if not is_local else ():
        named = [[item["name"] for item in held.get("hints", {}).get(hint, ())] for held in ready]
        closest = [held for held, places in zip(ready, named, strict=True) if place in places]
        if all(named) and closest:
            return closest
    return ready


def _endpoint(rng: Random, number: int) -> dict[str, Any]:
    ((ready, serving, terminating),) = rng.choices(list(CONDITIONS), CONDITIONS.values())
    return {
        "addresses": [f"10.1.{number // 250}.{number % 250 + 1}"],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"pod-{number}", "uid": f"uid-{number}"},
        "zone": rng.choice(ZONES),
        "nodeName": rng.choice(NODES),
    }


def _hinted(rng: Random, held: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """*held* with hints of these *kinds* and no others."""
    hints = {
        kind: [{"name": name} for name in rng.sample(ZONES if kind == "forZones" else NODES, 2)]
        for kind in kinds
    }
    return {
        **{name: value for name, value in held.items() if name != "hints"},
        **({"hints": hints} if hints else {}),
    }


class Histories:
    """Steps of histories: what is changed is in the API and in the model when a step is over."""

    def __init__(self, shop: Shop, relay: Relay, servers: Servers) -> None:
        self.model = Model()
        self.told: list[str] = []
        self._shop = shop
        self._relay = relay
        self._servers = servers

    async def begin(self) -> None:
        for node, zone in zip(NODES, ZONES, strict=True):
            await self._put_node(node, zone)

    async def step(self, rng: Random) -> None:
        service = rng.choice(SERVICES)
        (kind,) = rng.choices(list(STEPS), STEPS.values())
        self.told.append(f"{kind} {service}")
        match kind:
            case "scale":
                most = rng.choice((0, 2, 6, 12, 40))
                numbers = sorted(rng.sample(range(60), rng.randrange(most + 1)))
                others = self._others(service, "s1")
                held = {
                    number: _endpoint(rng, number) for number in numbers if number not in others
                }
                await self._put_slice(service, "s1", held)
            case "flip":
                await self._flip(rng, service)
            case "move":
                await self._move(rng, service)
            case "hints" | "rezone":
                await self._rewrite(rng, service, kind)
            case "service":
                await self._put_service(rng, service)
            case "drop" if (service, "s1") in self.model.slices:
                await self._shop.delete(EndpointSlices, f"{service}-s1")
                del self.model.slices[service, "s1"]
            case "zone":
                await self._put_node(rng.choice(NODES), rng.choice(ZONES))
            case "cut":
                self._relay.cut()
            case "cut soon":
                self._relay.cut_after(rng.choice((1, 30, 300, 3000, 20_000)))
            case "restart":
                await self._servers.restart()
            case "replica":
                await self._servers.replace()
            case "breathe":
                await asyncio.sleep(rng.random() / 10)

    def _others(self, service: str, slice_name: str) -> dict[int, dict[str, Any]]:
        return {
            number: held
            for (of, name), many in self.model.slices.items()
            if of == service and name != slice_name
            for number, held in many.items()
        }

    async def _flip(self, rng: Random, service: str) -> None:
        for (of, name), held in list(self.model.slices.items()):
            if of == service and held:
                numbers = rng.sample(sorted(held), min(3, len(held)))
                changed = {number: _endpoint(rng, number) for number in numbers}
                kept = {
                    number: {**old, "conditions": changed.get(number, old)["conditions"]}
                    for number, old in held.items()
                }
                await self._put_slice(service, name, kept)

    async def _move(self, rng: Random, service: str) -> None:
        """Endpoints from one slice to another; for a while they are in both, or in neither."""
        source, target = rng.sample(("s1", "s2", "s3"), 2)
        held = self.model.slices.get((service, source), {})
        moved = rng.sample(sorted(held), rng.randrange(len(held) + 1))
        more = {
            **self.model.slices.get((service, target), {}),
            **{number: held[number] for number in moved},
        }
        less = {number: kept for number, kept in held.items() if number not in moved}
        if rng.random() < 0.5:
            await self._put_slice(service, target, more)
            await self._put_slice(service, source, less)
        else:
            await self._put_slice(service, source, less)
            await self._put_slice(service, target, more)

    async def _rewrite(self, rng: Random, service: str, what: str) -> None:
        kinds = rng.choice(((), ("forZones",), ("forNodes", "forZones")))
        for (of, name), held in list(self.model.slices.items()):
            if of == service and what == "hints":
                await self._put_slice(
                    service,
                    name,
                    {number: _hinted(rng, old, kinds) for number, old in held.items()},
                )
            elif of == service:
                zoned = {number: {**old, "zone": rng.choice(ZONES)} for number, old in held.items()}
                await self._put_slice(service, name, zoned)

    async def _put_service(self, rng: Random, service: str) -> None:
        if service in self.model.services and rng.random() < 0.4:
            await self._shop.delete(Services, service)
            del self.model.services[service]
            return
        spec = {
            "sessionAffinity": rng.choice(("None", "ClientIP")),
            "internalTrafficPolicy": rng.choice(("Cluster", "Cluster", "Local")),
        }
        await self._shop.service(service, **spec)
        self.model.services[service] = spec

    async def _put_slice(self, service: str, name: str, held: dict[int, dict[str, Any]]) -> None:
        await self._shop.slice(
            f"{service}-{name}", 9000, *[held[number] for number in sorted(held)], service=service
        )
        self.model.slices[service, name] = held

    async def _put_node(self, node: str, zone: str) -> None:
        labels = {"topology.kubernetes.io/zone": zone}
        if node in self.model.zones_of_nodes:
            patch = codec.encode({"metadata": {"labels": labels}})
            await self._shop.client.patch(Nodes, "", node, patch, patch_type="merge")
        else:
            await self._shop.client.create(
                Nodes, "", codec.encode({"metadata": {"name": node, "labels": labels}})
            )
        self.model.zones_of_nodes[node] = zone


class Relay:
    """Between Envoys and a server; it breaks connections in the middle of what they carry."""

    def __init__(self) -> None:
        self.target = 0
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._left: int | None = None
        self.cuts = 0

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", port)
        try:
            yield
        finally:
            server.close()
            while self._tasks:
                self.cut()
                await asyncio.sleep(0)

    def cut(self) -> None:
        self._left = None
        self.cuts += bool(self._open)
        for writer in list(self._open):
            writer.transport.abort()
        self._open.clear()

    def cut_after(self, octets: int) -> None:
        """Of what servers say to all."""
        self._left = octets

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio makes one for each connection"
        self._tasks[task] = None
        sides = [writer]
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
            sides.append(server_writer)
            self._open |= dict.fromkeys(sides)
            await asyncio.gather(
                self._carry(reader, server_writer, False), self._carry(server_reader, writer, True)
            )
        for side in sides:
            self._open.pop(side, None)
            side.transport.abort()
            with suppress(OSError):
                await side.wait_closed()
        del self._tasks[task]

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: bool
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if counts and self._left is not None:
                    if len(data) > self._left:
                        writer.write(data[: self._left])
                        await asyncio.sleep(0)
                        self.cut()
                        return
                    self._left -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


class Servers:
    """The server behind the relay, one after the other."""

    def __init__(self, client: HttpClient, relay: Relay, namespace: str) -> None:
        self._client = client
        self._relay = relay
        self._config = XdsConfig(namespaces=(namespace,), collected_from=4)
        self._stack = AsyncExitStack()

    def reports(self) -> list[ClientReport]:
        return self._served.server.reports()

    async def start(self) -> None:
        self._served = served = await self._stack.enter_async_context(
            xds_server(self._client, config=self._config)
        )
        self._relay.target = served.port

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def replace(self) -> None:
        """Another takes over before this one ends."""
        old, self._stack = self._stack, AsyncExitStack()
        await self.start()
        await old.aclose()

    async def stop(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()


def _is_quick(document: Document) -> Document:
    """Envoy comes again after 10 ms and not after half a second: there are thousands of
    disconnects.
    """
    source = document["dynamic_resources"]["ads_config"]["grpc_services"][0]["envoy_grpc"]
    source["retry_policy"] = {"retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"}}
    return document


async def _clusters(envoy: Envoy) -> dict[str, dict[str, str]]:
    return {
        status["name"]: {
            f"{place['address']}:{place['port_value']}": host.get("locality", {}).get("zone", "")
            for host in status.get("host_statuses", [])
            for place in [host["address"]["socket_address"]]
        }
        for status in await envoy.clusters()
        if status["name"] != "sliceplane-xds"
    }


async def test_after_random_histories_envoys_hold_what_the_api_means(
    tmp_path: Path, client: HttpClient, shop: Shop
) -> None:
    relay = Relay()
    servers = Servers(client, relay, shop.namespace)
    histories = Histories(shop, relay, servers)
    port = free_port()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(relay.listening(port))
        await histories.begin()
        await servers.start()
        stack.push_async_callback(servers.stop)
        envoys = {}
        for node, leds in (("n1", "true"), ("n2", "false")):
            wish = BootstrapOptions(
                host="127.0.0.1",
                port=port,
                insecure=True,
                node_id=node,
                admin_port=free_port(),
                metadata={"node_name": node, "leds": leds},
            )
            envoys[node] = await stack.enter_async_context(running(tmp_path, wish, _is_quick))
        for number in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            rng = Random(number)
            histories.told = [f"history {number}"]
            for _ in range(rng.randrange(1, 25)):
                await histories.step(rng)
            for node, envoy in envoys.items():
                meant = histories.model.meant(shop.namespace, node)
                try:
                    await eventually(
                        lambda: _clusters(envoy),  # noqa: B023
                        lambda seen: seen == meant,  # noqa: B023
                        ignoring=(OSError,),
                    )
                except AssertionError as error:
                    connected = await envoy.counter("control_plane.connected_state")
                    known = f"{connected=}, the server says {servers.reports()}"
                    raise AssertionError(
                        f"{node} after {histories.told}: {error}; meant: {meant}; {known}"
                    ) from None
            if number % 50 == 0:
                print(f"{number - FIRST_SEED + 1} histories, {relay.cuts} cuts", flush=True)
        for envoy in envoys.values():
            assert await envoy.counter("update_rejected") == 0
        assert relay.cuts >= HISTORIES // 2, "hardly any connection was cut"
