"""Kubernetes' own kube-proxy in nftables mode, over the same Services and EndpointSlices as
``proxied``.

It needs a server, which is ours, filled beforehand. Run as ``python -m benchmarks.tools.kube_proxy
PROGRAM SIZES CHANGES`` in a network namespace made for it. Prints one JSON object as ``proxied``
does, without ``nft_s``: ``first_sync_s`` is what its log calls the time elapsed, which begins when
all lists are decoded (ours includes that), ``listed_and_synced_s`` is with the lists and so with
the server's time, ``change_s`` is from the server's answer to a patch until the kernel has the
change. Of its CPU (``cpu_s``): ``ready_cpu_s`` until the first sync, ``idle_cpu`` of a core while nothing changes,
``change_cpu_s`` for each change.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from demo.net import run_ip

from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.objects import (
    NAMESPACE,
    PER_SLICE,
    endpoint,
    namespace_document,
    node_document,
    node_name,
    service_document,
    slice_document,
)
from benchmarks.tools.process import PlaneProcess, Process, scratch
from benchmarks.tools.proxied import Commits, service_ip, sizes_of
from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

WAIT_MAX_S = 120.0
#: its syncs take seconds, and one that is due waits for the one before it
QUIET_S = 4.0
IDLE_S = 20.0
_BEGIN = re.compile(
    r"^I\d{4} (\S+) .*\"Listing and watching\" type=\"\*v1\.(?:Service|EndpointSlice)\"",
    re.MULTILINE,
)
_END = re.compile(
    r"^I\d{4} (\S+) .*\"SyncProxyRules complete\" ipFamily=\"IPv4\" elapsed=\"(\S+)\"", re.MULTILINE
)
_ELAPSED = re.compile(r"(?:(\d+)m)?([\d.]+)(m?s)")


def objects(sizes: list[int]) -> Iterator[Wanted]:
    yield Namespaces, "", namespace_document(), None
    # It waits for its node and the node's address.
    yield (
        Nodes,
        "",
        node_document(0),
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
    )
    for number in range(len(sizes)):
        yield (
            Services,
            NAMESPACE,
            service_document(_service(number), cluster_ip=service_ip(number + 2)),
            None,
        )
    first = 0
    for number, size in enumerate(sizes):
        for part, begin in enumerate(range(first, first + size, PER_SLICE)):
            pods = range(begin, min(begin + PER_SLICE, first + size))
            yield (
                EndpointSlices,
                NAMESPACE,
                slice_document(_slice(number, part), _service(number), pods),
                None,
            )
        first += size


def _service(number: int) -> str:
    return f"s-{number:05d}"


def _slice(service: int, part: int) -> str:
    return f"{_service(service)}-{part:03d}"


def configuration(folder: Path, kubeconfig: Path) -> Path:
    """JSON is YAML.  A namespace refuses the limits of conntrack."""
    wanted = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node_name(0),
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "contentType": "application/vnd.kubernetes.protobuf",
        },
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }
    path = folder / "kube-proxy.json"
    path.write_text(json.dumps(wanted))
    return path


async def first_sync(log: Path) -> dict[str, float]:
    """Seconds, by its own clock."""
    async with asyncio.timeout(WAIT_MAX_S):
        while not (ends := _END.findall(text := await asyncio.to_thread(log.read_text))):
            await asyncio.sleep(0.05)
    clock, elapsed = ends[0]
    parts = _ELAPSED.fullmatch(elapsed)
    assert parts is not None, f"elapsed {elapsed}"
    minutes, number, unit = parts.groups()
    whole = (_second_of_day(clock) - _second_of_day(_BEGIN.findall(text)[0])) % 86_400
    alone = int(minutes or 0) * 60 + float(number) * (0.001 if unit == "ms" else 1.0)
    return {"first_sync_s": alone, "listed_and_synced_s": whole}


def _second_of_day(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


async def changes(client: HttpClient, commits: Commits, size: int, count: int) -> list[float]:
    """Endpoint 0 of the first service goes and comes back, *count* times in all: seconds to the
    kernel.
    """
    times = []
    for number in range(count):
        await asyncio.sleep(QUIET_S)
        endpoints = [endpoint(pod) for pod in range(min(size, PER_SLICE))]
        if number % 2 == 0:
            endpoints[0]["conditions"] = {"ready": False, "serving": False, "terminating": False}
        before = len(commits.times)
        await client.patch(
            EndpointSlices,
            NAMESPACE,
            _slice(0, 0),
            encode({"endpoints": endpoints}),
            patch_type="merge",
        )
        answered = time.perf_counter()
        async with asyncio.timeout(WAIT_MAX_S):
            while len(commits.times) == before:
                await asyncio.sleep(0.001)
        times.append(commits.times[before] - answered)
    return times


def cpu_s(proxy: Process) -> float:
    """CPU of kube-proxy, with that of the program ``nft``, which it runs for each write."""
    fields = Path(f"/proc/{proxy.process.pid}/stat").read_text().rpartition(")")[2].split()
    children = sum(map(int, fields[13:15]))  # cutime, cstime (proc_pid_stat(5))
    return proxy.cpu_s() + children / os.sysconf("SC_CLK_TCK")


async def measure(program: str, sizes: list[int], count: int, folder: Path) -> dict[str, object]:
    await populate(folder / "data", objects(sizes))
    log = folder / "kube-proxy.log"
    with PlaneProcess(folder, command="apiserver") as plane:
        config = configuration(folder, plane.kubeconfig)
        with Process(program, "--config", str(config), "-v", "3", log=log) as proxy:
            taken = await first_sync(log)
            memory = proxy.rss_mib()
            ready_cpu_s = cpu_s(proxy)
            await asyncio.sleep(QUIET_S)
            cpu = cpu_s(proxy)
            await asyncio.sleep(IDLE_S)
            idle_cpu = (cpu_s(proxy) - cpu) / IDLE_S
            commits = Commits()
            client = HttpClient(load(str(plane.kubeconfig)))
            try:
                commits.listen()
                cpu = cpu_s(proxy)
                times = await changes(client, commits, sizes[0], count)
                await asyncio.sleep(QUIET_S)  # of the last change, too
                change_cpu_s = (cpu_s(proxy) - cpu) / count
            finally:
                commits.close()
                await client.close()
    return {
        "services": len(sizes),
        "endpoints": sum(sizes),
        **taken,
        "rss_mib": memory,
        "ready_cpu_s": ready_cpu_s,
        "idle_cpu": idle_cpu,
        "change_s": times,
        "change_cpu_s": change_cpu_s,
    }


def main(program: str, groups: str, count: str) -> None:
    run_ip("link", "set", "lo", "up")
    with scratch() as folder:
        print(
            json.dumps(asyncio.run(measure(program, sizes_of(groups), int(count), Path(folder)))),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
