"""A relay between a server and its watchers: what one event costs the server and the relay.

One EndpointSlice of 25 KB changes, a write at a time, until every watcher has the event. Fleets of
TLS watchers at the server and at the relay take turns, so that the machine's pace is the same for
both. Client certificates of the watchers are trusted as they are; writes go to the server.

And what becomes of watchers whose relay is killed: they go to another one (``tools.followers``), and
have every event once.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from benchmarks.harness import Result, main, percentile
from benchmarks.tools.fleet import OPEN_S, SLICES_PATH, Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.consume.progress import Progress
from sliceplane.kit.rng import Rng
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.reports import NodeReports
from sliceplane.watch.cache import Mark
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load
from sliceplane.watch.reflector import Reflector

WATCHERS = 500
TURNS = 3
ROUNDS = 10
SMALL_WATCHERS = 10
#: watchers of a relay that is killed
CHILDREN = 2_000
KILL_WRITES_PER_S = 2.0
LEVEL_ROUNDS = 200
WARM_UP_ROUNDS = 3
ROUND_MAX_S = 30.0
#: nodes whose reports are aggregated, and slices of a list
REPORTING = 1_000
#: the server behind a relay should cost what it costs with so many watchers of its own
FEW_WATCHERS = 2


class RelayProcess(Process):
    """``sliceplane relay`` in front of *server*, with that server's certificates."""

    def __init__(self, server: PlaneProcess, folder: Path) -> None:
        pki = server.kubeconfig.parent / "pki"
        super().__init__(
            # A warning that the machine is busy would load the log's libraries, in some runs only.
            *(sys.executable, "-m", "sliceplane", "relay", "--log-level", "error"),
            *("--upstream", str(server.kubeconfig), "--listen", "127.0.0.1:0"),
            *("--tls-cert-file", str(pki / "apiserver.crt")),
            *("--tls-private-key-file", str(pki / "apiserver.key")),
            *("--client-ca-file", str(pki / "ca.crt")),
            log=folder / "relay.log",
        )
        word, address = self.line().split()
        assert word == "ready", word
        self.kubeconfig = folder / "relay.kubeconfig"
        self.kubeconfig.write_text(
            server.kubeconfig.read_text().replace(server.url, f"https://{address}")
        )


class Writes:
    """Writes of one slice at the server; every one differs from the one before."""

    def __init__(self, client: HttpClient, endpoints: int = PER_SLICE) -> None:
        self._client = client
        self._document = slice_document("web-1", "web", range(endpoints))
        self._round = 0
        #: that the slice had
        self.versions: list[int] = []

    async def write(self) -> None:
        self._document["endpoints"][0]["zone"] = f"zone-{self._round % 2}"
        self._round += 1
        body = encode(self._document)
        answer = await self._client.update(EndpointSlices, NAMESPACE, "web-1", body)
        self.versions.append(decode(answer, Object).metadata.revision)

    async def go_on(self, per_s: float) -> None:
        """Until cancelled, which no write is."""
        while True:
            await asyncio.shield(self.write())
            await asyncio.sleep(1 / per_s)

    async def seconds_to(self, fleet: Fleet, count: int) -> list[float]:
        """Seconds from each write to the last watcher of *fleet*."""
        found = []
        for _ in range(count):
            fleet.expect(1)
            began = time.monotonic()
            await self.write()
            delivery = await asyncio.to_thread(fleet.delivered, ROUND_MAX_S)
            found.append(delivery.at - began)
        return found


async def begin(stack: AsyncExitStack) -> tuple[Path, PlaneProcess, HttpClient]:
    """A server with one slice, until *stack* ends it."""
    folder = Path(stack.enter_context(scratch()))
    server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
    client = await stack.enter_async_context(HttpClient(load(server.kubeconfig)))
    await client.create(Namespaces, "", encode(namespace_document()))
    document = slice_document("web-1", "web", range(PER_SLICE))
    await client.create(EndpointSlices, NAMESPACE, encode(document))
    return folder, server, client


