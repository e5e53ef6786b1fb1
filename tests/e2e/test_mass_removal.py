"""Mass removals that no Pod told, at a real API server: endpoints that are alive stay in its
EndpointSlices.

The server is a process of its own; the controller runs here, over HTTP, with a clock that the test
moves on: a number of endpoints counts once it has stood for a minute.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.e2e.running import ROOT, Plane, spawn, stop
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import ListPage, Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.diagnose.io.guarding import release_retained
from sliceplane.kit.rng import Rng
from sliceplane.slices.removing.guard import ANNOTATION_MASS_REMOVAL, RETAIN_VALUE
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.hosting.host import ControllerHost
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file
from sliceplane.watch.io.reflect import RunningInformer

COUNT = 12
ALIVE = {f"web-{number}" for number in range(COUNT)}
ALL_HELD = f"the removal of {COUNT} of {COUNT} endpoints is held until"
NODES = 3
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "annotations": {ANNOTATION_MASS_REMOVAL: RETAIN_VALUE}},
    "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
}


class Scene:
    """What is told to the API server, and what its slices show."""

    def __init__(self, plane: Plane, client: HttpClient) -> None:
        self.plane = plane
        self.client = client
        self._ahead_s = 0.0
        #: one list of Pods is cut to this many
        self.short: int | None = None
        #: the controller's
        self.pods: RunningInformer[Object]
        whole = client.list

        async def cut_short(selection: Selection, **options: Any) -> ListPage:
            page = await whole(selection, **options)
            if selection.resource is Pods and self.short is not None:
                page = ListPage(page.items[: self.short], page.resource_version)
                self.short = None
            return page

        client.list = cut_short  # type: ignore[method-assign]  # a server that answers wrongly, once

    def clock(self) -> float:
        return time.time() + self._ahead_s

    def stand(self) -> None:
        """The endpoints that are published have stood for two minutes: the controller counted them
        before it wrote.
        """
        self._ahead_s += 130.0

    async def create_nodes_and_service(self) -> None:
        for number in range(NODES):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}}
            await self.client.create(Nodes, "", encode(node))
        await self.client.create(Services, "default", encode(SERVICE))

    async def create_pods(self) -> None:
        for number in range(COUNT):
            spec = {
                "nodeName": f"node-{number % NODES}",
                "containers": [{"name": "main", "image": "web"}],
            }
            meta = {"name": f"web-{number}", "labels": {"app": "web"}}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            await self.client.create(Pods, "default", encode(pod))
        await self.nodes_say(ready=True)
        await eventually(self.published, lambda shown: shown == ALIVE)

    async def nodes_say(self, *, ready: bool) -> None:
        """The node life cycle controller writes it to all Pods; what containers say stays."""
        conditions = [
            {"type": "Ready", "status": str(ready)},
            {"type": "ContainersReady", "status": "True"},
        ]
        for number in range(COUNT):
            address = f"10.0.0.{1 + number}"
            status = {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": conditions,
            }
            body = encode({"status": status})
            await self.client.patch(
                Pods, "default", f"web-{number}", body, patch_type="strategic", subresource="status"
            )

    async def published(self) -> set[str]:
        page = await self.client.list(Selection(EndpointSlices, "default"))
        return set().union(*(ready_in(decode(body, EndpointSlice)) for body in page.items))

    async def held(self) -> str:
        """What the condition of the Service says; "": nothing is held."""
        service = decode(await self.client.get(Services, "default", "web"), Service)
        conditions = service.status.conditions or ()
        return "".join(
            each.message
            for each in conditions
            if each.type == "MassRemovalHeld" and each.status == "True"
        )

    def guard_status(self) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "sliceplane",
            "guard",
            "status",
            "--kubeconfig",
            self.plane.kubeconfig,
        ]
        environment = {**self.plane.environment, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=120
        )


class Watching:
    """Endpoints that are alive and were missing in what the API server's slices showed, after each
    change of them.
    """

    def __init__(self) -> None:
        self.lost: list[set[str]] = []
        self.shown: dict[str, set[str]] = {}

    def on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            self.shown.pop(change.object.metadata.name, None)
            if isinstance(change.new, EndpointSlice):
                self.shown[change.new.metadata.name] = ready_in(change.new)
        missing = ALIVE.difference(*self.shown.values())
        if missing:
            self.lost.append(missing)


def ready_in(observed: EndpointSlice) -> set[str]:
    return {
        endpoint.target_ref.name
        for endpoint in observed.endpoints or ()
        if endpoint.conditions.ready and endpoint.target_ref is not None
    }


@asynccontextmanager
async def controlled(scene: Scene) -> AsyncIterator[Watching]:
    """The slice controller runs, all endpoints are there, and have been for minutes."""
    host = ControllerHost(scene.client, rng=Rng(1), clock=scene.clock, check=True)
    host.add(lambda: EndpointSliceController(EndpointSliceConfig(max_endpoints_per_slice=4)))
    host.start()
    informer: RunningInformer[Object] = RunningInformer(
        scene.client, Selection(EndpointSlices, "default"), clock=scene.clock, rng=Rng(2)
    )
    watching = Watching()
    task = asyncio.create_task(informer.run())
    try:
        await scene.create_pods()
        scene.stand()
        informer.add_handler(watching.on_changes, lambda: None)
        scene.pods = host._informers.get(Selection(Pods))
        yield watching
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await host.close()


async def test_all_nodes_silent_and_half_a_list(tmp_path: Path) -> None:
    plane = spawn(tmp_path, command="apiserver")
    try:
        async with HttpClient(from_file(Path(plane.kubeconfig))) as client:
            scene = Scene(plane, client)
            await scene.create_nodes_and_service()
            async with controlled(scene) as watching:
                scene.short = COUNT // 3
                scene.pods.relist("a test has it list")
                await eventually(lambda: scene.short is None)
                await eventually(lambda: scene.pods.reflector.unconfirmed.refuted == 1)
                await scene.nodes_say(ready=False)
                await eventually(scene.held, lambda message: ALL_HELD in message)
                assert await scene.published() == ALIVE
                said = await asyncio.to_thread(scene.guard_status)
                assert said.returncode == 1, said.stderr
                assert ALL_HELD in " ".join(said.stdout.split())
                assert max(map(len, said.stdout.splitlines())) <= 80
                assert watching.lost == []
                await release_retained(client, "default", ["web"], scene.clock())
                await eventually(scene.published, lambda shown: shown == set())
                await eventually(scene.held, lambda held: not held)
    finally:
        assert stop(plane) == 0


async def test_a_server_restored_from_a_copy_without_pods(tmp_path: Path) -> None:
    """The copy lacks the slices, too: the controller writes them again, of what it knows."""
    flags = ("--secure-port", str(free_port()))
    plane = spawn(tmp_path, *flags, command="apiserver")
    async with HttpClient(from_file(Path(plane.kubeconfig))) as client:
        await Scene(plane, client).create_nodes_and_service()
    assert stop(plane) == 0
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    plane = spawn(tmp_path, *flags, command="apiserver")
    try:
        async with HttpClient(from_file(Path(plane.kubeconfig))) as client:
            scene = Scene(plane, client)
            async with controlled(scene):
                assert stop(plane) == 0
                shutil.rmtree(tmp_path / "data")
                (tmp_path / "copy").rename(tmp_path / "data")
                plane = spawn(tmp_path, *flags, command="apiserver")
                away = (Unreachable, StatusError)
                await eventually(scene.published, lambda shown: shown == ALIVE, ignoring=away)
                await eventually(scene.held, ignoring=away)
                assert await scene.published() == ALIVE
                informer_lists = scene.pods.reflector.counters.lists
                assert informer_lists >= 3, "the first, the one in doubt and the second"
    finally:
        assert stop(plane) == 0
