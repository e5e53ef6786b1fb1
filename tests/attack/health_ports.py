"""Attacks on the plain HTTP ports of a node, and on its descriptors.

The node proxy runs with 1,024 descriptors, as under many service managers; its rules are in a
network namespace of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.faulty_process import CONTROL_BYTES
from tests.attack.harness import Attack, Figure, admin_context, alive
from tests.ports import free_port

DESCRIPTORS = 1024
SILENT = 1100
HOLD_SECONDS = 15.0
#: a probe of a kubelet gives up after one
PROBE_SECONDS_MAX = 1.0
WRITTEN_SECONDS_MAX = 5.0
#: what waits for descriptors is tried again with back-off
RECOVERY_SECONDS_MAX = 15.0
FAULT_SECONDS = 2.5
_NODE = "attacked"


@dataclass
class Node:
    """A plane, and a node proxy that follows it."""

    plane: PlaneProcess
    proxy: Process
    session: aiohttp.ClientSession
    netns: str
    healthz: int
    log: Path

    async def post(self, path: str, document: dict[str, object]) -> None:
        async with self.session.post(self.plane.url + path, json=document) as answer:
            assert answer.status == 201, await answer.text()

    async def serve(self, name: str, *, health_port: int = 0) -> str:
        """A Service with one endpoint; its cluster IP."""
        spec: dict[str, object] = {"ports": [{"port": 80}]}
        if health_port:
            spec |= {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": health_port,
            }
        path = f"{self.plane.url}/api/v1/namespaces/default/services"
        async with self.session.post(
            path, json={"metadata": {"name": name}, "spec": spec}
        ) as answer:
            assert answer.status == 201, await answer.text()
            address = (await answer.json())["spec"]["clusterIP"]
        await self.post(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["192.0.2.1"], "nodeName": _NODE}],
                "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
            },
        )
        return str(address)

    async def written_s(self, address: str, limit_s: float) -> float:
        """How long until the kernel leads *address* somewhere."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            listed = await asyncio.to_thread(_nft, self.netns)
            if address in listed:
                break
            await asyncio.sleep(0.05)
        return round(time.monotonic() - began, 2)

    async def healthy(self) -> bool:
        """As a kubelet asks: on a connection of its own, for a second."""
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS_MAX)
                ) as session,
                session.get(f"http://127.0.0.1:{self.healthz}/livez") as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def said(self, words: str) -> int:
        return self.log.read_text().count(words)


def _nft(netns: str) -> str:
    command = ("ip", "netns", "exec", netns, "nft", "list", "ruleset")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _ip(verb: str, netns: str) -> None:
    subprocess.run(("ip", "netns", verb, netns), check=True)


def _descriptors_of(process: Process) -> int:
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))


@asynccontextmanager
async def node(folder: Path, *, control: Path | None = None) -> AsyncIterator[Node]:
    netns, healthz, log = f"slpa-{free_port()}", free_port(), folder / "proxy.log"
    program = (
        ("-m", "sliceplane")
        if control is None
        else ("-m", "tests.attack.faulty_process", str(control))
    )
    _ip("add", netns)
    try:
        with (
            PlaneProcess(folder, command="apiserver") as plane,
            Process(
                *(
                    "prlimit",
                    f"--nofile={DESCRIPTORS}:{DESCRIPTORS}",
                    sys.executable,
                    *program,
                    "proxy",
                ),
                *(
                    "--kubeconfig",
                    str(plane.kubeconfig),
                    "--hostname-override",
                    _NODE,
                    "--netns",
                    netns,
                ),
                *("--healthz-bind-address", f"127.0.0.1:{healthz}", "--sync-period", "2s"),
                log=log,
            ) as proxy,
        ):
            proxy.line()
            connector = aiohttp.TCPConnector(ssl=admin_context(plane))
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Node(plane, proxy, session, netns, healthz, log)
    finally:
        _ip("del", netns)


