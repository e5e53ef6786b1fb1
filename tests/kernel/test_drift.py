"""``sliceplane drift`` on a real kernel: a stopped proxy, a flushed table, a lost event and a rule
that somebody edits, each named, with the seconds that it takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kernel import test_damage as damaged
from tests.kernel.cluster import running
from tests.kernel.netns import Host, Net
from tests.kernel.proxy_process import create, make_slice, started
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.scheme import EndpointSlices, EventsV1, Namespaces, Nodes, Services
from sliceplane.controllers.traffic_distribution import CACHE_DIFFERS
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.io.kernel.nft_backend import Nftables, NftRunner
from sliceplane.node.io.options import ProxyTiming
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

pytestmark = pytest.mark.kernel

NODE = socket.gethostname().lower()
#: ``sliceplane``, but that one event of its watches never arrives: the first that changes a slice
#: to "lost"
LOSSY = """
import sys
from sliceplane.watch.reflector import Reflector
original, lost = Reflector.on_watch_event, []
def on_watch_event(self, kind, body, now):
    if kind == "MODIFIED" and b'"lost":"yes"' in body and not lost:
        lost.append(kind)
        return
    original(self, kind, body, now)
Reflector.on_watch_event = on_watch_event
from sliceplane.cli.main import main
main(sys.argv[1:])
"""


@asynccontextmanager
async def lossy(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        LOSSY,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(90):
            assert (await process.stdout.readline()).startswith(b"ready ")
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


class Asker:
    """Asks ``sliceplane drift`` again and again."""

    def __init__(self, kubeconfig: str, port: int) -> None:
        self._asked = ("drift", "--kubeconfig", kubeconfig, "--metrics-port", str(port))

    async def ask(self, *more: str) -> tuple[int | None, dict[str, Any]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sliceplane", *self._asked, "-o", "json", *more),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        text, _ = await process.communicate()
        return process.returncode, json.loads(text)

    async def until(
        self, said: Callable[[dict[str, Any]], Any], *more: str, within_s: float
    ) -> float:
        """Seconds until *said* holds of an answer."""
        began = time.monotonic()
        while True:
            _, answer = await self.ask(*more)
            if said(answer):
                return time.monotonic() - began
            assert time.monotonic() - began < within_s, f"not within {within_s} s: {answer}"
            await asyncio.sleep(0.2)


def state(answer: dict[str, Any]) -> str:
    return str(next((row["state"] for row in answer["nodes"] if row["node"] == NODE), ""))


def sentences(answer: dict[str, Any], code: str) -> list[str]:
    return [finding["sentence"] for finding in answer["findings"] if finding["code"] == code]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_each_fault_is_named_and_after_how_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Net("spd") as net:
        backend = net.add_host("b1", ip4="10.10.1.1/16", ip6="fd10::1:1/64")
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with started("up", "--secure-port", "0", "--data-dir", str(tmp_path)) as (_, line):
            kubeconfig = re.search(r"kubeconfig=(\S+)", line)
            assert kubeconfig is not None, line
            client = HttpClient(load(Path(kubeconfig[1])))
            try:
                seconds = await _story(client, kubeconfig[1], node, backend)
            finally:
                await client.close()
    with capsys.disabled():
        print(
            "\n"
            + "\n".join(f"{what}: named after {after:.1f} s" for what, after in seconds.items())
        )


async def _story(
    client: HttpClient, kubeconfig: str, node: Host, backend: Host
) -> dict[str, float]:
    await create(client, Namespaces, {"metadata": {"name": "demo"}})
    await create(client, Nodes, {"metadata": {"name": NODE}})
    spec = {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80}]}
    await create(
        client, Services, {"metadata": {"name": "demo", "namespace": "demo"}, "spec": spec}, "demo"
    )
    await create(client, EndpointSlices, make_slice([backend], ["a"]), "demo")

    async def change(name: str, value: str) -> None:
        body = encode({"metadata": {"labels": {name: value}}})
        await client.patch(EndpointSlices, "demo", "demo-1", body, patch_type="merge")

    port = free_port()
    asker = Asker(kubeconfig, port)
    common = (
        "proxy",
        "--kubeconfig",
        kubeconfig,
        "--hostname-override",
        NODE,
        "--netns",
        node.netns,
    )
    seconds: dict[str, float] = {}
    async with lossy(
        *common,
        "--metrics-bind-address",
        f"127.0.0.1:{port}",
        "--healthz-bind-address",
        f"127.0.0.1:{free_port()}",
    ) as proxy:
        await asker.until(lambda answer: state(answer) == "in step", within_s=60)
        code, answer = await asker.ask("--node", NODE, "--deep")
        assert (code, answer["nodes"][0]["kernel"], answer["notLookedAt"]) == (0, "equal", []), (
            answer
        )

        # Somebody edits a rule: one look.
        node.exec(["nft", "insert", "rule", "ip", "sliceplane", "services", "drop"])
        seconds["a rule edited by hand, by drift --deep"] = await asker.until(
            lambda answer: sentences(answer, "N5"), "--node", NODE, "--deep", within_s=60
        )

        # Somebody deletes the table: the proxy's own look, and a Lease at once.
        node.exec(["nft", "delete", "table", "ip", "sliceplane"])
        seconds["a table that was flushed, by drift"] = await asker.until(
            lambda answer: any(
                "IPv4 rules were gone" in sentence for sentence in sentences(answer, "N5")
            ),
            within_s=60,
        )

        # One event never arrives: the next change of anything, and one report.
        await change("lost", "yes")
        another = make_slice([backend], ["a"])
        another["metadata"]["name"] = "demo-2"
        await create(client, EndpointSlices, another, "demo")
        seconds["a lost event, by drift, after the next change"] = await asker.until(
            lambda answer: sentences(answer, "N4"), within_s=60
        )
        _, answer = await asker.ask("--node", NODE)
        (sentence,) = sentences(answer, "N4")
        assert re.search(r": demo/demo-1 is \d+ and it keeps \d+$", sentence), sentence

        # The controllers' own digests say the same, without anybody asking.
        async def events() -> list[str]:
            page = await client.list(EventsV1, namespace="default")
            return [
                event["note"]
                for event in map(decode_document, page.items)
                if event["reason"] == CACHE_DIFFERS
            ]

        (note,) = await eventually(events)
        assert "cache of endpointslices (all)" in note

        # A later change of the same object mends it, as it happens.
        await change("lost", "no-more")
        await asker.until(lambda answer: not sentences(answer, "N4"), within_s=60)

        # The proxy stands still, and something changes.
        proxy.send_signal(signal.SIGSTOP)
        await client.patch(
            EndpointSlices,
            "demo",
            "demo-2",
            encode({"metadata": {"labels": {"n": "2"}}}),
            patch_type="merge",
        )
        seconds["a proxy that stands still, by drift, after the next change"] = await asker.until(
            lambda answer: sentences(answer, "N2"), within_s=60
        )
        code, _ = await asker.ask()
        assert code == 1
    return seconds


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_look_names_whatever_others_did(
    net: Net, backends: list[Host], family: Family
) -> None:
    host = net.add_host(
        f"look{family[-1]}", ip4=f"10.10.0.{family[-1]}/16", ip6=f"fd10::7:{family[-1]}/64"
    )
    timing = ProxyTiming(check_period_s=3600.0)
    async with running(
        host, backend=Nftables(NftRunner(netns=host.netns)), timing=timing
    ) as cluster:
        cluster.put(*damaged.to_be_damaged(family, backends))
        cluster.synced()
        await cluster.written()
        assert await cluster.proxy.differences() == ()
        for what in damaged.DAMAGES:
            host.exec(["nft", *damaged.damage(what, host, family).split(" ")])
            phrases = await cluster.proxy.differences()
            assert phrases, what
            assert all(phrase.startswith(f"{family}: ") for phrase in phrases), phrases
            for plane in cluster.proxy._planes:
                assert plane.request_full_write(cluster.proxy._clock())
                cluster.proxy._writer.wake()
            await eventually(cluster.proxy.differences, lambda found: found == ())
