"""What the flight recorder costs: bytes, a share of the slice controller's CPU, and the time of a
question.

*Bytes* and the recorder's own CPU time are of 2,000 flips of Pods of one service, as the slice
controller is told of them: the Pod's change, the write, its answer, the slice's change. The *share*
is what the recorder takes of the CPU time of a host with the slice controller alone over HTTP, both
measured in the same run, where Pods flip and where a rollout replaces them one by one. The
*question* is ``sliceplane timeline`` about one of 2,000 services over 500,000 entries, all of it:
reading the file, finding the blocks that are about the service, the answer.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.harness import Result, main
from benchmarks.reconcile import Bench
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    NAMESPACE,
    PODS_PER_NODE,
    namespace_document,
    node_document,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
)
from benchmarks.tools.process import PlaneProcess, scratch
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.cli.entry import spare_collector
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.diagnose.timeline.index import Index
from sliceplane.diagnose.timeline.timeline import Timeline
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work, Write
from sliceplane.watch.io.hosting.host import ControllerEntry, make_host
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load
from sliceplane.watch.recorder.file import Header, read_lines, write_lines
from sliceplane.watch.recorder.recorder import LoopRecord, Recorder

BYTES_BUDGET = 300.0
CPU_BUDGET_PERCENT = 2.0
#: missed: what it costs to make lines of objects in Python is more (docs/operations.md)
SHARE_BUDGET_PERCENT = 5.0
#: to append a thing to those that wait, which is too short to be measured each time
APPEND_S = 0.3e-6
CHANGES_PER_S = 100
QUESTION_BUDGET_MS = 200.0
LIMIT_BYTES = 64 << 20
SALT = b"benchmark"
RUNS = 5

replace = msgspec.structs.replace


class Flips:
    """Flips of the Pods of one service, and what a recorder makes of them."""

    def __init__(self, pods: int, count: int) -> None:
        bench = Bench(pods)
        bench.fill()
        bench.show(Services.key, None, bench.service)
        bench.close_turn(bench.perform(bench.take()))
        self.count = count
        self.told = [self._flip(bench, number * 7919 % pods) for number in range(count)]

    def _flip(
        self, bench: Bench, number: int
    ) -> tuple[float, Change[Object], Job, Done, list[Change[Object]]]:
        old = bench.pods[number]
        new = bench.pods[number] = bench._pod(
            number, ready=old.status.conditions[0].status != "True"
        )
        change: Change[Object] = Change(Pods.key, old, new)
        bench.controller.on_change(change, bench.now)
        job = bench.take()
        done = bench.perform(job)
        echoes: list[Change[Object]] = [Change(EndpointSlices.key, *echo) for echo in bench.echoes]
        bench.close_turn(done)
        return bench.now, change, job, done, echoes

    def record(self) -> tuple[float, Recorder]:
        """CPU seconds of a flip, and the recorder."""
        recorder = Recorder(LIMIT_BYTES, SALT, self.told[0][0])
        record = recorder.begin("endpointslice-controller", self.told[0][0])
        record.synced(self.told[0][0])
        nothing = Work()
        told = [
            (now, change, Work(jobs=(job,)), done, echoes)
            for now, change, job, done, echoes in self.told
        ]
        gc.collect()
        began = time.process_time()
        for now, change, work, done, echoes in told:
            record.change(change, now)
            record.batch_taken(work, 5, now)
            record.done(done, now + 0.003)
            for echo, body in zip(echoes, done.results, strict=True):
                if echo.new is not None:
                    recorder.note_body(echo.new.metadata.resource_version, body)
                record.change(echo, now + 0.004)
            record.batch_taken(nothing, 5, now + 0.004)
            record.batch_taken(nothing, 5, now + 1.004)
        recorder.encode()
        spent = time.process_time() - began
        assert not recorder.fault, recorder.fault
        return spent / self.count, recorder


def cluster(pods: int) -> list[Wanted]:
    nodes = (pods + PODS_PER_NODE - 1) // PODS_PER_NODE
    return [
        (Namespaces, "", namespace_document(), None),
        *((Nodes, "", node_document(number), None) for number in range(nodes)),
        (Services, NAMESPACE, service_document(), None),
        *(
            (Pods, NAMESPACE, pod_document(number), pod_status(pod_ip(number), ready=True))
            for number in range(pods)
        ),
    ]


class MeasuredRecorder(Recorder):
    """A recorder that counts the CPU time that it takes, but for appending what it is handed."""

    spent_s = 0.0

    def encode(self) -> None:
        began = time.thread_time()
        super().encode()
        self.spent_s += time.thread_time() - began

    def note_body(self, resource_version: str, body: bytes) -> None:
        began = time.thread_time()
        super().note_body(resource_version, body)
        self.spent_s += time.thread_time() - began


class Share(NamedTuple):
    """CPU seconds of a change: of the thread that the slice controller's host runs in, and of the
    recorder in it.
    """

    host_s: float
    recorder_s: float

    @property
    def percent(self) -> float:
        return 100 * self.recorder_s / (self.host_s - self.recorder_s)


async def shares(pods: int, changes: int, rounds: int) -> dict[str, list[Share]]:
    """What a host with the slice controller alone spends on changes of Pods that come over HTTP."""
    spare_collector()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", cluster(pods))
        server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = HttpClient(load(server.kubeconfig))
        stack.push_async_callback(client.close)
        now = time.time()
        recorder = MeasuredRecorder(LIMIT_BYTES, SALT, now)
        host = make_host(
            client, (ControllerEntry(EndpointSliceController),), Rng(1), recorder=recorder
        )
        host.start()
        stack.push_async_callback(host.close)
        driver = Driver(server.kubeconfig, pods)
        measured: dict[str, list[Share]] = {}
        for _ in range(rounds + 1):  # the first warms up
            for name, act in (("one Pod flips", driver.flip), ("rollout", driver.replace)):
                began, spent, entries = time.thread_time(), recorder.spent_s, _entries(recorder)
                await asyncio.to_thread(driver.run, act, changes)
                await asyncio.sleep(1.5)  # the controller looks at its own slices a second later
                recorder.encode()
                appended = (_entries(recorder) - entries) * APPEND_S
                recorded = recorder.spent_s - spent + appended
                measured.setdefault(name, []).append(
                    Share((time.thread_time() - began) / changes, recorded / changes)
                )
        assert not recorder.fault, recorder.fault
        return {name: found[1:] for name, found in measured.items()}


def _entries(recorder: Recorder) -> int:
    return recorder.ring.entries + recorder.ring.forgotten + recorder.waiting


class Driver:
    """What people and kubelets do, in a thread of its own."""

    def __init__(self, kubeconfig: Path, pods: int) -> None:
        self._kubeconfig = kubeconfig
        self._pods = pods
        self._first = 0
        self._turn = 0
        self._unready: set[int] = set()

    def run(self, act: Callable[[HttpClient], Awaitable[None]], times: int) -> None:
        async def story() -> None:
            client = HttpClient(load(self._kubeconfig))
            for _ in range(times):
                await act(client)
                await asyncio.sleep(0.01)
            await client.close()

        asyncio.run(story())

    async def flip(self, client: HttpClient) -> None:
        number = self._first + self._turn * 7919 % self._pods
        self._turn += 1
        self._unready ^= {
            number
        }  # the other way each time: a patch that changes nothing would cost nothing
        await self._set(client, number, ready=number not in self._unready)

    async def replace(self, client: HttpClient) -> None:
        """A new Pod comes and is ready, the oldest goes."""
        number = self._first + self._pods
        await client.create(Pods, NAMESPACE, encode(pod_document(number)))
        await self._set(client, number, ready=True)
        await client.delete(Pods, NAMESPACE, pod_name(self._first))
        self._first += 1

    async def _set(self, client: HttpClient, number: int, *, ready: bool) -> None:
        status = encode(pod_status(pod_ip(number), ready=ready, turn=self._turn))
        await client.patch(
            Pods, NAMESPACE, pod_name(number), status, patch_type="strategic", subresource="status"
        )


def big_recording(entries: int, services: int, pods: int = 10) -> list[bytes]:
    """Flips of the Pods of many services, told to three controllers."""
    now = 1_800_000_000.0
    recorder = Recorder(LIMIT_BYTES, SALT, now)
    names = ("endpointslice-controller", "endpoints-controller", "garbage-collector-controller")
    records = [recorder.begin(name, now) for name in names]
    held: dict[tuple[int, int], Pod] = {}
    slices: dict[int, EndpointSlice] = {}
    version = 0

    def tell(change: Change[Object]) -> None:
        for record in records:
            record.change(change, now)
            record.batch_taken(Work(), 5, now)

    for service in range(services):
        for number in range(pods):
            version += 1
            document = pod_document(service * pods + number) | pod_status(
                pod_ip(service * pods + number), ready=True
            )
            pod = decode(encode(document), Pod)
            meta = replace(
                pod.metadata,
                name=f"pod-{service}-{number}",
                uid=f"{version}",
                resource_version=f"{version}",
            )
            held[service, number] = replace(pod, metadata=meta)
            tell(Change(Pods.key, None, held[service, number]))
        slices[service] = _slice(service, [held[service, number] for number in range(pods)])
        tell(Change(EndpointSlices.key, None, slices[service]))
    turn = 0
    while recorder.ring.entries + recorder.ring.forgotten < entries:
        service, number = turn * 7919 % services, turn % pods
        turn += 1
        version += 2
        now += 0.01
        old = held[service, number]
        held[service, number] = _flipped(old, version)
        tell(Change(Pods.key, old, held[service, number]))
        before = slices[service]
        slices[service] = _slice(
            service, [held[service, place] for place in range(pods)], version + 1
        )
        _write(records[0], service, slices[service], now)
        tell(Change(EndpointSlices.key, before, slices[service]))
    return list(write_lines(Header(), recorder.segments()))


def _flipped(pod: Pod, version: int) -> Pod:
    ready = pod.status.conditions[0].status == "True" if pod.status.conditions else False
    conditions = tuple(
        replace(condition, status=str(not ready)) for condition in pod.status.conditions or ()
    )
    meta = replace(pod.metadata, resource_version=f"{version}")
    return replace(pod, metadata=meta, status=replace(pod.status, conditions=conditions))


def _slice(service: int, pods: list[Pod], version: int = 1) -> EndpointSlice:
    meta = {
        "name": f"svc-{service}-x",
        "namespace": NAMESPACE,
        "uid": f"slice-{service}",
        "resourceVersion": f"{version}",
        "labels": {LABEL_SERVICE_NAME: f"svc-{service}"},
    }
    endpoints = [
        {
            "addresses": [pod.status.pod_ip],
            "conditions": {
                "ready": pod.status.conditions is not None
                and pod.status.conditions[0].status == "True"
            },
            "targetRef": {"kind": "Pod", "name": pod.metadata.name},
        }
        for pod in pods
    ]
    return decode(
        encode({"metadata": meta, "addressType": "IPv4", "endpoints": endpoints}), EndpointSlice
    )


def _write(record: LoopRecord, service: int, new: EndpointSlice, now: float) -> None:
    write = Write(
        verb="update",
        resource=EndpointSlices,
        namespace=NAMESPACE,
        name=new.metadata.name,
        body=b"{}",
    )
    job = Job(key=f"{NAMESPACE}/svc-{service}", writes=(write,))
    record.batch_taken(Work(jobs=(job,)), 5, now)
    record.done(Done(job, (encode(new),)), now + 0.003)


def question(entries: int, services: int) -> list[Result]:
    lines = big_recording(entries, services)
    gc.disable()  # as the command does
    times = []
    for number in range(RUNS):
        began = time.process_time()
        found = Timeline(Index(read_lines(lines)), NAMESPACE, f"svc-{number}").lines(0.0)
        times.append(time.process_time() - began)
        assert found, f"svc-{number} has no timeline"
    gc.enable()
    size = f"{entries:,} entries"
    name = "timeline of a service, reading the file included"
    return [
        Result(
            name=name,
            size=size,
            value=statistics.median(times) * 1e3,
            unit="ms",
            budget=QUESTION_BUDGET_MS,
        )
    ]


def _share_rows(name: str, found: list[Share]) -> list[Result]:
    host = statistics.median(share.host_s - share.recorder_s for share in found)
    percent = statistics.median(share.percent for share in found)
    size = "100 endpoints"
    return [
        Result(
            name=f"the slice controller without recorder, {name}",
            size=size,
            value=host * 1e6,
            unit="us",
        ),
        Result(
            name="  what the recorder adds to that",
            size=size,
            value=percent,
            unit="%",
            budget=SHARE_BUDGET_PERCENT,
        ),
    ]


def run(small: bool = False) -> list[Result]:
    pods, flips = (100, 200) if small else (1_000, 2_000)
    told = Flips(pods, flips)
    spent, recorder = min(
        (told.record() for _ in range(1 if small else RUNS)), key=lambda measured: measured[0]
    )
    measured = asyncio.run(shares(100, *((20, 1) if small else (300, RUNS))))
    ring = recorder.ring
    size = f"{pods:,} endpoints"
    per_change = ring.size_bytes / (2 * flips)  # the Pod's and the slice's
    return [
        Result(name="bytes a change", size=size, value=per_change, unit="B", budget=BYTES_BUDGET),
        Result(
            name="bytes an entry",
            size=size,
            value=ring.size_bytes / ring.entries,
            unit="B",
            budget=BYTES_BUDGET,
        ),
        Result(name="the recorder's CPU time for a flip", size=size, value=spent * 1e6, unit="us"),
        Result(
            name="the recorder at 100 changes a second, of one CPU",
            size=size,
            value=100 * spent * CHANGES_PER_S / 2,
            unit="%",
            budget=CPU_BUDGET_PERCENT,
        ),
        *(row for name, found in measured.items() for row in _share_rows(name, found)),
        *(question(5_000, 50) if small else question(500_000, 2_000)),
    ]


if __name__ == "__main__":
    main(run)
