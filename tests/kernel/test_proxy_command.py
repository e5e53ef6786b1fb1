"""``sliceplane proxy`` as a user runs it: a real API server, a real kubeconfig, real packets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from demo.net import RESOLV
from tests.kernel.netns import Host, Net, run
from tests.kernel.proxy_process import (
    SERVER,
    create,
    make_slice,
    page,
    page_inside,
    rules_in,
    started,
)
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

pytestmark = pytest.mark.kernel

CLIENT = """
import sys, urllib.request
for _ in range(int(sys.argv[2])):
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
"""


RESOLVER = """
import sys, dns.message, dns.query
query = dns.message.make_query(sys.argv[1] + ".svc.cluster.local.", "A")
answer = dns.query.udp(query, "169.254.20.10", timeout=60)
print(*[item for rrset in answer.answer for item in rrset])
"""


async def ask(host: Host, count: int) -> set[str]:
    done = await asyncio.to_thread(host.python, CLIENT, "http://10.96.0.100/", str(count))
    return set(done.stdout.split())


async def traced(kubeconfig: str, node: Host, name: str = "node-1") -> set[str]:
    """Where ``sliceplane trace`` says that the node's connections go."""
    asked = (
        "trace",
        "--kubeconfig",
        kubeconfig,
        "--from",
        node.ip4,
        "--to",
        "demo.demo",
        "--node",
        name,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sliceplane", *asked, "--output", "json"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    answer = json.loads((await process.communicate())[0])
    assert (process.returncode, answer["verdict"]) == (0, "dnat")
    return {each["address"] for each in answer["targets"]}


async def named(host: Host, name: str) -> list[str]:
    """What a resolver on *host* is told; it asks again."""
    done = await eventually(
        lambda: asyncio.to_thread(host.python, RESOLVER, name), ignoring=(RuntimeError,)
    )
    return sorted(done.stdout.split())


async def looked_up(host: Host, name: str) -> str:
    """What ``getent hosts`` prints on *host*: of a name the address, of an address the name."""
    folder = RESOLV / host.netns
    folder.mkdir(parents=True)
    try:
        search = "search default.svc.cluster.local svc.cluster.local cluster.local"
        (folder / "resolv.conf").write_text(
            f"nameserver 169.254.20.10\n{search}\noptions ndots:5 attempts:5\n"
        )
        command = ["ip", "netns", "exec", host.netns, "getent", "hosts", name]
        done = await eventually(lambda: asyncio.to_thread(run, command), ignoring=(RuntimeError,))
    finally:
        shutil.rmtree(folder)
    address, said = done.stdout.split()[:2]
    return address if said.startswith(name) else said


async def becomes(host: Host, wanted: set[str]) -> None:
    """The rules of a change arrive without anybody telling us when; refused, while there is no
    endpoint.
    """
    await eventually(
        lambda: ask(host, 16), lambda answers: answers == wanted, ignoring=(RuntimeError,)
    )


async def rejects(node: Host) -> None:
    """The rules without any endpoint have arrived."""
    await eventually(
        lambda: rules_in(node).partition("no-endpoint-services")[2].partition("}")[0],
        lambda rules: "goto reject-chain" in rules,
    )


async def test_from_the_api_to_the_packet(tmp_path: Path) -> None:
    with Net("spc") as net:
        backends = [
            net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2)
        ]
        for number, host in enumerate(backends, 1):
            host.serve(SERVER, f"b{number}")
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with started("apiserver", "--secure-port", "0", "--data-dir", str(tmp_path)) as (
            _,
            line,
        ):
            kubeconfig = line.partition("kubeconfig=")[2]
            client = HttpClient(load(kubeconfig))
            try:
                await _scenario(client, kubeconfig, node, backends)
            finally:
                await client.close()


