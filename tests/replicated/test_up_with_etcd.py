"""``sliceplane up --etcd``, twice: one plane, two doors."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.replicated.members import Member
from tests.waiting import until

READY_SECONDS_MAX = 60.0


class Up:
    """One process.  ``kubectl`` asks it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        command = [
            sys.executable,
            "-m",
            "sliceplane",
            "up",
            "--data-dir",
            str(folder),
            "--secure-port",
            "0",
            *flags,
        ]
        environment = {**os.environ, "PYTHONPATH": "src"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.end()

    def end(self, how: int = signal.SIGTERM) -> str:
        """What it logged."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        _, logged = self.process.communicate(timeout=60)
        return logged

    def kubectl(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.folder / "admin.kubeconfig"), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def running(*ups: Up) -> Iterator[None]:
    try:
        for each in ups:
            each.wait_ready()
        yield
    finally:
        for each in ups:
            with contextlib.suppress(Exception):
                each.end(signal.SIGKILL)


def flags(etcd: Member) -> tuple[str, ...]:
    return ("--etcd", etcd.url, "--etcd-prefix", f"/{os.urandom(6).hex()}")


def share_keys(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    shutil.copytree(source / "pki", target / "pki")
    shutil.copy(source / "tokens.csv", target / "tokens.csv")


POD = """
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: default, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
"""
STATUS = """{"status":{"phase":"Running","podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],
"conditions":[{"type":"Ready","status":"True"}]}}"""


@pytest.mark.kubectl
@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_two_servers_are_one_plane_and_controllers_move(
    etcd: Member, tmp_path: Path, how: signal.Signals
) -> None:
    shared = flags(etcd)
    first = Up(tmp_path / "a", *shared)
    with running(first):
        share_keys(tmp_path / "a", tmp_path / "b")
        second = Up(tmp_path / "b", *shared)
        with running(second):
            first.kubectl("create", "service", "clusterip", "web", "--tcp=80")
            second.kubectl("apply", "-f", "-", given=POD)
            first.kubectl(
                "patch", "pod", "web-0", "--subresource=status", "--type=merge", "-p", STATUS
            )
            endpoints = "jsonpath={.items[*].endpoints[*].addresses}"
            slices = (
                "get",
                "endpointslices",
                "-l",
                "kubernetes.io/service-name=web",
                "-o",
                endpoints,
            )
            until(lambda: second.kubectl(*slices), lambda said: "10.1.2.3" in said)
            token = first.kubectl("create", "token", "default").strip()
            url = second.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
            authority = str(tmp_path / "b/pki/ca.crt")
            who = subprocess.run(
                [
                    "kubectl",
                    "--server",
                    url,
                    "--token",
                    token,
                    "--certificate-authority",
                    authority,
                    "--kubeconfig",
                    "/dev/null",
                    "auth",
                    "whoami",
                ],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert "system:serviceaccount:default:default" in who.stdout, who.stderr
            assert second.kubectl("get", "--raw", "/readyz/etcd") == "ok"
            assert "etcd_request_duration_seconds_bucket" in second.kubectl(
                "get", "--raw", "/metrics"
            )
            # The first one led, as it was there first.  Killed, it does not give the Lease back.
            first.end(how)
            second.kubectl("delete", "pod", "web-0", "--wait=false", "--grace-period=0", "--force")
            until(lambda: second.kubectl(*slices), lambda said: not said.strip())


@pytest.mark.kubectl
def test_a_server_with_other_keys_does_not_start(etcd: Member, tmp_path: Path) -> None:
    shared = flags(etcd)
    first = Up(tmp_path / "a", *shared)
    with running(first):
        stranger = Up(tmp_path / "b", *shared)
        _, said = stranger.process.communicate(timeout=60)
        assert stranger.process.returncode == 1
        assert "another certificate authority" in said


def test_an_etcd_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sliceplane.server.io.storage.committing import StorageError
    from sliceplane.server.io.storage.etcd.backend import EtcdBackend
    from sliceplane.server.io.storage.etcd.client import EtcdConfig

    backend = EtcdBackend(EtcdConfig(servers=("http://127.0.0.1:9",)))
    try:
        with pytest.raises(StorageError, match=r"etcd cannot be reached: http://127\.0\.0\.1:9"):
            backend.snapshot(patience_s=0.5)
    finally:
        backend.close()
