"""``sliceplane adopt`` and ``release`` on a kube-apiserver with its kube-controller-manager: a Service
moves to our controllers and back while its Pods change, and a reader misses no endpoint.

The controllers of the manager run all the time, as on EKS, GKE and AKS. The reader follows all slices
and merges them as a node proxy does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.controllers.adoption_merging import MergingReader
from tests.e2e.running import PYTHON_ENVIRONMENT, Plane, kubectl
from tests.peers import kubernetes
from tests.peers.control_plane import running_api_server
from tests.peers.kubernetes import create, pod, statuses
from tests.waiting import eventually

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import MANAGED_BY_CONTROLLER, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Pods, Resource, Services
from sliceplane.api.selectors.adoption import MANAGED_BY_ADOPTED
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

T = TypeVar("T", bound=Object)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

STEADY = 230
CHANGING = 20
ROUNDS = 3
CONTROLLERS = (
    "endpointslice-controller,endpoints-controller,endpointslice-mirroring-controller,"
    "garbage-collector-controller"
)
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "demo", "labels": {"team": "shop"}},
    "spec": {
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
    },
}
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture
def cluster(kube_apiserver: str, manager: str, tmp_path: Path) -> Iterator[Plane]:
    with running_api_server(tmp_path, kube_apiserver) as plane:
        flags = (f"--kubeconfig={plane.kubeconfig}", f"--controllers={CONTROLLERS}")
        always = ("--secure-port=0", "--leader-elect=false")
        with kubernetes.started(tmp_path / "manager.log", manager, *always, *flags):
            fill(plane)
            yield plane


def fill(plane: Plane) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    create(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}, node)
    create(plane, SERVICE)
    pods = [pod(number) for number in range(STEADY + CHANGING)]
    create(plane, *pods)
    statuses(plane, *pods)


def address(number: int) -> str:
    return str(pod(number)["status"]["podIP"])


class Load:
    """Pods that turn ready and unready all the time; what happened is counted. *on_change* is called
    before each change.
    """

    def __init__(self, client: HttpClient, on_change: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._on_change = on_change
        self.changes = 0

    async def run(self) -> None:
        while True:
            number = STEADY + self.changes % CHANGING
            ready = (self.changes // CHANGING) % 2 == 1
            body = encode({"status": pod(number, ready=ready)["status"]})
            self._on_change()
            await self._client.patch(
                Pods, "demo", f"web-{number}", body, patch_type="merge", subresource="status"
            )
            self.changes += 1
            await asyncio.sleep(0.05)


async def follow(
    client: HttpClient, resource: Resource, kind: type[T], on_event: Callable[[str, T], None]
) -> None:
    """A list, and every event after it; the watch goes on where it ended."""
    selection = Selection(resource, "demo")
    page = await client.list(selection)
    for body in page.items:
        on_event("LISTED", decode(body, kind))
    version = page.resource_version
    while True:
        async with client.watch(selection, resource_version=version) as messages:
            async for message in messages:
                assert message.type != "ERROR", message.body
                observed = decode(message.body, kind)
                version = observed.metadata.resource_version
                if message.type != "BOOKMARK":
                    on_event(message.type, observed)


async def sliceplane(plane: Plane, *words: str) -> dict[str, Any]:
    """The document that a command prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sliceplane", *words, "--kubeconfig", plane.kubeconfig),
        *("-o", "json"),
        env=PYTHON_ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, (out, errors)
    document: dict[str, Any] = json.loads(out)
    return document


def requests(plane: Plane) -> Counter[str]:
    """Writes so far that the API server counted, by resource, verb and code."""
    found: Counter[str] = Counter()
    for labels, value in _REQUESTS.findall(kubectl(plane, "get", "--raw", "/metrics")):
        pairs = dict(_LABEL.findall(labels))
        if pairs["resource"] in ("endpointslices", "endpoints", "services") and pairs["verb"] in (
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
        ):
            found[f"{pairs['resource']} {pairs['verb']} {pairs['code']}"] += int(float(value))
    return found


async def test_a_service_moves_there_and_back_under_load_and_no_endpoint_is_missing(
    cluster: Plane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = MergingReader("demo", "web", {address(number) for number in range(STEADY)})
    ours = (sys.executable, "-m", "sliceplane", "controllers", "--adopted-only")
    flags = ("--kubeconfig", cluster.kubeconfig, "--leader-elect=false", "--recorder-size=0")
    connection = from_file(Path(cluster.kubeconfig))
    figures: list[str] = []
    async with HttpClient(connection) as client, HttpClient(connection) as loading:
        load = Load(loading)
        slices = follow(client, EndpointSlices, EndpointSlice, reader.on_event)
        tasks = [asyncio.create_task(slices)]
        await eventually(lambda: reader.complete or tasks[0].done(), within_s=120)
        assert not tasks[0].done(), tasks[0].exception()
        with kubernetes.started(tmp_path / "ours.log", *ours, *flags):
            tasks.append(asyncio.create_task(load.run()))
            try:
                for _ in range(ROUNDS):
                    for direction, manager in (
                        ("adopt", MANAGED_BY_ADOPTED),
                        ("release", MANAGED_BY_CONTROLLER),
                    ):
                        figures.append(await moved(cluster, reader, load, direction, manager))
                        await steady(client, reader, manager)
                        assert all(not task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    with capsys.disabled():
        print("", *figures, dict(reader.events), sep="\n")
    assert reader.missed == []


async def moved(
    cluster: Plane, reader: MergingReader, load: Load, direction: str, manager: str
) -> str:
    before, changes, began = requests(cluster), load.changes, time.monotonic()
    document = await sliceplane(cluster, direction, "service", "web", "-n", "demo")
    took_s = time.monotonic() - began
    await eventually(lambda: set(reader.managers()) == {manager}, within_s=60)
    writes = dict(sorted((requests(cluster) - before).items()))
    (move,) = document["moved"]
    return (
        f"{direction}: {move['seconds']:.2f} s ({took_s:.2f} s with the start), {len(move['steps'])} "
        f"steps, {load.changes - changes} changes of Pods, writes {writes}"
    )


async def steady(client: HttpClient, reader: MergingReader, manager: str) -> None:
    """For a while under load the Service has one set of slices, and Endpoints that are true."""
    reader.seen_managers.clear()
    await asyncio.sleep(5.0)
    assert all(managers == {manager} for managers in reader.seen_managers)
    assert len(reader.seen_managers) > 10, "the load is seen"
    service = json.loads(await client.get(Services, "demo", "web"))
    assert bool(service["spec"].get("selector")) == (manager == MANAGED_BY_CONTROLLER)

    async def is_true() -> bool:
        found = json.loads(await client.get(EndpointsObjects, "demo", "web"))
        addresses = {a["ip"] for s in found["subsets"] for a in s.get("addresses", ())}
        return addresses == reader.ready()

    await eventually(is_true, within_s=60)
