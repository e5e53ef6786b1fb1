"""What a name costs, and how soon one that is gone is gone: ours beside CoreDNS, over one API
server, with one load.

CPU of the server for a query: ``dnsperf`` asks as fast as it is answered. CoreDNS has the usual
Corefile without its cache, on one processor: it counts and rotates, as we do. Then an endpoint of a
headless Service turns not ready while a client asks: until it is gone from answers, for ours, for
CoreDNS without its cache, and once with it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dns.message

from benchmarks.harness import Result, main, note, percentile
from benchmarks.tools import peers
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

ZONE = "cluster.local"
SERVICES = 1000
QUERY_SETS = {
    "ClusterIP": [f"s{number}.default.svc.{ZONE} A" for number in range(SERVICES)],
    "headless, 10 endpoints": [f"peers.default.svc.{ZONE} A"],
    "SRV, 10 endpoints": [f"_http._tcp.peers.default.svc.{ZONE} SRV"],
    "NXDOMAIN": [
        f"github.com.default.svc.{ZONE} A",
        f"github.com.svc.{ZONE} A",
        f"github.com.{ZONE} A",
    ],
}
#: 60,000 queries a second and core, and twice the peer
BUDGET_US = 1e6 / 60_000
PEER_SHARE = 0.5
GONE_BUDGET_MS = 50.0
_COREFILE = """.:{port} {{
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:{metrics}
    loadbalance
    kubernetes {zone} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl {ttl}
    }}
    {cache}
}}
"""


def objects(services: int) -> Iterator[Wanted]:
    port = {"name": "http", "port": 80, "protocol": "TCP"}
    for number in range(services):
        yield (
            Services,
            "default",
            {"metadata": {"name": f"s{number}"}, "spec": {"ports": [port]}},
            None,
        )
    spec = {"clusterIP": "None", "ports": [port]}
    yield Services, "default", {"metadata": {"name": "peers"}, "spec": spec}, None
    yield EndpointSlices, "default", slice_document(10), None


def slice_document(ready: int, count: int = 10) -> dict[str, Any]:
    endpoints = [
        {"addresses": [f"10.128.0.{at + 1}"], "conditions": {"ready": at < ready}}
        for at in range(count)
    ]
    return {
        "metadata": {"name": "peers-1", "labels": {"kubernetes.io/service-name": "peers"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def ours(kubeconfig: Path, folder: Path, forward: str = "none") -> tuple[Process, int]:
    process = Process(
        *(
            sys.executable,
            "-m",
            "sliceplane",
            "dns",
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig",
            str(kubeconfig),
        ),
        *("--forward", forward),
        log=folder / "dns.log",
    )
    return process, int(process.line().rpartition(":")[2])


@contextmanager
def others() -> Iterator[str]:
    """A name server that knows every name; where it is."""

    def answer(own: socket.socket) -> None:
        while (packet := own.recvfrom(4096))[0]:
            query, client = packet
            question = query[12:-11]  # an OPT is the last of it
            record = b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\4\xc0\0\2\1"
            own.sendto(query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + record, client)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=answer, args=(own,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{own.getsockname()[1]}"
        own.sendto(b"", own.getsockname())
        thread.join()


def coredns(program: Path, kubeconfig: Path, folder: Path, *, cache: bool) -> tuple[Process, int]:
    ports = []
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as free:
            free.bind(("127.0.0.1", 0))
            ports.append(int(free.getsockname()[1]))
    port, metrics = ports
    corefile = folder / f"Corefile-{port}"
    words = {"cache": "cache 30" if cache else "", "ttl": 30 if cache else 5}
    corefile.write_text(
        _COREFILE.format(port=port, metrics=metrics, zone=ZONE, kubeconfig=kubeconfig, **words)
    )
    process = Process(
        str(program), "-conf", str(corefile), log=folder / "coredns.log", GOMAXPROCS="1"
    )
    wait_for(lambda: addresses(port) == 10, "CoreDNS answers")
    return process, port


def wait_for(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.05)


_PACKET = dns.message.make_query(
    f"peers.default.svc.{ZONE}", "A", use_edns=0, payload=1232
).to_wire()


def addresses(port: int) -> int:
    """How many the headless Service has; -1: no answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(1.0)
        own.connect(("127.0.0.1", port))
        try:
            own.send(_PACKET)
            answer = own.recv(4096)
        except OSError:
            return -1
    return int.from_bytes(answer[6:8], "big") if not answer[3] & 15 else -1


