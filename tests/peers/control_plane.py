"""A control plane of Kubernetes' own programs as kubeadm lays it out, without kubelets: etcd, one
kube-apiserver with an audit log, and kube-controller-managers whose manifests can be edited.

Kubelets are played. ``run_manifest`` restarts a program when its manifest changes; ``PodProcesses``
runs the Pods of our image as processes with the token of their ServiceAccount.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from tests.e2e.running import PYTHON_ENVIRONMENT, Plane, kubectl, kubectl_path
from tests.peers import kubernetes
from tests.peers.test_why_at_size import running_etcd
from tests.ports import free_port

from sliceplane.api.codec import encode
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Pods
from sliceplane.watch.io.http.client import HttpClient

#: seconds between two looks of a played kubelet
LOOK_S: Final = 0.2
#: seconds that a program may take to end
END_S: Final = 120.0
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [
                {"group": "", "resources": ["endpoints"]},
                {"group": "discovery.k8s.io", "resources": ["endpointslices"]},
            ],
        },
        {"level": "None"},
    ],
}


@contextlib.contextmanager
def running_api_server(folder: Path, program: str, *flags: str) -> Iterator[Plane]:
    """A kube-apiserver over an etcd of its own, with ``admin.kubeconfig`` in *folder*."""
    port = free_port()
    kubeconfig = folder / "admin.kubeconfig"
    environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(folder)}
    with running_etcd(folder) as etcd:
        own = kubernetes.api_server_flags(folder, etcd.url, "127.0.0.1", port)
        log = folder / "kube-apiserver.log"
        with kubernetes.started(log, program, *own, *flags) as process:
            plane = Plane(
                process,  # type: ignore[arg-type]  # its output is in the log
                f"https://127.0.0.1:{port}",
                str(kubeconfig),
                kubectl_path(),
                environment,
                log,
            )
            kubernetes.eventually(
                lambda: kubectl(plane, "get", "namespace", "default"), within_s=300
            )
            # kube-controller-manager ends if the server is not healthy within ten seconds
            kubernetes.eventually(lambda: kubectl(plane, "get", "--raw", "/healthz"), within_s=300)
            yield plane


class AuditLog:
    """Writes of Endpoints and EndpointSlices, by who wrote them, as kube-apiserver logs them."""

    def __init__(self, folder: Path) -> None:
        policy = folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        self._path = folder / "audit.log"
        self.flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self._path}")
        self._read = 0

    def writes(self) -> Counter[tuple[str, str, str, int]]:
        """(namespace, account, resource, code) of the writes since the last call."""
        with self._path.open() as file:
            file.seek(self._read)
            lines = file.readlines()
            self._read = file.tell()
        found: Counter[tuple[str, str, str, int]] = Counter()
        for event in map(json.loads, lines):
            account = event["user"]["username"].rpartition(":")[2]
            what = event["objectRef"]
            code = event["responseStatus"]["code"]
            found[what["namespace"], account, what["resource"], code] += 1
        return found


def write_manifest(path: Path, *command: str) -> None:
    """A static Pod with one container, as kubeadm writes it."""
    path.parent.mkdir(parents=True)
    container = {"name": path.stem, "image": path.stem, "command": list(command)}
    spec = {"hostNetwork": True, "containers": [container]}
    metadata = {"name": path.stem, "namespace": "kube-system"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    path.write_text(yaml.safe_dump(document))


async def run_manifest(path: Path, program: str, host: str) -> None:
    """Plays the kubelet of *host* for one static Pod until cancelled: *program* runs with the
    manifest's flags, and is restarted when they change.
    """
    log = path.parent.parent / f"{path.stem}.log"
    named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, program)
    flags: list[str] = []
    process: subprocess.Popen[bytes] | None = None
    try:
        while True:
            desired = _flags(path) or flags
            if desired != flags or (process is not None and process.poll() is not None):
                await _end(process)  # a leader that lost its Lease ended by itself
                process = _spawn(log, *named, *desired)
                flags = desired
            await asyncio.sleep(LOOK_S)
    finally:
        await _end(process)


def _flags(manifest: Path) -> list[str]:
    """The flags of its container; none while an editor writes it."""
    document = yaml.safe_load(manifest.read_text())
    return list(document["spec"]["containers"][0]["command"][1:]) if document else []


def _spawn(log: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**PYTHON_ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


async def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, END_S)


class PodProcesses:
    """Plays scheduler and kubelet for the Pods of our image in one namespace: each is a process on
    its node. *nodes*: by name, the command that runs a program on that node.
    """

    def __init__(
        self,
        plane: Plane,
        client: HttpClient,
        folder: Path,
        namespace: str,
        nodes: dict[str, tuple[str, ...]],
    ) -> None:
        self._plane = plane
        self._client = client
        self._folder = folder
        self._namespace = namespace
        self._nodes = nodes
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self._run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for process in self._running.values():
                await _end(process)

    async def _run(self) -> None:
        while True:
            for body in (await self._client.list(Selection(Pods, self._namespace))).items:
                await self._keep(json.loads(body))
            await asyncio.sleep(LOOK_S)

    async def _keep(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            await _end(self._running.pop(name, None))
            now = encode({"gracePeriodSeconds": 0})
            await self._client.delete(Pods, self._namespace, name, now)
        elif name not in self._running:
            await self._start(name, pod["spec"])
        elif pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        elif (code := self._running[name].poll()) is not None:
            assert pod["spec"]["restartPolicy"] == "Never", self._log(name).read_text()
            await self._report(name, {"phase": "Failed" if code else "Succeeded"})
        elif pod["status"]["phase"] != "Running" and _says_ready(self._log(name)):
            ready = [{"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]
            status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready}
            await self._report(name, status)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    async def _start(self, name: str, spec: dict[str, Any]) -> None:
        node = _required_node(spec) or next(iter(self._nodes))
        arguments = [
            f"--metrics-bind-address=127.0.0.1:{free_port()}"
            if text.startswith("--metrics-bind-address")
            else text.replace("$(NODE_NAME)", node)
            for text in spec["containers"][0]["args"]
        ]
        create = ("create", "token", spec["serviceAccountName"], "-n", self._namespace)
        token = (await asyncio.to_thread(kubectl, self._plane, *create)).strip()
        kubeconfig = self._folder / f"{name}.kubeconfig"
        kubernetes.kubeconfig_for(self._plane.kubeconfig, kubeconfig, token=token)
        command = (*self._nodes[node], sys.executable, "-m", "sliceplane", *arguments)
        self._running[name] = _spawn(self._log(name), *command, KUBECONFIG=str(kubeconfig))
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": self._namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._client.create(
            Pods, self._namespace, encode(binding), subresource="binding", name=name
        )

    async def _report(self, name: str, status: dict[str, Any]) -> None:
        await self._client.patch(
            Pods,
            self._namespace,
            name,
            encode({"status": status}),
            patch_type="merge",
            subresource="status",
        )


def _required_node(spec: dict[str, Any]) -> str:
    """The node of a Pod of a DaemonSet, which its affinity names."""
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in terms.get("nodeSelectorTerms", ()):
        for field in term.get("matchFields", ()):
            return str(field["values"][0])
    return ""


def _says_ready(log: Path) -> bool:
    return any(line.startswith("ready") for line in log.read_text().splitlines())
