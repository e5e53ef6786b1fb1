"""The drain barrier under packets: three nodes in network namespaces, load on all of them, both
families, Pods that leave one after the other. After the answer no node sends a SYN to the Pod, and
no request fails. SYNs are counted where a node sends them: on a busy machine one that was sent
before may wait in the kernel, and arrive after the answer.

``python -m tests.kernel.test_drain_packets`` does it a thousand times, with reports in memory and
by Leases, and compares with hooks that sleep.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.figures import tell
from tests.kernel.netns import Host, Net
from tests.ports import free_port
from tests.waiting import PATIENCE_S, eventually

from sliceplane.client import HttpClient, Pods
from sliceplane.consume.drain.answer import DrainedPod, sentence
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.io.draining import drain_pods
from sliceplane.consume.io.reporting import report_progress
from sliceplane.diagnose.io.drain_targets import find_pods
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.conntrack import Conntrack
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import ProxyTiming
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.reflect import loop_clock

pytestmark = pytest.mark.kernel

NODES: Final = ("n1", "n2", "n3")
PODS: Final = 4
#: after the answer, the counter of SYNs is looked at again after so long
AFTER_S: Final = 0.05

#: a Pod: answers each connection with a line; "close" and "open" are of its listening socket,
#: "syns" counts
SERVER = """
import json, socket, subprocess, sys, threading
def listening():
    return socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
def answer(connection):
    with connection:
        try:
            if connection.recv(100):
                connection.sendall(b"yes")
        except OSError:
            pass
def accept(own):
    while True:
        try:
            connection, _ = own.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()
rules = "table inet count { counter syns { } ; chain in { type filter hook input priority 0; " \\
    "tcp dport 8080 tcp flags & (syn | ack) == syn counter name syns; }; }"
subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
own = listening()
threading.Thread(target=accept, args=(own,), daemon=True).start()
for line in sys.stdin:
    word = line.strip()
    if word == "close":
        own.shutdown(socket.SHUT_RDWR)
        own.close()
    elif word == "open":
        own = listening()
        threading.Thread(target=accept, args=(own,), daemon=True).start()
    listed = subprocess.run(["nft", "-j", "list", "counters"], capture_output=True, text=True, check=True).stdout
    print(next(e["counter"]["packets"] for e in json.loads(listed)["nftables"] if "counter" in e), flush=True)
"""

#: of a node: SYNs that leave it for each Pod, behind all that the node proxy does with them. One
#: that is sent again, because its Pod took a second to answer, has the sequence number of the first
#: and is no new connection.
SENT: Final = """
table inet sent {{
    {counters}
    set seen {{
        typeof tcp sport . tcp sequence
        size 65536
        flags dynamic,timeout
        timeout 60s
    }}
    chain out {{
        type filter hook postrouting priority 300;
        tcp flags & (syn | ack) != syn return
        tcp dport != 8080 return
        tcp sport . tcp sequence @seen return
        add @seen {{ tcp sport . tcp sequence }}
        jump pods
    }}
    chain pods {{
        {rules}
    }}
}}
"""

#: RATE new connections a second to each of ADDRESSES in turn, until a line comes; prints made and
#: failed ones
CLIENT = """
import json, select, socket, sys, threading, time
for line in sys.stdin:
    rate, *addresses = json.loads(line)
    made, failed, count = 0, [], 0
    began = time.monotonic()
    lock = threading.Lock()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    def work():
        global made, count
        while not over.is_set():
            with lock:
                number, count = count, count + 1
            wait = began + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            address = addresses[number % len(addresses)]
            try:
                with socket.create_connection((address, 80), timeout=30) as s:
                    s.sendall(b"?")
                    if s.recv(100) != b"yes":
                        raise OSError("no answer")
                made += 1
            except OSError as error:
                failed.append(f"{address} after {time.monotonic() - began:.2f} s: {error}")
    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps([made, len(failed), failed[:3], time.monotonic() - began]), flush=True)
