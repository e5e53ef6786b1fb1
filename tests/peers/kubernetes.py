"""Kubernetes' own programs, built from ``kubernetes/`` beside this file, and what their tests
share.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.running import Plane, kubectl
from tests.peers.programs import run
from tests.peers.recorder import Recorded, requests_of
from tests.waiting import PATIENCE_S, until

SLICES = "endpointslices.discovery.k8s.io"
MODULE = Path(__file__).with_name("kubernetes")
DATA = Path(__file__).with_name("data")
#: set to write the recordings anew instead of comparing with them
RECORD = "RECORD_PEERS"
#: they differ from start to start
_RANDOM = ("timeout", "timeoutSeconds")


@dataclass(frozen=True)
class Asked:
    """A request as a recording keeps it: all that tells one client's request from another's."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    accept: str
    content_type: str
    body: bytes

    def alike(self) -> tuple[str, ...]:
        """What is the same at every start of the program."""
        query = [f"{name}={value}" for name, value in self.query if name not in _RANDOM]
        return (self.method, self.path, *query, self.accept, self.content_type)


def load(name: str) -> list[Asked]:
    def asked(each: dict[str, Any]) -> Asked:
        query = tuple(sorted(each["query"].items()))
        body = base64.b64decode(each["body"])
        return Asked(each["method"], each["path"], query, each["accept"], each["contentType"], body)

    return [asked(each) for each in json.loads((DATA / name).read_text())["requests"]]


def compare(name: str, program: str, recorded: list[Recorded], *, more: bool = False) -> None:
    """The recording *name* must be what the program asked for now, in any order, equal requests
    counted once.

    With *more*, it may ask for other things too.
    """
    unique = {each.alike(): each for each in map(_asked, recorded)}
    if os.environ.get(RECORD):
        requests = [_document(each) for _, each in sorted(unique.items())]
        text = json.dumps({"program": program, "requests": requests}, indent=1)
        (DATA / name).write_text(text + "\n")
    kept = {each.alike() for each in load(name)}
    now = set(unique)
    assert kept == now or (more and kept < now), (
        f"{name} has {sorted(kept - now)} that was not asked, not {sorted(now - kept)}; set "
        f"{RECORD}=1"
    )


def _asked(request: Recorded) -> Asked:
    accept, content_type = (request.headers.get(name, "") for name in ("accept", "content-type"))
    query = tuple(sorted(request.query.items()))
    return Asked(request.method, request.path, query, accept, content_type, request.body)


def _document(asked: Asked) -> dict[str, Any]:
    return {
        "method": asked.method,
        "path": asked.path,
        "query": dict(asked.query),
        "accept": asked.accept,
        "contentType": asked.content_type,
        "body": base64.b64encode(asked.body).decode("ascii"),
    }


def kubeconfig_for(admin: str, out: Path, *, server: str = "", token: str = "") -> str:
    """The administrator's kubeconfig with another server (plain HTTP: without identity) or another
    identity.
    """
    config = yaml.safe_load(Path(admin).read_text())
    if server:
        config["clusters"][0]["cluster"] = {"server": server}
        config["users"][0]["user"] = {}
    if token:
        config["users"][0]["user"] = {"token": token}
    out.write_text(yaml.safe_dump(config))
    return str(out)


def api_server_flags(folder: Path, etcd: str, address: str, port: int) -> tuple[str, ...]:
    """Of a kube-apiserver; the administrator's kubeconfig is ``admin.kubeconfig`` in *folder*
    then.
    """
    key = folder / "sa.key"
    run("openssl", "genrsa", "-out", str(key), "2048")
    (folder / "tokens.csv").write_text("secret,admin,admin,system:masters\n")
    authority = folder / "certs" / "apiserver.crt"
    (folder / "admin.kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [
                    {
                        "name": "it",
                        "cluster": {
                            "server": f"https://{address}:{port}",
                            "certificate-authority": str(authority),
                        },
                    }
                ],
                "users": [{"name": "it", "user": {"token": "secret"}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )
    )
    return (
        f"--etcd-servers={etcd}",
        f"--secure-port={port}",
        f"--bind-address={address}",
        f"--cert-dir={authority.parent}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--disable-admission-plugins=ServiceAccount",
    )


@contextlib.contextmanager
def started(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the context ends; its output goes to *log*.  It must not end by
    itself.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
        assert process.poll() in (None, -signal.SIGKILL), (
            f"{command[0]} ended with {process.returncode}\n{log.read_text()[-4000:]}"
        )
    finally:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Recorder:
    url: str
    process: subprocess.Popen[str]
    out: Path

    def requests(self) -> list[Recorded]:
        """What it heard.  It hears no more."""
        self.process.communicate(timeout=120)
        assert self.process.returncode == 0, "the recorder failed"
        return requests_of(self.out.read_text())


@contextlib.contextmanager
def recorder(admin: str, out: Path, prefix: tuple[str, ...] = ()) -> Iterator[Recorder]:
    program = str(Path(__file__).with_name("recorder.py"))
    process = subprocess.Popen(
        [*prefix, sys.executable, program, admin, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Recorder(process.stdout.readline().strip(), process, out)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def eventually(check: Callable[[], Any], *, within_s: float = PATIENCE_S) -> Any:
    """The first true answer of *check*, which may fail with ``RuntimeError`` or ``AssertionError``
    until then.
    """
    return until(check, within_s=within_s, ignoring=(RuntimeError, AssertionError))


def items(plane: Plane, *what: str) -> list[Any]:
    """What ``kubectl get`` finds."""
    found: list[Any] = json.loads(kubectl(plane, "get", "-o", "json", *what))["items"]
    return found


def create(plane: Plane, *documents: dict[str, Any]) -> None:
    # not validated by kubectl, whose download of the schema takes too long on a busy machine
    kubectl(plane, "create", "--validate=false", "-f", "-", document=_listed(documents))


def statuses(plane: Plane, *documents: dict[str, Any]) -> None:
    """Write the statuses of objects that are there."""
    kubectl(
        plane,
        "replace",
        "--validate=false",
        "--subresource=status",
        "-f",
        "-",
        document=_listed(documents),
    )


def _listed(documents: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}


def pod(number: int, *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    """A Pod of the Services that select ``app=web``, with its status."""
    address = f"10.1.{number // 200}.{number % 200 + 1}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"web-{number}", "namespace": "demo", "labels": {"app": "web"}},
        "spec": {
            "containers": [{"name": "web", "image": "web"}],
            "nodeName": "node-1",
            # nothing runs here that would end a container
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
