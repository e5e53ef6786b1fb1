"""A server without controllers, and controllers beside it that work over the network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.serving import Server

from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.base import Controller
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.hosting.host import ControllerHost
from sliceplane.watch.io.http.client import HttpClient

NAMESPACE = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PORTS = [
    {"name": "http", "port": 80, "targetPort": 8080},
    {"name": "admin", "port": 81, "targetPort": 8081},
]


@contextmanager
def controlled(server: Server, make: Callable[[], Controller]) -> Iterator[ControllerHost]:
    """The controller works in a thread of its own, as in a second Sliceplane."""
    ready, made = threading.Event(), []

    async def work() -> None:
        stop = asyncio.Event()
        client = HttpClient(kubeconfig.load(server.plane.kubeconfig))
        host = ControllerHost(client, rng=Rng(1))
        made.append((asyncio.get_running_loop(), stop, host))
        host.add(make)
        host.start()
        ready.set()
        await stop.wait()
        await host.close()
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(60)
    loop, stop, host = made[0]
    try:
        yield host
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(120)


def populate(server: Server, pods: int) -> None:
    """Two nodes in two zones; a Service that wants hints, and its ready Pods."""
    for name, zone in (("n0", "a"), ("n1", "b")):
        node = {"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}}
        assert server.request("POST", "/api/v1/nodes", node).code == 201
    spec = {"selector": {"app": "web"}, "ports": PORTS, "trafficDistribution": "PreferSameZone"}
    assert (
        server.request(
            "POST", f"{NAMESPACE}/services", {"metadata": {"name": "web"}, "spec": spec}
        ).code
        == 201
    )
    for number in range(pods):
        add_pod(server, number)


def add_pod(server: Server, number: int) -> None:
    pod = {
        "metadata": {"name": f"web-{number}", "labels": {"app": "web"}},
        "spec": {"nodeName": f"n{number % 2}", "containers": [{"name": "main", "image": "x"}]},
    }
    assert server.request("POST", f"{NAMESPACE}/pods", pod).code == 201
    set_ready(server, number)


def delete_pod(server: Server, number: int) -> None:
    assert (
        server.request("DELETE", f"{NAMESPACE}/pods/web-{number}", {"gracePeriodSeconds": 0}).code
        == 200
    )


def set_ready(server: Server, number: int, ready: str = "True") -> None:
    address = f"10.9.{number // 200}.{number % 200 + 1}"
    conditions = [{"type": "Ready", "status": ready}]
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
    }
    patch = {"Content_Type": "application/merge-patch+json"}
    path = f"{NAMESPACE}/pods/web-{number}/status"
    assert server.request("PATCH", path, {"status": status}, **patch).code == 200


def slices(server: Server) -> list[Any]:
    return list(server.get(SLICES).json["items"])


def endpoints(server: Server) -> dict[str, bool]:
    """Pod -> ready."""
    return {
        e["targetRef"]["name"]: e["conditions"]["ready"]
        for one in slices(server)
        for e in one["endpoints"]
    }


def versions(server: Server) -> dict[str, str]:
    """Slice -> resourceVersion: equal if nobody wrote."""
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in slices(server)}
