"""What xDS is worth to who calls: real programs, Python's gRPC and Envoy, call Pods of a plane.

Everything is real but the Pods, which are servers of one process (``tools.pods``) at their own
addresses, and it all happens in a network of the benchmark's own (``tools.loopback``; needs root).

* A Pod turns ready: when does the next call go there? The Service has 1,000 endpoints and
  ``sessionAffinity: ClientIP``, so that it is known which call that is: a client goes to the same
  Pod as long as that is ready, to another one meanwhile, and back. Measured from before the Pod's
  status is written until the answer of the first call that the Pod answers; calls follow one
  another half a millisecond apart.
* A rolling update under calls that do not wait for one another: a new Pod, then the barrier
  (``client.drain``), which counts the xDS server as a consumer, then the end of the old one, which
  cuts its connections.
* Two servers without a leader behind one address: one is killed under calls. Bytes are counted on
  the way.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benchmarks.harness import Result, main, note, percentile
from benchmarks.rolling_update import until_settled
from benchmarks.tools import peers
from benchmarks.tools.balancer import Balancer
from benchmarks.tools.callers import Load
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.loopback import private_loopback
from benchmarks.tools.objects import (
    APP,
    NAMESPACE,
    PODS_PER_NODE,
    Document,
    namespace_document,
    node_document,
    node_name,
    pod_document,
    pod_ip,
    pod_name,
    pod_status,
    service_document,
    slice_document,
)
from benchmarks.tools.pods import GRPC_PORT
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.client import drain
from sliceplane.server.io.keys.pki import Pki
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load
from sliceplane.xds.bootstrap import BootstrapOptions, envoy_bootstrap, grpc_bootstrap

Kind = str
KINDS = ("grpc", "envoy")
SHOWN = {"grpc": "Python gRPC", "envoy": "Envoy"}
XDS_PORT = 18000
ENVOY_PORT = 10080
ENDPOINTS = 1_000
TURNS = 200
WARM_TURNS = 3
PAUSE_S = 0.02
READY_MS = 50.0
WAIT_S = 60.0
PODS = 8
REPLACED = 40
RATE = 500
#: an Envoy that comes again is sent the headers of HTTP/2, and no resource
AGAIN_BYTES = 1_000.0
OTHERS = 100
NOW = b'{"gracePeriodSeconds":0}'


def service(*, sticky: bool) -> Document:
    document = service_document()
    document["spec"]["ports"].append(
        {"name": "grpc", "protocol": "TCP", "port": 81, "targetPort": GRPC_PORT}
    )
    if sticky:
        document["spec"]["sessionAffinity"] = "ClientIP"
    return document


def cluster(pods: int, *, sticky: bool) -> Iterator[Wanted]:
    yield Namespaces, "", namespace_document(), None
    for number in range((pods + PODS_PER_NODE - 1) // PODS_PER_NODE):
        yield Nodes, "", node_document(number), None
    yield Services, NAMESPACE, service(sticky=sticky), None
    for number in range(pods):
        yield Pods, NAMESPACE, pod_document(number), pod_status(pod_ip(number), ready=True)


def others() -> Iterator[Wanted]:
    """Services that do not change, with slices of their own."""
    for number in range(1, OTHERS):
        document = service_document(f"other-{number}")
        del document["spec"]["selector"]
        yield Services, NAMESPACE, document, None
    for number in range(1, OTHERS):
        numbers = range(number * 10, number * 10 + 10)
        yield (
            EndpointSlices,
            NAMESPACE,
            slice_document(f"other-{number}-1", f"other-{number}", numbers),
            None,
        )


class Stage:
    """Clients of one xDS server, each started when it is wanted, and the Pods."""

    def __init__(self, folder: Path, stack: AsyncExitStack, wish: BootstrapOptions) -> None:
        self._folder = folder
        self._stack = stack
        self._wish = wish
        self._pods = self.run("pods", sys.executable, "-m", "benchmarks.tools.pods")

    def run(self, name: str, *command: str, **environment: str) -> Process:
        return self._stack.enter_context(
            Process(*command, log=self._folder / f"{name}.log", **environment)
        )

    def caller(self, kind: Kind, *, xds_port: int = XDS_PORT) -> Process:
        wish = replace(self._wish, node_id=kind, port=xds_port)
        file = self._folder / f"{kind}.json"
        program = (sys.executable, "-m", "benchmarks.tools.callers")
        if kind == "grpc":
            file.write_text(json.dumps(grpc_bootstrap(wish)))
            return self.run(
                "grpc",
                *program,
                "grpc",
                f"xds:///{APP}.{NAMESPACE}:81",
                GRPC_XDS_BOOTSTRAP=str(file),
            )
        document = envoy_bootstrap(replace(wish, admin_port=19000))
        document["static_resources"]["listeners"] = [listener()]
        file.write_text(json.dumps(document))
        self.run("envoy", peers.envoy(), "-c", str(file), "--concurrency", "1", "-l", "warn")
        return self.run("http", *program, "http", f"127.0.0.1:{ENVOY_PORT}")

    async def pod(self, verb: str, address: str) -> None:
        await asked(self._pods, f"{verb} {address}")


def listener() -> Document:
    """Of a user's Envoy: HTTP to the Service, by source address if the Service wants that."""
    types = "type.googleapis.com/envoy.extensions.filters"
    hashed = [{"connection_properties": {"source_ip": True}}]
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": f"{NAMESPACE}/{APP}:http", "hash_policy": hashed},
    }
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{types}.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": APP,
        "route_config": {
            "validate_clusters": False,  # it comes later
            "virtual_hosts": [{"name": APP, "domains": ["*"], "routes": [route]}],
        },
        "http_filters": [router],
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": ENVOY_PORT}}
    return {"name": APP, "address": address, "filter_chains": [chain]}


