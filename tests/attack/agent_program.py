"""A running agent among enemies: its API server, the process that it checks, its child, its file,
its socket.

The agent is ``sliceplane agent`` itself, in a process that measures the steps of its loop
(``stepped_process``), from the moment at which it runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from benchmarks.tools.process import child_environment
from tests.attack.agents import LEASES, Scene, attacked
from tests.attack.harness import STEP_SECONDS_MAX, Attack, Figure
from tests.attack.hostile_server import _status
from tests.attack.stepped_process import LongestStep
from tests.fakes.hostile_api import HostileApi

from sliceplane.consume.agents.registration import lease_name

_SERVERS: Final = (
    "endless-body",
    "endless-pages",
    "gzip-bomb",
    "crowded-lists",
    "many-ports",
    "tiny-chunks",
    "tiny-events",
    "endless-bookmarks",
    "endless-objects",
    "long-line",
    "other-kinds",
    "answers-with-another-object",
    "answers-writes-with-garbage",
    "drips-its-body",
    "lies-about-its-version",
    "no-json",
)
#: of a hostile server, for each agent
FOLLOWS_S: Final = 4.0
START_S: Final = 5.0
#: of an attack on an agent whose server is ours
ATTACK_S: Final = 8.0
MIB_MAX: Final = 120.0
REQUESTS_MAX: Final = 200.0
#: the drain, the last writes, and a busy machine
ENDS_S: Final = 25.0
#: a Lease of 3 s is renewed each second
RENEWALS_MIN: Final = 3


class Running(NamedTuple):
    process: asyncio.subprocess.Process
    step: LongestStep
    runtime: Path
    errors: Path

    @property
    def socket(self) -> Path:
        return self.runtime / "sliceplane" / "agent-vm-1.sock"

    def peak_mib(self) -> float:
        """The most memory so far; 0 after its end."""
        words = _status(self.process.pid).partition("VmHWM:")[2].split()
        return int(words[0]) / 1024 if words else 0.0


@asynccontextmanager
async def agent(folder: Path, kubeconfig: Path, *flags: str) -> AsyncIterator[Running]:
    """One that was started; what it prints is not read, as by a terminal that was stopped."""
    folder.mkdir()  # noqa: ASYNC240  # on a disk of this machine
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    step = LongestStep(folder / "step")
    places = {
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "HOME": str(folder),
    }
    with (folder / "errors").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.attack.stepped_process",
                str(step.path),
                "agent",
                *flags,
            ),
            *(
                "--kubeconfig",
                str(kubeconfig),
                "--name",
                "vm-1",
                "--address",
                "192.0.2.1",
                "--lease",
                "3s",
            ),
            *("--drain", "0s", "--log-level", "error"),
            env=child_environment() | places,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Running(process, step, runtime, folder / "errors")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _end(running: Running) -> float:
    """Seconds until it has ended by SIGTERM, at most ``ENDS_S``."""
    began = time.monotonic()
    if running.process.returncode is None:
        running.process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(running.process.wait(), ENDS_S)
    return time.monotonic() - began


class _Outcome(NamedTuple):
    behaviour: str
    step_s: float
    mib: float
    requests: float
    ends_s: float
    has_traceback: bool


async def hostile_server(folder: Path) -> Sequence[Figure]:
    turn = asyncio.Semaphore(2)

    async def play(behaviour: str) -> _Outcome:
        async with turn:
            own = folder / behaviour
            with HostileApi(behaviour) as api:
                kubeconfig = Path(api.kubeconfig(folder))
                flags = ("register", "cart", "-n", "shop", "--port", "8080")
                async with agent(own, kubeconfig, *flags) as running:
                    ends = time.monotonic() + START_S
                    while (
                        not running.socket.exists()
                        and running.process.returncode is None
                        and time.monotonic() < ends
                    ):
                        await asyncio.sleep(
                            0.02
                        )  # it runs, or its first question is answered badly
                    running.step.reset()
                    before = len(api.requests)
                    await asyncio.sleep(FOLLOWS_S)
                    requests = (len(api.requests) - before) / FOLLOWS_S
                    mib = running.peak_mib()
                    took = await _end(running)
                    return _Outcome(
                        behaviour,
                        running.step.seconds,
                        mib,
                        requests,
                        took,
                        b"Traceback" in running.errors.read_bytes(),
                    )

    outcomes = await asyncio.gather(*map(play, _SERVERS))
    slowest = max(outcomes, key=lambda outcome: outcome.step_s)
    return (
        Figure(
            "behaviours of the server", len(outcomes), "behaviours", len(_SERVERS), at_least=True
        ),
        Figure(
            f"longest step of the agent's loop ({slowest.behaviour})",
            slowest.step_s,
            "s",
            STEP_SECONDS_MAX,
        ),
        Figure("most memory", round(max(outcome.mib for outcome in outcomes)), "MiB", MIB_MAX),
        Figure(
            "most requests",
            round(max(outcome.requests for outcome in outcomes)),
            "requests/s",
            REQUESTS_MAX,
        ),
        Figure("tracebacks", sum(outcome.has_traceback for outcome in outcomes), "agents", 0),
        Figure(
            "longest end after SIGTERM",
            round(max(outcome.ends_s for outcome in outcomes), 1),
            "s",
            ENDS_S - 0.1,
        ),
    )


@asynccontextmanager
async def _beside_a_plane(folder: Path, *flags: str) -> AsyncIterator[tuple[Scene, Running]]:
    """An agent of the Service web, once its Lease is there."""
    async with attacked(folder) as scene:
        kubeconfig = yaml.safe_load(scene.plane.kubeconfig.read_text())
        token = scene.agent.session.headers["authorization"].removeprefix("Bearer ")
        kubeconfig["users"][0]["user"] = {"token": token}
        path = folder / "vm-1.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        async with agent(folder / "agent", path, *flags) as running:
            ends = time.monotonic() + 20
            while not await _renewed(scene) and time.monotonic() < ends:
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # modules that are loaded when they are first needed
            running.step.reset()
            yield scene, running


async def _renewed(scene: Scene) -> str:
    code, body = await scene.admin.ask("GET", f"{LEASES.format('default')}/{lease_name('vm-1')}")
    return str(json.loads(body)["spec"]["renewTime"]) if code == 200 else ""


async def _measured(
    scene: Scene, running: Running, attack: Callable[[], Awaitable[object]] | None
) -> list[Figure]:
    """*attack* again and again for ``ATTACK_S``, and what the agent did meanwhile."""
    ends = time.monotonic() + ATTACK_S
    renewals = set()
    while time.monotonic() < ends:
        if attack is not None:
            await attack()
        renewals.add(await _renewed(scene))
        await asyncio.sleep(0.05)
    mib = running.peak_mib()
    step_s = running.step.seconds
    has_ended = running.process.returncode is not None
    took = await _end(running)

    return [
        Figure("longest step of the agent's loop", step_s, "s", STEP_SECONDS_MAX),
        Figure("most memory", round(mib), "MiB", MIB_MAX),
        Figure(
            f"renewals of its Lease within {ATTACK_S:.0f} s",
            len(renewals - {""}),
            "renewals",
            RENEWALS_MIN,
            at_least=True,
        ),
        Figure("agents that ended", float(has_ended), "agents", 0),
        Figure("tracebacks", running.errors.read_bytes().count(b"Traceback"), "tracebacks", 0),
        Figure("end after SIGTERM", round(took, 1), "s", ENDS_S - 0.1),
    ]


async def _answer(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A process that is checked: endless bytes, a head without end, a head of 13,000 fields, drops,
    tiny chunks.
    """
    with suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        match number % 5:
            case 0:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                part, pause_s = b"x" * 262_144, 0.0
            case 1:
                writer.write(b"HTTP/1.1 200 OK\r\n")
                part, pause_s = b"X-Field: " + b"x" * 4096 + b"\r\n", 0.0
            case 2:
                part, pause_s = b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 12_000 + b"\r\n", 1.0
            case 3:
                part, pause_s = b"H", 0.02
            case _:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                part, pause_s = b"1\r\n \r\n" * 40_000, 0.0
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
    writer.transport.abort()


