"""An unmodified kubectl against a running plane: every step of the tour."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import Plane, running_plane
from tests.e2e.tour import TOUR, Step, run_step

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("tour")
    with running_plane(
        folder, "--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b"
    ) as plane:
        yield plane


STEPS = [(chapter.title, step) for chapter in TOUR for step in chapter.steps]


@pytest.mark.parametrize(
    ("title", "step"),
    STEPS,
    ids=[f"{n:02d} {step.args[:60]}" for n, (_, step) in enumerate(STEPS, 1)],
)
def test_step(plane: Plane, title: str, step: Step) -> None:
    done = run_step(plane, step)
    said = f"kubectl {step.args}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert (done.returncode != 0) == step.fails, said
    text = done.stdout + done.stderr
    for pattern in step.expect:
        assert re.search(pattern, text, re.MULTILINE), f"/{pattern}/ not found in\n{said}"
    for pattern in step.absent:
        assert not re.search(pattern, text, re.MULTILINE), f"/{pattern}/ found in\n{said}"


def test_kubectl_is_the_version_that_we_name(plane: Plane) -> None:
    assert Path(plane.kubectl).exists()
    done = subprocess.run(
        [plane.kubectl, "version", "--client"], capture_output=True, text=True, check=True
    )
    assert "v1.37" in done.stdout, done.stdout
