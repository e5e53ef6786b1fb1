"""What xDS costs: ``sliceplane xds`` with its API server beside go-control-plane's server, the same
clients for both.

The peer's server (``peers/xds``) holds two linear caches and makes the messages that its author
would; ours reads Services and EndpointSlices. Both are whole servers in a process of their own,
whose processor time and memory are read; clients are synthetic (``tools.push_clients``), 1,000
connections in one process. A change is one endpoint of one Service; of each change every client
gets one message, and acknowledges it.

go-control-plane 0.14.0 has no collections (LEDS): its message is the whole assignment, as ours is
to clients that do not take collections.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import Result, main, note
from benchmarks.tools import peers, xds_core
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    NAMESPACE,
    PER_SLICE,
    endpoint,
    namespace_document,
    pod_ip,
    service_document,
    slice_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from benchmarks.tools.push_clients import Told, Wish
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Services
from sliceplane.server.io.keys.pki import Pki
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

PEER = "go-control-plane 0.14.0"
WAIT_S = 240.0
CLIENTS = 1_000
SIZES = (100, 1_000, 20_000)
SERVICES = (10, 5_000)
ROUNDS = 60
WARM_ROUNDS = 5
#: processor time of a delta and client: endpoints, way, plain and over TLS
COSTS = ((1_000, True, 30.0, 40.0), (10, False, 30.0, 40.0), (1_000, False, 36.0, 60.0))
BYTES_BUDGET = 300.0
ALL_HAVE_IT_MS = 100.0
CLIENT_KB = 60.0
FLEET_MIB = 120.0
AGAIN_S = 5.0
ROLL_MB = 10.0
GROWTH = 1.5


def name_of(service: int) -> str:
    return f"web-{service}"


def key_of(service: int) -> str:
    return f"{NAMESPACE}/{name_of(service)}:http"


def cluster(services: int, size: int) -> Iterator[Wanted]:
    """*services* of *size* endpoints, in slices of 100."""
    yield Namespaces, "", namespace_document(), None
    for service in range(services):
        document = service_document(name_of(service))
        del document["spec"]["selector"]
        yield Services, NAMESPACE, document, None
    for service in range(services):
        for start in range(service * size, (service + 1) * size, PER_SLICE):
            numbers = range(start, min(start + PER_SLICE, (service + 1) * size))
            yield EndpointSlices, NAMESPACE, slice_of(service, numbers), None


def slice_of(service: int, numbers: range, changed: int = 0) -> dict[str, Any]:
    """*changed*: for each number the last endpoint has another address."""
    made = slice_document(f"{name_of(service)}-{numbers.start}", name_of(service), numbers)
    if changed:
        made["endpoints"][-1]["addresses"] = [pod_ip(6_000_000 + changed)]
    return made


class Server:
    """A server under measurement, of ours or of the peer's."""

    process: Process
    port: int
    #: of its TLS port
    files: dict[str, str]

    async def change(self, number: int) -> None:
        raise NotImplementedError

    async def restart(self) -> None:
        raise NotImplementedError


class Ours(Server):
    def __init__(
        self, folder: Path, plane: PlaneProcess, client: HttpClient, size: int, tls: bool
    ) -> None:
        self._folder = folder
        self._plane = plane
        self.client = client
        self._first = range(min(size, PER_SLICE))
        pki = Pki(folder / "data" / "pki")
        self._door = ("--insecure-bind-address", "127.0.0.1")
        self.files = {}
        if tls:
            self._door = ("--bind-address", "127.0.0.1")
            self.files = {
                "ca_file": str(pki.ca_file),
                "cert_file": str(pki.admin_file),
                "key_file": str(pki.admin_key_file),
            }
        self._pki = pki
        self._start(0)

    def _start(self, port: int) -> None:
        flag, host = self._door
        secured = (
            *(
                "--tls-cert-file",
                str(self._pki.server_file),
                "--tls-private-key-file",
                str(self._pki.server_key_file),
            ),
            *("--client-ca-file", str(self._pki.ca_file), "--streams-per-user", "100000"),
        )
        self.process = Process(
            *(
                sys.executable,
                "-m",
                "sliceplane",
                "xds",
                "--kubeconfig",
                str(self._plane.kubeconfig),
            ),
            *(flag, f"{host}:{port}", *(secured if self.files else ()), "--log-level", "error"),
            *("--metrics-bind-address", "127.0.0.1:0"),
            log=self._folder / "xds.log",
        )
        self.port = int(self.process.line(WAIT_S).rpartition(":")[2])

    async def change(self, number: int) -> None:
        body = slice_of(0, self._first, number)
        await self.client.update(EndpointSlices, NAMESPACE, body["metadata"]["name"], encode(body))

    async def restart(self) -> None:
        await asyncio.to_thread(self.process.stop)
        await asyncio.to_thread(self._start, self.port)


