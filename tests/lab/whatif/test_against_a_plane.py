"""What was foreseen beside what a real plane does: the same change, the same writes, the same bytes
to a watcher.

The plane runs in this process with sockets, disk and clocks. It is restored from a snapshot, so
that revisions have as many digits before as after; then a snapshot is taken, the question is asked
of it, and the change is made. Each change is one that controllers see in one piece, or in pieces
that wait for each other: what joins by chance in a burst is not compared.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.documents.frames import FrameReader
from tests.lab.whatif.asked import ask, deployment, service
from tests.waiting import eventually

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_FOR_ZONE, LABEL_ZONE
from sliceplane.api.gates import ENDPOINT_SLICE_SUBSETTING, Gates
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Deployments, EndpointSlices, Nodes, Pods, Resource, Services
from sliceplane.cli.lab.what_if import read_cluster
from sliceplane.cli.main import main
from sliceplane.consume.io.client.connecting import connect
from sliceplane.consume.selections import common_selector, own_selectors
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.controllers.io.catalogue import (
    DiscoveryConfig,
    default_controllers,
    emulation_controllers,
)
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.diagnose.explain.checks.zones import is_working
from sliceplane.diagnose.io import recordings, snapshot
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.lab.whatif import changes as whatif_changes
from sliceplane.lab.whatif.changes import NOW_KEYS
from sliceplane.lab.whatif.prediction import Prediction
from sliceplane.lab.whatif.state import of_snapshot
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

ZONES = ("zone-a", "zone-b", "zone-c")
MARKER = "theirs-marker"
EVERYTHING = ""
MADE = ("slices made", "slices updated", "slices deleted")


@dataclass(frozen=True)
class Case:
    """*change*: what a person does to the real plane.  *emulated*: kubelets run in it."""

    words: tuple[str, ...]
    change: Callable[[HttpClient], Awaitable[None]]
    pods: int = 12
    now: tuple[str, ...] = ("max-endpoints-per-slice=4",)
    emulated: bool = True
    min_ready_s: int = 0
    termination_s: float = 1.0

    def config(self, *, changed: bool) -> EndpointSliceConfig:
        """Of the controllers before, or with the words that are about them."""
        words = (
            *self.now,
            *(word for word in self.words if changed and word.partition("=")[0] in NOW_KEYS),
        )
        return whatif_changes.running(
            tuple(whatif_changes.parse(word, NOW_KEYS) for word in words)
        ).config


async def patch(
    client: HttpClient, resource: Resource, name: str, body: Any, subresource: str = ""
) -> None:
    namespace = "default" if resource.namespaced else ""
    await client.patch(
        resource, namespace, name, encode(body), patch_type="merge", subresource=subresource
    )


def patched(
    resource: Resource, body: Any, name: str = "cart"
) -> Callable[[HttpClient], Awaitable[None]]:
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
            await patch(
                client,
                Pods,
                pod["metadata"]["name"],
                {"status": {"conditions": conditions}},
                "status",
            )


RESTARTED = {"kubectl.kubernetes.io/restartedAt": "2026-11-22T10:00:00Z"}
TEMPLATE = {"spec": {"template": {"metadata": {"annotations": RESTARTED}}}}
CASES = {
    "PreferSameZone": Case(
        ("traffic-distribution=PreferSameZone",),
        patched(Services, {"spec": {"trafficDistribution": "PreferSameZone"}}),
    ),
    "one Pod more": Case(("replicas=13",), patched(Deployments, {"spec": {"replicas": 13}})),
    "larger slices, and one Pod more": Case(
        ("max-endpoints-per-slice=40", "replicas=13"),
        patched(Deployments, {"spec": {"replicas": 13}}),
    ),
    "Auto": Case(
        ("topology-mode=Auto",),
        patched(
            Services, {"metadata": {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}}
        ),
    ),
    "a Node in another zone": Case(
        ("node-zone=node-1:zone-b",),
        patched(Nodes, {"metadata": {"labels": {LABEL_ZONE: "zone-b"}}}, "node-1"),
        emulated=False,
    ),
    "a zone that is lost": Case(("zone-lost=zone-b",), lose_a_zone, pods=3, emulated=False),
    "one Pod more, in subsets by zone": Case(
        ("replicas=13",),
        patched(Deployments, {"spec": {"replicas": 13}}),
        now=("subsetting=RequireZone",),
    ),
    "a Node in another zone, in subsets by zone": Case(
        ("node-zone=node-1:zone-b",),
        patched(Nodes, {"metadata": {"labels": {LABEL_ZONE: "zone-b"}}}, "node-1"),
        now=("subsetting=RequireZone",),
        emulated=False,
    ),
    "defragmenting after one Pod less": Case(
        ("replicas=8", "termination=2s"),
        patched(Deployments, {"spec": {"replicas": 8}}),
        pods=9,
        now=("max-endpoints-per-slice=4", "defragment=yes"),
        termination_s=2.0,
    ),
    "a rollout": Case(
        ("rollout=yes", "termination=6s"),
        patched(Deployments, TEMPLATE),
        pods=1,
        min_ready_s=5,
        termination_s=6.0,
    ),
}


class ProtobufClient(HttpClient):
    async def _exchange(self, request: Any, *, refused: str | None) -> Any:
        accepting = replace(request, accept="application/vnd.kubernetes.protobuf;stream=watch")
        return await super()._exchange(accepting, refused=refused)


@asynccontextmanager
async def running(
    folder: Path, case: Case, config: EndpointSliceConfig
) -> AsyncIterator[tuple[HttpClient, ProtobufClient]]:
    entries = default_controllers(DiscoveryConfig(slices=config))
    if case.emulated or not (folder / "restored").exists():
        nodes = make_nodes(6, ZONES)
        entries += emulation_controllers(
            EmulationConfig(nodes=nodes, termination_s=case.termination_s)
        )
    plane = ServerPlane(
        PlaneConfig(data_dir=str(folder), secure_port=0), (ControllerService(entries),)
    )
    async with (
        plane,
        connect(plane.kubeconfig) as client,
        ProtobufClient(from_file(Path(plane.kubeconfig))) as binary,
    ):
        await eventually(lambda: is_ready(client))
        yield client, binary


async def is_ready(client: HttpClient) -> bool:
    return await client.page("/readyz", bytes_max=1024) == b"ok"


async def ready_endpoints(client: HttpClient) -> int:
    found = 0
    for body in (await client.list(Selection(EndpointSlices, "default"))).items:
        document = decode_document(body)
        if document["metadata"]["labels"].get("kubernetes.io/service-name") == "cart":
            found += sum(
                endpoint["conditions"]["ready"] for endpoint in document["endpoints"] or ()
            )
    return found


def lines(buffer: bytes) -> Iterator[bytes]:
    """Whole events of a stream of JSON."""
    while b"\n" in buffer:
        event, newline, buffer = buffer.partition(b"\n")
        yield event + newline


def frames(buffer: bytes) -> Iterator[bytes]:
    """Whole events of a stream of protobuf, each with its length before it."""
    while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4], "big"):
        size = 4 + int.from_bytes(buffer[:4], "big")
        yield buffer[:size]
        buffer = buffer[size:]


def read_line(event: bytes) -> tuple[str, Any]:
    document = json.loads(event)
    return document["type"], document["object"]


def read_frame(event: bytes) -> tuple[str, Any]:
    ((kind, document),) = FrameReader().feed(event)
    return kind, document


async def watched(client: HttpClient, selector: str, revision: int) -> Counter[str]:
    """Bytes and numbers of the events of what *selector* shows after *revision*, until the
    marker.
    """
    cut, read = (frames, read_frame) if isinstance(client, ProtobufClient) else (lines, read_line)
    query = urlencode({"watch": "true", "resourceVersion": revision, "labelSelector": selector})
    path = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?{query}"
    counted: Counter[str] = Counter()
    rest = b""
    async for portion in client.download(path, bytes_max=1 << 30):
        rest += portion
        for event in cut(rest):
            rest = rest[len(event) :]
            kind, document = read(event)
            if document["metadata"]["name"].startswith(MARKER):
                return counted
            counted.update({kind: 1, "events": 1, "bytes": len(event)})
    raise AssertionError("the watch ended before the marker came")


async def mark_the_end(client: HttpClient) -> None:
    """For every watch something comes."""
    for zone in ("", *ZONES):
        labels = {LABEL_FOR_ZONE: zone} if zone else {}
        marker = {
            "metadata": {"name": f"{MARKER}{zone}", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [],
        }
        await client.create(EndpointSlices, "default", encode(marker))


@dataclass(frozen=True)
class Received:
    """By what node proxies and others watch: what one watcher got."""

    json: dict[str, Counter[str]]
    protobuf: dict[str, Counter[str]]


def selectors_of(found: Prediction) -> Counter[str]:
    """What the proxies of Nodes that work watch."""
    gates = Gates(chosen={ENDPOINT_SLICE_SUBSETTING: found.running.subsetting.by_zone})
    return Counter(
        selector
        for node in found.state.nodes
        if is_working(node)
        for selector in (common_selector(gates), *own_selectors(gates, node))
    )


async def really(tmp_path: Path, case: Case) -> tuple[Prediction, Received]:
    """Leaves ``taken.snapshot`` and ``incident.recording`` behind."""
    made = tmp_path / "made.snapshot"
    async with running(tmp_path / "first", case, case.config(changed=False)) as (client, _):
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
    async with running(second, case, case.config(changed=True)) as (client, binary):
        await eventually(lambda: ready_endpoints(client), lambda ready: ready == case.pods)
        taken = tmp_path / "taken.snapshot"
        revision = (await snapshot.save(client, taken)).revision
        with taken.open("rb") as lines:
            found = ask(of_snapshot(lines, "taken"), *case.words, now=case.now)
        live, _ = await read_cluster(client, "default")
        assert ask(live, *case.words, now=case.now).written == found.written, (
            "as the cluster is, and as the file has it"
        )
        streams = {
            (of is binary, selector): asyncio.create_task(watched(of, selector, revision))
            for of in (client, binary)
            for selector in (EVERYTHING, *selectors_of(found))
        }
        await case.change(client)
        await eventually(lambda: shown(client), lambda now: now == foreseen(found))
        await mark_the_end(client)
        got = {key: await stream for key, stream in streams.items()}
        await recordings.save(client, tmp_path / "incident.recording")
        in_json, in_protobuf = (
            {
                selector: counted
                for (is_binary, selector), counted in got.items()
                if is_binary is wanted
            }
            for wanted in (False, True)
        )
        return found, Received(in_json, in_protobuf)


async def available(client: HttpClient) -> int:
    status = decode_document(await client.get(Deployments, "default", "cart")).get("status") or {}
    return int(status.get("availableReplicas") or 0)


Shown = Counter[tuple[int, int, bool, str, tuple[str, ...]]]


def foreseen(found: Prediction) -> Shown:
    """Endpoints by slice (its size), readiness, zone and hints: what is there when all is done."""
    return Counter(
        (
            len(item.endpoints or ()),
            number,
            endpoint.conditions.ready is not False,
            endpoint.zone or "",
            tuple(
                zone.name
                for zone in (endpoint.hints.for_zones or () if endpoint.hints is not None else ())
            ),
        )
        for _, item in found.state.slices("default", "cart")
        for number, endpoint in enumerate(item.endpoints or ())
    )


async def shown(client: HttpClient) -> Shown:
    documents = [
        decode_document(body)
        for body in (await client.list(Selection(EndpointSlices, "default"))).items
    ]
    return Counter(
        (
            len(item["endpoints"]),
            number,
            endpoint["conditions"]["ready"],
            endpoint.get("zone", ""),
            tuple(zone["name"] for zone in (endpoint.get("hints") or {}).get("forZones") or ()),
        )
        for item in documents
        if item["metadata"]["labels"].get("kubernetes.io/service-name") == "cart"
        for number, endpoint in enumerate(item["endpoints"] or ())
    )


QUICK = "PreferSameZone"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in CASES]
)
def test_writes_and_bytes_are_those_of_a_real_plane(name: str, tmp_path: Path) -> None:
    found, received = asyncio.run(really(tmp_path, CASES[name]))
    written = found.written
    assert written.writes > 0
    every = received.json[EVERYTHING]
    assert (every["ADDED"], every["MODIFIED"], every["DELETED"]) == (
        written.creates,
        written.updates,
        written.deletes,
    )
    proxies = selectors_of(found)
    for got, foreseen_bytes in (
        (received.json, written.json),
        (received.protobuf, written.protobuf),
    ):
        assert (
            sum(number * got[selector]["events"] for selector, number in proxies.items())
            == written.events
        )
        assert (
            sum(number * got[selector]["bytes"] for selector, number in proxies.items())
            == foreseen_bytes
        )
    check_the_recording(tmp_path, CASES[name])


def check_the_recording(tmp_path: Path, case: Case) -> None:
    """``--verify`` finds the same, and finds what is otherwise."""
    line = ["what-if", "cart", "--snapshot", str(tmp_path / "taken.snapshot")]
    line += [
        "--verify",
        str(tmp_path / "incident.recording"),
        *(word for text in case.now for word in ("--now", text)),
    ]
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
