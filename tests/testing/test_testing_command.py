"""``python -m sliceplane.testing``: ready when its objects are there, and gone with whoever started
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.testing.places import EXAMPLES, ROOT
from tests.waiting import until

from sliceplane.client import Services, connect

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
COMMAND = [sys.executable, "-m", "sliceplane.testing"]


@contextmanager
def started(
    *arguments: str, stdin: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The process, and its kubeconfig; at the end it must be gone, and what it wrote with it."""
    command = [*COMMAND, *arguments]
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready https://127.0.0.1:"), line
            kubeconfig = Path(line.strip().partition("kubeconfig=")[2])
            yield process, kubeconfig
            assert process.wait(120) == 0
            assert not kubeconfig.parent.exists()
        finally:
            process.kill()


async def test_it_is_ready_when_its_files_are_applied_and_ends_with_its_input() -> None:
    with started("--nodes", "1", str(EXAMPLES / "web.yaml")) as (process, kubeconfig):
        async with connect(kubeconfig) as client:
            assert b'"web"' in await client.get(Services, "default", "web")
            assert process.stdin is not None
            process.stdin.write("what comes is not read as anything\n")
            process.stdin.flush()
            assert b'"web"' in await client.get(Services, "default", "web")
        assert process.poll() is None
        process.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_a_signal_also_without_an_input(number: int) -> None:
    with started("--no-controllers", stdin=subprocess.DEVNULL) as (process, _):
        assert process.poll() is None, "/dev/null is no input that could end"
        process.send_signal(number)


def test_it_ends_when_a_test_that_started_it_is_killed(tmp_path: Path) -> None:
    """Its input is held open by somebody else: the end of the parent alone counts."""
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({COMMAND!r} + ['--no-controllers'], stdin=0, "
        "stdout=subprocess.PIPE, text=True)\n"
        "print(child.pid, child.stdout.readline(), flush=True)\n"
        "time.sleep(60)\n"
    )
    reading, writing = os.pipe()
    command = [sys.executable, "-c", parent]
    try:
        with subprocess.Popen(
            command, stdin=reading, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as test:
            assert test.stdout is not None
            told = test.stdout.readline()
            kubeconfig = Path(told.strip().partition("kubeconfig=")[2])
            assert kubeconfig.exists()
            test.kill()
        until(kubeconfig.parent.exists, lambda exists: not exists)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--zones", "east"), "say how many nodes"),
        (("FILE",), "it has no kind"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("nothing: here\n")
    done = subprocess.run(
        [*COMMAND, *(str(file) if each == "FILE" else each for each in arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    # On a busy machine the server that it starts may log before that it was held up.
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: "), done.stderr
    assert told in last
    assert "Traceback" not in done.stderr
