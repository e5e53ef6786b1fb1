"""Garbage collection: 1,000 Services with 100 EndpointSlices each are deleted; then one Service
with 100,000 slices.

The production registry, store, committer, informers and controller host in one process, storage in
memory and no HTTP, so that the figures are the collector's and the server's own work. Time is from
the first deletion of a Service until the last slice is gone; the seconds in which the caches fill
are a row of their own. *Requests* are those of the collector: beside one deletion for each slice,
one look-up for each owner. Memory is what the process has more with the collector than before it,
per object.

There is no peer: upstream's collector deletes with 20 workers, at most 20 requests a second unless
its flags for ``--kube-api-qps`` are raised, which is a setting and no measure.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.harness import Result, main
from benchmarks.tools.objects import NAMESPACE, namespace_document, service_document, slice_document
from sliceplane.api.codec import decode, encode
from sliceplane.api.meta import Object
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Namespaces, Resource, Services
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.kit.rng import Rng
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.io.hosting.host import ControllerHost

#: services and the slices of each
MANY = (1_000, 100)
ONE = (1, 100_000)
SMALL_MANY = (4, 5)
SMALL_ONE = (1, 20)
TOGETHER = 500
#: as the plane's
WORKERS = 20
#: of 100,000 slices
COLLECT_BUDGET_S = 60.0
#: requests beyond one for each slice and one for each owner: repeated for nothing
WASTE_BUDGET = 0.0


class Counting:
    """What the collector needs of *client*; counts requests by verb, lists and watches apart."""

    def __init__(self, client: InProcessClient) -> None:
        self.list = client.list
        self.watch = client.watch
        self.requests: Counter[str] = Counter()
        self._client = client

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        self.requests["get"] += 1
        return await self._client.get(resource, namespace, name)

    async def perform(self, write: Write) -> bytes:
        self.requests[write.verb] += 1
        return await self._client.perform(write)


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def together(calls: list[Any]) -> list[bytes]:
    answers: list[bytes] = []
    for start in range(0, len(calls), TOGETHER):
        answers += await asyncio.gather(*calls[start : start + TOGETHER])
    return answers


async def fill(client: InProcessClient, services: int, each: int) -> None:
    await client.create(Namespaces, "", encode(namespace_document()))
    answers = await together(
        [
            client.create(Services, NAMESPACE, encode(service_document(f"s-{number:05d}")))
            for number in range(services)
        ]
    )
    calls = []
    for answer in answers:
        meta = decode(answer, Object).metadata
        owner = {
            "apiVersion": "v1",
            "kind": "Service",
            "name": meta.name,
            "uid": meta.uid,
            "controller": True,
        }
        owner["blockOwnerDeletion"] = True
        for number in range(each):
            document = slice_document(f"{meta.name}-{number:06d}", meta.name, range(1))
            document["metadata"]["ownerReferences"] = [owner]
            calls.append(client.create(EndpointSlices, NAMESPACE, encode(document)))
        if len(calls) >= 10 * TOGETHER or answer is answers[-1]:
            await together(calls)
            calls = []


async def collect(services: int, each: int, policy: str) -> list[Result]:
    count = services * each
    size = f"{services:,} x {each:,}, {policy}"
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0)) as plane:
        store = plane.store
        people = plane.client("people")
        client = Counting(plane.client("collector"))
        await fill(people, services, each)
        gc.collect()
        before = resident_bytes()
        host = ControllerHost(client, rng=Rng(2))
        host.add(GarbageCollector, max_in_flight=WORKERS)
        began = time.perf_counter()
        host.start()
        while not host.status().synced:
            await asyncio.sleep(0.01)
        filled = time.perf_counter() - began
        gc.collect()
        memory = resident_bytes() - before
        names = [
            record.key.name for record in store.list(Services.key, namespace=NAMESPACE).records
        ]
        options = encode({"propagationPolicy": policy})
        began = time.perf_counter()
        await together([people.delete(Services, NAMESPACE, name, options) for name in names])
        while store.count(EndpointSlices.key, NAMESPACE) or store.count(Services.key, NAMESPACE):
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        await host.close()
        requests = client.requests
    finalizers = services if policy == "Foreground" else 0
    waste = sum(requests.values()) - count - services - finalizers
    budget = COLLECT_BUDGET_S if count >= 100_000 else None
    return [
        Result(name="all slices gone", size=size, value=seconds, unit="s", budget=budget),
        Result(name="  rate", size=size, value=count / seconds, unit="slices/s"),
        Result(name="  look-ups of owners", size=size, value=requests["get"], unit="requests"),
        Result(
            name="  requests that were not needed",
            size=size,
            value=waste,
            unit="requests",
            budget=WASTE_BUDGET,
        ),
        Result(name="  filling the caches before", size=size, value=filled, unit="s"),
        Result(
            name="  memory of informers and graph",
            size=size,
            value=memory / count,
            unit="bytes/slice",
        ),
    ]


def alone(services: int, each: int, policy: str) -> list[Result]:
    return uvloop.run(collect(services, each, policy))


def run(small: bool = False) -> list[Result]:
    results: list[Result] = []
    for services, each in (SMALL_MANY, SMALL_ONE) if small else (MANY, ONE):
        for policy in ("Background", "Foreground"):
            if small:
                results += alone(services, each, policy)
                continue
            # a process for each: memory that an earlier one has left would not be counted again
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                results += pool.submit(alone, services, each, policy).result()
    return results


if __name__ == "__main__":
    main(run)
