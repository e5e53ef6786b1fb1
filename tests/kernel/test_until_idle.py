"""``drain --until-idle`` with connections that are held open: counts against those of the program
``conntrack``, and drains that last exactly as long as the connections, with our proxy and with rules
of kube-proxy.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Host, Net
from tests.kernel.test_drain_packets import town
from tests.kernel.test_observed_rules import service_lines, write
from tests.waiting import PATIENCE_S, eventually

from sliceplane.client import HttpClient
from sliceplane.consume.drain.answer import sentence
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.flow_counts import FlowTarget
from sliceplane.consume.io.draining import drain_pods
from sliceplane.consume.io.reporting import report_progress
from sliceplane.diagnose.io.drain_targets import find_pods
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel import conntrack
from sliceplane.node.io.kernel.conntrack import Conntrack, ConntrackError
from sliceplane.node.io.observing.observer import Observer
from sliceplane.node.nft.netlink.flows import FILTERED_MAX
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.reflect import loop_clock

pytestmark = pytest.mark.kernel

#: "ADDRESS" opens and holds a connection, "close" ends the oldest; prints how many are held
HOLDER: Final = """
import socket, sys
held = []
for line in sys.stdin:
    if line == "close\\n":
        held.pop(0).close()
    else:
        held.append(socket.create_connection((line.strip(), 80), timeout=30))
    print(len(held), flush=True)
"""
#: accepts, and reads each connection to its end
SERVER: Final = """
import socket, threading
server = socket.create_server(("", 8080), backlog=100)
print("up", flush=True)
def read(connection):
    with connection:
        connection.recv(1)
while True:
    threading.Thread(target=read, args=(server.accept()[0],), daemon=True).start()
"""


# -- counts against the program's


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Net("flo") as net:
        yield net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")


ENDPOINTS: Final = ("10.1.2.3", "10.1.2.4", "fd01::3")
TCP_STATES: Final = (
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
)
entries = st.tuples(
    st.sampled_from(ENDPOINTS),
    st.sampled_from((8080, 8081)),
    st.sampled_from((*TCP_STATES, "udp", "udp ASSURED")),
    st.booleans(),  # by a Service
)


def insert(host: Host, made: Sequence[tuple[str, int, str, bool]]) -> None:
    """Makes the entries, by one process."""
    lines = []
    for number, (endpoint, port, state, is_translated) in enumerate(made, 1000):
        client, service = ("fd77::7", "fd96::1") if ":" in endpoint else ("10.77.0.7", "10.96.0.1")
        sent_to, sent_port = (service, 80) if is_translated else (endpoint, port)
        protocol, *assured = state.split(" ") if state.startswith("udp") else ("tcp",)
        lines.append(
            f"-I -p {protocol} -t 300 -s {client} -d {sent_to} --sport {number}"
            f" --dport {sent_port} -r {endpoint} -q {client} --reply-port-src {port}"
            f" --reply-port-dst {number} -u {'SEEN_REPLY,ASSURED' if assured else 'SEEN_REPLY'}"
            + (f" --state {state}" if protocol == "tcp" else "")
        )
    host.exec(["conntrack", "-R", "-"], stdin="".join(f"{line}\n" for line in lines))


def entries_of(host: Host) -> list[str]:
    families = ("ipv4", "ipv6")
    found = [host.exec(["conntrack", "-L", "-f", family]).stdout for family in families]
    return "".join(found).splitlines()


def count_listed(lines: Sequence[str], target: FlowTarget) -> int:
    """Counts in the program's output, entry by entry."""
    count = 0
    for line in lines:
        pairs = re.findall(r"\b(?:src|dst|sport|dport)=(\S+)", line)
        _, to, _, to_port, by, _, by_port, _ = pairs
        is_open = (
            any(f" {state} " in line for state in TCP_STATES[:3])
            if line.startswith("tcp")
            else "[ASSURED]" in line
        )
        is_there = by == target.address and target.port in (0, int(by_port))
        count += is_open and is_there and (to, to_port) != (by, by_port)
    return count


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(entries, max_size=30))
def test_counts_are_those_of_the_program(
    host: Host, made: list[tuple[str, int, str, bool]]
) -> None:
    host.exec(["conntrack", "-F"])
    insert(host, made)
    lines = entries_of(host)
    assert len(lines) == len(made)
    targets = [FlowTarget(endpoint, port) for endpoint in ENDPOINTS for port in (0, 8080, 8081)]
    counts = asyncio.run(Conntrack(netns=host.netns).count_translated(targets))
    assert counts == {target: count_listed(lines, target) for target in targets}
    many = [*targets, *(FlowTarget(f"10.1.3.{number}") for number in range(FILTERED_MAX))]
    counts = asyncio.run(Conntrack(netns=host.netns).count_translated(many))
    assert counts == {target: count_listed(lines, target) for target in many}
    tcp = asyncio.run(Conntrack(netns=host.netns).established(ENDPOINTS[0]))
    assert tcp == sum(entry[0] == ENDPOINTS[0] and entry[2] in TCP_STATES[:3] for entry in made), (
        "by a Service or directly"
    )


