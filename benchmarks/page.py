"""The page: what fifty tabs cost ``sliceplane ui``, or an API server with ``--ui``, while the
cluster changes, and how a browser copes with a large Service.

Tabs of the first part are plain readers of streams, ten for each of five views; a hundred endpoints
a second change, in a hundred Services. The second part needs a Chromium (``tests.ui.browser``): one
Service of 20,000 endpoints.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.harness import Result, main, note, percentile
from benchmarks.tools.objects import (
    NAMESPACE,
    PER_SLICE,
    namespace_document,
    node_document,
    service_document,
    slice_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

TABS = 50
VIEWS = ("now", "services", f"service&service={NAMESPACE}/web-0", "zones", "nodes")
SERVICES = 100
SMALL_TABS = 5
SMALL_SERVICES = 5
ENDPOINTS = 20
NODES = 30
CHANGES_A_SECOND = 100
WARM_UP_S = 8.0
SECONDS = 30.0
SMALL_S = 0.4
#: until every tab is open
OPEN_S_MAX = 120.0
LARGE = 20_000
SMALL = 600
LOADS = 5
DELTAS = 20
SMALL_DELTAS = 2
DELTA_PERIOD_S = 0.5


async def fill(client: HttpClient, services: int, endpoints: int) -> None:
    await client.create(Namespaces, "", encode(namespace_document()))
    for number in range(NODES):
        ready = {
            "conditions": [{"type": "Ready", "status": "True"}]
        }  # or Zones takes no client to be there
        await client.create(Nodes, "", encode({**node_document(number), "status": ready}))
    for number in range(services):
        await client.create(Services, NAMESPACE, encode(service_document(f"web-{number}")))
        for first in range(0, endpoints, PER_SLICE):
            piece = _slice(number, first, min(endpoints - first, PER_SLICE))
            await client.create(EndpointSlices, NAMESPACE, encode(piece))


def _slice(service: int, first: int, count: int, turn: int = 0) -> dict[str, object]:
    """With each *turn* another one of its endpoints is not ready."""
    document = slice_document(
        f"web-{service}-{first}", f"web-{service}", range(first, first + count)
    )
    for at, endpoint in enumerate(document["endpoints"]):
        endpoint["nodeName"] = node_document(at % NODES)["metadata"]["name"]
        endpoint["conditions"] = {"ready": at != turn % count or not turn}
    return document


async def change(client: HttpClient, services: int, seconds: float) -> float:
    """Changes a second."""
    began = time.monotonic()
    number = 0
    while (now := time.monotonic() - began) < seconds:
        while number < now * CHANGES_A_SECOND and time.monotonic() - began < seconds:
            number += 1
            service = number % services
            document = _slice(service, 0, ENDPOINTS, 1 + number // services)
            await client.update(EndpointSlices, NAMESPACE, f"web-{service}-0", encode(document))
        await asyncio.sleep(1 / CHANGES_A_SECOND)
    return number / (time.monotonic() - began)


async def read(
    session: aiohttp.ClientSession, url: str, opened: asyncio.Queue[None], received: list[int]
) -> None:
    async with session.get(url, headers={"Sec-Fetch-Site": "same-origin"}) as response:
        assert response.status == 200, await response.text()
        opened.put_nowait(None)
        try:
            async for portion in response.content.iter_any():
                received[0] += len(portion)
        finally:
            # At once: a server that is busy says good-bye over TLS later than this loop ends.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()


class Cost(NamedTuple):
    """In percent of a core, and bytes a second to all tabs."""

    cpu: float
    sent: float
    rate: float


async def watch_tabs(
    server: PlaneProcess, page: Process, url: str, tabs: int, *, small: bool
) -> Cost:
    """What *page* takes to serve *tabs* at *url*.  Who asks for a client certificate is shown
    one.
    """
    received, opened = [0], asyncio.Queue[None]()
    services, seconds = (SMALL_SERVICES, SMALL_S) if small else (SERVICES, SECONDS)
    connection = load(server.kubeconfig)
    async with (
        HttpClient(connection) as client,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context or True)
        ) as session,
    ):
        readers = [
            asyncio.create_task(
                read(session, f"{url}v1/stream?view={VIEWS[tab % len(VIEWS)]}", opened, received)
            )
            for tab in range(tabs)
        ]
        async with asyncio.timeout(OPEN_S_MAX):
            for _ in range(tabs):
                await opened.get()
        await change(client, services, SMALL_S if small else WARM_UP_S)
        cpu, before, began = page.cpu_s(), received[0], time.monotonic()
        rate = await change(client, services, seconds)
        wall = time.monotonic() - began
        cpu, before = page.cpu_s() - cpu, received[0] - before
        for reader in readers:
            reader.cancel()
        ended = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), f"streams ended: {ended}"
    return Cost(cpu / wall * 100, before / wall, rate)


def tabs_of(server: PlaneProcess, page: Process, url: str, *, small: bool) -> list[Result]:
    """Of ``sliceplane ui``; and of the server's own page, beside what as many changes take without
    a tab.
    """
    tabs = SMALL_TABS if small else TABS
    apart = asyncio.run(watch_tabs(server, page, url, tabs, small=small))
    none, own = (
        asyncio.run(watch_tabs(server, server, f"{server.url}/ui/", number, small=small))
        for number in (0, tabs)
    )
    what, rested = f"{tabs} tabs, {apart.rate:.0f} changes/s", f"{none.rate:.0f} changes/s"
    # What two runs differ by for other reasons may be more than tabs cost.
    more = max(0.0, own.cpu - none.cpu * own.rate / none.rate)
    return [
        Result(name="CPU of sliceplane ui", size=what, value=apart.cpu, unit="%", budget=5.0),
        Result(name="sent to a tab", size=what, value=apart.sent / 1000 / tabs, unit="kB/s"),
        Result(
            name="CPU of the API server, no tab at its /ui/", size=rested, value=none.cpu, unit="%"
        ),
        Result(
            name="CPU more with tabs",
            size=f"{tabs} tabs, {own.rate:.0f} changes/s",
            value=more,
            unit="%",
            budget=5.0,
        ),
    ]


@contextmanager
def serving(
    folder: Path, services: int, endpoints: int
) -> Iterator[tuple[PlaneProcess, Process, str]]:
    async def prepare() -> None:
        async with HttpClient(load(server.kubeconfig)) as client:
            await fill(client, services, endpoints)

    with PlaneProcess(folder, "--ui", command="apiserver") as server:
        asyncio.run(prepare())
        command = (sys.executable, "-m", "sliceplane", "ui", "--kubeconfig", str(server.kubeconfig))
        with Process(*command, log=folder / "ui.log") as page:
            yield server, page, page.line().split()[1]


#: what the page did since it was loaded: marks of its own, paints, and tasks that kept it busy for
#: over 50 ms
OBSERVED = """(() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((task) => task.duration)))
    .observe({type: 'longtask', buffered: true});
})()"""
#: milliseconds of each frame that was due to a message, what effects draw and the layout included
FRAMES = """(() => {
  const times = (name) => performance.getEntriesByName(name).map((mark) => mark.startTime);
  const done = times('page-drawn');
  return times('frame-began').map((at) => (done.find((end) => end >= at) ?? NaN) - at).filter((ms) => ms >= 0);
})()"""


async def flip(server: PlaneProcess, turns: range) -> None:
    """One endpoint changes, and after a while another."""
    async with HttpClient(load(server.kubeconfig)) as client:
        for turn in turns:
            piece = turn % 5
            document = _slice(0, piece * PER_SLICE, PER_SLICE, 1 + turn)
            await client.update(
                EndpointSlices, NAMESPACE, f"web-0-{piece * PER_SLICE}", encode(document)
            )
            await asyncio.sleep(DELTA_PERIOD_S)


def browse(server: PlaneProcess, url: str, *, small: bool) -> list[Result]:
    from tests.ui.browser import Browser

    endpoints, loads, changes = (SMALL, 1, SMALL_DELTAS) if small else (LARGE, LOADS, DELTAS)
    view = f"{url}#/service/{NAMESPACE}/web-0"
    what = f"{endpoints:,} endpoints"
    with Browser() as browser:
        paints, useful, busy, cpu = [], [], [], []
        for _ in range(loads):
            tab = browser.tab(width=1440, height=900)
            tab.send("Page.addScriptToEvaluateOnNewDocument", source=OBSERVED)
            tab.trace()
            tab.go(view)
            canvases = "document.querySelectorAll('.map canvas').length"
            tab.until(
                f"{canvases} && performance.getEntriesByName('map-drawn').length >= {canvases}"
            )
            paints.append(
                tab.until("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
            )
            useful.append(
                tab.eval(
                    "Math.max(...performance.getEntriesByName('map-drawn').map((m) => m.startTime))"
                )
            )
            busy.append(tab.eval("Math.max(0, ...window.tasks)"))
            cpu.append(tab.longest_task_ms("view-received"))
            if len(busy) < loads:
                tab.close()
        tab.eval("performance.clearMarks(); window.tasks.length = 0")
        asyncio.run(flip(server, range(changes)))
        deltas = tab.until(f"{FRAMES}.length && {FRAMES}")
        late = tab.eval("Math.max(0, ...window.tasks)")
        tab.send("HeapProfiler.collectGarbage")
        memory = tab.eval("performance.memory.usedJSHeapSize") / 1e6
    return [
        Result(
            name="first paint, median",
            size=what,
            value=percentile(paints, 50),
            unit="ms",
            budget=500.0,
        ),
        Result(
            name="in view, median",
            size=what,
            value=percentile(useful, 50),
            unit="ms",
            budget=1500.0,
        ),
        Result(
            name="longest task of a load, median",
            size=what,
            value=percentile(busy, 50),
            unit="ms",
            budget=50.0,
        ),
        Result(name="the same, CPU", size=what, value=percentile(cpu, 50), unit="ms", budget=50.0),
        Result(
            name=f"a change drawn, median of {len(deltas)}",
            size=what,
            value=percentile(deltas, 50),
            unit="ms",
            budget=16.0,
        ),
        Result(name="the same, the longest", size=what, value=max(deltas), unit="ms"),
        Result(name="longest task of a change", size=what, value=late, unit="ms", budget=50.0),
        Result(name="memory of the page", size=what, value=memory, unit="MB", budget=150.0),
    ]


def run(small: bool = False) -> list[Result]:
    with (
        scratch() as name,
        serving(Path(name), SMALL_SERVICES if small else SERVICES, ENDPOINTS) as served,
    ):
        results = tabs_of(*served, small=small)
    from tests.ui.browser import program

    if not program():
        note("there is no Chromium: how a browser copes is not measured")
        return results
    with (
        scratch() as name,
        serving(Path(name), 1, SMALL if small else LARGE) as (server, page, url),
    ):
        results += browse(server, url, small=small)
        results.append(
            Result(
                name="memory of sliceplane ui",
                size=results[-1].size,
                value=page.rss_mib(),
                unit="MiB",
            )
        )
    return results


if __name__ == "__main__":
    main(run)
