"""What 1,000 agents cost the plane: its processor time while they renew, and how late others see
what is written.

A bystander writes a slice of a Service that has no agents and watches it by name: its lag without
agents is compared with its lag among them.

The agents write and watch what ``sliceplane agent`` does, in processes of their own
(``tools.agent_fleet``); server, judge and storage are those of ``sliceplane up``. Then 600 of them
are killed: every endpoint stays, since so many are held, and they come back before the hold is
over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from benchmarks.harness import Result, main, percentile
from benchmarks.tools.cluster import populate
from benchmarks.tools.objects import slice_document
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.agent.judge import RETAIN_S
from sliceplane.agent.tenure import LeaseTerms
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.consume.agents.registration import LABEL_AGENT, LEASE_S
from sliceplane.diagnose.io.guarding import find_retained
from sliceplane.diagnose.io.lists import list_whole
from sliceplane.kit.times import parse_time
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

#: agents of each process; the last one is the one that is killed
FLEETS = (400, 600)
#: few enough that each of them loses more than half
SERVICES = 20
SECONDS = 60.0
SMALL_FLEETS = (1, 5)
SMALL_SERVICES = 1
SMALL_S = 6.0
#: between two writes of the bystander
BYSTANDER_S = 0.05
CORE_SHARE = 0.4
#: to connect, with TLS, and to write what they keep
START_S = 600.0


def renewals(fleets: Sequence[Process]) -> int:
    for fleet in fleets:
        fleet.say("")
    return sum(int(fleet.line()) for fleet in fleets)


async def lateness_s(client: HttpClient, seconds: float) -> list[float]:
    """From the moment when an agent decides to renew until a watcher of all Leases sees it."""
    late: list[float] = []
    selection = Selection(Leases, "", LABEL_AGENT)
    version = (await client.list(selection)).resource_version
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds),
            client.watch(selection, resource_version=version, bookmarks=False) as messages,
        ):
            async for message in messages:
                lease = decode(message.body, Lease)
                late.append(time.time() - parse_time(lease.spec.renew_time or ""))
    return late


async def lags_s(client: HttpClient, seconds: float) -> list[float]:
    """A bystander's: from the moment when a write is sent until a watcher of that object sees
    it.
    """
    document = slice_document("bystander-1", "bystander", range(1))
    document["metadata"]["namespace"] = namespace = "default"
    with suppress(StatusError):  # it is there already
        await client.create(EndpointSlices, namespace, encode(document))
    sent: dict[str, float] = {}
    lags: list[float] = []
    selection = Selection(EndpointSlices, namespace, field_selector="metadata.name=bystander-1")
    version = (await client.list(selection)).resource_version

    async def write() -> None:
        for number in count():
            at = str(number)
            body = encode({"metadata": {"annotations": {"example.com/at": at}}})
            patch = Write(
                verb="patch",
                resource=EndpointSlices,
                namespace=namespace,
                name="bystander-1",
                body=body,
            )
            sent[at] = time.monotonic()
            await client.perform(patch)
            await asyncio.sleep(BYSTANDER_S)

    writer = asyncio.create_task(write())
    try:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                client.watch(selection, resource_version=version, bookmarks=False) as messages,
            ):
                async for message in messages:
                    annotations = decode(message.body, EndpointSlice).metadata.annotations or {}
                    lags.append(time.monotonic() - sent[annotations["example.com/at"]])
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
    return lags


def lag_results(lags: list[float], size: str) -> list[Result]:
    return [
        Result(
            name=f"a bystander's lag, p{percent}",
            size=size,
            value=percentile(lags, percent) * 1e3,
            unit="ms",
        )
        for percent in (50, 99)
    ]


async def _slices(client: HttpClient) -> dict[str, bool]:
    """Whether the endpoint of each slice is ready."""
    found = [
        decode(body, EndpointSlice)
        for body in await list_whole(client, Selection(EndpointSlices, "default"))
    ]
    return {
        item.metadata.name: bool(endpoint.conditions.ready)
        for item in found
        if LABEL_AGENT in (item.metadata.labels or {})
        for endpoint in item.endpoints or ()
    }


async def cut_off(
    client: HttpClient, fleet: Process, before: dict[str, bool], services: int
) -> float:
    """Kill the agents of *fleet*; seconds until every Service says that they are held.  No endpoint
    goes meanwhile.
    """
    began = time.monotonic()
    fleet.process.kill()
    while True:
        bodies = await list_whole(client, Selection(Services, "default"))
        if len(find_retained(decode(body, Service) for body in bodies)) == services:
            took_s = time.monotonic() - began
            await asyncio.sleep(LEASE_S)
            assert await _slices(client) == before, "an endpoint was withdrawn"
            return took_s
        assert time.monotonic() < began + RETAIN_S, "no hold"
        await asyncio.sleep(1.0)


async def measure(small: bool) -> list[Result]:
    counts, seconds, services = (
        (SMALL_FLEETS, SMALL_S, SMALL_SERVICES) if small else (FLEETS, SECONDS, SERVICES)
    )
    agents = sum(counts)
    size = f"{agents:,} agents"
    results = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        spec = {"ports": [{"name": "http", "port": 80}]}
        await populate(
            folder / "data",
            (
                (Services, "default", {"metadata": {"name": f"web-{n}"}, "spec": spec}, None)
                for n in range(services)
            ),
        )
        server = stack.enter_context(PlaneProcess(folder))
        async with HttpClient(from_file(server.kubeconfig)) as client:
            results += lag_results(await lags_s(client, seconds / 2), "no agents")

        def fleet(at: int) -> Process:
            numbers = (str(sum(counts[:at])), str(counts[at]), str(services))
            command = (
                sys.executable,
                "-m",
                "benchmarks.tools.agent_fleet",
                str(server.kubeconfig),
                *numbers,
            )
            return stack.enter_context(Process(*command, log=folder / "fleet.log"))

        fleets = [fleet(at) for at in range(len(counts))]
        for started in fleets:
            assert await asyncio.to_thread(started.line, START_S) == "ready"
        async with HttpClient(from_file(server.kubeconfig)) as client:
            before = await _slices(client)
            assert sum(before.values()) == agents, before
            renewed = await asyncio.to_thread(renewals, fleets)
            began = time.monotonic()
            cpu_s = server.cpu_s()
            late = await lateness_s(client, seconds)
            took_s = time.monotonic() - began
            cpu_s = server.cpu_s() - cpu_s
            renewed = await asyncio.to_thread(renewals, fleets) - renewed
            results += lag_results(await lags_s(client, seconds / 2), size)
            results += [
                Result(name="renewals", size=size, value=renewed / took_s, unit="1/s"),
                # at the agents' own pace, which a busy machine does not give them
                Result(
                    name="server CPU, a renewal every 5 s each",
                    size=size,
                    value=cpu_s / renewed * agents / LeaseTerms().renew_s,
                    unit="cores",
                    budget=CORE_SHARE,
                ),
                Result(
                    name="server CPU for a renewal",
                    size=size,
                    value=cpu_s / renewed * 1e3,
                    unit="ms",
                ),
                Result(name="server memory", size=size, value=server.rss_mib(), unit="MiB"),
            ]
            for percent in (50, 99):
                late_ms = percentile(late, percent) * 1e3
                results.append(
                    Result(
                        name=f"until a watcher sees it, p{percent}",
                        size=size,
                        value=late_ms,
                        unit="ms",
                    )
                )
            if not small:
                get_backoff_s = await cut_off(client, fleets[-1], before, services)
                back = time.monotonic()
                assert await asyncio.to_thread(fleet(len(counts) - 1).line, START_S) == "ready"
                assert await _slices(client) == before, "an endpoint was withdrawn"
                cut = f"{counts[-1]:,} of {size} killed"
                results.append(
                    Result(name="until they are held", size=cut, value=get_backoff_s, unit="s")
                )
                results.append(
                    Result(
                        name="until they are back",
                        size=cut,
                        value=time.monotonic() - back,
                        unit="s",
                    )
                )
    return results


def run(small: bool = False) -> list[Result]:
    return asyncio.run(measure(small))


if __name__ == "__main__":
    main(run)