class Theirs(Server):
    def __init__(
        self, folder: Path, program: Path, services: int, size: int, pki: Pki | None
    ) -> None:
        self._log = folder / "peer.log"
        self.files = {} if pki is None else {"ca_file": str(pki.ca_file)}
        secured = () if pki is None else (str(pki.server_file), str(pki.server_key_file))
        self._command = (str(services), str(size), *secured)
        self._program = str(program)
        self._start(0)

    def _start(self, port: int) -> None:
        self.process = Process(self._program, str(port), *self._command, log=self._log)
        self.port = int(self.process.line(WAIT_S))

    async def change(self, number: int) -> None:
        self.process.say(str(number))

    async def restart(self) -> None:
        await asyncio.to_thread(self.process.stop)
        await asyncio.to_thread(self._start, self.port)


class Scene:
    """A cluster, in which servers are started one after the other."""

    def __init__(
        self, folder: Path, plane: PlaneProcess, client: HttpClient, services: int, size: int
    ) -> None:
        self._folder = folder
        self._plane = plane
        self._client = client
        self._services = services
        self._size = size

    @asynccontextmanager
    async def ours(self, *, tls: bool = False) -> AsyncIterator[Ours]:
        server = Ours(self._folder, self._plane, self._client, self._size, tls)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.process.stop)

    @asynccontextmanager
    async def theirs(self, program: Path, *, tls: bool = False) -> AsyncIterator[Theirs]:
        pki = Pki(self._folder / "data" / "pki") if tls else None
        server = Theirs(self._folder, program, self._services, self._size, pki)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.process.stop)

    @asynccontextmanager
    async def fleet(self, server: Server, count: int, wish: Wish) -> AsyncIterator[Fleet]:
        program = (
            sys.executable,
            "-m",
            "benchmarks.tools.push_clients",
            str(server.port),
            str(count),
        )
        wish = msgspec.structs.replace(wish, **server.files)
        process = Process(
            *program, msgspec.json.encode(wish).decode(), log=self._folder / "fleet.log"
        )
        try:
            fleet = Fleet(process, count)
            await fleet.until(0)
            yield fleet
        finally:
            await asyncio.to_thread(process.stop)


class Fleet:
    def __init__(self, process: Process, count: int) -> None:
        self._process = process
        self.count = count

    async def until(self, messages: int) -> Told:
        """So many more have come; 0: all clients are there, and none comes any more."""
        self._process.say(str(messages))
        return msgspec.json.decode(await asyncio.to_thread(self._process.line, WAIT_S), type=Told)


@asynccontextmanager
async def scene(services: int, size: int) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", cluster(services, size))
        plane = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = await stack.enter_async_context(HttpClient(load(plane.kubeconfig)))
        yield Scene(folder, plane, client, services, size)


class Pushed(msgspec.Struct):
    """A delta: CPU of the server for each client; until the last client had it, median and p99; its
    bytes; memory.
    """

    cpu_us: float
    last_ms: float
    octets: float
    rss_mib: float


async def push(server: Server, fleet: Fleet, rounds: int) -> Pushed:
    times = []
    cpu = octets = 0.0
    for number in range(1, WARM_ROUNDS + rounds + 1):
        if number == WARM_ROUNDS + 1:
            cpu = server.process.cpu_s()
        asked = asyncio.create_task(fleet.until(fleet.count))
        await asyncio.sleep(0)
        began = time.monotonic()
        await server.change(number)
        told = await asked
        times.append(told.at - began)
        octets = told.size
        await asyncio.sleep(0.02)  # acknowledgements are on their way
    await asyncio.sleep(0.3)
    return Pushed(
        (server.process.cpu_s() - cpu) / rounds / fleet.count * 1e6,
        statistics.median(times[WARM_ROUNDS:]) * 1e3,
        octets,
        server.process.rss_mib(),
    )