async def hostile_process(folder: Path) -> Sequence[Figure]:
    numbers = iter(range(10**9))
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(
            lambda reader, writer: _answer(next(numbers), reader, writer),
            "0.0.0.0",
            0,
            limit=1 << 16,
        )
        stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        document = {
            "services": [
                {
                    "service": "web",
                    "ports": {"http": port},
                    "checks": [
                        *(
                            {"http": f"/{number}", "period": "200ms", "timeout": "1s"}
                            for number in range(10)
                        ),
                        {"tcp": True, "period": "200ms"},
                        {"exec": "yes", "period": "200ms", "timeout": "2s"},
                        {
                            "exec": "cat /dev/zero & cat /dev/urandom",
                            "period": "1s",
                            "timeout": "2s",
                        },
                    ],
                }
            ]
        }
        path = folder / "agent.yaml"
        path.write_text(json.dumps(document))
        async with _beside_a_plane(folder, "-f", str(path)) as (scene, running):
            return await _measured(scene, running, None)


async def hostile_machine(folder: Path) -> Sequence[Figure]:
    """Its file changes all the time, up to what is read of one; its user's other programs flood its
    socket.
    """
    path = folder / "agent.yaml"
    count = 0

    def change() -> None:
        nonlocal count
        count += 1
        ports = {
            f"p{number}": free if number == 0 else 1 + number
            for number, free in enumerate([count % 60_000 + 1] * 64)
        }
        entry = {"service": "web", "ports": ports, "checks": [{"ttl": "1h"}]}
        text = json.dumps({"services": [entry]})
        filling = "" if count % 2 else "\n#" + "x" * (250_000 - len(text))
        path.write_text(text + filling if count % 3 else "services: [" * 20_000)

    async def flood() -> None:
        await asyncio.to_thread(change)
        questions = (
            b'{"verb":"status"}\n',
            b'{"verb":"pass"}\n',
            b"[" * 60_000 + b"\n",
            b"x" * 200_000,
            b'{"verb":',
        )
        for number in range(200):
            with suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(str(running.socket))
                writer.write(questions[number % len(questions)])
                if number % len(questions) < 3:
                    await asyncio.wait_for(reader.read(100), 2)
                writer.transport.abort()

    count = 1
    change()
    async with _beside_a_plane(folder, "-f", str(path)) as (scene, running):
        return await _measured(scene, running, flood)


ATTACKS = (
    Attack(
        "agent-hostile-server",
        f"an agent whose API server lies in {len(_SERVERS)} ways, and whose stdout no one reads",
        hostile_server,
    ),
    Attack(
        "agent-hostile-process",
        "an agent whose checks meet endless bytes, drops, huge heads, and commands that print "
        "without end",
        hostile_process,
    ),
    Attack(
        "agent-hostile-machine",
        "an agent whose file changes all the time, and whose control socket is flooded",
        hostile_machine,
    ),
)
