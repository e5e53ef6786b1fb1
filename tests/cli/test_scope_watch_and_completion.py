"""Options that commands share: one namespace or all, again and again, and names that a shell
completes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import sliceplane
from sliceplane.cli.main import main
from sliceplane.testing import Plane

SERVICE = {
    "kind": "Service",
    "apiVersion": "v1",
    "spec": {"ports": [{"port": 80}], "selector": {"app": "none"}},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply([{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}])
        made.apply(
            [
                {**SERVICE, "metadata": {"name": "web"}},
                {**SERVICE, "metadata": {"name": "cart", "namespace": "shop"}},
            ]
        )
        yield made


def run(plane: Plane, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--kubeconfig", str(plane.kubeconfig)])


@pytest.mark.parametrize("command", ["lint", "status", "guard status", "endpoints audit"])
def test_all_namespaces_are_the_default_and_can_be_said(plane: Plane, command: str) -> None:
    everywhere = run(plane, *command.split(), "-A")
    assert everywhere.exit_code == run(plane, *command.split()).exit_code < 64, everywhere.output
    both = run(plane, *command.split(), "-A", "-n", "shop")
    assert (both.exit_code, "-n and -A exclude each other" in both.output) == (64, True)


def test_the_audit_of_endpoints_counts_the_objects_of_one_namespace(plane: Plane) -> None:
    counts = [
        json.loads(run(plane, "endpoints", "audit", *scope, "-o", "json").output)["read"][
            "services"
        ]
        for scope in ((), ("-n", "shop"))
    ]
    assert counts[0] > counts[1] == 1


def completed(plane: Plane, words: list[str], incomplete: str) -> list[str]:
    shell = ShellComplete(main, {}, "sliceplane", "_SLICEPLANE_COMPLETE")
    command, *rest = words
    found = shell.get_completions(
        [command, "--kubeconfig", str(plane.kubeconfig), *rest], incomplete
    )
    return [item.value for item in found]


def test_names_of_objects_are_completed(plane: Plane) -> None:
    assert completed(plane, ["explain"], "se") == ["service"]
    assert completed(plane, ["explain", "service"], "") == ["kubernetes", "web"]
    assert completed(plane, ["explain", "-n", "shop", "svc"], "c") == ["cart"]
    assert completed(plane, ["lint", "-n"], "s") == ["shop"]
    assert completed(plane, ["explain", "pod"], "") == []


def test_a_server_that_is_not_there_completes_nothing(tmp_path: Path) -> None:
    shell = ShellComplete(main, {}, "sliceplane", "_SLICEPLANE_COMPLETE")
    assert (
        shell.get_completions(["explain", "--kubeconfig", str(tmp_path / "none"), "service"], "")
        == []
    )


def test_status_goes_on_until_it_is_interrupted(plane: Plane) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(sliceplane.__file__).parent.parent)}
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "status",
        "--watch",
        "--kubeconfig",
        str(plane.kubeconfig),
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert process.poll() is None, "it goes on"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert first.strip()
    assert "Error" not in rest + errors
    assert process.returncode in (0, 1, 2), errors