"""


@asynccontextmanager
async def connecting(
    nodes: Sequence[Host], rate: int, addresses: Sequence[str]
) -> AsyncIterator[list[Any]]:
    """*rate* new connections a second from all *nodes* together; what came of them is in the list
    afterwards.
    """
    clients = [node.spawn([sys.executable, "-I", "-u", "-c", CLIENT]) for node in nodes]
    for client in clients:
        assert client.stdin is not None, "spawn makes pipes"
        client.stdin.write(json.dumps([rate / len(clients), *addresses]) + "\n")
        client.stdin.flush()
    results: list[Any] = []
    yield results
    for client in clients:
        assert client.stdin is not None, "spawn makes pipes"
        client.stdin.write("over\n")
        client.stdin.flush()
    for client in clients:
        assert client.stdout is not None, "spawn makes pipes"
        results.append(json.loads(await asyncio.to_thread(client.stdout.readline)))


class SentSyns:
    """Counts, on each node, the SYNs that leave it for each Pod."""

    def __init__(self, nodes: Sequence[Host], pods: Sequence[Host]) -> None:
        self._nodes = nodes
        counters = "".join(f"counter {pod.netns} {{ }}\n" for pod in pods)
        rules = "".join(
            f"ip daddr {pod.ip4} counter name {pod.netns}\n"
            f"ip6 daddr {pod.ip6} counter name {pod.netns}\n"
            for pod in pods
        )
        for node in nodes:
            node.exec(["nft", "-f", "-"], stdin=SENT.format(counters=counters, rules=rules))

    async def read(self, pod: Host) -> list[int]:
        """The SYNs that each node has sent to the Pod so far."""
        return await asyncio.gather(
            *(asyncio.to_thread(self._read, node, pod) for node in self._nodes)
        )

    @staticmethod
    def _read(node: Host, pod: Host) -> int:
        listed = json.loads(
            node.exec(["nft", "-j", "list", "counter", "inet", "sent", pod.netns]).stdout
        )
        return next(
            int(entry["counter"]["packets"]) for entry in listed["nftables"] if "counter" in entry
        )


class Town:
    """Three nodes and four Pods on one network, and a plane that knows of them."""

    def __init__(
        self, plane: Plane, client: HttpClient, nodes: Sequence[Host], pods: Sequence[Host]
    ) -> None:
        self.plane = plane
        self.client = client
        self.nodes = nodes
        self.pods = pods
        self.addresses: list[str] = []
        self._servers = [pod.spawn([sys.executable, "-I", "-u", "-c", SERVER]) for pod in pods]
        self._sent = SentSyns(nodes, pods)
        self._seed = 0

    async def say(self, number: int, word: str) -> int:
        """Tell the server of a Pod; how many SYNs came so far."""
        return await asyncio.to_thread(self._say, number, word)

    def _say(self, number: int, word: str) -> int:
        server = self._servers[number]
        assert server.stdin is not None, "spawn makes pipes"
        assert server.stdout is not None, "spawn makes pipes"
        server.stdin.write(f"{word}\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    async def sent(self, number: int) -> list[int]:
        """The SYNs that each node has sent to a Pod so far."""
        return await self._sent.read(self.pods[number])

    def pod(self, number: int, **meta: Any) -> dict[str, Any]:
        host = self.pods[number]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"web-{number}", "labels": {"app": "web"}, **meta},
            "spec": {
                "nodeName": NODES[number % 3],
                "containers": [{"name": "web", "image": "web"}],
            },
            "status": {
                "podIP": host.ip4,
                "podIPs": [{"ip": host.ip4}, {"ip": host.ip6}],
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    async def open(self) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        nodes = [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": ready}
            for name in NODES
        ]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {
                "selector": {"app": "web"},
                "ports": [{"port": 80, "targetPort": 8080}],
                "ipFamilyPolicy": "RequireDualStack",
                "ipFamilies": list(FAMILIES),
            },
        }
        for number in range(PODS):
            await self.say(number, "syns")
        await asyncio.to_thread(
            self.plane.apply, [*nodes, service, *(self.pod(number) for number in range(PODS))]
        )
        await self.plane.until(lambda: self._ready() == PODS)
        self.addresses = self.plane.get("services", "web")["spec"]["clusterIPs"]

    def _ready(self) -> int:
        return len({endpoint.pod for endpoint in self.plane.endpoints("web") if endpoint.ready})

    def load(self, rate: int, nodes: Sequence[Host] = ()) -> AbstractAsyncContextManager[list[Any]]:
        """*rate* new connections a second from all *nodes* together (``connecting``)."""
        return connecting(nodes or self.nodes, rate, self.addresses)

    async def drain(self, number: int, **options: Any) -> DrainedPod:
        """Asked again where the server has just closed the connection, as a person would."""
        drained = await eventually(
            partial(self._drain, number, options), ignoring=(Unreachable,), within_s=600
        )
        assert isinstance(drained, DrainedPod)
        return drained

    async def _drain(self, number: int, options: dict[str, Any]) -> DrainedPod:
        pods = await find_pods(self.client, "pod", "default", f"web-{number}")
        self._seed += 1
        settled = DrainOptions(**{"timeout_s": PATIENCE_S, "force": True, **options})
        clock = loop_clock(time.time())
        answer = await drain_pods(
            self.client, pods, "pod", settled, clock=clock, rng=Rng(self._seed)
        )
        return answer.pods[0]

    async def bring_back(self, number: int) -> None:
        body = b'{"metadata":{"annotations":{"sliceplane.dev/drain":null}}}'
        await eventually(
            lambda: self.client.patch(Pods, "default", f"web-{number}", body, patch_type="merge"),
            ignoring=(Unreachable,),
        )
        await self.plane.until(lambda: self._ready() == PODS)


class WithoutMemory(HttpClient):
    """As of a server that keeps no reports in its memory: nodes tell in Leases."""

    post = None  # type: ignore[assignment]


@asynccontextmanager
async def town(
    *, beat_s: float = 0.2, client_of: type[HttpClient] = HttpClient, first: int = 0
) -> AsyncIterator[Town]:
    """Node proxies on the kernel of each node; the test starts those of the nodes before
    *first*.
    """
    async with AsyncExitStack() as stack:
        net = stack.enter_context(Net("spd"))
        hosts = [
            net.add_host(name, ip4=f"10.78.0.{n}/16", ip6=f"fd78::{n}/64")
            for n, name in enumerate(NODES, 1)
        ]
        pods = [
            net.add_host(f"p{n}", ip4=f"10.78.1.{n}/16", ip6=f"fd78::1:{n}/64")
            for n in range(1, PODS + 1)
        ]
        plane = await stack.enter_async_context(Plane())
        client = await stack.enter_async_context(client_of(kubeconfig.load(plane.kubeconfig)))
        made = Town(plane, client, hosts, pods)
        await made.open()
        clock = loop_clock(time.time())
        tasks = stack.enter_async_context  # they end before the network does
        for number, host in list(enumerate(hosts))[first:]:
            backend = Nftables(NftRunner(netns=host.netns))
            proxy = make_proxy(
                NODES[number],
                backend,
                clock=clock,
                count_flows=Conntrack(netns=host.netns).count_translated,
                timing=ProxyTiming(lease_changed_period_s=beat_s),
            )
            await tasks(running(proxy, client, Rng(number)))
            await proxy.wait_ready()
        yield made


@asynccontextmanager
async def running(proxy: NodeProxy, client: HttpClient, rng: Rng) -> AsyncIterator[None]:
    clock = loop_clock(time.time())
    tasks = [
        asyncio.create_task(proxy.follow(client, rng)),
        asyncio.create_task(report_progress(client, proxy, rng.fork(), clock)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drains(place: Town, count: int) -> tuple[list[float], int]:
    """So many, each after the other is back; the seconds of each, and SYNs that were sent after an
    answer.
    """
    took: list[float] = []
    late = 0
    for turn in range(count):
        number = turn % PODS
        done = await place.drain(number)
        assert done.outcome == "drained", sentence(done)
        at_answer = await place.sent(number)
        assert sum(at_answer) > 0, "SYNs are counted"
        await asyncio.sleep(AFTER_S)
        late += sum(await place.sent(number)) - sum(at_answer)
        took.append(done.took_s)
        await place.bring_back(number)
    return took, late


async def test_no_syn_after_the_answer_and_no_request_fails() -> None:
    async with town() as place:
        before = [await place.say(number, "syns") for number in range(PODS)]
        async with place.load(60) as results:
            await eventually(lambda: everyone(place, before))
            took, late = await drains(place, PODS)
            assert len(took) == PODS
            assert late == 0, "a SYN was sent after the answer"
        assert sum(made for made, *_ in results) > 0
        assert [failed for _, failed, _, _ in results] == [0, 0, 0], results


async def everyone(place: Town, before: list[int]) -> bool:
    """Each Pod has connections, so that there is something to end."""
    return all([await place.say(number, "syns") > before[number] + 2 for number in range(PODS)])


async def test_a_proxy_process_that_is_killed_in_the_middle_of_a_drain_is_named_until_its_kernel_has_stopped() -> (
    None
):
    """Rules stay when the process is gone: its kernel goes on sending, and no answer may say
    otherwise.
    """
    async with town(first=1) as place:
        stopped = NODES[0]

        async def drain_ends_with(outcome: str, waiting: list[str], timeout_s: float) -> None:
            answer = await eventually(
                lambda: place.drain(1, timeout_s=timeout_s),
                lambda answer: [missing.node for missing in answer.verdict.waiting] == waiting,
            )
            assert answer.outcome == outcome, sentence(answer)

        async def is_sent_to(number: int) -> bool:
            """Of a few new connections of both families from the stopped node."""
            before = await place.say(number, "syns")
            async with place.load(100, place.nodes[:1]):
                await asyncio.sleep(0.2)
            return await place.say(number, "syns") > before

        async with proxy_process(place, 0) as killed:
            assert (await place.drain(0)).verdict.required == 3, "all three tell"
            await place.bring_back(0)
            await eventually(lambda: is_sent_to(1))
            killed.send_signal(signal.SIGSTOP)  # so that it is killed before it writes
            draining = asyncio.create_task(place.drain(1, timeout_s=1.0))
            await place.plane.until(lambda: place._ready() == PODS - 1)
            killed.kill()
        assert (await draining).outcome == "time over"
        await drain_ends_with("time over", [stopped], 1.0)
        await eventually(lambda: is_sent_to(1))
        await drain_ends_with("time over", [stopped], 1.0)
        async with proxy_process(place, 0):
            await drain_ends_with("drained", [], PATIENCE_S)
            assert [await is_sent_to(1) for _ in range(3)] == [False] * 3
            assert await eventually(lambda: is_sent_to(0)), "others are"


@asynccontextmanager
async def proxy_process(place: Town, number: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """``sliceplane proxy`` on a node, ready; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sliceplane", "proxy", "--kubeconfig", str(place.plane.kubeconfig)),
        *("--hostname-override", NODES[number], "--netns", place.nodes[number].netns),
        *("--healthz-bind-address", f"127.0.0.1:{free_port()}"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None, "it is a pipe"
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert line.startswith(b"ready "), line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_thousand_drains_under_a_thousand_connections_a_second() -> None:
    figures = await measure_drains(1000, 1000)
    tell(str(figures))
    assert (figures["failed"], figures["synAfterAnswer"]) == (0, 0), figures


@pytest.mark.slow
async def test_a_stopped_node_is_named_in_every_drain() -> None:
    figures = await measure_stopped(1000)
    tell(str(figures))
    assert figures["named"] == 1000


async def measure_stopped(count: int) -> dict[str, Any]:
    """The proxy of a node stands still, first with a Lease that lasts, then without; in the end
    nothing is known of it any more.
    """
    async with town(first=1) as place, proxy_process(place, 0) as process:
        assert (await place.drain(0)).verdict.required == 3, "all three tell"
        await place.bring_back(0)
        process.send_signal(signal.SIGSTOP)
        named: Counter[str] = Counter()
        for turn in range(count):
            answer = await eventually(
                lambda number=turn % PODS: place.drain(number, timeout_s=0.3),
                lambda answer: (
                    answer.outcome == "drained" or answer.verdict.waiting or answer.verdict.unknown
                ),
            )  # once its slices say that it leaves
            verdict = answer.verdict
            for how, missing in (("waited for", verdict.waiting), ("unknown", verdict.unknown)):
                if answer.outcome != "drained" and NODES[0] in [
                    consumer.node for consumer in missing
                ]:
                    named[how] += 1
            await place.bring_back(turn % PODS)
    return {"drains": count, "named": named.total(), **named}


#: a town whose nodes reported once, and from then on only when a report is requested
QuietTown = Callable[[type[HttpClient]], AbstractAsyncContextManager[Town]]


@asynccontextmanager
async def quiet_town(client_of: type[HttpClient]) -> AsyncIterator[Town]:
    async with town(beat_s=10.0, client_of=client_of) as place:
        await asyncio.sleep(10.5)
        yield place


async def measure_drains(
    count: int,
    rate: int,
    client_of: type[HttpClient] = HttpClient,
    town_of: QuietTown = quiet_town,
) -> dict[str, Any]:
    async with town_of(client_of) as place, place.load(rate) as results:
        took, late = await drains(place, count)
    made = sum(result[0] for result in results)
    ordered = sorted(took)
    return {
        "reports": "by Leases" if client_of is WithoutMemory else "in memory",
        "drains": count,
        "connections": made,
        "perSecond": round(made / max(result[3] for result in results)),
        "failed": sum(result[1] for result in results),
        "synAfterAnswer": late,
        "median_ms": round(statistics.median(took) * 1000, 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
        "faults": [fault for result in results for fault in result[2]][:3],
    }


async def measure_rollout(
    hook: float | None, rate: int, town_of: QuietTown = quiet_town
) -> dict[str, Any]:
    """Each Pod ends after *hook* seconds, or at the barrier's answer, and another takes its
    place.
    """
    async with town_of(HttpClient) as place, place.load(rate) as results:
        began = time.monotonic()
        for number in range(PODS):
            await asyncio.to_thread(place.plane.delete, "pods", f"web-{number}")
            if hook is None:
                done = await place.drain(number, mark=False)
                assert done.outcome == "drained", sentence(done)
            else:
                await asyncio.sleep(hook)
            await place.say(number, "close")
            await place.client.delete(Pods, "default", f"web-{number}", b'{"gracePeriodSeconds":0}')
            await place.say(number, "open")
            await asyncio.to_thread(place.plane.apply, [place.pod(number)])
            await place.plane.until(lambda: place._ready() == PODS)
        seconds = time.monotonic() - began
    return {
        "hook": "barrier" if hook is None else f"sleep {hook:g}",
        "connections": sum(result[0] for result in results),
        "failed": sum(result[1] for result in results),
        "seconds": round(seconds, 1),
    }


async def main(count: int, rate: int) -> None:
    for client_of in (HttpClient, WithoutMemory):
        print(json.dumps(await measure_drains(count, rate, client_of)), flush=True)
    print(json.dumps(await measure_stopped(count)), flush=True)
    for hook in (0.0, 5.0, 30.0, None):
        print(json.dumps(await measure_rollout(hook, rate)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:3])))