async def _scenario(client: HttpClient, kubeconfig: str, node: Host, backends: list[Host]) -> None:
    await create(client, Namespaces, {"metadata": {"name": "demo"}})
    labels = {"topology.kubernetes.io/zone": "a"}
    await create(client, Nodes, {"metadata": {"name": "node-1", "labels": labels}})
    spec = {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80}]}
    await create(
        client, Services, {"metadata": {"name": "demo", "namespace": "demo"}, "spec": spec}, "demo"
    )
    await create(client, EndpointSlices, make_slice(backends, ["a", "b"]), "demo")
    peers = make_slice(backends, ["a", "b"])
    labels = {"kubernetes.io/service-name": "peers", "service.kubernetes.io/headless": ""}
    peers["metadata"] = {"name": "peers-1", "namespace": "demo", "labels": labels}
    peers_spec = {"clusterIP": "None", "ports": spec["ports"]}
    await create(
        client,
        Services,
        {"metadata": {"name": "peers", "namespace": "demo"}, "spec": peers_spec},
        "demo",
    )
    await create(client, EndpointSlices, peers, "demo")

    health_port = free_port()
    metrics_port = free_port()
    common = [
        "proxy",
        "--kubeconfig",
        kubeconfig,
        "--hostname-override",
        "Node-1",
        "--netns",
        node.netns,
    ]
    pages = [
        "--healthz-bind-address",
        f"127.0.0.1:{health_port}",
        "--metrics-bind-address",
        f"127.0.0.1:{metrics_port}",
    ]
    async with started(*common, *pages, "--dns", "169.254.20.10:53") as (_, line):
        assert line.startswith("ready node=node-1 ipv4-services="), line
        assert await ask(node, 16) == {"b1"}  # hints are honoured from the first rule on
        assert await traced(kubeconfig, node) == {backends[0].ip4}

        body = encode({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}})
        await client.patch(Nodes, "", "node-1", body, patch_type="merge")
        await becomes(node, {"b2"})
        assert await traced(kubeconfig, node) == {backends[1].ip4}

        endpoints = {"endpoints": make_slice(backends, ["a", "a"])["endpoints"]}
        await client.patch(EndpointSlices, "demo", "demo-1", encode(endpoints), patch_type="merge")
        await becomes(node, {"b1", "b2"})
        assert await traced(kubeconfig, node) == {backends[0].ip4, backends[1].ip4}

        reader, writer = await asyncio.open_connection("127.0.0.1", health_port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert b" 200 OK\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["healthy"]

        # names, at an address that the process brought along: also of Services that are no business
        # of the rules
        assert await named(node, "demo.demo") == ["10.96.0.100"]
        assert await named(node, "peers.demo") == [backends[1].ip4]
        # and programs that know nothing of it: the resolver of the C library, with a resolv.conf as
        # Pods have it
        assert await looked_up(node, "demo.demo") == "10.96.0.100"
        assert await looked_up(node, "10.96.0.100") == "demo.demo.svc.cluster.local"
        status, metrics = await page(metrics_port, "/metrics")
        assert status == 200
        assert "coredns_dns_requests_total{" in metrics
        assert "kubeproxy_sync_proxy_rules_duration_seconds" in metrics

        await client.delete(EndpointSlices, "demo", "demo-1")
        await rejects(node)
    assert "10.96.0.100" in rules_in(node)  # the rules outlive the process
    assert "169.254.20.10/32" in node.exec(["ip", "address"]).stdout  # and so does the interface

    code = await (
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sliceplane",
            *common,
            "--cleanup",
            env={"PYTHONPATH": os.pathsep.join(sys.path)}
            | {name: os.environ[name] for name in ("PATH",)},
        )
    ).wait()
    assert code == 0
    assert "sliceplane" not in node.exec(["nft", "list", "tables"]).stdout
    assert "sliceplane" not in node.exec(["ip", "link"]).stdout


async def test_a_stopped_api_server_is_red_and_traffic_goes_on(tmp_path: Path) -> None:
    with Net("spk") as net:
        backends = [
            net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2)
        ]
        for number, host in enumerate(backends, 1):
            host.serve(SERVER, f"b{number}")
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with started("apiserver", "--secure-port", "0", "--data-dir", str(tmp_path)) as (
            server,
            line,
        ):
            kubeconfig = line.partition("kubeconfig=")[2]
            client = HttpClient(load(kubeconfig))
            try:
                await create(client, Namespaces, {"metadata": {"name": "demo"}})
                await create(client, Nodes, {"metadata": {"name": "node-1"}})
                spec = {
                    "type": "LoadBalancer",
                    "externalTrafficPolicy": "Local",
                    "clusterIP": "10.96.0.100",
                    "ports": [{"name": "http", "port": 80}],
                }
                await create(
                    client,
                    Services,
                    {"metadata": {"name": "demo", "namespace": "demo"}, "spec": spec},
                    "demo",
                )
                document = make_slice(backends, ["a", "a"])
                document["endpoints"][0]["nodeName"] = "node-1"
                await create(client, EndpointSlices, document, "demo")
                stored = json.loads(await client.get(Services, "demo", "demo"))
                health_port, metrics_port = free_port(), free_port()
                async with started(
                    *(
                        "proxy",
                        "--kubeconfig",
                        kubeconfig,
                        "--hostname-override",
                        "node-1",
                        "--netns",
                        node.netns,
                    ),
                    *("--healthz-bind-address", f"127.0.0.1:{health_port}"),
                    *("--metrics-bind-address", f"127.0.0.1:{metrics_port}"),
                ):
                    codes: Counter[int] = Counter()

                    async def healthz() -> int:
                        code, _ = await page(health_port, "/healthz")
                        codes[code] += 1
                        return code

                    assert await healthz() == 200
                    check = f"http://{node.ip4}:{stored['spec']['healthCheckNodePort']}/"
                    code, body = await page_inside(node, check)
                    assert (code, json.loads(body)["localEndpoints"]) == (200, 1)
                    assert (await page_inside(backends[0], check))[0] == 200, "from another machine"
                    with pytest.raises(ConnectionRefusedError):
                        await page(
                            stored["spec"]["healthCheckNodePort"], "/"
                        )  # it is not in our own namespace

                    server.send_signal(signal.SIGSTOP)
                    try:
                        await eventually(healthz, lambda code: code == 503)
                        _, body = await page(health_port, "/livez")
                        assert json.loads(body)["reasons"] == [
                            "the API server did not answer within 0.6 s"
                        ]
                        assert await ask(node, 24) == {"b1", "b2"}, "traffic goes on"
                        assert (await page_inside(node, check))[0] == 200
                    finally:
                        server.send_signal(signal.SIGCONT)
                    await client.delete(EndpointSlices, "demo", "demo-1")
                    await rejects(node)
                    await eventually(healthz, lambda code: code == 200)

                    code, text = await page(metrics_port, "/metrics")
                    assert code == 200
                    assert (
                        'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}'
                        in text
                    )
                    assert f'kubeproxy_proxy_healthz_total{{code="503"}} {codes[503]}.0' in text
                    assert (await page(metrics_port, "/proxyMode"))[1] == "nftables"
            finally:
                await client.close()
