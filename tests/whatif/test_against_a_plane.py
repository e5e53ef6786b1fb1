"""What was foreseen beside what a real plane does: the same change, the same writes, the same bytes to a watcher.

The plane runs in this process with sockets, disk and clocks.  It is restored from a snapshot, so that revisions have as
many digits before as after; then a snapshot is taken, the question is asked of it, and the change is made.  Each change
is one that controllers see in one piece, or in pieces that wait for each other: what joins by chance in a burst is not
compared.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.waiting import eventually
from tests.whatif.asked import ask, deployment, service

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Deployments, EndpointSlices, Nodes, Pods, Resource, Services
from sliceplane.cli.main import main
from sliceplane.cli.what_if import read_cluster
from sliceplane.client.connecting import connect
from sliceplane.controllers.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.shell.hosting.catalogue import DiscoveryConfig, default_controllers, emulation_controllers
from sliceplane.shell.hosting.embedded import ControllerService
from sliceplane.shell.server.config import PlaneConfig
from sliceplane.shell.server.plane import ServerPlane
from sliceplane.shell.tools import recordings, snapshot
from sliceplane.shell.transport.http import HttpClient
from sliceplane.whatif.prediction import Prediction
from sliceplane.whatif.state import of_snapshot

ZONES = ("zone-a", "zone-b", "zone-c")
MARKER = "theirs-marker"
MADE = ("slices made", "slices updated", "slices deleted")


@dataclass(frozen=True)
class Case:
    """*change*: what a person does to the real plane.  *emulated*: kubelets run in it."""

    words: tuple[str, ...]
    change: Callable[[HttpClient], Awaitable[None]]
    pods: int = 12
    now: tuple[str, ...] = ("max-endpoints-per-slice=4",)
    before: int = 4
    after: int = 4
    emulated: bool = True
    min_ready_s: int = 0
    termination_s: float = 1.0


async def patch(client: HttpClient, resource: Resource, name: str, body: Any, subresource: str = "") -> None:
    namespace = "default" if resource.namespaced else ""
    await client.patch(resource, namespace, name, encode(body), patch_type="merge", subresource=subresource)


def patched(resource: Resource, body: Any, name: str = "cart") -> Callable[[HttpClient], Awaitable[None]]:
    return lambda client: patch(client, resource, name, body)


async def lose_a_zone(client: HttpClient) -> None:
    lost = {"node-2"}
    for name in sorted(lost):
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await patch(client, Nodes, name, {"status": {"conditions": [condition]}}, "status")
    for body in (await client.list(Selection(Pods))).items:
        pod = decode_document(body)
        if pod["spec"]["nodeName"] in lost:
            conditions = pod["status"]["conditions"]
            for condition in conditions:
                if condition["type"] == "Ready":
                    condition |= {"status": "False", "lastTransitionTime": "2030-01-01T00:00:00Z"}
            await patch(client, Pods, pod["metadata"]["name"], {"status": {"conditions": conditions}}, "status")


RESTARTED = {"kubectl.kubernetes.io/restartedAt": "2026-11-22T10:00:00Z"}
TEMPLATE = {"spec": {"template": {"metadata": {"annotations": RESTARTED}}}}
CASES = {
    "PreferSameZone": Case(
        ("traffic-distribution=PreferSameZone",),
        patched(Services, {"spec": {"trafficDistribution": "PreferSameZone"}}),
    ),
    "one Pod more": Case(("replicas=13",), patched(Deployments, {"spec": {"replicas": 13}})),
    "larger slices, and one Pod more": Case(
        ("max-endpoints-per-slice=40", "replicas=13"), patched(Deployments, {"spec": {"replicas": 13}}), after=40
    ),
    "Auto": Case(
        ("topology-mode=Auto",),
        patched(Services, {"metadata": {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}}),
    ),
    "a Node in another zone": Case(
        ("node-zone=node-1:zone-b",),
        patched(Nodes, {"metadata": {"labels": {LABEL_ZONE: "zone-b"}}}, "node-1"),
        emulated=False,
    ),
    "a zone that is lost": Case(("zone-lost=zone-b",), lose_a_zone, pods=3, emulated=False),
    "a rollout": Case(
        ("rollout=yes", "termination=6s"), patched(Deployments, TEMPLATE), pods=1, min_ready_s=5, termination_s=6.0
    ),
}  # fmt: skip


@asynccontextmanager
async def running(folder: Path, case: Case, most: int) -> AsyncIterator[HttpClient]:
    config = DiscoveryConfig(slices=EndpointSliceConfig(max_endpoints_per_slice=most))
    entries = default_controllers(config)
    if case.emulated or not (folder / "restored").exists():
        nodes = make_nodes(6, ZONES)
        entries += emulation_controllers(EmulationConfig(nodes=nodes, termination_s=case.termination_s))
    plane = ServerPlane(PlaneConfig(data_dir=str(folder), secure_port=0), (ControllerService(entries),))
    async with plane, connect(plane.kubeconfig) as client:
        await eventually(lambda: is_ready(client))
        yield client


async def is_ready(client: HttpClient) -> bool:
    return b"".join([portion async for portion in client.download("/readyz")]) == b"ok"


async def ready_endpoints(client: HttpClient) -> int:
    found = 0
    for body in (await client.list(Selection(EndpointSlices, "default"))).items:
        document = decode_document(body)
        if document["metadata"]["labels"].get("kubernetes.io/service-name") == "cart":
            found += sum(endpoint["conditions"]["ready"] for endpoint in document["endpoints"] or ())
    return found


async def watched(client: HttpClient, revision: int) -> Counter[str]:
    """Bytes and numbers of the events of the Service's slices after *revision*, until the marker."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?watch=true&resourceVersion={revision}"
    counted: Counter[str] = Counter()
    rest = b""
    async for portion in client.download(path):
        *lines, rest = (rest + portion).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["object"]["metadata"]["name"] == MARKER:
                return counted
            counted.update({event["type"]: 1, "bytes": len(line) + 1})
    raise AssertionError("the watch ended before the marker came")


