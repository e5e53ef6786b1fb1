"""A plane, its xDS server on a plain port in the test's loop, and programs that know of both by
their bootstraps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio
from tests.server.live import client, live
from tests.xds.streams.clients import Response, delta_request, read_response

from sliceplane.api import codec
from sliceplane.client import EndpointSlices, HttpClient, Namespaces, Services, StatusError
from sliceplane.kit.io.interfaces import addresses
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.xds.bootstrap import BootstrapOptions, grpc_bootstrap
from sliceplane.xds.catalog import XdsCatalog, XdsConfig
from sliceplane.xds.io.admission import AdmissionConfig
from sliceplane.xds.io.server import XdsServer
from sliceplane.xds.io.serving import Doors, XdsDoors

DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
PROGRAM = Path(__file__).with_name("grpc_program.py")
_numbers = count()


__all__ = ["client", "live"]


def host_address() -> str:
    """Endpoints are never on loopback; so where this machine is reached."""
    found = [address for address in addresses(ipv6=False) if not address.startswith("127.")]
    assert found, "this machine has no address but those of loopback"
    return found[0]


class Shop:
    """A namespace of a test's own, with Services whose slices a test writes."""

    def __init__(self, client: HttpClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def put(self, resource: Any, name: str, body: dict[str, Any]) -> None:
        body["metadata"] = {"name": name, "namespace": self.namespace, **body.get("metadata", {})}
        try:
            await self.client.create(resource, self.namespace, codec.encode(body))
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            patch = {name: value for name, value in body.items() if name != "apiVersion"}
            await self.client.patch(
                resource, self.namespace, name, codec.encode(patch), patch_type="merge"
            )

    async def service(
        self, name: str = "web", *, annotations: dict[str, str] | None = None, **spec: Any
    ) -> None:
        ports = [{"name": "http", "port": 80, "targetPort": 9000}]
        metadata = {"annotations": annotations or {}}
        await self.put(Services, name, {"metadata": metadata, "spec": {"ports": ports, **spec}})

    async def slice(
        self, name: str, port: int, *endpoints: dict[str, Any], service: str = "web"
    ) -> None:
        body = {
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": list(endpoints),
        }
        await self.put(EndpointSlices, name, body)

    async def delete(self, resource: Any, name: str) -> None:
        await self.client.delete(resource, self.namespace, name)


def endpoint(address: str, pod: str, **members: Any) -> dict[str, Any]:
    """Of a Pod of that name, for several may be at the one address that the machine has."""
    target = {"kind": "Pod", "name": pod, "uid": pod}
    return {"addresses": [address], "conditions": {"ready": True}, "targetRef": target, **members}


@pytest_asyncio.fixture
async def shop(client: HttpClient) -> Shop:
    return await new_shop(client)


async def new_shop(client: HttpClient) -> Shop:
    namespace = f"shop-{os.getpid()}-{next(_numbers)}"
    await client.create(Namespaces, "", codec.encode({"metadata": {"name": namespace}}))
    return Shop(client, namespace)


class Served:
    def __init__(self, server: XdsServer, port: int) -> None:
        self.server = server
        self.port = port

    def wish(self, **members: Any) -> BootstrapOptions:
        return BootstrapOptions(host="127.0.0.1", port=self.port, insecure=True, **members)


@asynccontextmanager
async def xds_server(
    client: HttpClient,
    *,
    port: int = 0,
    config: XdsConfig | None = None,
    report_name: str = "",
    spread_s: float = 0.0,
    doors: Doors | None = None,
) -> AsyncIterator[Served]:
    clock = loop_clock(time.time())
    catalog = XdsCatalog(config or XdsConfig(), os.urandom(4).hex())
    server = XdsServer(catalog, AdmissionConfig(), clock=clock)
    opened = XdsDoors(doors or Doors(plain=("127.0.0.1", port)), server, client, Rng(1), clock)
    ((_, listening),) = await opened.open()
    following = asyncio.create_task(server.follow(client, Rng(2), report_name=report_name))
    try:
        await asyncio.wait(
            {following, asyncio.create_task(server.wait_ready())}, return_when="FIRST_COMPLETED"
        )
        yield Served(server, listening)
    finally:
        await opened.close(spread_s)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


@pytest_asyncio.fixture
async def served(client: HttpClient) -> AsyncIterator[Served]:
    async with xds_server(client) as made:
        yield made


class DeltaClient:
    """A client that says what a test wants it to say, and accepts nothing by itself."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def say(self, type_url: str, **request: Any) -> None:
        await self._stream.write(delta_request(type_url, **request))

    async def next(self) -> Response:
        return read_response(await self._stream.read(), delta=True)


@asynccontextmanager
async def delta_client(port: int) -> AsyncIterator[DeltaClient]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield DeltaClient(channel.stream_stream(DELTA)())


class GrpcProgram:
    """``grpc_program`` with a bootstrap."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, *words: object) -> Any:
        assert self._process.stdin is not None, "asked for"
        assert self._process.stdout is not None, "asked for"
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    async def answered(self, target: str, calls: int = 8) -> set[int]:
        """The ports of the backends that answered; empty where a call failed."""
        told = await self.ask("call", target, calls)
        return set() if told["failed"] else {int(port) for port in told["answered"]}


@asynccontextmanager
async def grpc_program(
    folder: Path, wish: BootstrapOptions, *command: str, bootstrap: str = "", **variables: str
) -> AsyncIterator[GrpcProgram]:
    """*command*: another program that can be asked the same.  *bootstrap*: not the one that is made
    of *wish*.
    """
    file = folder / f"{wish.node_id}.json"
    file.write_text(bootstrap or json.dumps(grpc_bootstrap(wish)))
    environment = {**os.environ, "GRPC_XDS_BOOTSTRAP": str(file), **variables}
    process = await asyncio.create_subprocess_exec(
        *(command or (sys.executable, str(PROGRAM))),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield GrpcProgram(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