def report_us() -> float:
    """Returns the CPU of one node's report and of its part of the relay's Lease."""
    leases = []
    for number in range(REPORTING):
        progress = Progress(f"node-{number:05}", ("IPv4",))
        progress.on_mark(EndpointSlices.key, "", Mark(EndpointSlices.key, "10"))
        progress.on_idle("IPv4")
        leases.append(decode(progress.take_report(0.0), Lease))
    reports = NodeReports("relay")
    began = time.process_time()
    for lease in leases:
        assert reports.accepts(lease)
        reports.on_lease(lease, 0.0)
    assert encode(reports.take_lease(0.0))
    return (time.process_time() - began) / REPORTING * 1e6


def object_us() -> float:
    """Returns the CPU of one object of a list, until the relay's memory has it."""
    per_slice = range(20)
    bodies = []
    for number in range(REPORTING):
        document = slice_document(f"web-{number}", "web", per_slice)
        document["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number + 1)}
        bodies.append(encode(document))
    mirror = ResourceMirror(EndpointSlices)
    reflector = Reflector(mirror.cache, Rng(1))
    reflector.start(0.0)
    began = time.process_time()
    reflector.on_page(bodies, str(REPORTING), "", 0.0)
    mirror.on_changes(reflector.take_changes())
    mark = reflector.take_mark()
    assert mark is not None
    mirror.on_mark(mark)
    spent_s = time.process_time() - began
    assert mirror.store.count(EndpointSlices.storage_key) == REPORTING
    return spent_s / REPORTING * 1e6


async def measure(watchers: int, turns: int, count: int) -> list[Result]:
    async with AsyncExitStack() as stack:
        folder, server, client = await begin(stack)
        stored = await client.get(EndpointSlices, NAMESPACE, "web-1")
        relay = stack.enter_context(RelayProcess(server, folder))
        writes = Writes(client)
        since = (await client.list(EndpointSlices)).resource_version
        # What the first watchers load is no memory of those who follow.
        places = {
            "direct": (server.kubeconfig, watchers),
            "few": (server.kubeconfig, FEW_WATCHERS),
            "few behind": (relay.kubeconfig, FEW_WATCHERS),
            "behind": (relay.kubeconfig, watchers),
        }
        relay_mib: dict[str, float] = {}
        spent: dict[str, list[tuple[float, float]]] = {where: [] for where in places}
        for _ in range(turns):
            for where, (kubeconfig, number) in places.items():
                # A fleet that is closed costs the other's turn nothing.
                with ExitStack() as turn:
                    since = (await client.list(EndpointSlices)).resource_version
                    fleet = turn.enter_context(Fleet(kubeconfig, number, since, folder))
                    await writes.seconds_to(fleet, WARM_UP_ROUNDS)
                    before = server.cpu_s(), relay.cpu_s()
                    await writes.seconds_to(fleet, count)
                    spent[where].append(
                        (
                            (server.cpu_s() - before[0]) / count * 1e3,
                            (relay.cpu_s() - before[1]) / count * 1e3,
                        )
                    )
                    # Later turns have memory that former fleets left.
                    relay_mib.setdefault(where, relay.rss_mib())
    grown_mib = max(relay_mib["behind"] - relay_mib["few behind"], 0.0)
    child_kib = grown_mib / (watchers - FEW_WATCHERS) * 1024
    what = f"{watchers:,} TLS watchers, {len(stored) / 1000:.1f} kB"
    direct, few, _, behind = (
        statistics.median(server_ms for server_ms, _ in spent[where]) for where in places
    )
    of_relay, of_few = (
        statistics.median(relay_ms for _, relay_ms in spent[where])
        for where in ("behind", "few behind")
    )
    return [
        Result(
            name="server CPU an event, watchers at the server", size=what, value=direct, unit="ms"
        ),
        Result(
            name="server CPU an event, watchers at a relay",
            size=what,
            value=behind,
            unit="ms",
            peer=f"{FEW_WATCHERS} watchers at the server",
            peer_value=few,
        ),
        Result(name="relay CPU an event", size=what, value=of_relay, unit="ms"),
        Result(
            name="relay CPU an event",
            size=f"{FEW_WATCHERS} TLS watchers",
            value=of_few,
            unit="ms",
        ),
        Result(
            name="relay CPU an object of a list",
            size=f"{REPORTING:,} slices of 20",
            value=object_us(),
            unit="us",
        ),
        Result(
            name="relay CPU a report, aggregated",
            size=f"{REPORTING:,} nodes",
            value=report_us(),
            unit="us",
        ),
        Result(name="relay memory a watcher", size=what, value=child_kib, unit="KiB"),
    ]


async def latency_of_a_level(count: int) -> list[Result]:
    """The same events at a watcher of the server and at one of the relay."""
    async with AsyncExitStack() as stack:
        folder, server, client = await begin(stack)
        relay = stack.enter_context(RelayProcess(server, folder))
        writes = Writes(client)
        since = (await client.list(EndpointSlices)).resource_version
        direct, behind = (
            stack.enter_context(Fleet(kubeconfig, 1, since, folder))
            for kubeconfig in (server.kubeconfig, relay.kubeconfig)
        )
        later = []
        for number in range(WARM_UP_ROUNDS + count):
            direct.expect(1)
            behind.expect(1)
            await writes.write()
            at_server = await asyncio.to_thread(direct.delivered, ROUND_MAX_S)
            at_relay = await asyncio.to_thread(behind.delivered, ROUND_MAX_S)
            if number >= WARM_UP_ROUNDS:
                later.append(1e3 * (at_relay.at - at_server.at))
    return [
        Result(
            name="latency of a level",
            size=f"1 watcher each, p{percent}",
            value=percentile(later, percent),
            unit="ms",
        )
        for percent in (50, 99)
    ]


async def kill(children: int) -> list[Result]:
    """One of two relays is killed under *children* watchers, while a slice changes."""
    async with AsyncExitStack() as stack:
        folder, server, client = await begin(stack)
        relays = []
        for name in ("first", "second"):
            (folder / name).mkdir()
            relays.append(stack.enter_context(RelayProcess(server, folder / name)))
        since = (await client.list(EndpointSlices)).resource_version
        followers = stack.enter_context(
            Process(
                *(sys.executable, "-m", "benchmarks.tools.followers"),
                *(f"{SLICES_PATH}?watch=true", since, str(children)),
                *(str(relay.kubeconfig) for relay in relays),
                log=folder / "followers.log",
            )
        )
        assert followers.line(OPEN_S).startswith("open "), "all watches are open"
        writes = Writes(client, endpoints=1)
        changing = asyncio.create_task(writes.go_on(KILL_WRITES_PER_S))
        await asyncio.sleep(1.0)
        lists, spent_s = await lists_at(client), relays[1].cpu_s()
        relays[0].process.kill()
        killed = time.monotonic()
        followers.say("back")
        _, back, refused = (await asyncio.to_thread(followers.line, OPEN_S)).split()
        spent_s = relays[1].cpu_s() - spent_s
        await asyncio.sleep(1.0)
        changing.cancel()
        lists = await lists_at(client) - lists
        followers.say("check " + ",".join(map(str, writes.versions)))
        _, _, lost, repeated = (await asyncio.to_thread(followers.line, OPEN_S)).split()
    figures = (
        ("all back at a sibling", float(back) - killed, "s"),
        ("CPU of the sibling, a child", spent_s / children * 1e3, "ms"),
        ("lists at the server", lists, "lists"),
        ("events lost", float(lost), "events"),
        ("events repeated", float(repeated), "events"),
        ("watches refused", float(refused), "answers"),
    )
    size = f"{children:,} TLS watchers, {KILL_WRITES_PER_S:g} writes a second"
    return [
        Result(name=f"kill -9 of a relay: {name}", size=size, value=value, unit=unit)
        for name, value, unit in figures
    ]


async def lists_at(client: HttpClient) -> float:
    """Lists that the server has answered."""
    page = await client.page("/metrics", bytes_max=16 * 1024 * 1024)
    lines = [line for line in page.decode().splitlines() if 'verb="LIST"' in line]
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("apiserver_request_total")
    )


def run(small: bool = False) -> list[Result]:
    watchers, turns, count, children, events = (
        (SMALL_WATCHERS, 1, 3, SMALL_WATCHERS, 3)
        if small
        else (WATCHERS, TURNS, ROUNDS, CHILDREN, LEVEL_ROUNDS)
    )
    return [
        *asyncio.run(measure(watchers, turns, count)),
        *asyncio.run(latency_of_a_level(events)),
        *asyncio.run(kill(children)),
    ]


if __name__ == "__main__":
    main(run)
