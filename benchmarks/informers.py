"""What Python clients make of everything that goes wrong on a watch: one script, every library, a
table.

Each library follows the Pods of a scripted server (``tools.watch_faults``) through one failure a
server, all at once, for half a minute and more after the trouble. Then what its handlers hold is
compared with what is true, and so is its cache, where it has one. Handlers count: a router acts on
events.

    python -m benchmarks.informers              # makes an environment with the libraries; needs a package index
    python -m benchmarks.informers --python P   # in an environment that has them

With ``--json`` a line a library: in how many of the scenarios something was lost or the server was
overrun.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import venv
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, finish, note
from benchmarks.tools.process import child_environment
from benchmarks.tools.scripted_server import State
from benchmarks.tools.watch_faults import (
    SCENARIOS,
    Busy,
    Gap,
    GoneMidStream,
    Scenario,
    TruncatedLine,
)

FOLLOW = Path(__file__).parent / "peers" / "python" / "follow.py"
LIBRARIES = ("sliceplane", "kubernetes informer", "kubernetes Watch loop", "lightkube", "kr8s")
REQUIREMENTS = ("kubernetes==37.0.2", "lightkube==1.0.1", "kr8s==0.20.15")
SECONDS = 45.0
SMALL: tuple[type[Scenario], ...] = (Gap, GoneMidStream, TruncatedLine)
SMALL_S = 5.0
#: more than this in the time of a run is a loop without back-off
REQUESTS_MAX = 60


@dataclass(frozen=True)
class Verdict:
    """One library in one scenario.  ``text`` is "ok" or what went wrong, shortly."""

    scenario: str
    library: str
    text: str
    requests: int


def judge(stage: Scenario, told: dict[str, Any]) -> str:
    truth = stage.world.state()
    if not stage.watches:
        return "did not watch"
    wrong = difference(as_state(told["held"]), truth)
    if told["store"] is not None and not wrong:
        in_store = difference(as_state(told["store"]), truth)
        wrong = f"cache only: {in_store}" if in_store else ""
    elif told["store"] is not None and wrong and not difference(as_state(told["store"]), truth):
        wrong += " (its cache is right)"
    gone = {"uid-b-2"} - {uid for uid, _ in truth.values()}
    if not wrong and not gone <= set(told["deletes"]):
        wrong = "no delete of the old b"
    requests = len(stage.lists) + len(stage.watches)
    if requests > REQUESTS_MAX:
        wrong = ", ".join(filter(None, (wrong, f"{requests} requests")))
    if isinstance(stage, Busy) and stage.early > 1:
        wrong = ", ".join(filter(None, (wrong, f"asked {stage.early} times in 3 s")))
    return wrong or "ok"


def as_state(told: dict[str, Any]) -> State:
    return {name: (uid, generation) for name, (uid, generation) in told.items()}


def difference(held: State, truth: State) -> str:
    """What is wrong with *held*, in words."""
    parts = [f"still holds {name}" for name in sorted(held.keys() - truth.keys())]
    parts += [f"misses {name}" for name in sorted(truth.keys() - held.keys())]
    parts += [
        f"old {name}" for name in sorted(held.keys() & truth.keys()) if held[name] != truth[name]
    ]
    return ", ".join(parts)


async def follow(
    library: str, python: str, seconds: float, scenarios: tuple[type[Scenario], ...]
) -> tuple[str, list[Verdict]]:
    """The library's version and its verdicts."""
    async with AsyncExitStack() as stack:
        stages = {
            scenario.name: await stack.enter_async_context(scenario()) for scenario in scenarios
        }
        ports = json.dumps({name: stage.port for name, stage in stages.items()})
        child = await asyncio.create_subprocess_exec(
            python,
            str(FOLLOW),
            library,
            str(seconds),
            ports,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        output, complaints = await child.communicate()
        if child.returncode or not output:
            raise RuntimeError(
                f"{library} ended with {child.returncode}: {complaints.decode()[-2000:]}"
            )
        answer = json.loads(output.splitlines()[-1])
        verdicts = [
            Verdict(
                name,
                library,
                judge(stage, answer["followers"][name]),
                len(stage.lists) + len(stage.watches),
            )
            for name, stage in stages.items()
        ]
    return answer["version"], verdicts


async def environment(folder: Path) -> str:
    """A Python that has the peers and what we need."""
    await asyncio.to_thread(venv.create, folder, with_pip=True)
    python = str(folder / "bin" / "python")
    ours = ("aiohttp", "msgspec", "pyyaml", "sortedcontainers")
    install = await asyncio.create_subprocess_exec(
        python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS, *ours
    )
    if await install.wait() != 0:
        sys.exit("informers: the libraries cannot be installed")
    return python


def table(versions: dict[str, str], verdicts: list[Verdict]) -> str:
    """Markdown: a line for each scenario, a column for each library."""
    texts = {(verdict.scenario, verdict.library): verdict.text for verdict in verdicts}
    heads = [f"{library} {versions[library]}".strip() for library in versions]
    lines = ["| failure | seen as | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for scenario in SCENARIOS:
        cells = [texts[scenario.name, library] for library in versions]
        lines.append(f"| {scenario.name} | {scenario.source} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


async def compare(
    python: str,
    seconds: float,
    libraries: tuple[str, ...],
    scenarios: tuple[type[Scenario], ...] = SCENARIOS,
) -> tuple[dict[str, str], list[Verdict]]:
    """Version of each library, and all verdicts."""
    versions: dict[str, str] = {}
    verdicts: list[Verdict] = []
    for library in libraries:
        versions[library], judged = await follow(library, python, seconds, scenarios)
        verdicts += judged
    return versions, verdicts


async def compare_all(python: str | None, seconds: float) -> tuple[dict[str, str], list[Verdict]]:
    if python:
        return await compare(python, seconds, LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        return await compare(await environment(Path(folder)), seconds, LIBRARIES)


def rows(versions: dict[str, str], verdicts: list[Verdict]) -> list[Result]:
    def lost(library: str) -> int:
        return sum(verdict.text != "ok" for verdict in verdicts if verdict.library == library)

    count = len({verdict.scenario for verdict in verdicts})
    return [
        Result(
            name="failures of a watch that are not survived",
            size=f"{library} {version}".strip(),
            value=lost(library),
            unit=f"of {count}",
            budget=0 if library == "sliceplane" else None,
        )
        for library, version in versions.items()
    ]


def run(small: bool = False) -> list[Result]:
    """Small: ours alone, in this environment, through what is over in seconds."""
    if small:
        return rows(*asyncio.run(compare(sys.executable, SMALL_S, LIBRARIES[:1], SMALL)))
    return rows(*asyncio.run(compare_all(None, SECONDS)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.informers")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--small", action="store_true", help="ours alone, the shortest scenarios")
    parser.add_argument(
        "--python", help="an interpreter that has the libraries  [default: one is made]"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each library runs")
    arguments = parser.parse_args()
    if arguments.small:
        finish(run(small=True), as_json=arguments.json)
    versions, verdicts = asyncio.run(compare_all(arguments.python, arguments.seconds))
    if not arguments.json:
        note("a cell says what the library's handlers hold at the end that is not true")
    finish(rows(versions, verdicts), as_json=arguments.json, text=table(versions, verdicts))


if __name__ == "__main__":
    main()
