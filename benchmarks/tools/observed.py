"""The observer in a process of its own, beside rules as kube-proxy 1.36 lays them out, over the
Services and EndpointSlices of ``proxied``.

Run as ``python -m benchmarks.tools.observed SIZES CHANGES`` in a network namespace made for it.  Prints
one JSON object: ``services``, ``endpoints``; ``ready_s`` until everything was compared for the first
time, ``ready_cpu_s`` all CPU until then, ``rss_mib`` after it and ``peak_mib`` until then;
``idle_cpu`` of a core while nothing changes; ``compare_all_cpu_s``: a comparison of all Services;
``change_s``: from the kernel's new generation until the Service agrees, ``change_cpu_s``.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from benchmarks.tools.objects import PER_SLICE, pod_ip
from benchmarks.tools.proxied import NODE, Cluster, Server, rss_mib, service_ip, sizes_of
from sliceplane.kit.rng import Rng
from sliceplane.node.io.observing.observer import Observer

IDLE_S = 20.0
WAIT_MAX_S = 120.0
_TABLE = """
table ip kube-proxy {
 map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
 chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
 chain nat-output { type nat hook output priority -100; jump services; }
 chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
}
"""


def chain_name(number: int) -> str:
    return f"service-{number:08X}-bench/s-{number:05d}/tcp/http"


def rule(number: int, pods: range | list[int]) -> str:
    values = ", ".join(f"{at} : {pod_ip(pod)} . 8080" for at, pod in enumerate(pods))
    return (
        f"add rule ip kube-proxy {chain_name(number)} meta l4proto tcp dnat ip to numgen random "
        f"mod {len(pods)} map {{ {values} }}"
    )


def table(sizes: list[int]) -> Iterator[str]:
    yield _TABLE
    first = 0
    for number, size in enumerate(sizes):
        yield f"add chain ip kube-proxy {chain_name(number)}"
        yield rule(number, range(first, first + size))
        yield (
            f"add element ip kube-proxy service-ips {{ {service_ip(number + 2)} . tcp . 80 : "
            f"goto {chain_name(number)} }}"
        )
        first += size


def nft(lines: Iterable[str]) -> None:
    """The text is in a file: what it takes is not the observer's memory."""
    with tempfile.TemporaryFile("w+") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.seek(0)
        subprocess.run(["nft", "-f", "-"], stdin=file, check=True)


async def agreed(observer: Observer) -> None:
    async with asyncio.timeout(WAIT_MAX_S):
        while not observer.is_ready or observer.pending or observer.has_changes:
            await asyncio.sleep(0.002)


async def main(groups: str, changes: int) -> None:
    sizes = sizes_of(groups)
    nft(table(sizes))
    cluster = Cluster(sizes)
    server = Server(cluster)
    began, cpu = time.monotonic(), time.process_time()
    observer = Observer(NODE, ("IPv4",), clock=time.time)
    task = asyncio.create_task(observer.follow(server, Rng(1)))  # type: ignore[arg-type]
    await agreed(observer)
    compared = observer.counts["IPv4"]
    assert compared == len(sizes), f"{compared} Services are compared, not {len(sizes)}"
    found = {
        "services": len(sizes),
        "endpoints": sum(sizes),
        "ready_s": time.monotonic() - began,
        "ready_cpu_s": time.process_time() - cpu,
        "rss_mib": rss_mib(),
        "peak_mib": rss_mib("VmHWM"),
    }
    cpu = time.process_time()
    await asyncio.sleep(IDLE_S)
    found["idle_cpu"] = (time.process_time() - cpu) / IDLE_S
    times, costs = [], []
    pods = list(range(min(sizes[0], PER_SLICE)))
    for number in range(changes):
        without = 0 if number % 2 == 0 else -1
        cpu = time.process_time()
        server.send(
            cluster.slice(0, 0, pods, without=without, revision=cluster.revision + number + 1)
        )
        await asyncio.sleep(0.05)
        chain = chain_name(0)
        remaining = pods[1:] if without == 0 else pods
        nft(
            [
                f"flush chain ip kube-proxy {chain}",
                rule(0, remaining + list(range(len(pods), sizes[0]))),
            ]
        )
        at = time.monotonic()
        await agreed(observer)
        times.append(time.monotonic() - at)
        costs.append(time.process_time() - cpu)
    found["change_s"] = statistics.median(times) if times else 0.0
    found["change_cpu_s"] = statistics.median(costs) if costs else 0.0
    # What looks for edited rules, a few Services a second, takes for all of them.
    cpu = time.process_time()
    for agreement in observer._agreements.values():
        for key in agreement.service_keys():
            agreement.compare(key, observer._nft.graphs["IPv4"], time.time())
    found["compare_all_cpu_s"] = time.process_time() - cpu
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
