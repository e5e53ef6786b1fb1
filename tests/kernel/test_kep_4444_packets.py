"""KEP-4444, "e2e tests", the second: Pods, hints, rules and probes, with nothing emulated in
between.

Three nodes in three zones, each with a proxy of its own; Pods in two of the zones. Controllers make
the slices.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.netns import Host, Net
from tests.kernel.test_proxy_command import SERVER, ask, create, started, traced
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Namespaces, Nodes, Pods, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

pytestmark = pytest.mark.kernel

ZONES = ("a", "b", "c")
#: Pod -> zone of its node; zone c has none
PODS = {"a1": "a", "a2": "a", "b1": "b"}


async def put_pod(client: HttpClient, name: str, zone: str, ip: str) -> None:
    spec = {"nodeName": f"node-{zone}", "containers": [{"name": "c", "image": "x"}]}
    await create(
        client, Pods, {"metadata": {"name": name, "labels": {"app": "demo"}}, "spec": spec}, "demo"
    )
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready]}
    body = encode({"status": status})
    await client.patch(Pods, "demo", name, body, patch_type="merge", subresource="status")


async def prepare(client: HttpClient, pods: dict[str, Host]) -> None:
    await create(client, Namespaces, {"metadata": {"name": "demo"}})
    for zone in ZONES:
        labels = {"topology.kubernetes.io/zone": f"zone-{zone}"}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await create(
            client, Nodes, {"metadata": {"name": f"node-{zone}", "labels": labels}, "status": ready}
        )
    for name, host in pods.items():
        await put_pod(client, name, PODS[name], host.ip4)
    spec = {
        "clusterIP": "10.96.0.100",
        "selector": {"app": "demo"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        "trafficDistribution": "PreferClose",
    }
    await create(client, Services, {"metadata": {"name": "demo"}, "spec": spec}, "demo")


async def becomes(node: Host, wanted: set[str]) -> None:
    """The rules follow a change; from then on, none of many probes goes elsewhere."""
    await eventually(
        lambda: ask(node, 12), lambda answers: answers == wanted, ignoring=(RuntimeError,)
    )
    assert await ask(node, 100) == wanted


async def test_requests_stay_in_a_zone_with_pods_and_are_not_blackholed_in_one_without(
    tmp_path: Path,
) -> None:
    with Net("spz") as net:
        pods = {
            name: net.add_host(name, ip4=f"10.10.1.{number}/16", ip6=f"fd10::1:{number}/64")
            for number, name in enumerate(PODS, 1)
        }
        for name, host in pods.items():
            host.serve(SERVER, name)
        nodes = {
            zone: net.add_host(f"n{zone}", ip4=f"10.10.0.{number}/16", ip6=f"fd10::{number}/64")
            for number, zone in enumerate(ZONES, 1)
        }
        async with AsyncExitStack() as stack:
            flags = ("up", "--secure-port", "0", "--data-dir", str(tmp_path))
            _, line = await stack.enter_async_context(started(*flags))
            kubeconfig = line.partition("kubeconfig=")[2]
            client = HttpClient(load(kubeconfig))
            stack.push_async_callback(client.close)
            await prepare(client, pods)
            for zone, node in nodes.items():
                proxy = ("proxy", "--kubeconfig", kubeconfig, "--hostname-override", f"node-{zone}")
                await stack.enter_async_context(started(*proxy, "--netns", node.netns))
            await becomes(nodes["a"], {"a1", "a2"})
            await becomes(nodes["b"], {"b1"})
            await becomes(nodes["c"], {"a1", "a2", "b1"})
            for zone, names in (("a", {"a1", "a2"}), ("b", {"b1"}), ("c", {"a1", "a2", "b1"})):
                told = await traced(kubeconfig, nodes[zone], f"node-{zone}")
                assert told == {pods[name].ip4 for name in names}

            # The last Pod of a zone goes: its clients are not left alone either.
            await client.delete(Pods, "demo", "b1", encode(grace()))
            await becomes(nodes["b"], {"a1", "a2"})


def grace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