async def silent_connections(folder: Path) -> Sequence[Figure]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * SILENT), hard))
    try:
        async with node(folder) as attacked:
            with contextlib.ExitStack() as stack:
                held = []
                for _ in range(SILENT):
                    with contextlib.suppress(OSError):
                        held.append(
                            stack.enter_context(
                                socket.create_connection(("127.0.0.1", attacked.healthz), 1)
                            )
                        )
                probes, failed, ends = 0, 0, time.monotonic() + HOLD_SECONDS
                address = await attacked.serve("under-attack")
                written = await attacked.written_s(address, HOLD_SECONDS)
                while time.monotonic() < ends and attacked.proxy.process.poll() is None:
                    probes += 1
                    failed += not await attacked.healthy()
                    await asyncio.sleep(0.1)
                still = sum(_is_open(each) for each in held)
            return (
                alive(attacked.proxy),
                Figure("failed health probes", failed, f"of {probes}", 0),
                Figure("a new Service is in the kernel after", written, "s", WRITTEN_SECONDS_MAX),
                Figure(
                    f"silent connections that are open after {HOLD_SECONDS:.0f} s",
                    still,
                    "connections",
                    0,
                ),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def slow_and_endless(folder: Path) -> Sequence[Figure]:
    """A head drop by drop, a body without end, requests without waiting for answers: on many
    connections.
    """
    async with node(folder) as attacked:
        before = attacked.proxy.rss_mib()
        ends = time.monotonic() + HOLD_SECONDS
        open_at_end = 0

        async def abuse(number: int) -> None:
            nonlocal open_at_end
            with contextlib.suppress(OSError):
                # A peer that reads nothing and closes nothing lets a write wait: that is open, too.
                _, writer = await asyncio.open_connection("127.0.0.1", attacked.healthz)
                try:
                    if number % 3 == 0:
                        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
                    elif number % 3 == 1:
                        writer.write(
                            b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"
                        )
                    while time.monotonic() < ends:
                        match number % 3:
                            case 0:
                                writer.write(b"a: b\r\n")
                                await asyncio.sleep(0.2)
                            case 1:
                                writer.write(b"x" * 65536)
                                await asyncio.sleep(0.02)
                            case _:
                                writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
                                await asyncio.sleep(0.02)
                        async with asyncio.timeout(max(0.01, ends - time.monotonic())):
                            await writer.drain()
                    open_at_end += 1
                except TimeoutError:
                    open_at_end += 1
                finally:
                    writer.transport.abort()

        tasks = [asyncio.create_task(abuse(number)) for number in range(60)]
        failed = probes = 0
        while time.monotonic() < ends:
            probes += 1
            failed += not await attacked.healthy()
            await asyncio.sleep(0.2)
        await asyncio.gather(*tasks)
        return (
            alive(attacked.proxy),
            Figure("failed health probes", failed, f"of {probes}", 0),
            Figure("more memory", round(attacked.proxy.rss_mib() - before, 1), "MiB", 40),
            Figure(
                f"connections that are open after {HOLD_SECONDS:.0f} s", open_at_end, "of 60", 0
            ),
        )


async def faults(folder: Path) -> Sequence[Figure]:
    """Every open, socket, pipe, accept, process and thread of the node proxy fails, for one reason
    after another.
    """
    control = folder / "control"
    control.write_bytes(bytes(CONTROL_BYTES))
    with control.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), CONTROL_BYTES)
    figures = []
    async with node(folder, control=control) as attacked:
        for port, code in enumerate(
            (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC), 31_900
        ):
            if attacked.proxy.process.poll() is not None:
                break
            name = errno.errorcode[code].lower()
            mapped[1:9] = bytes(8)
            mapped[0] = code
            cpu = attacked.proxy.cpu_s()
            address = await attacked.serve(name, health_port=port)
            ends = time.monotonic() + FAULT_SECONDS
            while time.monotonic() < ends:
                await attacked.healthy()
                await asyncio.sleep(0.2)
            calls = int.from_bytes(mapped[1:9], "little")
            busy = (attacked.proxy.cpu_s() - cpu) / FAULT_SECONDS
            mapped[0] = 0
            written = await attacked.written_s(address, 2 * RECOVERY_SECONDS_MAX)
            figures += [
                Figure(f"{name}: calls that failed", calls, "calls", 1, at_least=True),
                Figure(f"{name}: busy meanwhile", round(busy, 2), "of a core", 0.5),
                Figure(f"{name}: rules are written after", written, "s", RECOVERY_SECONDS_MAX),
            ]
        healthy = await _until(attacked.healthy, RECOVERY_SECONDS_MAX)
        advice = attacked.said("out of file descriptors")
        return (
            alive(attacked.proxy),
            *figures,
            Figure("health pages answer again after", healthy, "s", RECOVERY_SECONDS_MAX),
            Figure("lines that say what to do", advice, "lines", 1, at_least=True),
            Figure("lines that say what to do, a minute", advice, "lines", 3),
            Figure("lines in the log", attacked.said("\n"), "lines", 100),
        )


