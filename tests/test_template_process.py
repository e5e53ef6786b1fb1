"""A process that the template makes is our child, and as one that an interpreter began."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from demo.net import Net
from tests import template_process
from tests.template_process import FRESH, WORKER, Start, Template

VERSION = (sys.executable, "-m", "sliceplane", "version")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of what the template made."""
    pids: list[int] = []

    def start(self: Template, asked: Start, streams: tuple[int, int, int]) -> int | None:
        pid = original(self, asked, streams)
        pids.append(pid or 0)
        return pid

    original = Template.start
    monkeypatch.setattr(Template, "start", start)
    return pids


@pytest.mark.parametrize(
    ("words", "code"),
    [(("version",), 0), (("version", "--help"), 0), (("simulate", "--faults", "rain"), 64)],
)
def test_it_says_what_a_new_interpreter_says(
    words: tuple[str, ...], code: int, made: list[int]
) -> None:
    def said(**environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*VERSION[:3], *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert said() == said(**{FRESH: "1"})
    assert len(made) == 1
    assert said()[0] == code


def test_it_ends_as_a_new_interpreter_does_where_nobody_reads(made: list[int]) -> None:
    def ended(**environment: str) -> tuple[int, bytes]:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                VERSION,
                env={**os.environ, **environment},
                stdout=writing,
                stderr=subprocess.PIPE,
                check=False,
            )
        finally:
            os.close(writing)
        return done.returncode, done.stderr

    assert ended() == ended(**{FRESH: "1"})
    assert len(made) == 1


def test_it_has_the_streams_the_folder_and_the_environment_that_it_was_given(
    tmp_path: Path, made: list[int]
) -> None:
    (tmp_path / "out").touch()
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*VERSION[:3], "lint", "--kubeconfig", "here"],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.wait() != 0
    assert made == [process.pid]
    assert "here: No such file" in (tmp_path / "out").read_text(encoding="utf-8")


async def test_it_is_our_child_and_takes_signals(made: list[int]) -> None:
    worker = (sys.executable, "-m", WORKER)
    process = await asyncio.create_subprocess_exec(
        *worker, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert made == [process.pid]
    assert os.getsid(process.pid) == process.pid
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL, "only a parent is told"


@pytest.mark.kernel
def test_it_is_inside_of_a_namespace(made: list[int]) -> None:
    with Net("tpl") as net:
        host = net.add_host("one", ("10.1.0.1/16",))
        worker = subprocess.Popen(
            host.command(sys.executable, "-m", WORKER),
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert made == [worker.pid]
        inside = Path(f"/proc/{worker.pid}/ns/net").stat().st_ino
        assert inside == Path(f"/run/netns/{host.namespace}").stat().st_ino
        assert [
            path.name for path in Path(f"/proc/{worker.pid}/root/sys/class/net").glob("eth*")
        ] == ["eth0"]
        worker.communicate()
        assert worker.returncode == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"env": {FRESH: ""}},
        {"env": {"PYTHONHASHSEED": "1"}},
        {"preexec_fn": lambda: None},
        {"umask": 0o77},
    ],
    ids=["fresh", "hash seed", "a function of its own", "umask"],
)
def test_what_it_cannot_do_is_done_as_always(asked: dict[str, Any], made: list[int]) -> None:
    assert subprocess.run(VERSION, capture_output=True, check=False, **asked).returncode == 0
    assert not made


def test_without_the_right_to_clone_it_is_done_as_always(
    monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    monkeypatch.setattr(template_process, "_template", Template())
    monkeypatch.setattr(template_process, "_SERVE", "raise SystemExit")
    assert subprocess.run(VERSION, capture_output=True, check=False).returncode == 0
    assert made == [0]