def cost_us(
    process: Process, port: int, questions: list[str], folder: Path, seconds: float
) -> tuple[float, float]:
    """CPU of the server for a query, and queries a second as the load tool counts them."""
    file = folder / "questions"
    file.write_text("".join(f"{line}\n" for line in questions))
    began = process.cpu_s()
    done = subprocess.run(
        [
            "dnsperf",
            "-s",
            "127.0.0.1",
            "-p",
            str(port),
            "-d",
            str(file),
            "-l",
            str(seconds),
            "-c",
            "4",
            "-q",
            "200",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    completed = re.search(r"Queries completed:\s+(\d+)", done.stdout)
    rate = re.search(r"Queries per second:\s+([\d.]+)", done.stdout)
    assert completed is not None, done.stdout
    assert rate is not None, done.stdout
    return (process.cpu_s() - began) / max(1, int(completed[1])) * 1e6, float(rate[1])


def gone_ms(kubeconfig: Path, port: int, runs: int) -> list[float]:
    """From a slice's write until the endpoint is in no answer."""

    async def flip() -> list[float]:
        took = []
        async with HttpClient(from_file(kubeconfig)) as client:
            for _ in range(runs):
                await _patch(client, 10)
                await asyncio.to_thread(
                    wait_for, lambda: addresses(port) == 10, "the endpoint is back"
                )
                began = time.perf_counter()
                await _patch(client, 9)
                while await asyncio.to_thread(addresses, port) != 9:
                    pass
                took.append((time.perf_counter() - began) * 1000)
            await _patch(client, 10)
        return took

    return asyncio.run(flip())


async def _patch(client: HttpClient, ready: int) -> None:
    body = json.dumps({"endpoints": slice_document(ready)["endpoints"]}).encode()
    await client.patch(EndpointSlices, "default", "peers-1", body, patch_type="merge")


@contextmanager
def cluster(services: int) -> Iterator[tuple[Path, Path]]:
    """A folder for files, and the kubeconfig of an API server with the objects."""
    with scratch() as name:
        folder = Path(name)
        asyncio.run(populate(folder / "data", objects(services)))
        with PlaneProcess(folder, command="apiserver") as plane:
            yield folder, plane.kubeconfig


def run(small: bool) -> list[Result]:
    seconds, runs = (0.2, 2) if small else (4.0, 200)
    program = None if small else peers.build("coredns")
    results = []
    with cluster(50 if small else SERVICES) as (folder, kubeconfig), ExitStack() as stack:
        process, port = ours(kubeconfig, folder)
        stack.enter_context(process)
        other = None
        if program is not None:
            other = coredns(program, kubeconfig, folder, cache=False)
            stack.enter_context(other[0])
        if shutil.which("dnsperf") is None:
            note(
                "no dnsperf on this machine (apt-get install dnsperf): what a query costs is left "
                "out"
            )
        for size, questions in QUERY_SETS.items() if shutil.which("dnsperf") else ():
            questions = questions[: 50 if small else SERVICES]
            theirs = None if other is None else cost_us(*other, questions, folder, seconds)
            cost, rate = cost_us(process, port, questions, folder, seconds)
            note(
                f"{size}: {rate:,.0f} queries a second"
                + (f", CoreDNS {theirs[1]:,.0f}" if theirs else "")
            )
            budget = BUDGET_US if theirs is None else min(BUDGET_US, theirs[0] * PEER_SHARE)
            results.append(
                Result(
                    name="CPU of a query",
                    size=size,
                    value=cost,
                    unit="us",
                    budget=budget,
                    peer="CoreDNS without cache",
                    peer_value=None if theirs is None else theirs[0],
                )
            )
        if shutil.which("dnsperf") is not None:
            asking, asking_port = ours(kubeconfig, folder, stack.enter_context(others()))
            stack.enter_context(asking)
            names = [f"host{number}.example.org A" for number in range(50 if small else SERVICES)]
            cost_us(asking, asking_port, names, folder, seconds)  # what is asked for the first time
            cost, rate = cost_us(asking, asking_port, names, folder, seconds)
            note(f"names of others, kept: {rate:,.0f} queries a second")
            results.append(
                Result(name="CPU of a query", size="names of others, kept", value=cost, unit="us")
            )
        took = gone_ms(kubeconfig, port, runs)
        their_times = [] if other is None else gone_ms(kubeconfig, other[1], runs)
        cached: list[float] = []
        if program is not None and not small:
            usual = coredns(program, kubeconfig, folder, cache=True)
            stack.enter_context(usual[0])
            cached = gone_ms(kubeconfig, usual[1], 1)
            note(f"with the cache of the usual Corefile: {cached[0] / 1000:.1f} s")
        for percent, budget_ms in ((50, None), (99, GONE_BUDGET_MS)):
            results.append(
                Result(
                    name="endpoint gone until gone from answers",
                    size=f"p{percent}",
                    value=percentile(took, percent),
                    unit="ms",
                    budget=budget_ms,
                    peer="CoreDNS without cache",
                    peer_value=percentile(their_times, percent) if their_times else None,
                )
            )
        if cached:
            results.append(
                Result(
                    name="endpoint gone until gone from answers",
                    size="usual Corefile beside us",
                    value=percentile(took, 99),
                    unit="ms",
                    peer="CoreDNS, cache 30",
                    peer_value=cached[0],
                )
            )
    return results


if __name__ == "__main__":
    main(run)
