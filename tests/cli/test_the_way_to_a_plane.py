"""``sliceplane up`` in one terminal, a command in another: it finds the plane, or says what is
missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, Plane, running_plane, spawn
from tests.ports import free_port

NOWHERE = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: somebody}}]
clusters: [{name: nowhere, cluster: {server: "SERVER", insecure-skip-tls-verify: true}}]
users: [{name: somebody, user: {}}]
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With nothing of this process's environment but where programs are."""
    return subprocess.run(
        [sys.executable, "-m", "sliceplane", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


def test_a_command_without_a_kubeconfig_finds_the_plane_of_this_user(tmp_path: Path) -> None:
    data = tmp_path / ".local/share/sliceplane"
    with running_plane(tmp_path, data_dir=str(data)) as plane:
        assert plane.process.stdout is not None
        steps = [plane.process.stdout.readline() for _ in range(3)]
        assert f"export KUBECONFIG={data}/admin.kubeconfig\n" in steps[0]
        assert "kubectl get" in steps[1]
        assert str(data) in steps[2]
        done = run("snapshot", "save", str(tmp_path / "copy"), HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("Note: no kubeconfig found; using the plane that runs here: ")
    gone = run("snapshot", "save", str(tmp_path / "copy"), HOME=str(tmp_path))
    assert gone.returncode == 1
    assert "nor does 'sliceplane up' run from this user's data folder" in gone.stderr


@pytest.mark.parametrize("data", ["memory:", ""])
def test_ctrl_c_tells_what_is_left(tmp_path: Path, data: str) -> None:
    plane = spawn(tmp_path, data_dir=data)
    plane.process.send_signal(signal.SIGINT)
    said, _ = plane.process.communicate(timeout=120)
    kept = f"what was written stays in {tmp_path / 'data'}"
    assert said.splitlines()[-1] == f"stopped; {'all that was written is gone' if data else kept}"
    assert plane.process.returncode == 0


def test_pages_of_the_xds_server_of_a_plane_have_a_flag(tmp_path: Path) -> None:
    pages = f"127.0.0.1:{free_port()}"
    with running_plane(
        tmp_path, "--xds", "127.0.0.1:0", "--xds-metrics-bind-address", pages, data_dir="memory:"
    ):
        done = run("xds", "status", "--server", pages)
        assert (done.returncode, done.stderr) == (0, "")
    alone = run("up", "--xds-metrics-bind-address", pages)
    assert alone.returncode == 64
    assert "add --xds" in alone.stderr


@pytest.mark.parametrize(
    "words", [("up",), ("trace", "--from", "10.0.0.1", "--to", "web"), ("snapshot", "restore", "x")]
)
def test_a_user_without_a_home_gets_a_sentence(words: tuple[str, ...]) -> None:
    """As in a container that runs as a number: no HOME, and no entry in the user database."""
    program = (
        "import pwd, sys\n"
        "def getpwuid(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = getpwuid\n"
        "from sliceplane.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("Error: there is no home directory")
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("more", [(), ("--shadow",)])
def test_once_where_no_server_is_fails_soon(more: tuple[str, ...], tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NOWHERE.replace("SERVER", "http://127.0.0.1:1"))
    done = run("controllers", "--once", *more, "--kubeconfig", str(kubeconfig))
    assert done.returncode == (2 if more else 1)
    assert done.stderr == "Error: http://127.0.0.1:1: connection refused\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_plane(tmp_path_factory.mktemp("plane"), data_dir="memory:") as running:
        yield running


@pytest.mark.parametrize("more", [(), ("--shadow",)])
def test_once_where_rights_are_missing_names_them_all_at_once(
    plane: Plane, more: tuple[str, ...], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NOWHERE.replace("SERVER", plane.url))
    done = run("controllers", "--once", *more, "--kubeconfig", str(kubeconfig))
    assert done.returncode == (2 if more else 1)
    assert "endpointslices, nodes, pods, services (get, list and watch)" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_packet_of_a_pod_that_is_not_there(plane: Plane) -> None:
    done = run("trace", "--from", "web-1", "-n", "shop", "--to", "api", KUBECONFIG=plane.kubeconfig)
    assert (done.returncode, done.stderr) == (2, "Error: --from: there is no Pod shop/web-1\n")
