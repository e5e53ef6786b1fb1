"""An unmodified kubectl against a running plane: every step of the tour."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import Plane, running_plane
from tests.e2e.tour import TOUR, Step

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("tour")
    with running_plane(folder, "--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b") as plane:
        yield plane


def run_step(plane: Plane, step: Step) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **plane.environment, **step.environment}
    command = [plane.kubectl, *shlex.split(step.args)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if step.meanwhile:
        time.sleep(step.stop_after_s / 4)
        subprocess.run([plane.kubectl, *shlex.split(step.meanwhile)], env=environment, check=True, capture_output=True)
    try:
        out, err = process.communicate(step.stdin, timeout=step.stop_after_s or 90)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate()
        assert step.stop_after_s, f"kubectl {step.args}: no end after 90 s\n{out}\n{err}"
        return subprocess.CompletedProcess(command, 0, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


STEPS = [(chapter.title, step) for chapter in TOUR for step in chapter.steps]


@pytest.mark.parametrize(
    ("title", "step"), STEPS, ids=[f"{n:02d} {step.args[:60]}" for n, (_, step) in enumerate(STEPS, 1)]
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
    done = subprocess.run([plane.kubectl, "version", "--client"], capture_output=True, text=True, check=True)
    assert "v1.37" in done.stdout, done.stdout