async def asked(process: Process, line: str) -> str:
    process.say(line)
    return await asyncio.to_thread(process.line, WAIT_S)


async def first_answer(caller: Process) -> str:
    """The Pod that answers, once everything is there."""
    deadline = time.monotonic() + WAIT_S
    while (text := await asked(caller, "call")).startswith("!"):
        assert time.monotonic() < deadline, text
        await asyncio.sleep(0.1)
    return text


def secured(folder: Path) -> BootstrapOptions:
    pki = Pki(folder / "data" / "pki")
    return BootstrapOptions(
        host="127.0.0.1",
        port=XDS_PORT,
        ca_file=str(pki.ca_file),
        cert_file=str(pki.admin_file),
        key_file=str(pki.admin_key_file),
    )


@asynccontextmanager
async def plane(pods: int, *flags: str, sticky: bool) -> AsyncIterator[tuple[Stage, HttpClient]]:
    """A plane with its xDS server, over TLS."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", cluster(pods, sticky=sticky))
        served = stack.enter_context(PlaneProcess(folder, "--xds", f"127.0.0.1:{XDS_PORT}", *flags))
        client = await stack.enter_async_context(HttpClient(load(served.kubeconfig)))
        yield Stage(folder, stack, secured(folder)), client


# -- a Pod turns ready


async def ready(kind: Kind, endpoints: int, turns: int) -> list[Result]:
    async with plane(endpoints, sticky=True) as (stage, client):
        await stage.pod("start", "0.0.0.0")
        await until_settled(client, sorted(map(pod_ip, range(endpoints))))
        caller = stage.caller(kind)
        await first_answer(caller)
        await asyncio.sleep(0.5)
        address = await first_answer(caller)  # what was written last has come meanwhile
        number = next(number for number in range(endpoints) if pod_ip(number) == address)

        async def write(turn: int, is_ready: bool) -> None:
            body = encode(pod_status(address, ready=is_ready, turn=2 * turn + is_ready))
            await client.patch(
                Pods,
                NAMESPACE,
                pod_name(number),
                body,
                patch_type="strategic",
                subresource="status",
            )

        times = []
        written = []
        calls = failed = 0
        seen: deque[float] = deque()
        watching = asyncio.create_task(watch_slices(client, seen))
        for turn in range(WARM_TURNS + turns):
            await write(turn, False)
            words = (await asked(caller, f"away {address}")).split()
            failed += int(words[1])
            await asyncio.sleep(PAUSE_S)
            answered = asyncio.create_task(asked(caller, f"until {address}"))
            await asyncio.sleep(PAUSE_S)
            began = time.monotonic()
            await write(turn, True)
            words = (await answered).split()
            times.append(float(words[0]) - began)
            while not seen or seen[-1] < began:  # the client was quicker than the watcher
                await asyncio.sleep(PAUSE_S)
            written.append(next(at for at in seen if at > began) - began)
            failed += int(words[1])
            calls += int(words[2])
            await asyncio.sleep(PAUSE_S)
        watching.cancel()
    note(f"{SHOWN[kind]}: {calls:,} calls, {failed} failed")
    size = f"{endpoints:,} endpoints, {turns} times"
    name = f"Pod ready until the next call goes there, {SHOWN[kind]}"
    times = times[WARM_TURNS:]
    return [
        Result(
            name=f"{name}, p99",
            size=size,
            value=percentile(times, 99) * 1e3,
            unit="ms",
            budget=READY_MS,
        ),
        Result(name="  median", size=size, value=statistics.median(times) * 1e3, unit="ms"),
        Result(
            name="  until a watcher has the slice",
            size=size,
            value=statistics.median(written) * 1e3,
            unit="ms",
        ),
        Result(name="  failed calls", size=size, value=failed, unit="", budget=0.0),
    ]


async def watch_slices(client: HttpClient, seen: deque[float]) -> None:
    """When events came."""
    since = (await client.list(EndpointSlices, namespace=NAMESPACE)).resource_version
    async with client.watch(
        EndpointSlices, namespace=NAMESPACE, resource_version=since, bookmarks=False
    ) as stream:
        async for _ in stream:
            seen.append(time.monotonic())


# -- a rolling update


async def replace_pod(stage: Stage, client: HttpClient, old: int, new: int) -> int:
    """As a Deployment and a kubelet do it; how many consumers besides nodes the barrier counted."""
    await stage.pod("start", pod_ip(new))
    await client.create(Pods, NAMESPACE, encode(pod_document(new, node=node_name(0))))
    status = encode(pod_status(pod_ip(new), ready=True))
    await client.patch(
        Pods, NAMESPACE, pod_name(new), status, patch_type="merge", subresource="status"
    )
    await client.delete(Pods, NAMESPACE, pod_name(old))
    async with drain(client, f"{NAMESPACE}/{pod_name(old)}", timeout=WAIT_S) as answer:
        assert answer.outcome == "drained", answer.as_document()
        await stage.pod("stop", pod_ip(old))
    await client.delete(Pods, NAMESPACE, pod_name(old), NOW)
    return answer.pods[0].verdict.others


async def roll(pods: int, replaced: int, rate: int, kinds: tuple[Kind, ...]) -> list[Result]:
    on_node = ("--proxy", "--hostname-override", node_name(0))
    async with plane(pods, *on_node, sticky=False) as (stage, client):
        for number in range(pods):
            await stage.pod("start", pod_ip(number))
        callers = {kind: stage.caller(kind) for kind in kinds}
        for caller in callers.values():
            await first_answer(caller)
        for caller in callers.values():
            await asked(caller, f"load {rate}")
        await asyncio.sleep(1.0)
        began = time.monotonic()
        consumers = [await replace_pod(stage, client, old, old + pods) for old in range(replaced)]
        took_s = time.monotonic() - began
        await asyncio.sleep(1.0)
        loads = [(kind, await ended(caller)) for kind, caller in callers.items()]
    note(
        f"{replaced} Pods in {took_s:.1f} s; consumers besides nodes that the barrier counted: "
        f"{set(consumers)}"
    )
    assert all(consumers), "a barrier did not count the xDS server"
    size = f"{pods} Pods, {replaced} replaced"
    return [result for kind, seen in loads for result in load_results(kind, size, seen)]


async def ended(caller: Process) -> Load:
    return msgspec.json.decode(await asked(caller, "end"), type=Load)


def load_results(kind: Kind, what: str, seen: Load) -> list[Result]:
    calls = sum(seen.answered.values()) + sum(seen.failed.values())
    if seen.failed:
        note(f"{SHOWN[kind]}: {seen.failed}")
    size = f"{what}, {calls:,} calls, {calls / seen.seconds:.0f}/s"
    failed = sum(seen.failed.values())
    return [
        Result(name=f"failed calls, {SHOWN[kind]}", size=size, value=failed, unit="", budget=0.0)
    ]


# -- a server dies


async def kill(rate: int, kinds: tuple[Kind, ...]) -> list[Result]:
    """The server that all clients have is killed; they come to the other one, and follow what
    changes then.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        await populate(folder / "data", [*cluster(PODS, sticky=False), *others()])
        served = stack.enter_context(PlaneProcess(folder))
        client = await stack.enter_async_context(HttpClient(load(served.kubeconfig)))
        stage = Stage(folder, stack, BootstrapOptions(host="127.0.0.1", port=0, insecure=True))
        replicas = [
            stage.run(f"xds-{port}", *replica(served, port))
            for port in (XDS_PORT + 1, XDS_PORT + 2)
        ]
        for server in replicas:
            await asyncio.to_thread(server.line)
        for number in range(PODS):
            await stage.pod("start", pod_ip(number))
        balancers = {}
        callers = {}
        for place, kind in enumerate(kinds):
            balancers[kind] = balancer = Balancer((XDS_PORT + 1, XDS_PORT + 2))
            await balancer.start(XDS_PORT + 10 + place)
            stack.push_async_callback(balancer.close)
            callers[kind] = stage.caller(kind, xds_port=XDS_PORT + 10 + place)
        for caller in callers.values():
            await first_answer(caller)
            await asked(caller, f"load {rate}")
        await asyncio.sleep(1.0)
        first = {kind: balancer.connections[-1].octets for kind, balancer in balancers.items()}
        began = time.monotonic()
        os.kill(replicas[0].process.pid, signal.SIGKILL)
        for balancer in balancers.values():
            while balancer.connections[-1].server != XDS_PORT + 2:
                assert time.monotonic() - began < WAIT_S, "a client does not come again"
                await asyncio.sleep(0.01)
        took_s = time.monotonic() - began
        await asyncio.sleep(2.0)
        second = {kind: balancer.connections[-1].octets for kind, balancer in balancers.items()}
        await stage.pod("start", pod_ip(PODS))
        await client.create(Pods, NAMESPACE, encode(pod_document(PODS)))
        status = encode(pod_status(pod_ip(PODS), ready=True))
        await client.patch(
            Pods, NAMESPACE, pod_name(PODS), status, patch_type="merge", subresource="status"
        )
        await asyncio.sleep(2.0)
        results = []
        for kind, caller in callers.items():
            seen = await ended(caller)
            assert pod_ip(PODS) in seen.answered, f"{SHOWN[kind]} does not follow the other server"
            results += load_results(kind, "a server is killed", seen)
    note(
        f"all clients came to the other server within {took_s:.2f} s; bytes at first {first}, "
        f"again {second}"
    )
    for kind in kinds:
        results.append(
            Result(
                name=f"bytes to who comes again, nothing changed, {SHOWN[kind]}",
                size=f"{OTHERS} Services of 10"
                if kind == "envoy"
                else "1 Service (all state is sent)",
                value=second[kind],
                unit="B",
                budget=AGAIN_BYTES if kind == "envoy" else None,
                peer="at first",
                peer_value=first[kind],
            )
        )
    return results


def replica(served: PlaneProcess, port: int) -> tuple[str, ...]:
    return (
        *(
            sys.executable,
            "-m",
            "sliceplane",
            "xds",
            "--kubeconfig",
            str(served.kubeconfig),
            "--log-level",
            "error",
        ),
        *("--insecure-bind-address", f"127.0.0.1:{port}", "--metrics-bind-address", "127.0.0.1:0"),
    )


def run(small: bool) -> list[Result]:
    if os.geteuid() != 0:
        note("calls were not measured: a network of one's own needs root")
        return []
    if not small:
        peers.envoy()  # fetched here, for there is no way out from within
    with private_loopback():
        if small:
            return asyncio.run(ready("grpc", 3, 2))
        results = []
        for kind in KINDS:
            results += asyncio.run(ready(kind, ENDPOINTS, TURNS))
        results += asyncio.run(roll(PODS, REPLACED, RATE, KINDS))
        return results + asyncio.run(kill(RATE, KINDS))


if __name__ == "__main__":
    main(run)
