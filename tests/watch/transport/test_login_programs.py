"""A login program of a kubeconfig, and what it starts, end with the process that asked it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually

import sliceplane
from sliceplane.kit.io.identity import ProcessIdentity, identity
from sliceplane.kit.io.process.orphans import ended_with_us
from sliceplane.watch.io.connection import CredentialsError
from sliceplane.watch.io.credentials import API_VERSIONS, Exec

#: asks a program that waits for a person, and writes a file as soon as that would not outlive it
CLIENT = """
import asyncio, contextlib, pathlib, sys
from sliceplane.kit.io.process import orphans
from sliceplane.watch.io import credentials

real = orphans.ended_with_us

@contextlib.contextmanager
def ended_with_us(pid):
    with real(pid):
        pathlib.Path(sys.argv[1]).touch()
        yield

orphans.ended_with_us = ended_with_us
login = credentials.Exec(sys.argv[2], sys.argv[3:], {}, credentials.API_VERSIONS[0], "")
asyncio.run(login.authorization())
"""


def program(folder: Path) -> list[str]:
    """Waits for a child of its own, and writes the ids of both."""
    return [
        "sh",
        "-c",
        f"sleep 600 & echo $$ $! > {folder}/new; mv {folder}/new {folder}/pids; wait",
    ]


def login(folder: Path) -> Exec:
    command, *arguments = program(folder)
    return Exec(command, arguments, {}, API_VERSIONS[0], "")


async def started(folder: Path) -> list[ProcessIdentity]:
    await eventually((folder / "pids").exists)
    found = [identity(int(word)) for word in (folder / "pids").read_text().split()]
    return [process for process in found if process is not None]


def is_any_alive(processes: list[ProcessIdentity]) -> bool:
    return any(process.is_alive for process in processes)


async def test_it_ends_with_a_client_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(sliceplane.__file__).parent.parent)}
    arguments = [CLIENT, str(tmp_path / "guarded"), *program(tmp_path)]
    client = subprocess.Popen([sys.executable, "-c", *arguments], env=environment)  # noqa: ASYNC220  # it is killed below
    processes = await started(tmp_path)
    await eventually((tmp_path / "guarded").exists)
    assert len(processes) == 2
    client.kill()
    client.wait()
    await eventually(lambda: not is_any_alive(processes))


async def test_it_ends_when_the_client_does_not_wait_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = asyncio.Event()

    @contextmanager
    def ended(pid: int) -> Iterator[None]:
        with ended_with_us(pid):
            guarded.set()
            yield

    monkeypatch.setattr("sliceplane.kit.io.process.orphans.ended_with_us", ended)
    asking = asyncio.create_task(login(tmp_path).authorization())
    processes = await started(tmp_path)
    assert len(processes) == 2
    await guarded.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: not is_any_alive(processes))


async def test_it_ends_when_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sliceplane.watch.io.credentials.EXEC_TIMEOUT_S", 1.0)
    asking = asyncio.create_task(login(tmp_path).authorization())
    processes = await started(tmp_path)
    with pytest.raises(CredentialsError, match="took longer than 1 s"):
        await asking
    await eventually(lambda: not is_any_alive(processes))
