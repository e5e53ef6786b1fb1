"""What the flight recorder costs: bytes, a share of the slice controller's CPU, and the time of a question.

*Bytes* and the recorder's own CPU time are of 2,000 flips of Pods of one service, as the slice controller is told of
them: the Pod's change, the write, its answer, the slice's change.  The *share* is that time, of the CPU time that a
process with the slice controller alone (``sliceplane controllers`` over HTTP, recorder on) takes for a flip on the same
machine in the same minute.  The *question* is ``sliceplane timeline`` about one of 2,000 services over 500,000 entries:
the answer out of the index, and how long reading the file and making the index takes before it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

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
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.controllers.base import Done, Job, Work, Write
from sliceplane.informer.cache import Change
from sliceplane.recorder.delta import schema
from sliceplane.recorder.file import Header, read_lines, write_lines
from sliceplane.recorder.index import index_of
from sliceplane.recorder.recorder import LifeRecord, Recorder
from sliceplane.recorder.timeline import Timeline
from sliceplane.shell.transport.http import HttpClient
from sliceplane.shell.transport.kubeconfig import load

BYTES_BUDGET = 100.0
CPU_BUDGET_PERCENT = 2.0
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

    def _flip(self, bench: Bench, number: int) -> tuple[float, Change[Object], Job, Done, list[Change[Object]]]:
        old = bench.pods[number]
        new = bench.pods[number] = bench._pod(number, ready=old.status.conditions[0].status != "True")
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
        life = recorder.begin("endpointslice-controller", self.told[0][0])
        life.synced(self.told[0][0])
        gc.collect()
        began = time.process_time()
        for now, change, job, done, echoes in self.told:
            life.change(change, now)
            life.turn(Work(jobs=(job,)), 5, now)
            life.done(done, now + 0.003)
            for echo in echoes:
                life.change(echo, now + 0.004)
            life.turn(Work(), 5, now + 0.004)
            life.turn(Work(), 5, now + 1.004)
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
        *((Pods, NAMESPACE, pod_document(number), pod_status(pod_ip(number), ready=True)) for number in range(pods)),
    ]


async def controllers_cpu_s(pods: int, flips: int) -> float:
    """CPU seconds of a flip in a process that runs the slice controller, and records."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", cluster(pods))
        server = stack.enter_context(PlaneProcess(folder, command="apiserver"))
        client = HttpClient(load(server.kubeconfig))
        stack.push_async_callback(client.close)
        command = (sys.executable, "-m", "sliceplane", "controllers", "--controllers", "endpointslice-controller")
        flags = ("--leader-elect=false", "--kubeconfig", str(server.kubeconfig), "--kube-api-qps", "0")
        process = stack.enter_context(Process(*command, *flags, log=folder / "controllers.log"))
        process.line()

        async def flip(number: int, turn: int) -> None:
            status = pod_status(pod_ip(number), ready=turn % 2 == 1, turn=turn)
            await client.patch(
                Pods, NAMESPACE, pod_name(number), encode(status), patch_type="strategic", subresource="status"
            )
            await asyncio.sleep(0.01)

        for number in range(20):
            await flip(number % pods, 0)
        await asyncio.sleep(1.5)
        before = process.cpu_s()
        for number in range(flips):
            await flip(number * 7919 % pods, 1 + number // pods)
        await asyncio.sleep(1.5)  # the controller looks at its own slices a second later
        return (process.cpu_s() - before) / flips


def big_recording(entries: int, services: int, pods: int = 10) -> list[bytes]:
    """Flips of the Pods of many services, told to three controllers."""
    now = 1_800_000_000.0
    recorder = Recorder(LIMIT_BYTES, SALT, now)
    names = ("endpointslice-controller", "endpoints-controller", "garbage-collector-controller")
    lives = [recorder.begin(name, now) for name in names]
    held: dict[tuple[int, int], Pod] = {}
    slices: dict[int, EndpointSlice] = {}
    version = 0

    def tell(change: Change[Object]) -> None:
        for life in lives:
            life.change(change, now)
            life.turn(Work(), 5, now)

    for service in range(services):
        for number in range(pods):
            version += 1
            document = pod_document(service * pods + number) | pod_status(pod_ip(service * pods + number), ready=True)
            pod = decode(encode(document), Pod)
            meta = replace(
                pod.metadata, name=f"pod-{service}-{number}", uid=f"{version}", resource_version=f"{version}"
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
        slices[service] = _slice(service, [held[service, place] for place in range(pods)], version + 1)
        _write(lives[0], service, slices[service], now)
        tell(Change(EndpointSlices.key, before, slices[service]))
    return list(write_lines(Header(schema=schema()), recorder.segments()))


def _flipped(pod: Pod, version: int) -> Pod:
    ready = pod.status.conditions[0].status == "True" if pod.status.conditions else False
    conditions = tuple(replace(condition, status=str(not ready)) for condition in pod.status.conditions or ())
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
            "conditions": {"ready": pod.status.conditions is not None and pod.status.conditions[0].status == "True"},
            "targetRef": {"kind": "Pod", "name": pod.metadata.name},
        }
        for pod in pods
    ]
    return decode(encode({"metadata": meta, "addressType": "IPv4", "endpoints": endpoints}), EndpointSlice)


