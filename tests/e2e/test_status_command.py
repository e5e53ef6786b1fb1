"""``sliceplane status`` against a plane, as its administrator and as a user who may read next to
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, Plane, running_plane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running_plane(
        tmp_path_factory.mktemp("status"), "--emulate", "--emulate-nodes", "2"
    ) as plane:
        yield plane


def status(plane: Plane, *flags: str, kubeconfig: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "sliceplane",
            "status",
            "--kubeconfig",
            kubeconfig or plane.kubeconfig,
            *flags,
        ],
        env={"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80", **plane.environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_new_plane_is_well_and_every_part_was_looked_at(plane: Plane) -> None:
    done = status(plane)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert [line[0] for line in done.stdout.splitlines()] == [" "] * len(done.stdout.splitlines())
    told = json.loads(status(plane, "-o", "json").stdout)
    assert {part["name"]: part["state"] for part in told["parts"]} == dict.fromkeys(
        ("servers", "storage", "controllers", "queues", "relays", "nodes", "consumers"), "well"
    )
    assert told["parts"][5]["figures"]["ready"] == 2


def test_who_may_read_next_to_nothing_is_told_what_is_missing(plane: Plane, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody.kubeconfig"
    nobody.write_text(
        json.dumps(
            {
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": plane.url, "insecure-skip-tls-verify": True},
                    }
                ],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    done = status(plane, kubeconfig=str(nobody))
    assert done.returncode == 2
    assert done.stderr.endswith("'sliceplane status -n NAMESPACE'\n")
    assert done.stderr.count("\n") == 1
    assert "no right to list leases in namespace kube-system" in " ".join(done.stdout.split())
    assert "? Services     not looked at" in done.stdout
    assert ": ready" in done.stdout, "everybody may ask that"