async def really(tmp_path: Path, case: Case) -> tuple[Prediction, Counter[str]]:
    """Leaves ``taken.snapshot`` and ``incident.recording`` behind."""
    made = tmp_path / "made.snapshot"
    async with running(tmp_path / "first", case, case.before) as client:
        document = deployment(case.pods)
        document["spec"]["minReadySeconds"] = case.min_ready_s
        await client.create(Deployments, "default", encode(document))
        await client.create(Services, "default", encode(service()))
        await eventually(lambda: ready_endpoints(client), lambda ready: ready == case.pods)
        if case.min_ready_s:
            await eventually(lambda: available(client), lambda number: number == case.pods)
        await snapshot.save(client, made)
    second = tmp_path / "second"
    snapshot.restore(made, str(second))
    (second / "restored").touch()
    async with running(second, case, case.after) as client:
        await eventually(lambda: ready_endpoints(client), lambda ready: ready == case.pods)
        taken = tmp_path / "taken.snapshot"
        revision = (await snapshot.save(client, taken)).revision
        with taken.open("rb") as lines:
            found = ask(of_snapshot(lines, "taken"), *case.words, now=case.now)
        live, _ = await read_cluster(client, "default")
        assert ask(live, *case.words, now=case.now).written == found.written, (
            "as the cluster is, and as the file has it"
        )
        watching = asyncio.create_task(watched(client, revision))
        await case.change(client)
        await eventually(lambda: shown(client), lambda now: now == foreseen(found))
        marker = {"metadata": {"name": MARKER}, "addressType": "IPv4", "endpoints": []}
        await client.create(EndpointSlices, "default", encode(marker))
        counted = await watching
        await recordings.save(client, tmp_path / "incident.recording")
        return found, counted


async def available(client: HttpClient) -> int:
    status = decode_document(await client.get(Deployments, "default", "cart")).get("status") or {}
    return int(status.get("availableReplicas") or 0)


Shown = Counter[tuple[int, int, bool, str, tuple[str, ...]]]


def foreseen(found: Prediction) -> Shown:
    """Endpoints by slice (its size), readiness, zone and hints: what is there when all is done."""
    return Counter(
        (len(item.endpoints or ()), number, endpoint.conditions.ready is not False, endpoint.zone or "", tuple(
            zone.name for zone in (endpoint.hints.for_zones or () if endpoint.hints is not None else ())
        ))
        for _, item in found.state.slices("default", "cart")
        for number, endpoint in enumerate(item.endpoints or ())
    )  # fmt: skip


async def shown(client: HttpClient) -> Shown:
    documents = [decode_document(body) for body in (await client.list(Selection(EndpointSlices, "default"))).items]
    return Counter(
        (len(item["endpoints"]), number, endpoint["conditions"]["ready"], endpoint.get("zone", ""), tuple(
            zone["name"] for zone in (endpoint.get("hints") or {}).get("forZones") or ()
        ))
        for item in documents
        if item["metadata"]["labels"].get("kubernetes.io/service-name") == "cart"
        for number, endpoint in enumerate(item["endpoints"] or ())
    )  # fmt: skip


QUICK = "PreferSameZone"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in CASES])
def test_writes_and_bytes_are_those_of_a_real_plane(name: str, tmp_path: Path) -> None:
    found, counted = asyncio.run(really(tmp_path, CASES[name]))
    written = found.written
    assert written.writes > 0
    assert (counted["ADDED"], counted["MODIFIED"], counted["DELETED"]) == (
        written.creates, written.updates, written.deletes,
    )  # fmt: skip
    watchers = found.after.watchers
    assert written.events == written.writes * watchers
    assert counted["bytes"] * watchers == written.json
    check_the_recording(tmp_path, CASES[name])


def check_the_recording(tmp_path: Path, case: Case) -> None:
    """``--verify`` finds the same, and finds what is otherwise."""
    line = ["what-if", "cart", "--snapshot", str(tmp_path / "taken.snapshot")]
    line += ["--verify", str(tmp_path / "incident.recording"), *(word for text in case.now for word in ("--now", text))]
    changes = [word for text in case.words for word in ("--set", text)]
    same = CliRunner(env={"COLUMNS": "80"}).invoke(main, [*line, *changes])
    assert same.exit_code == 0, same.output
    assert "It happened as it was foreseen." in same.output
    assert max(map(len, same.output.splitlines())) <= 80
    other = CliRunner().invoke(main, [*line, "-o", "json"])
    assert other.exit_code == 1, "without the change nothing was foreseen"
    document = json.loads(other.output)["happened"]
    assert document["asForeseen"] is False
    assert sum(figure["happened"] for figure in document["figures"] if figure["what"] in MADE) > 0