async def costs(program: Path | None) -> list[Result]:
    """CPU of a delta and client, and how long until all have it."""
    clients = CLIENTS
    found = []
    for size, leds, *budgets in COSTS:
        async with scene(1, size) as stage:
            for tls in (False, True):
                wish = Wish(names=(key_of(0),), leds=leds)
                async with (
                    stage.ours(tls=tls) as server,
                    stage.fleet(server, clients, wish) as fleet,
                ):
                    ours = await push(server, fleet, ROUNDS)
                peer = None
                if program is not None:
                    async with (
                        stage.theirs(program, tls=tls) as server,
                        stage.fleet(server, clients, Wish(names=(key_of(0),))) as fleet,
                    ):
                        peer = await push(server, fleet, ROUNDS)
                way = "LEDS" if leds else "EDS"
                where = f"{size:,} endpoints, {way}, {clients:,} clients{', TLS' if tls else ''}"
                note(f"{where}: {ours}, {PEER}: {peer}")
                made = Result(
                    name="CPU of a delta and client, ACK included",
                    size=where,
                    value=ours.cpu_us,
                    unit="us",
                    budget=budgets[tls],
                )
                last = replace(
                    made,
                    name="  until the last client has it",
                    value=ours.last_ms,
                    unit="ms",
                    budget=ALL_HAVE_IT_MS,
                )
                found += [
                    with_peer(made, peer and peer.cpu_us),
                    with_peer(last, peer and peer.last_ms),
                ]
    return found


def with_peer(result: Result, value: float | None) -> Result:
    return result if value is None else replace(result, peer=PEER, peer_value=value)


async def octets(program: Path | None) -> list[Result]:
    """Of one changed endpoint, and of a rolling update of the largest."""
    found = []
    for size in SIZES:
        async with scene(1, size) as stage:
            peer = None
            if program is not None:
                async with (
                    stage.theirs(program) as server,
                    stage.fleet(server, 1, Wish(names=(key_of(0),))) as fleet,
                ):
                    peer = await push(server, fleet, 3)
            async with stage.ours() as server:
                for leds in (True, False):
                    async with stage.fleet(server, 1, Wish(names=(key_of(0),), leds=leds)) as fleet:
                        ours = await push(server, fleet, 3)
                    made = Result(
                        name=f"bytes of one changed endpoint, {'LEDS' if leds else 'EDS'}",
                        size=f"{size:,} endpoints",
                        value=ours.octets,
                        unit="B",
                        budget=BYTES_BUDGET if leds else None,
                    )
                    found.append(with_peer(made, peer and peer.octets))
                if size == SIZES[-1]:
                    found.append(await rolled(stage, server, size))
    return found


async def rolled(stage: Scene, server: Ours, size: int) -> Result:
    """Every endpoint is replaced, ten at a write."""
    async with stage.fleet(server, 1, Wish(names=(key_of(0),), leds=True)) as fleet:
        before = await fleet.until(0)
        for start in range(0, size, PER_SLICE):
            numbers = range(start, start + PER_SLICE)
            document = slice_of(0, numbers)
            for place in range(0, PER_SLICE, 10):
                document["endpoints"][place : place + 10] = [
                    endpoint(1_000_000 + number) for number in numbers[place : place + 10]
                ]
                name = document["metadata"]["name"]
                await server.client.update(EndpointSlices, NAMESPACE, name, encode(document))
        after = await fleet.until(0)
    return Result(
        name="bytes to an Envoy of a rolling update",
        size=f"{size:,} Pods, LEDS",
        value=(after.octets - before.octets) / 1e6,
        unit="MB",
        budget=ROLL_MB,
    )