def _write(life: LifeRecord, service: int, new: EndpointSlice, now: float) -> None:
    write = Write(verb="update", resource=EndpointSlices, namespace=NAMESPACE, name=new.metadata.name, body=b"{}")
    job = Job(key=f"{NAMESPACE}/svc-{service}", writes=(write,))
    life.turn(Work(jobs=(job,)), 5, now)
    life.done(Done(job, (encode(new),)), now + 0.003)


def question(entries: int, services: int) -> list[Result]:
    lines = big_recording(entries, services)
    gc.disable()  # as the command does
    began = time.process_time()
    index = index_of(read_lines(lines))
    read = time.process_time() - began
    times = []
    for number in range(RUNS):
        began = time.process_time()
        found = Timeline(index, NAMESPACE, f"svc-{number}").lines(0.0)
        times.append(time.process_time() - began)
        assert found, f"svc-{number} has no timeline"
    gc.enable()
    size = f"{entries:,} entries"
    answered = statistics.median(times) * 1e3
    return [
        Result(name="timeline of a service", size=size, value=answered, unit="ms", budget=QUESTION_BUDGET_MS),
        Result(name="  reading the file and making the index before", size=size, value=read * 1e3, unit="ms"),
    ]


def run(small: bool = False) -> list[Result]:
    pods, flips = (100, 200) if small else (1_000, 2_000)
    told = Flips(pods, flips)
    spent, recorder = min((told.record() for _ in range(RUNS)), key=lambda measured: measured[0])
    controller = asyncio.run(controllers_cpu_s(100 if small else pods, 40 if small else 1_000))
    ring = recorder.ring
    size = f"{pods:,} endpoints"
    per_change = ring.size_bytes / (2 * flips)  # the Pod's and the slice's
    return [
        Result(name="bytes a change", size=size, value=per_change, unit="B", budget=BYTES_BUDGET),
        Result(name="bytes an entry", size=size, value=ring.size_bytes / ring.entries, unit="B", budget=BYTES_BUDGET),
        Result(name="the recorder's CPU time for a flip", size=size, value=spent * 1e6, unit="us"),
        Result(
            name="  the slice controller's process, CPU time for a flip", size=size, value=controller * 1e6, unit="us"
        ),
        Result(name="  share of the recorder in it", size=size, value=100 * spent / controller, unit="%"),
        Result(
            name="the recorder at 100 changes a second, of one CPU",
            size=size,
            value=100 * spent * CHANGES_PER_S / 2,
            unit="%",
            budget=CPU_BUDGET_PERCENT,
        ),
        *(question(5_000, 50) if small else question(500_000, 2_000)),
    ]


if __name__ == "__main__":
    main(run)
