"""``sliceplane adopt``: Services move from a cluster's own controllers to ours, one by one. What it
shares with ``sliceplane release`` is here, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from sliceplane.cli.answers import BAD, Output, note
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import duration, switch
from sliceplane.cli.object_names import kind_and_name
from sliceplane.cli.process import on_stop_signal
from sliceplane.cli.progress import ProgressLine

if TYPE_CHECKING:
    from sliceplane.api.meta import Document
    from sliceplane.diagnose.adoption import Direction
    from sliceplane.diagnose.io.adopting import Moved, MovePlan
    from sliceplane.watch.io.base import Client

#: Services that move at a time
_AT_ONCE: Final = 8
_SERVICE_WORDS: Final = ("service", "services", "svc")


@cluster_command(
    "adopt",
    scope="namespace",
    is_bounded=False,
    examples=[
        (
            "what would happen, and who reads spec.selector",
            "sliceplane adopt service web --dry-run",
        ),
        ("two Services of a namespace", "sliceplane adopt service web api -n shop"),
    ],
)
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="service NAME...",
    shell_complete=kind_and_name("service"),
)
@duration("--timeout", "Give up after this time, and take the annotations back.", "60s")
@switch("--dry-run", "Print what would be done and who reads spec.selector; write nothing.")
def command(
    *,
    cluster: TargetCluster,
    what: tuple[str, ...],
    timeout: float,
    dry_run: bool,
    output: Output,
) -> None:
    """Move Services from a cluster's own controllers to ours, while both run.

    For clusters whose kube-controller-manager cannot be changed (EKS, GKE, AKS). First "sliceplane
    controllers --adopted-only" writes EndpointSlices of its own; then spec.selector moves to the
    annotation sliceplane.dev/selector, which upstream's controllers do not read; then upstream's
    slices are deleted. No endpoint is missing at any time. A command that was killed is completed by
    the same command; "sliceplane release" is the way back.

    Needs the rights to patch Services and Endpoints.

    Exit code 0: all moved; 1: some did not, with the reason; 2: no answer.
    """
    from sliceplane.diagnose.io.adopting import plan_move

    names = service_names(what)
    if dry_run:

        async def plan(client: Client, namespace: str) -> list[MovePlan | str]:
            return [await _planned(plan_move(client, namespace, name)) for name in names]

        plans = cluster.query(plan)
        output.show(
            lambda: {"plans": [p if isinstance(p, str) else p.as_document() for p in plans]},
            lambda _: "\n\n".join(p if isinstance(p, str) else p.text() for p in plans),
        )
        raise SystemExit(BAD if any(isinstance(p, str) for p in plans) else 0)

    async def keys(_: Client, namespace: str) -> Sequence[str]:
        return [f"{namespace}/{name}" for name in names]

    run_moves(cluster, output, "adopt", timeout, keys)


async def _planned(planning: Awaitable[MovePlan]) -> MovePlan | str:
    from sliceplane.diagnose.adoption import MoveRefused

    try:
        return await planning
    except MoveRefused as refused:
        return str(refused)


def service_names(what: Sequence[str]) -> tuple[str, ...]:
    """``service web api``, ``svc/web``. Raises ``click.UsageError``."""
    first, *others = what
    kind, slash, name = first.partition("/")
    names = (*([name] if slash else []), *others)
    if kind in _SERVICE_WORDS and names and all(names) and "/" not in "".join(names):
        return tuple(dict.fromkeys(names))
    raise click.UsageError("name what moves: service NAME...")


def run_moves(
    cluster: TargetCluster,
    output: Output,
    direction: Direction,
    timeout_s: float,
    find: Callable[[Client, str], Awaitable[Sequence[str]]],
) -> None:
    """Moves the Services whose keys *find* returns, shows the result, and ends the command if one
    did not move.
    """

    async def work(client: Client, namespace: str) -> _Answer:
        moves = _Moves(client, direction, timeout_s)
        return await moves.run(await find(client, namespace))

    answer = cluster._replace(only_reads=False).query(work)
    output.show(answer.as_document, lambda _: answer.text())
    if answer.failed:
        raise SystemExit(BAD)


class _Answer:
    """``failed``: the reasons by Service."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self.moved: dict[str, Moved] = {}
        self.failed: dict[str, str] = {}
        self.advice: dict[str, tuple[str, ...]] = {}

    def as_document(self) -> Document:
        return {
            "moved": [moved.as_document() for _, moved in sorted(self.moved.items())],
            "failed": [{"service": key, "reason": why} for key, why in sorted(self.failed.items())],
        }

    def text(self) -> str:
        done = "adopted" if self._direction == "adopt" else "released"
        lines: list[str] = []
        for key, moved in sorted(self.moved.items()):
            lines.append(
                f"{key}: {done} in {moved.seconds:.1f} s"
                if moved.effects
                else f"{key}: was {done} before"
            )
            lines += [f"  {advice}" for advice in self.advice.get(key, ())]
        lines += [f"NOT {done}: {why}" for _, why in sorted(self.failed.items())]
        return "\n".join(lines) or "no Service is adopted"


class _Moves:
    """The moves of one command, a few at a time. A signal takes adoptions back that have not moved a
    selector yet.
    """

    def __init__(self, client: Client, direction: Direction, timeout_s: float) -> None:
        self._client = client
        self._direction: Direction = direction
        self._timeout_s = timeout_s
        self._answer = _Answer(direction)
        self._progress = ProgressLine(plain=True)

    async def run(self, keys: Sequence[str]) -> _Answer:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(key: str) -> None:
            async with turns:
                await self._move(key)

        moving = asyncio.gather(*map(in_turn, keys))
        if threading.current_thread() is threading.main_thread():  # elsewhere there are no signals
            on_stop_signal(moving.cancel)
        with self._progress:
            try:
                await moving
            except asyncio.CancelledError:
                await self._take_back(keys)
        return self._answer

    async def _move(self, key: str) -> None:
        from sliceplane.api.errors import StatusError
        from sliceplane.diagnose.adoption import MoveRefused
        from sliceplane.diagnose.io.adopting import advice_on, move

        def on_step(effect: str) -> None:
            self._progress.clear()
            note(f"{key}: {effect}")

        try:
            self._answer.moved[key] = await move(
                *(self._client, key, self._direction),
                timeout_s=self._timeout_s,
                report=self._progress,
                on_step=on_step,
            )
            if self._direction == "adopt":
                self._answer.advice[key] = await advice_on(self._client, key)
        except MoveRefused as refused:
            self._answer.failed[key] = str(refused)
        except StatusError as error:
            await self._fail(key, f"the server refuses: {error}")

    async def _fail(self, key: str, reason: str) -> None:
        from sliceplane.diagnose.io.adopting import take_back

        undone = self._direction == "adopt" and await take_back(self._client, key)
        end = "; its annotations are removed again" if undone else ""
        self._answer.failed[key] = f"{key}: {reason}{end}"

    async def _take_back(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self._answer.moved and key not in self._answer.failed:
                await self._fail(key, "interrupted")