async def flat(program: Path | None) -> list[Result]:
    """CPU of a delta and client with few and many Services, all of which each client follows."""
    few, many = SERVICES
    clients, rounds = 100, ROUNDS
    costs: dict[int, tuple[float, float | None]] = {}
    for services in (few, many):
        async with scene(services, 10) as stage:
            wish = Wish(names=tuple(map(key_of, range(services))))
            async with stage.ours() as server, stage.fleet(server, clients, wish) as fleet:
                ours = await push(server, fleet, rounds)
            peer = None
            if program is not None:
                async with (
                    stage.theirs(program) as server,
                    stage.fleet(server, clients, wish) as fleet,
                ):
                    peer = (await push(server, fleet, rounds)).cpu_us
            costs[services] = (ours.cpu_us, peer)
            note(
                f"{services:,} Services of 10, {clients} clients of all: {ours.cpu_us:.1f} us, "
                f"{PEER}: {peer}"
            )
    ours_few, peer_few = costs[few]
    ours_many, peer_many = costs[many]
    made = Result(
        name=f"CPU of a delta and client, growth from {few} Services",
        size=f"{many:,} Services of 10, {clients} clients of all",
        value=ours_many / ours_few if ours_few else 0.0,
        unit="x",
        budget=GROWTH,
    )
    return [with_peer(made, peer_many / peer_few if peer_many and peer_few else None)]


async def held(program: Path | None) -> list[Result]:
    """Memory of clients that are idle."""
    clients, services = CLIENTS, 100
    wish = Wish(names=tuple(map(key_of, range(services))), clusters=True)

    async def memory(stage: Scene, server: Server) -> tuple[float, float]:
        async with stage.fleet(server, 1, wish):
            before = server.process.rss_mib()
        async with stage.fleet(server, clients, wish):
            after = server.process.rss_mib()
        return (after - before) * 1024**2 / clients / 1e3, after

    async with scene(services, 10) as stage:
        async with stage.ours() as server:
            ours = await memory(stage, server)
        peer = None
        if program is not None:
            async with stage.theirs(program) as server:
                peer = await memory(stage, server)
    size = f"{clients:,} clients of {services} clusters"
    one = Result(
        name="memory of an idle client",
        size=size,
        value=max(ours[0], 0.0),
        unit="kB",
        budget=CLIENT_KB,
    )
    whole = Result(
        name="  the whole server", size=size, value=ours[1], unit="MiB", budget=FLEET_MIB
    )
    return [with_peer(one, peer and peer[0]), with_peer(whole, peer and peer[1])]


async def again(program: Path | None, clients: int, services: int) -> list[Result]:
    """The server starts anew, and all clients come again with what they hold."""
    wish = Wish(names=tuple(map(key_of, range(services))), again=True)

    async def come(stage: Scene, server: Server) -> tuple[float, float]:
        async with stage.fleet(server, clients, wish) as fleet:
            before = await fleet.until(0)
            await server.restart()
            began = time.monotonic()
            # Served is a client that gets what changes now: its questions were answered before.
            await fleet.until(0)
            await server.change(1)
            told = await fleet.until(clients)
            after = await fleet.until(0)
        return told.at - began, (after.messages - before.messages - clients) / clients

    async with scene(services, 1) as stage:
        async with stage.ours() as server:
            ours = await come(stage, server)
        peer = None
        if program is not None:
            async with stage.theirs(program) as server:
                peer = await come(stage, server)
    size = f"{clients:,} clients of {services:,} Services"
    took = Result(
        name="all clients are back after a restart",
        size=size,
        value=ours[0],
        unit="s",
        budget=AGAIN_S,
    )
    sent = Result(
        name="  messages to each of what has not changed",
        size=size,
        value=ours[1],
        unit="",
        budget=0.0,
    )
    return [with_peer(took, peer and peer[0]), with_peer(sent, peer and peer[1])]


async def run_all(small: bool) -> list[Result]:
    if small:
        return await again(None, 20, 10)
    program = peers.build("xds")
    found = []
    for part in (costs, octets, flat, held):
        found += await part(program)
    return found + await again(program, CLIENTS, 1_000)


def run(small: bool) -> list[Result]:
    return [*asyncio.run(run_all(small)), *xds_core.run(small)]


if __name__ == "__main__":
    main(run)
