"""The commands of docs/hand-over.md, run on kube-apiserver, etcd and two kube-controller-managers that
elect a leader: three controllers go over to ours and back while Pods change, and no endpoint is missing.

The commands are those of the guide's text. ``helm`` is real; static Pods and the Pods of the chart are
processes (``control_plane``). Writes are counted in the API server's audit log.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.controllers.adoption_merging import MergingReader
from tests.deploy.helm import helm
from tests.e2e.running import PYTHON_ENVIRONMENT, ROOT, Plane, kubectl
from tests.figures import tell
from tests.peers import kubernetes
from tests.peers.control_plane import (
    AuditLog,
    PodProcesses,
    run_manifest,
    running_api_server,
    write_manifest,
)
from tests.peers.kubernetes import SLICES, create, items, statuses
from tests.peers.test_adoption import STEADY, Load, address, fill, follow
from tests.waiting import eventually
from tools.guides import Step, Terminal, commands, cut, shape, terminal

from sliceplane.api.core import Endpoints
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

pytestmark = [pytest.mark.peer, pytest.mark.timeout(2400)]

GUIDE: Final = ROOT / "docs" / "hand-over.md"
MANIFESTS: Final = "/etc/kubernetes/manifests"
HOSTS: Final = ("cp-1", "cp-2")
COMMAND_S: Final = 400.0
#: kubeadm's list, without the controller that would miss the kubelets
CONTROLLERS: Final = "--controllers=*,-node-lifecycle-controller,bootstrapsigner,tokencleaner"
#: Services whose Pods do not change: with a selector, and the one whose Endpoints are mirrored
QUIET: Final = ("same-zone", "headless", "nobody")
MIRRORED: Final = "by-hand"
Write = tuple[str, str, str, int]


def section(heading: str) -> list[Step]:
    """The commands below a heading of the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    assert f"\n## {heading}\n" in text
    return list(commands(text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]))


def quiet_objects() -> list[dict[str, Any]]:
    def service(name: str, **spec: Any) -> dict[str, Any]:
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        metadata = {"name": name, "namespace": "quiet", "labels": {"team": "shop"}}
        spec = {"selector": {"app": "web"}, "ports": ports, **spec}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    metadata = {"name": MIRRORED, "namespace": "quiet"}
    subsets = [{"addresses": [{"ip": "192.0.2.5"}], "ports": [{"name": "http", "port": 8080}]}]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quiet"}},
        service("same-zone", trafficDistribution="PreferSameZone"),
        service("headless", clusterIP="None", publishNotReadyAddresses=True),
        service("nobody", selector={"app": "nobody"}),
        service(MIRRORED, selector=None),
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets},
    ]


def quiet_pods() -> list[dict[str, Any]]:
    pods = [kubernetes.pod(number, ready=number % 5 != 0) for number in range(300, 330)]
    return [{**pod, "metadata": {**pod["metadata"], "namespace": "quiet"}} for pod in pods]


class Watcher:
    """Follows slices and Endpoints of the Service under load, and notes what either ever missed."""

    def __init__(self) -> None:
        expected = {address(number) for number in range(STEADY)}
        self.slices = MergingReader("demo", "web", expected)
        self._expected = expected
        self._complete = False
        #: addresses that Endpoints lacked, after each event after which some were lacking
        self.missed: list[set[str]] = []
        #: time of the first change of a Pod that no event of a slice has followed
        self._changed_at: float | None = None
        #: longest time between such a change and the event since it was read last, in seconds
        self._lag_s = 0.0

    def on_change(self) -> None:
        if self._changed_at is None:
            self._changed_at = time.monotonic()

    def on_slice(self, kind: str, observed: EndpointSlice) -> None:
        if self._changed_at is not None:
            self._lag_s = max(self._lag_s, time.monotonic() - self._changed_at)
            self._changed_at = None
        self.slices.on_event(kind, observed)

    def on_endpoints(self, kind: str, observed: Endpoints) -> None:
        if observed.metadata.name != "web":
            return
        subsets = () if kind == "DELETED" else observed.subsets or ()
        missing = self._expected - {each.ip for one in subsets for each in one.addresses or ()}
        self._complete = self._complete or not missing
        if self._complete and missing:
            self.missed.append(missing)

    @property
    def complete(self) -> bool:
        return self._complete and self.slices.complete

    def take_lag_s(self) -> float:
        taken, self._lag_s = self._lag_s, 0.0
        return taken


