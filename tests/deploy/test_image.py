"""The image of ``Dockerfile``, run as an engine would: read-only, as its user, with an empty
volume.

``tools/image.sh`` builds it from a Debian that mmdebstrap makes; bubblewrap runs its root file
system, in a network namespace of its own, with what the image says of environment, user, volume and
health check.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sliceplane.cli.alive import HealthPage, find_health_page

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "image"
START_S = 120.0


@pytest.mark.parametrize(
    ("line", "environment", "place"),
    [
        ("sliceplane up", {}, HealthPage("127.0.0.1", 6443, tls=True)),
        (
            "sliceplane up --secure-port 7000 --bind-address=::",
            {},
            HealthPage("::1", 7000, tls=True),
        ),
        (
            "tini -- sliceplane apiserver",
            {"SLICEPLANE_APISERVER_BIND_ADDRESS": "0.0.0.0", "SLICEPLANE_UP_SECURE_PORT": "1"},
            HealthPage("127.0.0.1", 6443, tls=True),
        ),
        (
            "python sliceplane controllers --metrics-bind-address=0.0.0.0:10257",
            {},
            HealthPage("127.0.0.1", 10257, tls=False),
        ),
        (
            "sliceplane controllers",
            {"SLICEPLANE_CONTROLLERS_HEALTHZ_BIND_ADDRESS": "[::1]:9"},
            HealthPage("::1", 9, tls=False),
        ),
        ("sliceplane controllers", {}, None),
        (
            "sliceplane observe --metrics-bind-address 127.0.0.1:10262",
            {},
            HealthPage("127.0.0.1", 10262, tls=False),
        ),
        ("sliceplane proxy", {}, HealthPage("127.0.0.1", 10256, tls=False)),
        ("sliceplane trace --from 10.0.0.1", {}, None),
    ],
)
def test_a_health_check_asks_the_process_that_the_container_runs(
    line: str, environment: dict[str, str], place: HealthPage | None
) -> None:
    assert find_health_page(line.split(), environment) == place


def test_the_base_is_pinned_and_its_digest_can_be_exchanged() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(
        r"^ARG BASE=docker\.io/library/python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$", text, re.M
    )
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${BASE}", "${BASE}"]


@dataclass(frozen=True)
class Image:
    """What ``docker inspect`` shows of it, and its files."""

    config: dict[str, Any]
    rootfs: Path

    def labels(self) -> dict[str, str]:
        return {name.rpartition(".")[2]: value for name, value in self.config["Labels"].items()}


@pytest.fixture(scope="module")
def image() -> Image:
    """Built anew; with IMAGE_IS_BUILT in the environment the one of the last time."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        assert not os.environ.get("CI"), "CI must build the image"
        pytest.skip("needs root and apt, to make a root file system")
    for tool, package in (("bwrap", "bubblewrap"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            subprocess.run(["apt-get", "install", "-y", "-qq", package], check=True, timeout=300)
    if not os.environ.get("IMAGE_IS_BUILT"):
        subprocess.run([ROOT / "tools" / "image.sh"], check=True, timeout=1500)
    config = json.loads((OUT / "config.json").read_text())["Docker"]["config"]
    return Image(config, OUT / "rootfs")


class Container:
    """A run of the image with one command; the volume is *volume*, the network *netns*."""

    def __init__(self, image: Image, netns: str, volume: Path, *command: str) -> None:
        self.image = image
        uid, _, gid = image.config["User"].partition(":")
        as_user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
        (target,) = image.config["Volumes"]
        reading, writing = os.pipe()
        environment = [
            part for entry in image.config["Env"] for part in ("--setenv", *entry.split("=", 1))
        ]
        self.process = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                netns,
                *as_user,
                "bwrap",
                "--ro-bind",
                image.rootfs,
                "/",
                "--bind",
                volume,
                target,
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--unshare-user",
                "--uid",
                uid,
                "--gid",
                gid,
                "--unshare-pid",
                "--unshare-ipc",
                "--unshare-uts",
                "--as-pid-1",
                "--cap-drop",
                "ALL",
                "--die-with-parent",
                "--chdir",
                image.config["WorkingDir"],
                "--clearenv",
                *environment,
                "--info-fd",
                str(writing),
                *image.config["Entrypoint"],
                *command,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(writing,),
        )
        os.close(writing)
        with os.fdopen(reading) as told:
            self.pid = int(json.loads(told.read())["child-pid"])

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.process.kill()
            raise AssertionError(f"nothing was said: {self.process.communicate()[1]}")
        return line.strip()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Inside of it, as ``docker exec``."""
        environment = list(self.image.config["Env"])
        uid, _, gid = self.image.config["User"].partition(":")
        return subprocess.run(
            [
                "nsenter",
                "-t",
                str(self.pid),
                "-m",
                "-p",
                "-n",
                "-S",
                uid,
                "-G",
                gid,
                "env",
                "-i",
                *environment,
                *command,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def health(self) -> tuple[int, str]:
        """What HEALTHCHECK says: its exit code and line."""
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        done = self.run(*command)
        return done.returncode, (done.stdout + done.stderr).strip()

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        self.process.communicate(timeout=120)
        return self.process.returncode

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def netns() -> Iterator[str]:
    name = f"sliceplane-image-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture(scope="module")
def volume(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty, with owner and mode of the image's folder: so an engine makes a volume that is new."""
    (target,) = image.config["Volumes"]
    made = image.rootfs / target.removeprefix("/")
    assert not list(made.iterdir())
    folder = tmp_path_factory.mktemp("volume")
    for parent in folder.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    os.chown(folder, made.stat().st_uid, made.stat().st_gid)
    folder.chmod(made.stat().st_mode & 0o777)
    return folder


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(1800)
def test_the_image_says_what_an_engine_asks_it(image: Image) -> None:
    assert image.config["User"] == "65532:65532"
    assert list(image.config["Volumes"]) == ["/var/lib/sliceplane"]
    assert set(image.config["ExposedPorts"]) == {"6443/tcp", "10257/tcp", "10256/tcp", "10249/tcp"}
    assert {
        "title",
        "description",
        "source",
        "documentation",
        "licenses",
        "version",
        "revision",
    } <= set(image.labels())
    assert re.fullmatch(r"[0-9a-f]{40}", image.labels()["revision"])
    assert not (image.rootfs / "opt/sliceplane/bin/pip").exists()
    for program in ("nft", "iptables", "ip", "conntrack"):
        assert shutil.which(
            program, path=":".join(str(image.rootfs / where) for where in ("usr/sbin", "usr/bin"))
        )


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(1800)
def test_a_plane_and_its_controllers_run_read_only_with_an_empty_volume(
    image: Image, netns: str, volume: Path
) -> None:
    with Container(image, netns, volume, "up") as up:
        assert (
            up.line()
            == "ready https://127.0.0.1:6443 kubeconfig=/var/lib/sliceplane/admin.kubeconfig"
        )
        assert up.health() == (0, "127.0.0.1 port 6443: 200 ok")
        assert up.run("touch", "/opt/sliceplane/x").returncode != 0
        # It finds the plane by itself, and may write only into the volume.
        saved = up.run("sliceplane", "snapshot", "save", "/var/lib/sliceplane/backup.jsonl")
        assert saved.returncode == 0, saved.stderr
        assert (volume / "backup.jsonl").stat().st_uid == 65532

        kubeconfig = "--kubeconfig=/var/lib/sliceplane/admin.kubeconfig"
        with Container(
            image,
            netns,
            volume,
            "controllers",
            kubeconfig,
            "--leader-elect-resource-name=other",
            "--healthz-bind-address=127.0.0.1:10257",
        ) as controllers:
            assert controllers.line() == "ready leading"
            assert controllers.health() == (0, "127.0.0.1 port 10257: 200 ok")
            assert controllers.stop() == 0

        os.kill(up.pid, signal.SIGSTOP)
        code, told = up.health()
        assert code == 1, told
        os.kill(up.pid, signal.SIGCONT)
        assert up.health()[0] == 0
        assert up.stop() == 0
    # What was written is there for the next one.
    began = time.monotonic()
    with Container(image, netns, volume, "up") as again:
        assert again.line().startswith("ready ")
        assert time.monotonic() - began < START_S
        assert again.stop() == 0


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(1800)
def test_help_of_the_proxy_is_printed_read_only(image: Image, netns: str, volume: Path) -> None:
    with Container(image, netns, volume, "proxy", "--help") as proxy:
        told, errors = proxy.process.communicate(timeout=60)
        assert proxy.process.returncode == 0, errors
        assert "--hostname-override" in told
