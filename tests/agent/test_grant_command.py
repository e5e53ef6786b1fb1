"""``sliceplane agent grant`` against our own server: what it prints can be applied, what it writes
is a secret.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.running import kubectl_path

from sliceplane.testing import Plane

POLICY = "ValidatingAdmissionPolicy"


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        yield made


def grant(plane: Plane, *flags: str, agent: str = "vm-grant") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "agent",
        "grant",
        agent,
        "--service",
        "web",
        *flags,
    ]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_it_prints_can_be_applied(plane: Plane) -> None:
    """Our server has no such policies: the text says so, and ``kubectl apply -f -`` does not
    fail.
    """
    done = grant(plane, "--cidr", "192.0.2.0/24")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# this server has no ValidatingAdmissionPolicy, so none is made")
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding"]
    applied = subprocess.run(
        [kubectl_path(), "--kubeconfig", str(plane.kubeconfig), "apply", "-f", "-"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr


def test_the_policy_is_a_choice(plane: Plane) -> None:
    with_policy = [
        document["kind"]
        for document in yaml.safe_load_all(grant(plane, "--policy", "always").stdout)
    ]
    assert with_policy.count(POLICY) == with_policy.count(f"{POLICY}Binding") == 2
    assert POLICY not in grant(plane, "--policy=never").stdout


def test_a_server_that_does_not_answer_may_have_policies(plane: Plane, tmp_path: Path) -> None:
    away = tmp_path / "away"
    document = yaml.safe_load(Path(plane.kubeconfig).read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    away.write_text(yaml.safe_dump(document))
    done = grant(plane, "--kubeconfig", str(away), "-n", "default")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"kind: {POLICY}\n") == 2


def test_the_kubeconfig_is_a_secret(plane: Plane, tmp_path: Path) -> None:
    out = tmp_path / "vm.kubeconfig"
    done = grant(plane, "--apply", "--out", str(out))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert yaml.safe_load(out.read_text())["users"][0]["user"]["token"]
    first = out.read_text()
    done = grant(plane, "--apply", "--out", str(out))
    assert done.returncode == 1
    assert f"{out} is there already; replace it with --overwrite" in done.stderr
    assert out.read_text() == first
    done = grant(plane, "--apply", "--out", str(out), "--overwrite")
    assert done.returncode == 0, done.stderr
    assert out.read_text() != first
    assert grant(plane, "--out", str(out)).returncode == 64


@pytest.mark.parametrize(("permissions", "warns"), [(0o644, True), (0o600, False)])
def test_a_file_of_the_shell_that_others_can_read_is_told(
    plane: Plane, tmp_path: Path, permissions: int, *, warns: bool
) -> None:
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "agent",
        "grant",
        "vm-grant",
        "--service",
        "web",
        "--apply",
    ]
    out = tmp_path / "out"
    out.touch(mode=permissions)
    out.chmod(permissions)
    with out.open("w") as opened:
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        done = subprocess.run(
            command, env=environment, stdout=opened, stderr=subprocess.PIPE, text=True, check=True
        )
    assert (
        "Warning: other users can read the file that this is written to (mode 0644)" in done.stderr
    ) is warns


def test_a_grant_is_bounded(plane: Plane) -> None:
    services = [flag for number in range(70) for flag in ("--service", f"s{number}")]
    done = grant(plane, *services)
    assert done.returncode == 64
    assert "71 Services are too many for one agent: at most 64" in done.stderr
