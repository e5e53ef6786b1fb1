"""What one write and one watch event cost the server: the figures that ``sliceplane simulate
--scale`` computes with.

*Writes*: an EndpointSlice of 20 endpoints is updated, the status of a Pod is patched, a Lease is
renewed; a few at a time over TLS, nothing is watched. *Events*: a slice changes alone, thousands of
TLS watchers get it, at three sizes; so there is a part for each event and a part for each byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.harness import Result, main
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import (
    NAMESPACE,
    Document,
    namespace_document,
    node_document,
    node_name,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    slice_document,
)
from benchmarks.tools.process import PlaneProcess, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Leases, Namespaces, Nodes, Pods
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

ENDPOINTS = (1, 20, 100)
WATCHERS = 1_000
ROUNDS = 60
WRITES = 3_000
TOGETHER = 8
ROUND_MAX_S = 30.0
SMALL = (20, 3, 40)


async def repeat(count: int, deed: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await deed(number)

    await asyncio.gather(*(lane() for _ in range(TOGETHER)))


def lease(number: int, turn: int) -> Document:
    spec = {
        "holderIdentity": node_name(number),
        "leaseDurationSeconds": 40,
        "renewTime": f"2026-11-21T10:{turn // 60 % 60:02}:{turn % 60:02}.000000Z",
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node_name(number)},
        "spec": spec,
    }


async def writes(server: PlaneProcess, client: HttpClient, count: int) -> list[Result]:
    """Each object is written in turn, so that no two writes of one are under way."""
    objects = 4 * TOGETHER
    await client.create(Nodes, "", encode(node_document(0)))
    for number in range(objects):
        await client.create(Pods, NAMESPACE, encode(pod_document(number, node=node_name(0))))
        await client.create(Leases, NAMESPACE, encode(lease(number, 0)))
        await client.create(
            EndpointSlices,
            NAMESPACE,
            encode(slice_document(f"s-{number}", f"s-{number}", range(20))),
        )

    async def renew(turn: int) -> None:
        number = turn % objects
        renewed = encode({"spec": lease(number, turn)["spec"]})
        await client.patch(Leases, NAMESPACE, node_name(number), renewed, patch_type="merge")

    async def tell(turn: int) -> None:
        number = turn % objects
        status = encode(pod_status(pod_ip(number), ready=turn // objects % 2 == 0, turn=turn))
        await client.patch(
            Pods, NAMESPACE, pod_name(number), status, patch_type="merge", subresource="status"
        )

    async def change(turn: int) -> None:
        name = f"s-{turn % objects}"
        document = slice_document(name, name, range(20))
        document["endpoints"][0]["zone"] = f"zone-{turn // objects % 2}"
        await client.update(EndpointSlices, NAMESPACE, name, encode(document))

    results = []
    for what, deed in (
        ("an EndpointSlice of 20", change),
        ("a Pod's status", tell),
        ("a Lease", renew),
    ):
        await repeat(objects, deed)
        before = server.cpu_s()
        await repeat(count, deed)
        cost = (server.cpu_s() - before) / count
        results.append(
            Result(
                name="server CPU for a write",
                size=f"{what}, {count:,} times",
                value=cost * 1e3,
                unit="ms",
            )
        )
    return results


async def events(
    server: PlaneProcess,
    client: HttpClient,
    endpoints: int,
    *,
    folder: Path,
    watchers: int,
    rounds: int,
) -> Result:
    name = f"web-{endpoints}"
    document = slice_document(name, "web", range(endpoints))
    await client.create(EndpointSlices, NAMESPACE, encode(document))
    since = (await client.list(EndpointSlices)).resource_version
    size = len(await client.get(EndpointSlices, NAMESPACE, name))
    with Fleet(server.kubeconfig, watchers, since, folder) as fleet:
        for turn in range(rounds + 3):
            if turn == 3:
                before = server.cpu_s()
            document["endpoints"][0]["zone"] = f"zone-{turn % 2}"
            fleet.expect(1)
            await client.update(EndpointSlices, NAMESPACE, name, encode(document))
            await asyncio.to_thread(fleet.delivered, ROUND_MAX_S)
        cost = (server.cpu_s() - before) / rounds / watchers
    return Result(
        name="server CPU for a watch event that comes alone",
        size=f"{watchers:,} TLS watchers, {size / 1e3:.1f} kB",
        value=cost * 1e6,
        unit="us",
    )


async def measure(watchers: int, rounds: int, count: int) -> list[Result]:
    with scratch() as name, PlaneProcess(Path(name), command="apiserver") as server:
        client = HttpClient(load(server.kubeconfig))
        try:
            await client.create(Namespaces, "", encode(namespace_document()))
            results = await writes(server, client, count)
            for endpoints in ENDPOINTS:
                of = await events(
                    server, client, endpoints, folder=Path(name), watchers=watchers, rounds=rounds
                )
                results.append(of)
            return results
        finally:
            await client.close()


def run(small: bool = False) -> list[Result]:
    return asyncio.run(measure(*(SMALL if small else (WATCHERS, ROUNDS, WRITES))))


if __name__ == "__main__":
    main(run)
