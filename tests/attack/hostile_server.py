"""A kubeconfig of a stranger: commands and a view against an API server that lies, with the bounds
that they ship with.

Each command runs in a process of its own, two at a time, with ``--request-timeout`` of a few
seconds (by the environment); one that does not end is killed and counts as having taken
``PATIENCE_S``.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.tools.process import child_environment
from tests.attack.harness import Attack, Figure
from tests.fakes.hostile_api import TOKEN, HostileApi

from sliceplane.client import EndpointView, HttpClient
from sliceplane.watch.io import kubeconfig

TIMEOUT_S: Final = 2
#: a command may take some time beyond its own bound on a busy machine
SECONDS_MAX: Final = 12.0
PATIENCE_S: Final = 15.0
#: 1 GiB of answers, and what is made of them
MIB_MAX: Final = 1800.0
FOLLOW_S: Final = 4.0
#: the first second of a watch that fails, and back-off after it
REQUESTS_MAX: Final = 5.0
_RAW: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMMANDS: Final = (
    ("endless-body", "lint"),
    ("gzip-bomb", "lint"),
    ("endless-pages", "lint"),
    ("endless-small-pages", "guard status"),
    ("empty-pages", "lint"),
    ("repeats-its-token", "lint"),
    ("promises-an-exabyte", "status"),
    ("tiny-chunks", "guard status"),
    ("drips-its-body", "guard status"),
    ("drips-its-head", "guard status"),
    ("endless-news", "status"),
    ("silent", "status"),
    ("endless-trailers", "lint"),
    ("deep-objects", "lint"),
    ("deep-lists", "timeline service shop/cart"),
    ("invalid-utf-8", "lint"),
    ("escapes", "lint"),
    ("escapes-where-it-is-shown", "lint"),
    ("escapes-in-names", "lint"),
    ("commands-in-names", "lint"),
    ("says-it-in-a-status", "lint"),
    ("times-1", "timeline service shop/cart"),
    ("redirects-elsewhere", "lint"),
    ("come-back-in-an-age", "endpoints audit"),
    ("lies-about-its-version", "status"),
)
_WATCHES: Final = (
    "moves-and-hangs-up",
    "gone-for-ever",
    "hangs-up",
    "garbage-events",
    "goes-backwards",
    "endless-bookmarks",
)


class Run(NamedTuple):
    seconds: float
    mib: float
    tracebacks: int
    raw: int
    forged: int
    unsafe_commands: int
    leaks: int
    is_killed: bool


async def commands(folder: Path) -> Sequence[Figure]:
    turn = asyncio.Semaphore(2)

    async def play(name: str, command: str) -> Run:
        async with turn:
            with HostileApi(name) as api:
                return await _run(api, command.split(), Path(api.kubeconfig(folder)))

    runs = await asyncio.gather(*(play(name, command) for name, command in _COMMANDS))
    return (
        Figure("behaviours of the server", len(runs), "behaviours", 25, at_least=True),
        Figure("longest command", round(max(run.seconds for run in runs), 1), "s", SECONDS_MAX),
        Figure("commands that did not end", sum(run.is_killed for run in runs), "commands", 0),
        Figure("most memory of a command", round(max(run.mib for run in runs)), "MiB", MIB_MAX),
        Figure("tracebacks", sum(run.tracebacks for run in runs), "commands", 0),
        Figure("raw control characters", sum(run.raw for run in runs), "characters", 0),
        Figure("lines that the server wrote", sum(run.forged for run in runs), "commands", 0),
        Figure(
            "commands with a shell's characters",
            sum(run.unsafe_commands for run in runs),
            "commands",
            0,
        ),
        Figure("credentials at another origin", sum(run.leaks for run in runs), "requests", 0),
    )


async def _run(api: HostileApi, command: list[str], path: Path) -> Run:
    environment = child_environment() | {
        f"SLICEPLANE_{'_'.join(part.upper() for part in command[:words])}_REQUEST_TIMEOUT": f"{TIMEOUT_S}s"
        for words in (1, 2)
    }
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sliceplane",
        *command,
        "--kubeconfig",
        str(path),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    peak = asyncio.create_task(_peak_mib(process.pid))
    is_killed = False
    reading = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await asyncio.shield(reading)
    except TimeoutError:
        is_killed = True
        process.kill()
        output, errors = await reading
    seconds = time.monotonic() - began
    text = (output + errors).decode(errors="replace")
    return Run(
        seconds,
        await peak,
        "Traceback" in text,
        len(_RAW.findall(text)),
        "\nready https://evil" in text,
        "; touch /tmp" in text and "is no name of an object" not in text,
        sum(TOKEN.encode() in head for head in api.elsewhere),
        is_killed,
    )


async def _peak_mib(pid: int) -> float:
    """The most that the process had, as far as it was looked at: every 10 ms until it has ended."""
    peak = 0
    while found := re.search(r"VmHWM:\s+(\d+)", _status(pid)):
        peak = max(peak, int(found[1]))
        await asyncio.sleep(0.01)
    return peak / 1024


def _status(pid: int) -> str:
    """Of a process that is gone, or a zombie: nothing of its memory."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


async def view(folder: Path) -> Sequence[Figure]:
    async def follow(name: str) -> tuple[int, float]:
        with HostileApi(name) as api:
            client = HttpClient(kubeconfig.load(api.kubeconfig(folder)))
            async with client, EndpointView(client, "cart", "shop") as followed:
                await followed.wait_ready(20, count=3)
                before = len(api.requests)
                lost = 0
                ends = time.monotonic() + FOLLOW_S
                while time.monotonic() < ends:
                    lost += len(followed.usable) < 3
                    await asyncio.sleep(0.05)
                return lost, (len(api.requests) - before) / FOLLOW_S

    logging.getLogger("sliceplane.client").setLevel(logging.CRITICAL)
    results = await asyncio.gather(*map(follow, _WATCHES))
    return (
        Figure(
            "looks at which an endpoint was missing", sum(lost for lost, _ in results), "looks", 0
        ),
        Figure(
            "most requests",
            round(max(requests for _, requests in results), 1),
            "requests/s",
            REQUESTS_MAX,
        ),
    )


ATTACKS = (
    Attack(
        "hostile-server",
        "a stranger's kubeconfig: 25 ways to answer a command that reads",
        commands,
    ),
    Attack(
        "hostile-watches",
        "a stranger's kubeconfig: a view of endpoints whose watches never go well",
        view,
    ),
)
