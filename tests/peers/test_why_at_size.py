"""``explain``, ``lint`` and ``status`` on Kubernetes' own API server, with 5,000 Services and
20,000 endpoints.

Services are created over the API, and EndpointSlices are written by ``sliceplane controllers
--once``; Pods and Nodes are put into etcd in batches, status included, as JSON, which the API
server reads as well as protobuf. One Service has a selector that no Pod fits, one has Pods whose
containers are not ready: these two are named, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT
from tests.peers import kubernetes
from tests.ports import free_port
from tests.replicated.members import Member, make
from tests.waiting import until

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Namespaces, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file

pytestmark = [pytest.mark.peer, pytest.mark.timeout(2400)]

SPACES, SERVICES, PODS, NODES = 20, 250, 4, 50
#: etcd takes 128 operations in a transaction
BATCH = 100
AT_ONCE = 32
#: namespace, Service
MISSPELT, UNREADY = ("shop-3", "web-77"), ("shop-11", "web-5")
#: of one command, on a machine that is busy: that it ends, not how fast it is
COMMAND_S = 300
MEMORY_MIB_MAX = 1024


@dataclass(frozen=True)
class Ran:
    code: int
    text: str
    wall_s: float
    cpu_s: float
    memory_mib: float


def sliceplane(kubeconfig: Path, *arguments: str) -> Ran:
    """The command, in a process of its own, with its time and the most memory that it had."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    command = [sys.executable, "-m", "sliceplane", *arguments, "--kubeconfig", str(kubeconfig)]
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Ran(
            process.returncode,
            output.read().decode(),
            wall_s,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
        )


# The cluster


def put(etcd: str, objects: list[tuple[str, dict[str, Any]]]) -> None:
    for start in range(0, len(objects), BATCH):
        puts = [
            {
                "requestPut": {
                    "key": _base64(f"/registry/{key}".encode()),
                    "value": _base64(json.dumps(value).encode()),
                }
            }
            for key, value in objects[start : start + BATCH]
        ]
        request = urllib.request.Request(
            f"{etcd}/v3/kv/txn", json.dumps({"success": puts}).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["succeeded"] is True


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pods() -> list[tuple[str, dict[str, Any]]]:
    stored = []
    for number in range(SPACES * SERVICES * PODS):
        of_service, index = divmod(number, PODS)
        space, service = (f"shop-{of_service // SERVICES}", f"web-{of_service % SERVICES}")
        ready = str((space, service) != UNREADY)
        address = f"10.{128 + number // 65536}.{number // 256 % 256}.{number % 256}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{service}-{index}",
                "namespace": space,
                "uid": f"00000000-0000-4000-8000-{number:012d}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": service},
            },
            "spec": {
                "nodeName": f"node-{number % NODES}",
                "containers": [
                    {
                        "name": "main",
                        "image": "web",
                        "ports": [{"name": "http", "containerPort": 8080}],
                    }
                ],
            },
            "status": {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [
                    {"type": kind, "status": ready if kind.endswith("Ready") else "True"}
                    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                ],
                "containerStatuses": [
                    {
                        "name": "main",
                        "ready": ready == "True",
                        "state": {"running": {}},
                        "image": "web",
                        "imageID": "",
                        "restartCount": 0,
                    }
                ],
            },
        }
        stored.append((f"pods/{space}/{service}-{index}", pod))
    return stored


def nodes() -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            f"minions/node-{number}",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"node-{number}",
                    "uid": f"10000000-0000-4000-8000-{number:012d}",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}"},
                },
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "allocatable": {"cpu": "8"},
                },
            },
        )
        for number in range(NODES)
    ]


async def create_services(kubeconfig: Path) -> None:
    turn = asyncio.Semaphore(AT_ONCE)
    async with HttpClient(from_file(kubeconfig)) as client:

        async def create(space: str, name: str) -> None:
            selector = {"app": "wbe" if (space, name) == MISSPELT else name}
            spec = {
                "selector": selector,
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            }
            body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
            async with turn:
                await client.create(Services, space, encode(body))

        for number in range(SPACES):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"shop-{number}"}}
            await client.create(Namespaces, "", encode(body))
        async with asyncio.TaskGroup() as group:
            for number in range(SPACES * SERVICES):
                group.create_task(create(f"shop-{number // SERVICES}", f"web-{number % SERVICES}"))


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[Member]:
    (etcd,) = make(folder, 1)
    etcd.start()
    try:
        etcd.wait_ready()
        yield etcd
    finally:
        etcd.kill()


def answers(kubeconfig: Path) -> bool:
    async def ask() -> bytes:
        async with HttpClient(from_file(kubeconfig)) as client:
            return await client.get(Namespaces, "", "default")

    return bool(asyncio.run(ask()))


@pytest.fixture(scope="module")
def filled(kube_apiserver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    with running_etcd(folder) as etcd:
        put(etcd.url, [*nodes(), *pods()])
        flags = kubernetes.api_server_flags(folder, etcd.url, "127.0.0.1", port)
        kubeconfig = folder / "admin.kubeconfig"
        with kubernetes.started(folder / "kube-apiserver.log", kube_apiserver, *flags):
            until(lambda: answers(kubeconfig), within_s=300, ignoring=(Exception,))
            asyncio.run(create_services(kubeconfig))
            made = sliceplane(
                kubeconfig,
                "controllers",
                "--once",
                "--controllers=endpointslice-controller",
                "--kube-api-qps=0",
                "--once-timeout=20m",
            )
            assert made.code == 0, made.text
            yield kubeconfig


def test_why_on_5000_services(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    misspelt, unready = ("/".join(which) for which in (MISSPELT, UNREADY))
    runs = {
        "explain service, well": sliceplane(filled, "explain", "service", "web-0", "-n", "shop-0"),
        "explain service, broken": sliceplane(
            filled, "explain", "service", MISSPELT[1], "-n", MISSPELT[0]
        ),
        "lint": sliceplane(filled, "lint"),
        "status": sliceplane(filled, "status"),
    }
    with capsys.disabled():
        print()
        for name, ran in runs.items():
            print(
                f"{name:24} {ran.wall_s:6.2f} s {ran.cpu_s:6.2f} s of CPU {ran.memory_mib:6.0f} "
                f"MiB  exit {ran.code}"
            )
    well, broken, lint, status = runs.values()
    assert well.code == 0, well.text
    assert broken.code == 1
    assert broken.text.startswith("cause    B1 "), broken.text
    assert lint.code == 1, lint.text
    assert "B1" in line_about(misspelt, lint.text)
    assert "R6" in line_about(unready, lint.text)
    assert "2 errors, no warning in 5,001 Services" in lint.text, lint.text
    assert status.code == 1, status.text
    assert all(ran.wall_s < COMMAND_S and ran.memory_mib < MEMORY_MIB_MAX for ran in runs.values())


def line_about(service: str, text: str) -> str:
    return next(
        (line for line in text.splitlines() if service in line),
        f"nothing is said of {service}:\n{text}",
    )
