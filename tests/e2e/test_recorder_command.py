"""``sliceplane recorder`` as a user has it: a plane that works, saved, shown, replayed; and files
that are not well.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import Plane, spawn
from tests.waiting import until
from tests.watch.recorder.test_encoding import plain_text

from sliceplane.watch.recorder.file import read_lines

pytestmark = pytest.mark.kubectl
SECRET = "hunter22"


def sliceplane(plane: Plane, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**plane.environment, "KUBECONFIG": plane.kubeconfig}
    command = [sys.executable, "-m", "sliceplane", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def kubectl(plane: Plane, *words: str) -> str:
    command = [plane.kubectl, "--kubeconfig", plane.kubeconfig, *words]
    return subprocess.run(
        command, env=plane.environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    running = spawn(tmp_path_factory.mktemp("plane"), "--emulate", "--emulate-nodes", "2")
    try:
        kubectl(running, "create", "deployment", "web", "--image=nginx", "--replicas=4")
        kubectl(running, "expose", "deployment", "web", "--port=80")
        kubectl(running, "create", "secret", "generic", "key", f"--from-literal=password={SECRET}")

        def ready() -> int:
            words = ("get", "endpointslices", "-l=kubernetes.io/service-name=web", "-o=json")
            endpoints = [
                each
                for item in json.loads(kubectl(running, *words))["items"]
                for each in item.get("endpoints") or ()
            ]
            return sum(each["conditions"]["ready"] for each in endpoints)

        until(ready, lambda count: count == 4)
        # What becomes ready from here on, follows this change.
        kubectl(running, "scale", "deployment", "web", "--replicas=6")
        until(ready, lambda count: count == 6)
        yield running
    finally:
        running.process.terminate()
        running.process.communicate(timeout=90)


@pytest.fixture(scope="module")
def saved(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "a.recording"
    done = sliceplane(plane, "recorder", "save", str(file))
    assert done.returncode == 0, done.stderr
    assert "entries of" in done.stdout
    return file


def test_a_running_planes_recording_replays_with_the_same_writes(plane: Plane, saved: Path) -> None:
    done = sliceplane(plane, "recorder", "replay", str(saved))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every controller wants to write what it wrote then" in done.stdout
    assert "left out" not in done.stdout


def test_it_tells_who_changed_what_and_no_secret(plane: Plane, saved: Path) -> None:
    shown = sliceplane(plane, "recorder", "show", str(saved))
    assert shown.returncode == 0
    assert "deployments.apps default/web: spec.replicas 4 -> 6 by kubectl" in shown.stdout
    with saved.open("rb") as text:
        assert SECRET not in plain_text(read_lines(text))
    lines = sliceplane(plane, "recorder", "show", "-o", "json", str(saved)).stdout.splitlines()
    assert {"Changed", "Turned", "Ended"} <= {json.loads(line).get("event") for line in lines}


def test_it_needs_a_right(plane: Plane) -> None:
    context = ssl.create_default_context(
        cafile=str(Path(plane.kubeconfig).parent / "pki" / "ca.crt")
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{plane.url}/sliceplane/recording", context=context, timeout=60)
    assert refused.value.code == 403
    refused.value.close()


def test_sigusr1_saves_in_the_data_directory(plane: Plane) -> None:
    plane.process.send_signal(signal.SIGUSR1)
    folder = Path(plane.kubeconfig).parent / "recordings"
    until(lambda: list(folder.glob("*-sigusr1.recording")), within_s=60)


def test_half_a_file_shows_what_it_can(plane: Plane, saved: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.recording"
    half.write_bytes(saved.read_bytes()[: saved.stat().st_size * 2 // 3])
    shown = sliceplane(plane, "recorder", "show", str(half))
    assert shown.returncode == 1
    assert "cut" in shown.stderr
    assert shown.stdout.count("\n") > 20
    replayed = sliceplane(plane, "recorder", "replay", str(half))
    assert replayed.returncode == 0, replayed.stdout
    assert "cut" in replayed.stderr


def test_a_simulation_goes_on_from_what_a_plane_recorded(
    plane: Plane, saved: Path, tmp_path: Path
) -> None:
    flags = ("--seed", "3", "--steps", "4", "--faults", "heavy")
    done = sliceplane(plane, "simulate", "--from", str(saved), *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    half = tmp_path / "half.recording"
    half.write_bytes(saved.read_bytes()[: saved.stat().st_size * 2 // 3])
    done = sliceplane(plane, "simulate", "--from", str(half), *flags)
    assert (done.returncode, "cut" in done.stderr) == (0, True), done.stdout + done.stderr
    half.write_text(saved.read_text().replace('"recording":', '"recording":1', 1))
    done = sliceplane(plane, "simulate", "--from", str(half), *flags)
    assert done.returncode == 2
    assert "read it with that version" in done.stderr


def test_another_format_and_no_recording_say_so(plane: Plane, saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.recording"
    other.write_text(saved.read_text().replace('"recording":', '"recording":7', 1))
    done = sliceplane(plane, "recorder", "replay", str(other))
    assert (done.returncode, "format 73" in done.stderr) == (2, True)
    other.write_text("apiVersion: v1\n")
    done = sliceplane(plane, "recorder", "show", str(other))
    assert (done.returncode, "no recording" in done.stderr) == (2, True)


def test_a_plane_can_do_without(tmp_path: Path) -> None:
    without = spawn(tmp_path, "--recorder-size", "0")
    try:
        done = sliceplane(without, "recorder", "save", str(tmp_path / "a.recording"))
        assert done.returncode == 1
        assert not (tmp_path / "a.recording").exists()
        # As on any cluster: what the objects themselves tell.
        kubectl(without, "create", "service", "clusterip", "web", "--tcp=80")
        told = sliceplane(without, "timeline", "service", "web")
        assert told.returncode == 0, told.stderr
        assert "nothing is recorded there" in told.stderr
        assert "Service web: set " in told.stdout
    finally:
        without.process.terminate()
        without.process.communicate(timeout=90)


def test_a_timeline_tells_who_and_what_followed(plane: Plane, saved: Path) -> None:
    done = sliceplane(plane, "timeline", "service", "web", "--since", "10m")
    assert done.returncode == 0, done.stderr
    scaled = next(line for line in done.stdout.splitlines() if "spec.replicas 4 -> 6" in line)
    assert "kubectl" in scaled
    assert "Pods: 2 made, 2 ready" in scaled
    assert " kB" in scaled
    of_file = sliceplane(
        plane, "timeline", "service", "default/web", "--from", str(saved), "--open"
    )
    assert done.stdout.splitlines()[0] in of_file.stdout
    assert of_file.stdout.count("\n") > 10
    unknown = sliceplane(plane, "timeline", "service", "wbe", "--from", str(saved))
    assert (unknown.returncode, "nothing of Service default/wbe" in unknown.stderr) == (2, True)