class ControlPlane:
    """The cluster, the terminal in which the guide's commands are typed, and what they led to."""

    def __init__(self, plane: Plane, folder: Path, audit: AuditLog, shell: Terminal) -> None:
        self.plane = plane
        self._folder = folder
        self._audit = audit
        self._shell = shell
        self.watcher = Watcher()
        self.load: Load | None = None
        self._changes = 0
        self._began = time.monotonic()

    def manifest(self, host: str) -> Path:
        return self._folder / host / "manifests" / "kube-controller-manager.yaml"

    def leader(self) -> str:
        command = ("get", "lease", "kube-controller-manager", "-n", "kube-system", "-o", "json")
        holder = json.loads(kubectl(self.plane, *command))["spec"].get("holderIdentity", "")
        return str(holder).partition("_")[0]

    async def type_steps(self, steps: list[Step]) -> list[Counter[Write]]:
        """Types the commands; those of a control-plane node, twice in a section, are for the others
        first and for the leader's then. Returns the writes during each.
        """
        leader = await asyncio.to_thread(self.leader)
        assert leader in HOSTS
        nodes = iter([[host for host in HOSTS if host != leader], [leader]])
        assert sum(MANIFESTS in step.command for step in steps) in (0, 2)
        writes = []
        for step in steps:
            for host in next(nodes) if MANIFESTS in step.command else [leader]:
                await self._type(step, host)
            writes.append(self.note(step.command))
        return writes

    async def _type(self, step: Step, host: str) -> None:
        folder = str(self.manifest(host).parent)
        here = Step(step.command.replace(MANIFESTS, folder), step.output)
        said = await asyncio.to_thread(self._shell.run, here, COMMAND_S)
        if step.output:
            assert shape(cut(step.output, said)) == shape(step.output), (step.command, said)

    def note(self, name: str) -> Counter[Write]:
        """Tells what has happened since the last call, and returns the writes."""
        writes = self._audit.writes()
        now, changes = time.monotonic(), self.load.changes if self.load else 0
        first = name.splitlines()[0]
        told = {" ".join(map(str, each)): count for each, count in sorted(writes.items())}
        tell(
            f"{first[:80]}: {now - self._began:.1f} s, {changes - self._changes} changes of Pods, "
            f"slices followed within {self.watcher.take_lag_s():.2f} s, writes {told}"
        )
        self._began, self._changes = now, changes
        return writes


@asynccontextmanager
async def control_plane(
    folder: Path, kube_apiserver: str, manager: str
) -> AsyncIterator[ControlPlane]:
    audit = AuditLog(folder)
    with running_api_server(folder, kube_apiserver, *audit.flags) as plane:
        environment = {
            "KUBECONFIG": plane.kubeconfig,
            "PATH": f"{Path(helm()).parent}:{ROOT}/.venv/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": PYTHON_ENVIRONMENT["PYTHONPATH"],
        }
        async with HttpClient(from_file(Path(plane.kubeconfig))) as client:
            with terminal("env", **environment) as shell:
                made = ControlPlane(plane, folder, audit, shell)
                pods = PodProcesses(plane, client, folder, "sliceplane", {"node-1": ()})
                async with asyncio.TaskGroup() as group, pods.running() as kubelet:
                    managers = [
                        group.create_task(_run_manager(made.manifest(host), plane, manager, host))
                        for host in HOSTS
                    ]
                    await eventually(made.leader, within_s=120, ignoring=(AssertionError,))
                    await asyncio.to_thread(fill, plane)
                    await asyncio.to_thread(create, plane, *quiet_objects())
                    await asyncio.to_thread(create, plane, *quiet_pods())
                    await asyncio.to_thread(statuses, plane, *quiet_pods())
                    yield made
                    assert not kubelet.done(), kubelet.exception()
                    for task in managers:
                        task.cancel()


async def _run_manager(manifest: Path, plane: Plane, program: str, host: str) -> None:
    flags = (
        f"--kubeconfig={plane.kubeconfig}",
        "--use-service-account-credentials=true",
        "--secure-port=0",
    )
    write_manifest(manifest, "kube-controller-manager", CONTROLLERS, *flags)
    await run_manifest(manifest, program, host)


@asynccontextmanager
async def under_load(cluster: ControlPlane) -> AsyncIterator[None]:
    connection = from_file(Path(cluster.plane.kubeconfig))
    watcher = cluster.watcher
    async with HttpClient(connection) as client, HttpClient(connection) as loading:
        slices = follow(client, EndpointSlices, EndpointSlice, watcher.on_slice)
        endpoints = follow(client, EndpointsObjects, Endpoints, watcher.on_endpoints)
        tasks = [asyncio.create_task(slices), asyncio.create_task(endpoints)]
        try:
            await eventually(lambda: watcher.complete or any(t.done() for t in tasks), within_s=120)
            cluster.load = Load(loading, watcher.on_change)
            tasks.append(asyncio.create_task(cluster.load.run()))
            yield
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def total(writes: list[Counter[Write]], holds: Callable[[Write], bool]) -> int:
    return sum(count for one in writes for each, count in one.items() if holds(each))


def of_quiet_slices(write: Write) -> bool:
    return write[0] == "quiet" and write[2] == "endpointslices"


def of_quiet_endpoints(write: Write) -> bool:
    return write[0] == "quiet" and write[2] == "endpoints"


def slices(plane: Plane) -> dict[str, str]:
    found = items(plane, SLICES, "-n", "quiet")
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


async def test_the_commands_of_the_guide_hand_over_and_back_under_load(
    kube_apiserver: str, manager: str, tmp_path: Path
) -> None:
    async with control_plane(tmp_path, kube_apiserver, manager) as cluster:
        before = await eventually(
            lambda: asyncio.to_thread(slices, cluster.plane), lambda found: len(found) == 4
        )
        async with under_load(cluster):
            await asyncio.sleep(10.0)
            cluster.note("before")
            await cluster.type_steps([*section("1. Compare: shadow mode"), *section("3. Prepare")])
            there = await cluster.type_steps(section("4. Hand over"))
            await asyncio.sleep(10.0)
            there.append(cluster.note("ours alone"))
            back = await cluster.type_steps(section("5. Give back"))
            await asyncio.sleep(10.0)
            back.append(cluster.note("upstream's alone"))
        after = await asyncio.to_thread(slices, cluster.plane)
    watcher = cluster.watcher
    assert watcher.slices.missed == []
    assert watcher.missed == []
    assert after == before
    assert total([*there, *back], of_quiet_slices) == 0
    assert total(there, of_quiet_endpoints) == total(back, of_quiet_endpoints) == len(QUIET)