async def exhausted(folder: Path) -> Sequence[Figure]:
    """The administrator's limit is lowered to what is open: API server, controllers and node proxy
    get no descriptor more, until it is raised again. What the kernel refuses then is refused
    everywhere, in C too.
    """
    async with node(folder) as attacked:
        command = (
            sys.executable,
            "-m",
            "sliceplane",
            "controllers",
            "--kubeconfig",
            str(attacked.plane.kubeconfig),
        )
        page = free_port()
        flags = ("--leader-elect=false", "--metrics-bind-address", f"127.0.0.1:{page}")
        with Process(*command, *flags, log=folder / "controllers.log") as controllers:
            controllers.line()
            processes = {
                "API server": attacked.plane,
                "controllers": controllers,
                "node proxy": attacked.proxy,
            }
            before = {
                name: resource.prlimit(each.process.pid, resource.RLIMIT_NOFILE)
                for name, each in processes.items()
            }
            for each in processes.values():
                used = _descriptors_of(each)
                _, hard = resource.prlimit(each.process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(each.process.pid, resource.RLIMIT_NOFILE, (used, hard))

            async def scraped() -> bool:
                try:
                    async with (
                        aiohttp.ClientSession(
                            timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS_MAX)
                        ) as session,
                        session.get(f"http://127.0.0.1:{page}/metrics") as answer,
                    ):
                        return answer.status == 200
                except (aiohttp.ClientError, OSError, TimeoutError):
                    return False

            ends = time.monotonic() + 6
            while time.monotonic() < ends:
                await attacked.healthy()
                await scraped()
                with contextlib.suppress(OSError):
                    host, port = attacked.plane.url.removeprefix("https://").split(":")
                    socket.create_connection((host, int(port)), 0.5).close()
                await asyncio.sleep(0.1)
            ended = sum(each.process.poll() is not None for each in processes.values())
            for name, each in processes.items():
                if each.process.poll() is None:
                    resource.prlimit(each.process.pid, resource.RLIMIT_NOFILE, before[name])
            recovered = page_s = 99.0

            if not ended:
                address = await attacked.serve("afterwards")
                recovered = await attacked.written_s(address, 2 * RECOVERY_SECONDS_MAX)
                page_s = await _until(scraped, RECOVERY_SECONDS_MAX)
            healthy = await _until(attacked.healthy, RECOVERY_SECONDS_MAX)
            tracebacks = sum(
                (folder / name).read_text().count("Traceback")
                for name in ("proxy.log", "controllers.log", "plane.log")
            )
            return (
                Figure("processes that ended", ended, "processes", 0),
                Figure(
                    "a new Service is in the kernel after", recovered, "s", RECOVERY_SECONDS_MAX
                ),
                Figure(
                    "metrics of the controllers are there after", page_s, "s", RECOVERY_SECONDS_MAX
                ),
                Figure(
                    "health page of the node proxy is there after",
                    healthy,
                    "s",
                    RECOVERY_SECONDS_MAX,
                ),
                Figure("tracebacks in the logs", tracebacks, "tracebacks", 0),
                Figure(
                    "lines of the node proxy that say what to do",
                    attacked.said("out of file descriptors"),
                    "lines",
                    1,
                    at_least=True,
                ),
            )


async def _until(ask: object, limit_s: float) -> float:
    began = time.monotonic()
    while time.monotonic() - began < 2 * limit_s:
        if await ask():  # type: ignore[operator]
            break
        await asyncio.sleep(0.1)
    return round(time.monotonic() - began, 2)


ATTACKS = (
    Attack(
        "silent-health-port",
        f"{SILENT} silent connections to a node proxy's health port",
        silent_connections,
    ),
    Attack(
        "slow-health-port",
        "drops, endless bodies and pipelines on a node proxy's health port",
        slow_and_endless,
    ),
    Attack(
        "faulty-node-proxy",
        "every call of the node proxy that needs a descriptor or thread fails",
        faults,
    ),
    Attack(
        "planes-without-descriptors",
        "no process of a plane gets a descriptor for six seconds",
        exhausted,
    ),
)
