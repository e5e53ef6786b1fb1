"""From Kubernetes' own kube-controller-manager to ours and back, all three controllers;
docs/hand-over.md by steps.

Before the hand-over, shadow mode finds no difference from what the manager wrote; at the hand-over
no slice is written, in either direction, and Endpoints are rewritten once; a change after it writes
what the change is about.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT, Plane, kubectl, spawn, stop
from tests.peers import kubernetes
from tests.peers.kubernetes import SLICES, create, eventually, items, statuses

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

PODS = 230
#: as docs/hand-over.md has them
OURS = (
    "--controllers=endpointslice-controller,endpoints-controller,endpointslice-mirroring-controller"
)
WITH = OURS
WITHOUT = "--controllers=namespace-controller"
SELECTING = ("same-zone", "same-node", "auto", "plain", "nobody")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    running = spawn(tmp_path, command="apiserver")
    yield running
    assert stop(running) == 0


def managing(manager: str, plane: Plane, log: Path, controllers: str) -> Any:
    flags = (
        "--secure-port=0",
        "--leader-elect=false",
        f"--kubeconfig={plane.kubeconfig}",
        controllers,
    )
    return kubernetes.started(log, manager, *flags)


def ours(plane: Plane, *flags: str) -> subprocess.CompletedProcess[str]:
    program = [
        sys.executable,
        "-m",
        "sliceplane",
        "controllers",
        "--kubeconfig",
        plane.kubeconfig,
        *flags,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def pod(number: int, *, ready: bool = True) -> dict[str, Any]:
    port = 8080 if number % 5 else 9090
    containers = [
        {"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": port}]}
    ]
    named = {"hostname": f"web-{number}", "subdomain": "plain"} if number < 3 else {}
    return kubernetes.pod(
        number, ready=ready, nodeName=f"node-{number % 3}", containers=containers, **named
    )


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "x", "port": 81, "appProtocol": "h2c"},
    ]
    metadata = {
        "name": name,
        "namespace": "demo",
        "labels": {"team": "shop"},
        **spec.pop("metadata", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }


def populate(plane: Plane) -> None:
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"node-{n}",
                "labels": {"topology.kubernetes.io/zone": f"zone-{'abc'[n]}"},
            },
            "status": {
                "allocatable": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for n in range(3)
    ]
    create(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}, *nodes)
    statuses(plane, *nodes)
    automatic = {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}
    create(
        plane,
        service("same-zone", trafficDistribution="PreferSameZone"),
        service("same-node", trafficDistribution="PreferSameNode"),
        service("auto", metadata=automatic),
        service("plain", clusterIP="None", publishNotReadyAddresses=True),
        service("nobody", selector={"app": "nobody"}),
    )
    create(plane, service("by-hand", selector=None))
    subsets = [{"addresses": [{"ip": "192.0.2.5"}], "ports": [{"port": 80}]}]
    create(
        plane,
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "by-hand", "namespace": "demo"},
            "subsets": subsets,
        },
    )
    create(plane, *(pod(number) for number in range(PODS)))
    statuses(plane, *(pod(number, ready=number % 11 != 0) for number in range(PODS)))


def versions(plane: Plane) -> dict[str, str]:
    """Slice -> resourceVersion: equal if nobody wrote."""
    found = items(plane, SLICES, "-n", "demo")
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


def skipping_mirror(plane: Plane) -> set[str]:
    """The Endpoints that have the label of KEP-0752, which ours sets and upstream's does not
    know.
    """
    found = items(
        plane, "endpoints", "-n", "demo", "-l", "endpointslice.kubernetes.io/skip-mirror=true"
    )
    return {each["metadata"]["name"] for each in found}


def is_ready(plane: Plane, name: str) -> set[bool]:
    """What slices that have the Pod say, but for the Service that publishes those that are not."""
    found = items(plane, SLICES, "-n", "demo", "-l", "kubernetes.io/service-name!=plain")
    endpoints = [each for one in found for each in one["endpoints"]]
    return {
        each["conditions"]["ready"]
        for each in endpoints
        if each.get("targetRef", {}).get("name") == name
    }


def changed(before: dict[str, str], after: dict[str, str]) -> int:
    assert before.keys() == after.keys()
    return sum(before[name] != after[name] for name in before)


def test_there_and_back_without_a_write_to_a_slice(
    manager: str, plane: Plane, tmp_path: Path
) -> None:
    with managing(manager, plane, tmp_path / "first.log", WITH):
        populate(plane)
        compared = eventually(
            lambda: done if (done := shadow(plane)).returncode == 0 else None, within_s=60
        )
        assert "no difference in 7 services" in compared.stdout, compared.stdout
        churn_beside_a_shadow(plane)
        before = versions(plane)
        assert len(before) >= 13, (
            "five Services, two sets of named ports, at most 100 endpoints a slice"
        )
    # step 4 of docs/hand-over.md: the manager goes on without the controller; ours takes over
    with managing(manager, plane, tmp_path / "without.log", WITHOUT):
        done = ours(plane, OURS, "--once")
        told = f"with {len(SELECTING)} writes"
        assert (done.returncode, done.stdout.strip()[-len(told) :]) == (0, told), (
            "Endpoints are rewritten, once"
        )
        assert changed(before, versions(plane)) == 0
        assert skipping_mirror(plane) == set(SELECTING)
        with instance(plane) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready leading\n"
            statuses(plane, pod(7, ready=False))
            eventually(lambda: is_ready(plane, "web-7") == {False})
            # headless, publishing what is not ready: its slice says that it does not serve
            eventually(lambda: changed(before, versions(plane)) == 4)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    # and back
    after = versions(plane)
    with managing(manager, plane, tmp_path / "back.log", WITH):
        statuses(plane, pod(8, ready=False))
        eventually(lambda: is_ready(plane, "web-8") == {False}, within_s=60)
        eventually(lambda: changed(after, versions(plane)) == 4)
        compared = eventually(
            lambda: done if (done := shadow(plane)).returncode == 0 else None, within_s=60
        )
        assert "no difference" in compared.stdout
        assert changed(after, versions(plane)) == 4, (
            "the manager wrote only what the one Pod is about"
        )
        eventually(lambda: not skipping_mirror(plane), within_s=60)


def shadow(plane: Plane) -> subprocess.CompletedProcess[str]:
    done = ours(plane, "--shadow", "--once", "--shadow-grace=3s")
    assert done.returncode in (0, 1), done.stderr
    if done.returncode:
        print(done.stdout)
    return done


def churn_beside_a_shadow(plane: Plane) -> None:
    """Pods flip, come and go for a while, and the manager is accused of nothing."""
    with instance(plane, "--shadow", "--shadow-grace=5s") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready shadow\n"
        for turn in range(12):
            statuses(
                plane, *(pod(number, ready=(number + turn) % 3 != 0) for number in range(20, 40))
            )
            kubectl(
                plane,
                "delete",
                "pod",
                "-n",
                "demo",
                f"web-{turn + 50}",
                f"web-{turn + 70}",
                "--wait=false",
            )
            again = [pod(turn + 50), pod(turn + 70)]
            eventually(lambda again=again: create(plane, *again) is None)  # type: ignore[misc]
            statuses(plane, *again)
        statuses(plane, *(pod(number) for number in range(20, 40)))
        time.sleep(7.0)
        process.send_signal(signal.SIGTERM)
        told = process.stdout.read()
        assert process.wait(120) == 0
    assert told.startswith("no difference in 7 services"), told


def instance(plane: Plane, *flags: str) -> subprocess.Popen[str]:
    program = [
        sys.executable,
        "-m",
        "sliceplane",
        "controllers",
        "--kubeconfig",
        plane.kubeconfig,
        *(flags or (OURS,)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
