"""Starts where the disk is full or the database was emptied: one sentence, and nothing lost (needs
root: tmpfs).
"""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
PROGRAM = (sys.executable, "-m", "sliceplane", "up", "--secure-port", "0", "--data-dir")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    assert os.geteuid() == 0, "this test mounts a small disk and needs root"
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def serving(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*PROGRAM, str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), process.stderr.read()
        yield process, line.split()[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def request(data: Path, url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    token = (data / "tokens.csv").read_text().split(",")[0]
    context = ssl.create_default_context(cafile=str(data / "pki" / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, context=context, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        refused.close()  # its socket would be told of wherever it is collected
        raise


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_full_disk_at_the_start(small_disk: Path, end: signal.Signals) -> None:
    data = small_disk / "data"
    maps = "/api/v1/namespaces/default/configmaps"
    with serving(data) as (process, url):
        request(data, url + maps, "POST", b'{"metadata":{"name":"kept"},"data":{"a":"b"}}')
        process.send_signal(end)
        process.wait(timeout=60)
    ballast = fill(small_disk)
    done = subprocess.run(
        [*PROGRAM, str(data)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: cannot "), done.stderr
    assert done.stderr.count("\n") == 1, "one line"
    assert "no space left" in done.stderr or "disk is full" in done.stderr
    ballast.unlink()
    with serving(data) as (_, url):
        assert b'"a":"b"' in request(data, f"{url}{maps}/kept")


@pytest.mark.parametrize("used", [True, False])
def test_an_emptied_database(tmp_path: Path, used: bool) -> None:
    data = tmp_path / "data"
    if used:
        with serving(data) as (process, _):
            process.terminate()
            process.wait(timeout=60)
    else:
        data.mkdir()
    (data / "sliceplane.db").write_bytes(b"")
    if not used:
        with serving(data):
            return
    before = sorted(path.name for path in data.iterdir())
    done = subprocess.run(
        [*PROGRAM, str(data)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: cannot use {data}/sliceplane.db for storage: it is empty, although this data "
        "directory has been in "
        "use; restore it from a copy, or remove admin.kubeconfig and all files sliceplane.db* to "
        "begin with nothing\n"
    )
    assert sorted(path.name for path in data.iterdir()) == before
    assert (data / "sliceplane.db").stat().st_size == 0
