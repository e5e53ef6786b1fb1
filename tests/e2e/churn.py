"""Everything at once for a long time: ``python -m tests.e2e.churn --seconds 1800 --seed 1 --output
FILE``.

People change Services and Deployments and write ConfigMaps, views of endpoints follow; the plane
(``sliceplane up`` with emulated nodes) is killed, restarted and stopped for seconds, clients watch
and do not read, the disk is full. In the last third it is not killed any more, so that growth of
one process shows. At each calm everything comes to rest:

- each write that was acknowledged is there, and nothing else;
- slices are what the plain specification (``slices.oracle``) makes of Pods and Services;
- each view, which lived all the time, has exactly the endpoints of the slices;
- memory, open files and threads of the server and of the clients' process are noted.

The disk is a small one of its own, which needs root; without it that fault is left out, and the
report says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import figures
from tests.e2e.running import Plane, spawn, stop
from tests.ports import free_port
from tests.server.test_full_disk_start import fill
from tests.waiting import eventually

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointSlices,
    Events,
    Nodes,
    Pods,
    Resource,
    Services,
)
from sliceplane.client import EndpointView, Unreachable
from sliceplane.slices import oracle
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

NAMESPACE = "default"
APPS = tuple(f"app-{number:02}" for number in range(12))
REPLICAS_MAX = 12
WRITERS = 4
NAMES_PER_WRITER = 20
#: of a ConfigMap, so that a watch which is not read fills
VALUE_BYTES_MAX = 40_000
#: the log may take 64 MiB, and recordings that a fault saves are beside the data
DISK = "512m"
SLOW_CLIENTS = 20
CALMS = 6
#: it runs beside other work, and lower than that
PATIENCE_S = 600.0
#: a last life may grow by this much between its first calm and its last: histories fill, allocators
#: keep pages
GROWTH_MIB_MAX = 64.0
#: and by its Events, which stay for an hour: a faster machine makes more of them. For each, beside
#: its body:
EVENT_KIB = 4.0
NO_ANSWER = (StatusError, Unreachable)
FLAGS = (
    "--emulate",
    "--emulate-nodes",
    "5",
    "--zones",
    "a,b,c",
    "--emulate-termination",
    "300ms",
    "--history-keep",
    "20s",
    "--recorder-size",
    "4",
    "--log-level",
    "error",
)


@dataclass
class ChurnReport:
    faults: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    events: int = 0
    lives: int = 0
    calms: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def process_figures(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "mib": round(int(fields["VmRSS"].split()[0]) / 1024, 1),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }


class Supervisor:
    """One plane, always at the same port and on the same data."""

    def __init__(self, folder: Path, data: Path, report: ChurnReport) -> None:
        self._folder, self._data, self._report = folder, data, report
        self._flags = (*FLAGS, "--secure-port", str(free_port()))
        self.plane: Plane = self._spawn()

    def _spawn(self) -> Plane:
        self._report.lives += 1
        return spawn(self._folder, *self._flags, data_dir=str(self._data), patience_s=PATIENCE_S)

    def kill(self) -> None:
        self.plane.process.kill()
        self.plane.process.communicate()
        self.plane = self._spawn()

    def restart(self) -> None:
        code = stop(self.plane)
        if code:
            self._report.violations.append(f"exit code {code} after SIGTERM")
        self.plane = self._spawn()

    @property
    def size_mib(self) -> float:
        return round(
            sum(path.stat().st_size for path in self._data.rglob("*") if path.is_file()) / 2**20, 1
        )


class MapWriter:
    """Writes ConfigMaps of its own and keeps what was acknowledged; what was not answered is asked
    for later.
    """

    def __init__(
        self, number: int, client: HttpClient, rng: random.Random, report: ChurnReport
    ) -> None:
        self._client, self._rng, self._report = client, rng, report
        self._names = [f"map-{number}-{index:02}" for index in range(NAMES_PER_WRITER)]
        self.held: dict[str, str | None] = dict.fromkeys(self._names)
        self.doubts: dict[str, str | None] = {}
        self._count = 0

    async def once(self) -> None:
        name = self._rng.choice(self._names)
        if name in self.doubts:
            await self.resolve(name)
        held = self.held[name]
        self._count += 1
        value: str | None = f"{self._count}-" + "x" * self._rng.randrange(VALUE_BYTES_MAX)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"value": value},
        }
        if held is not None and self._rng.random() < 0.3:
            value = None
            work = self._client.delete(ConfigMaps, NAMESPACE, name)
        elif held is None:
            work = self._client.create(ConfigMaps, NAMESPACE, encode(body))
        else:
            work = self._client.update(ConfigMaps, NAMESPACE, name, encode(body))
        self.doubts[name] = value
        await work
        self.held[name] = value
        del self.doubts[name]
        self._report.writes["ConfigMap"] += 1

    async def resolve(self, name: str) -> None:
        """What was not answered happened or did not; what is there is the truth from now on."""
        try:
            found = json.loads(await self._client.get(ConfigMaps, NAMESPACE, name))["data"]["value"]
        except StatusError as error:
            if error.code != 404:
                raise
            found = None
        if found not in (self.held[name], self.doubts[name]):
            self._report.violations.append(
                f"{name} is neither what was acknowledged nor what was sent after it"
            )
        self.held[name] = found
        del self.doubts[name]


class AppOwner:
    """Changes one app after the other; each wish is repeated until it is acknowledged."""

    def __init__(self, client: HttpClient, rng: random.Random, report: ChurnReport) -> None:
        self._client, self._rng, self._report = client, rng, report
        #: replicas; ``None``: the app is not there
        self.wanted: dict[str, int | None] = dict.fromkeys(APPS)
        self._wish: tuple[str, int | None] | None = None
        self._version = 0

    async def once(self) -> None:
        if self._wish is None:
            app = self._rng.choice(APPS)
            gone = self.wanted[app] is not None and self._rng.random() < 0.15
            self._wish = app, None if gone else self._rng.randrange(REPLICAS_MAX + 1)
            self._version += self._rng.random() < 0.5
        app, replicas = self._wish
        if replicas is None:
            await self._delete(Services, app)
            await self._delete(Deployments, app)
        else:
            await self._apply(
                Services,
                app,
                {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8080}]},
            )
            container = {"name": "main", "image": f"web:{self._version}"}
            template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container]}}
            matched = {"matchLabels": {"app": app}}
            await self._apply(
                Deployments, app, {"replicas": replicas, "selector": matched, "template": template}
            )
        self.wanted[app] = replicas
        self._wish = None
        self._report.writes["app"] += 1

    async def _apply(self, resource: Resource, name: str, spec: dict[str, Any]) -> None:
        head = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
        }
        body = encode({**head, "spec": spec})
        await self._client.perform(
            Write(
                verb="patch",
                resource=resource,
                namespace=NAMESPACE,
                name=name,
                body=body,
                patch_type="apply",
                force=True,
            )
        )

    async def _delete(self, resource: Resource, name: str) -> None:
        try:
            await self._client.delete(resource, NAMESPACE, name)
        except StatusError as error:
            if error.code != 404:
                raise


class Churn:
    """One run.  ``run`` gives the report."""

    def __init__(
        self, supervisor: Supervisor, disk: Path | None, seed: int, report: ChurnReport
    ) -> None:
        self._supervisor, self._disk, self.report = supervisor, disk, report
        self._rng = random.Random(seed)
        self._quiet = asyncio.Event()
        self._client = HttpClient(load(supervisor.plane.kubeconfig))
        self._writers = [
            MapWriter(number, self._client, random.Random(f"{seed}/{number}"), report)
            for number in range(WRITERS)
        ]
        self._owner = AppOwner(self._client, random.Random(f"{seed}/apps"), report)
        self._views: dict[str, EndpointView] = {}

    async def run(self, seconds: float, tell: Callable[[str], None]) -> None:
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._client.close)
            for app in APPS:
                self._views[app] = await stack.enter_async_context(EndpointView(self._client, app))
                counting = asyncio.create_task(self._count(self._views[app]))
                stack.callback(counting.cancel)
            for number in range(1, CALMS + 1):
                kills = number <= CALMS * 2 // 3
                await self._storm(began + seconds * number / CALMS, kills=kills)
                await self._calm(time.monotonic() - began)
                tell(json.dumps(self.report.calms[-1]))

    async def _count(self, view: EndpointView) -> None:
        async for _ in view:
            self.report.events += 1

    # Storm

    async def _storm(self, until: float, *, kills: bool) -> None:
        over = lambda: time.monotonic() >= until  # noqa: E731
        work = [self._repeat(writer.once, over, 0.1) for writer in self._writers]
        await asyncio.gather(
            *work, self._repeat(self._owner.once, over, 0.5), self._nemesis(over, kills=kills)
        )

    async def _repeat(
        self, deed: Callable[[], Awaitable[None]], over: Callable[[], bool], pause_s: float
    ) -> None:
        rng = random.Random(self._rng.random())
        while not over():
            try:
                await deed()
            except NO_ANSWER as error:
                self.report.writes["not answered or refused"] += 1
                if (
                    isinstance(error, StatusError)
                    and error.code < 500
                    and error.code not in (408, 409, 429)
                ):
                    self.report.violations.append(f"refused: {error}")
                await asyncio.sleep(0.2)
            await asyncio.sleep(rng.uniform(0, pause_s))

    async def _nemesis(self, over: Callable[[], bool], *, kills: bool) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [self._stand_still, self._slow_clients]
        faults += [self._kill, self._restart] * kills
        faults += [self._full_disk] * (self._disk is not None)
        while not over():
            await asyncio.sleep(self._rng.uniform(3.0, 9.0))
            fault = self._rng.choice(faults)
            self.report.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            await fault()

    async def _kill(self) -> None:
        await asyncio.to_thread(self._supervisor.kill)

    async def _restart(self) -> None:
        await asyncio.to_thread(self._supervisor.restart)

    async def _stand_still(self) -> None:
        self._supervisor.plane.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(1.0, 8.0))
        self._supervisor.plane.process.send_signal(signal.SIGCONT)

    async def _full_disk(self) -> None:
        assert self._disk is not None
        ballast = await asyncio.to_thread(fill, self._disk)
        await asyncio.sleep(self._rng.uniform(1.0, 6.0))
        ballast.unlink()

    async def _slow_clients(self) -> None:
        """They watch all ConfigMaps from the beginning, read a little now and then, and are gone
        without a word.
        """
        plane = self._supervisor.plane
        token = Path(plane.kubeconfig).with_name("tokens.csv").read_text().partition(",")[0]
        request = (
            f"GET {ConfigMaps.path()}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            f"{token}\r\n\r\n"
        )
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, port = plane.url.removeprefix("https://").rpartition(":")
        opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        with contextlib.suppress(OSError):
            for _ in range(SLOW_CLIENTS):
                opened.append(
                    await asyncio.open_connection(host, int(port), ssl=context, limit=1024)
                )
                opened[-1][1].write(request.encode())
        for _ in range(self._rng.randrange(4, 20)):
            await asyncio.sleep(1.0)
            for reader, _ in opened:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read(512)
        for _, writer in opened:
            writer.transport.abort()

    # Calm

    async def _calm(self, at_s: float) -> None:
        for writer in self._writers:
            for name in tuple(writer.doubts):
                await eventually(
                    lambda name=name, writer=writer: self._resolved(writer, name),
                    within_s=PATIENCE_S,
                    ignoring=NO_ANSWER,
                )
        while self._owner._wish is not None:
            with contextlib.suppress(*NO_ANSWER):
                await self._owner.once()
        try:
            await eventually(
                self._is_right, within_s=PATIENCE_S, ignoring=(*NO_ANSWER, AssertionError)
            )
        except AssertionError as error:
            self.report.violations.append(f"after {at_s:.0f} s: {error}")
        faults = self._supervisor.plane.log.read_text(errors="replace").count("failed unexpectedly")
        if faults:
            self.report.violations.append(
                f"after {at_s:.0f} s: {faults} faults in the server's log"
            )
        self.report.calms.append(
            {
                "at_s": round(at_s),
                "life": self.report.lives,
                "server": process_figures(self._supervisor.plane.process.pid),
                "clients": process_figures(os.getpid()),
                "data_mib": self._supervisor.size_mib,
                "events": len(events := await self._listed(Events)),
                "events_mib": round(sum(map(len, events)) / 2**20, 1),
                "faults": dict(sorted(self.report.faults.items())),
                "writes": dict(sorted(self.report.writes.items())),
                "changes_of_views": self.report.events,
                "violations": len(self.report.violations),
            }
        )

    async def _resolved(self, writer: MapWriter, name: str) -> bool:
        await writer.resolve(name)
        return True

    async def _listed(self, resource: Resource) -> list[bytes]:
        page = await self._client.list(resource, namespace=NAMESPACE if resource.namespaced else "")
        return list(page.items)

    async def _is_right(self) -> bool:
        """Raises ``AssertionError`` while something is not as it must be."""
        maps = {
            item["metadata"]["name"]: item["data"]["value"]
            for item in map(json.loads, await self._listed(ConfigMaps))
            if item["metadata"]["name"].startswith("map-")
        }
        held = {
            name: value
            for writer in self._writers
            for name, value in writer.held.items()
            if value is not None
        }
        assert maps.keys() == held.keys(), f"ConfigMaps {sorted(maps.keys() ^ held.keys())}"
        assert maps == held, (
            f"other values in {[name for name in held if maps[name] != held[name]]}"
        )
        pods = [decode(item, Pod) for item in await self._listed(Pods)]
        wanted = {
            app: replicas for app, replicas in self._owner.wanted.items() if replicas is not None
        }
        counted = Counter((pod.metadata.labels or {}).get("app", "") for pod in pods)
        assert counted == {app: replicas for app, replicas in wanted.items() if replicas}, (
            f"Pods {counted}"
        )
        services = [decode(item, Service) for item in await self._listed(Services)]
        ours = {
            service.metadata.name: service for service in services if service.metadata.name in APPS
        }
        assert ours.keys() == wanted.keys(), f"Services {sorted(ours.keys() ^ wanted.keys())}"
        nodes = {
            node.metadata.name: node
            for node in (decode(item, Node) for item in await self._listed(Nodes))
        }
        slices = [decode(item, EndpointSlice) for item in await self._listed(EndpointSlices)]
        for service in ours.values():
            oracle.check_converged(service, pods, nodes, slices, 100)
        for app, view in self._views.items():
            seen = sorted(endpoint.address for endpoint in view.usable)
            truth = sorted(
                address
                for endpoint_slice in slices
                if app in ours and oracle.is_ours(endpoint_slice, ours[app])
                for endpoint in endpoint_slice.endpoints or ()
                if endpoint.conditions.ready
                for address in endpoint.addresses
            )
            assert seen == truth, f"the view of {app} has {seen}, slices {truth}"
            assert len(truth) == (wanted.get(app) or 0), (
                f"{app} has {len(truth)} of {wanted.get(app)}"
            )
        return True


def growth_mib(report: ChurnReport) -> float:
    """Of the last life, between its first calm and its last, beside its Events."""
    first, *_, last = [
        calm for calm in report.calms if calm["life"] == report.calms[-1]["life"]
    ] * 2
    events_mib = (
        (last["events"] - first["events"]) * EVENT_KIB / 1024
        + last["events_mib"]
        - first["events_mib"]
    )
    return float(last["server"]["mib"] - first["server"]["mib"] - events_mib)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "churn", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def play(
    folder: Path, *, seconds: float, seed: int, tell: Callable[[str], None] = print
) -> ChurnReport:
    report = ChurnReport()
    with contextlib.ExitStack() as stack:
        disk = None
        if os.geteuid() == 0:
            disk = folder / "disk"
            disk.mkdir()
            stack.enter_context(small_disk(disk))
        supervisor = Supervisor(folder, (disk or folder) / "data", report)
        stack.callback(lambda: stop(supervisor.plane))
        churn = Churn(supervisor, disk, seed, report)
        await churn.run(seconds, tell)
    if disk is None:
        tell("the disk was never full: that needs root")
    if growth_mib(report) > GROWTH_MIB_MAX:
        report.violations.append(f"the last life has grown by {growth_mib(report):.0f} MiB")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.churn")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a file for the same lines")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # every lost watch would be told
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-churn-") as folder,
        contextlib.ExitStack() as stack,
    ):
        output = stack.enter_context(arguments.output.open("w")) if arguments.output else None

        def tell(line: str) -> None:
            for file in filter(None, (sys.stdout, output)):
                print(line, file=file, flush=True)

        tell(f"seed {arguments.seed}, {arguments.seconds:g} s")
        report = asyncio.run(
            play(Path(folder), seconds=arguments.seconds, seed=arguments.seed, tell=tell)
        )
        tell(f"{report.lives} lives; the last has grown by {growth_mib(report):.1f} MiB")
        for line in [f"violations: {len(report.violations)}", *report.violations[:50]]:
            tell(line)
    writes, faults = (
        ", ".join(f"{count:,} {name}" for name, count in sorted(counted.items()))
        for counted in (report.writes, report.faults)
    )
    figures.tell(
        f"{report.lives} lives; {faults}; written: {writes}; {len(report.violations)} violations "
        "at "
        f"{len(report.calms)} calms"
    )
    sys.exit(bool(report.violations))


if __name__ == "__main__":
    main()
