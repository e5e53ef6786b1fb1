"""Attacks on logs: files that take nothing, and strangers who fill the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess, child_environment
from tests.attack.harness import Attack, Figure, admin_context, alive, anonymous_context, bystander

FLOOD_SECONDS = 6.0
START_S_MAX = 10.0
STOP_SECONDS_MAX = 12.0
_MEGABYTE = 1024 * 1024


async def _flood(plane: PlaneProcess, seconds: float, **headers: str) -> int:
    """Anonymous requests on eight connections, each after the answer to the last; how many."""
    ends, sent = time.monotonic() + seconds, 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal sent
        while time.monotonic() < ends:
            try:
                async with session.get(f"{plane.url}/api/v1/secrets", headers=headers) as answer:
                    await answer.read()
                sent += 1
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.1)

    connector = aiohttp.TCPConnector(ssl=anonymous_context(), limit=8)
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(ask(session) for _ in range(8)))
    return sent


async def evict_the_audit_log(folder: Path) -> Sequence[Figure]:
    """A user does something; strangers with long names then ask a thousand times.  Is it still
    known?
    """
    path = folder / "audit.log"
    flags = (
        "--audit-log-path",
        str(path),
        "--audit-log-maxsize",
        "1",
        "--audit-log-maxbackup",
        "1",
    )
    with PlaneProcess(folder, *flags, command="apiserver") as plane:
        connector = aiohttp.TCPConnector(ssl=admin_context(plane))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{plane.url}/api/v1/namespaces/default/secrets/the-deed") as answer,
        ):
            await answer.read()
        async with bystander(plane) as seen:
            sent = await _flood(
                plane, FLOOD_SECONDS, **{"User-Agent": "<" * 7000, "X-Y": "z" * 7000}
            )
        figures = [alive(plane), *seen.figures()]
    lines = [line for each in _audit_files(folder) for line in each.read_bytes().splitlines()]
    gone = float(not any(b"the-deed" in line for line in lines))
    strangers = sum(len(line) for line in lines if b"system:anonymous" in line)
    longest = max(map(len, lines), default=0)
    return (
        *figures,
        Figure(f"deeds that {sent} requests of strangers evicted", gone, "deeds", 0),
        Figure("what strangers have of the audit log", round(strangers / _MEGABYTE, 2), "MiB", 1),
        Figure("longest line", longest, "bytes", 32 * 1024),
    )


def _audit_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("audit*.log"))


async def stopped_terminal(folder: Path) -> Sequence[Figure]:
    """At debug level on a terminal on which somebody pressed ^S."""
    ours, theirs = pty.openpty()
    termios.tcflow(theirs, termios.TCOOFF)
    flags = ("--secure-port", "0", "--data-dir", str(folder / "data"), "--log-level", "debug")
    kubeconfig = folder / "data" / "admin.kubeconfig"
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: ASYNC220  # a process of the attack, not of a server
        (sys.executable, "-m", "sliceplane", "apiserver", *flags),
        stdout=theirs,
        stderr=theirs,
        env=child_environment(),
    )
    try:
        plane = _Running(process, kubeconfig)
        started = await plane.answers(START_S_MAX)
        if started is None:
            return (Figure("starts that hang", 1, "starts", 0),)
        async with bystander(plane) as seen:  # type: ignore[arg-type]  # all that it uses is there
            sent = await _flood(plane, FLOOD_SECONDS, **{"User-Agent": "x" * 2000})  # type: ignore[arg-type]
        stopping = time.monotonic()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)
        return (
            Figure("the server answers after", round(started - began, 2), "s", START_S_MAX),
            *seen.figures(),
            Figure("requests that were answered", sent, "requests", 1, at_least=True),
            Figure(
                "the server ends after",
                round(time.monotonic() - stopping, 2),
                "s",
                STOP_SECONDS_MAX,
            ),
            Figure("servers that had to be killed", float(process.poll() is None), "servers", 0),
        )
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


class _Running:
    """A server whose ready line nobody can read."""

    def __init__(self, process: subprocess.Popen[bytes], kubeconfig: Path) -> None:
        self.process = process
        self.kubeconfig = kubeconfig
        self.url = ""

    async def answers(self, limit_s: float) -> float | None:
        """When it answered for the first time."""
        ends = time.monotonic() + limit_s
        while time.monotonic() < ends:
            with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError, IndexError):
                self.url = self.kubeconfig.read_text().split("server: ")[1].split()[0]
                connector = aiohttp.TCPConnector(ssl=admin_context(self))  # type: ignore[arg-type]
                timeout = aiohttp.ClientTimeout(total=1)
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                    session.get(f"{self.url}/livez") as answer,
                ):
                    if answer.status == 200:
                        return time.monotonic()
            await asyncio.sleep(0.1)
        return None


async def fifo_without_reader(folder: Path) -> Sequence[Figure]:
    """The audit log is a FIFO that nobody opens for reading; later somebody does."""
    path = folder / "audit.fifo"
    os.mkfifo(path)
    began = time.monotonic()
    rescue = asyncio.get_running_loop().call_later(START_S_MAX, _open_for_reading, path)
    plane = await asyncio.to_thread(
        PlaneProcess, folder, "--audit-log-path", str(path), command="apiserver"
    )
    rescue.cancel()
    with plane:
        started = time.monotonic() - began
        async with bystander(plane) as seen:
            await _flood(plane, FLOOD_SECONDS / 2)
        reader = _open_for_reading(path)
        await asyncio.sleep(1)
        read = len(os.read(reader, _MEGABYTE))
        os.close(reader)
        stopping = time.monotonic()
        await asyncio.to_thread(plane.stop)
        return (
            Figure("the server answers after", round(started, 2), "s", START_S_MAX),
            *seen.figures(),
            Figure("bytes for who reads at last", read, "bytes", 1, at_least=True),
            Figure(
                "the server ends after",
                round(time.monotonic() - stopping, 2),
                "s",
                STOP_SECONDS_MAX,
            ),
        )


def _open_for_reading(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


ATTACKS = (
    Attack(
        "audit-eviction",
        "strangers ask with long names, to push a deed out of the audit log",
        evict_the_audit_log,
    ),
    Attack(
        "stopped-terminal",
        "the server logs at debug level to a terminal stopped with ^S",
        stopped_terminal,
    ),
    Attack("audit-fifo", "the audit log is a FIFO without a reader", fifo_without_reader),
)