def test_a_table_that_is_too_large_is_not_counted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.exec(["conntrack", "-F"])
    insert(host, [(ENDPOINTS[0], 8080, "ESTABLISHED", True)] * 2)
    monkeypatch.setattr(conntrack, "DUMP_BYTES_MAX", 100)
    with pytest.raises(ConntrackError, match="entries"):
        asyncio.run(Conntrack(netns=host.netns).count_translated([FlowTarget(ENDPOINTS[0])]))


def test_another_namespace_or_none_is_an_error() -> None:
    with pytest.raises(ConntrackError, match="could not be listed"):
        asyncio.run(Conntrack(netns="sliceplane-none").count_translated([FlowTarget("10.0.0.1")]))


# -- drains


class Holding:
    """Connections held on some hosts, and how many of them end at a Pod: as the Pod sees them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._holders = [host.spawn([sys.executable, "-I", "-u", "-c", HOLDER]) for host in hosts]
        self.held = [0] * len(hosts)

    def say(self, number: int, word: str) -> None:
        holder = self._holders[number]
        assert holder.stdin is not None, "spawn makes pipes"
        assert holder.stdout is not None, "spawn makes pipes"
        holder.stdin.write(f"{word}\n")
        holder.stdin.flush()
        self.held[number] = int(holder.stdout.readline())

    def close_one(self) -> bool:
        """Returns False if there was none."""
        number = next((number for number, held in enumerate(self.held) if held), None)
        if number is None:
            return False
        self.say(number, "close")
        return True


def established(pod: Host) -> int:
    sockets = pod.exec(["ss", "-Htn", "state", "established", "sport", "=", ":8080"]).stdout
    return len(sockets.splitlines())


async def last_as_long_as_connections(
    drain: asyncio.Task[object], pod: Host, holding: Holding
) -> None:
    """Closes connections one by one; the drain ends when *pod* has none, and not before."""
    while left := established(pod):
        assert not drain.done(), f"{left} connections are open"
        await asyncio.sleep(0.1)
        assert holding.close_one()
    await eventually(drain.done)


async def test_a_drain_lasts_as_long_as_the_connections_through_our_proxies() -> None:
    async with town() as place:
        holding = Holding(place.nodes[:2])
        while established(place.pods[0]) < 3:
            for number, address in product(range(2), place.addresses):
                await asyncio.to_thread(holding.say, number, address)
        over = await eventually(
            partial(place.drain, 0, until_idle=True, timeout_s=4.0),  # a slow machine needs more
            lambda over: over.verdict.open and not over.verdict.waiting,
        )
        assert over.outcome == "not idle"
        counted = {each.node: each.connections for each in over.verdict.open}
        assert sum(counted.values()) == established(place.pods[0]), sentence(over)
        assert counted.keys() <= {"n1", "n2"}
        await place.bring_back(0)
        draining = asyncio.create_task(place.drain(0, until_idle=True, timeout_s=PATIENCE_S))
        await last_as_long_as_connections(draining, place.pods[0], holding)
        done = await draining
        assert (done.outcome, done.verdict.open) == ("drained", ())
        assert "no connection is established" in sentence(done)


class ObservedNode:
    """A node whose rules the test writes as kube-proxy does, from the slices of one Service."""

    def __init__(self, plane: Plane, host: Host) -> None:
        self._plane = plane
        self._host = host
        self.address = plane.get("services", "web")["spec"]["clusterIP"]

    async def keep_rules(self) -> None:
        write(self._host, TABLE.format(family="ip", address="ipv4_addr"))
        written: list[int] | None = None
        while True:
            endpoints = sorted(
                int(endpoint.address.rpartition(".")[2])
                for endpoint in await asyncio.to_thread(self._plane.endpoints, "web")
                if endpoint.ready
            )
            if endpoints != written:
                write(self._host, *service_lines(1, endpoints, sticky=False))
            if written is None:
                element = f"{{ {self.address} . tcp . 80 : goto service-1 }}"
                write(self._host, f"add element ip kube-proxy service-ips {element}")
            written = endpoints
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(*work: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_drain_lasts_as_long_as_the_connections_through_rules_of_kube_proxy() -> None:
    with Net("idl") as net:
        node = net.add_host("node", ip4="10.1.9.1/16", ip6="fd10::1/64")
        pods = [net.add_host(f"p{n}", ip4=f"10.1.0.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2)]
        for pod in pods:
            await asyncio.to_thread(pod.serve, SERVER)
        async with Plane() as plane, HttpClient(kubeconfig.load(plane.kubeconfig)) as client:
            await asyncio.to_thread(plane.apply, objects(pods))
            await plane.until(
                lambda: sum(endpoint.ready for endpoint in plane.endpoints("web")) == len(pods)
            )
            observed = ObservedNode(plane, node)
            clock = loop_clock(time.time())
            observer = Observer(
                "node",
                FAMILIES,
                clock=clock,
                netns=node.netns,
                count_flows=Conntrack(netns=node.netns).count_translated,
            )
            reports = report_progress(client, observer, Rng(2), clock, spread_s=0.0)
            async with running(observed.keep_rules(), observer.follow(client, Rng(1)), reports):
                await eventually(lambda: observer.is_ready)
                holding = Holding([node])
                await eventually(partial(has_connection, holding, observed, pods[0]))
                draining = asyncio.create_task(drained(client, clock, timeout_s=PATIENCE_S))
                await last_as_long_as_connections(draining, pods[0], holding)
                assert await draining == "drained"


async def has_connection(holding: Holding, observed: ObservedNode, pod: Host) -> bool:
    await asyncio.to_thread(holding.say, 0, observed.address)
    return established(pod) >= 3


async def drained(client: HttpClient, clock: object, *, timeout_s: float) -> str:
    options = DrainOptions(until_idle=True, timeout_s=timeout_s)
    found = await find_pods(client, "pod", "default", "web-1")
    answer = await drain_pods(client, found, "pod", options, clock=clock, rng=Rng(3))  # type: ignore[arg-type]
    return answer.outcome


def objects(pods: Sequence[Host]) -> list[dict[str, object]]:
    ready = [{"type": "Ready", "status": "True"}]
    own: list[dict[str, object]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node"},
            "status": {"conditions": ready},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
    return own + [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"web-{number}", "labels": {"app": "web"}},
            "spec": {"nodeName": "node", "containers": [{"name": "web", "image": "web"}]},
            "status": {
                "podIP": pod.ip4,
                "podIPs": [{"ip": pod.ip4}],
                "phase": "Running",
                "conditions": ready,
            },
        }
        for number, pod in enumerate(pods, 1)
    ]
