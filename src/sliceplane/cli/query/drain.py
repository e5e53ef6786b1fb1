"""``sliceplane drain``: take Pods out of their Services, and know when no node sends to them any
more.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output, note, screen_width
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import duration, string, switch
from sliceplane.cli.object_names import kind_and_name
from sliceplane.cli.process import on_stop_signal
from sliceplane.cli.progress import ProgressLine
from sliceplane.kit.terminal_text import printable

if TYPE_CHECKING:
    from sliceplane.api.core import Pod
    from sliceplane.consume.drain.answer import DrainAnswer, DrainPlan, UndoAnswer
    from sliceplane.consume.drain.options import DrainOptions
    from sliceplane.diagnose.io.drain_targets import TargetKind
    from sliceplane.watch.io.base import Client

_KINDS: Final = {
    "pod": "pod",
    "pods": "pod",
    "po": "pod",
    "deployment": "deployment",
    "deployments": "deployment",
    "deploy": "deployment",
    "node": "node",
    "nodes": "node",
    "no": "node",
}
#: seconds between two reports of what the command does; ``ProgressLine`` prints fewer
_REPORT_S: Final = 0.2

_T = TypeVar("_T")


@cluster_command(
    "drain",
    scope="namespace",
    is_bounded=False,
    examples=[
        (
            "a Pod, which is deleted when no node sends to it any more",
            "sliceplane drain pod web-7d8f-x --delete",
        ),
        (
            "only wait for one that terminates already",
            "sliceplane drain pod web-7d8f-x --wait-only",
        ),
        (
            "all Pods of a Node; stop waiting for nodes of other proxies after a minute",
            "sliceplane drain node node-4 --unknown after=60s",
        ),
        (
            "wait until clients have closed their connections, an hour at most",
            "sliceplane drain pod db-0 --until-idle --timeout 1h --delete",
        ),
        ("put them back into their Services", "sliceplane drain node node-4 --undo"),
    ],
)
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="pod|deployment|node NAME",
    shell_complete=kind_and_name("pod", "deployment", "node"),
)
@duration("--timeout", "Wait at most this long; then remove the marks.", "60s")
@string(
    "--unknown", "wait|fail|after=60s", "What to do about Ready nodes that report nothing.", "wait"
)
@duration("--forget", "How long to wait for a proxy that stopped reporting.", "5m")
@switch("--until-idle", "Also wait until established connections to the Pods have ended.")
@switch("--delete", "Delete the Pods when they are drained.")
@switch("--evict", "Evict them instead, as PodDisruptionBudgets allow.")
@switch("--dry-run", "Print the plan, mark nothing, and exit.")
@switch("--wait-only", "Only wait: something else takes them out of their Services.")
@switch("--force", "Also remove the last ready endpoint of a port, and wait for unknown nodes.")
@switch("--undo", "Remove the marks of an earlier drain, and exit.")
def command(
    *,
    cluster: TargetCluster,
    what: tuple[str, ...],
    unknown: str,
    undo: bool,
    output: Output,
    **flags: Any,
) -> None:
    """Take Pods out of their Services, and wait until no node's kernel sends new connections to
    them.

    Marks each Pod (annotation sliceplane.dev/drain, and its readiness gate sliceplane.dev/serving
    if it has one), follows its EndpointSlices of every manager and family until none says ready,
    and asks the node proxies whether their kernels apply that. A node that does not report is
    unknown, never done. Open connections end when the application ends them; --until-idle waits for
    that: nodes count the connections that Services lead to the Pods. Needs `sliceplane proxy`, or
    `sliceplane observe --conntrack`; nodes with neither are unknown. UDP flows count until the
    kernel forgets them.

    Prints first, to stderr, how many ready endpoints each port of the Services keeps, and what could
    not be read. Refuses to remove a port's last one without --force. Removes its marks when it
    gives up: after the time-out, a failure, Ctrl-C or SIGTERM. Works on any cluster with
    node proxies of Sliceplane.

    Exit code 0: proven; 1: refused, or the time is over (the output names the nodes that are
    missing); 2: cannot know, or connections are still established at the time-out (--until-idle):
    then the marks go, too, and the Pods get new connections again.
    """
    from sliceplane.consume.drain.barrier import parse_policy
    from sliceplane.consume.drain.options import DrainOptions
    from sliceplane.diagnose.io.drain_targets import NoTarget

    kind, name = _kind_and_name(what)
    if flags["delete"] and flags["evict"]:
        raise click.UsageError("--delete and --evict: leave one of both out")
    if flags["dry_run"] and (undo or flags["wait_only"]):
        raise click.UsageError("--dry-run shows a drain's plan: leave out --undo and --wait-only")
    try:
        policy = parse_policy(unknown)
    except ValueError as error:
        raise click.UsageError(f"--unknown: {error}") from error
    options = DrainOptions(
        timeout_s=flags["timeout"],
        unknown=policy,
        removal="evict" if flags["evict"] else "delete" if flags["delete"] else "",
        dry_run=flags["dry_run"],
        mark=not flags["wait_only"],
        forget_s=flags["forget"],
        force=flags["force"],
        until_idle=flags["until_idle"],
    )

    async def work(client: Client, namespace: str) -> DrainAnswer | UndoAnswer:
        space, _, bare = name.rpartition("/")
        run = _Run(client, kind, space or namespace, bare, _cluster_flags(cluster))
        return await _until_signal(run.undo() if undo else run.drain(options), run)

    chosen = cluster._replace(only_reads=options.dry_run)
    answer = chosen.query(work, NoTarget, _Interrupted)
    output.show(answer.as_document, lambda width: _text(answer, width))
    codes = {
        "drained": GOOD,
        "planned": GOOD,
        "refused": BAD,
        "time over": BAD,
        "not idle": NO_ANSWER,
        "cannot know": NO_ANSWER,
    }
    raise SystemExit(codes[answer.outcome])


class _Interrupted(Exception):
    """A signal ended the command; the text is for people."""


class _Run:
    """One drain, and what stderr is told of it: a ``consume.io.drain_reporter.DrainReporter``."""

    def __init__(
        self, client: Client, kind: TargetKind, namespace: str, name: str, cluster_flags: str
    ) -> None:
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._name = name
        offset = time.time() - time.monotonic()
        self._clock = lambda: offset + time.monotonic()
        self._what = f"{kind} {name}"
        self._action = "connecting to the API server"
        self._progress = ProgressLine(plain=True)
        namespace_flag = "" if kind == "node" else f" -n {shlex.quote(namespace)}"
        self._undo_command = (
            f"sliceplane drain {kind} {shlex.quote(name)}{namespace_flag}{cluster_flags} --undo"
        )

    async def drain(self, options: DrainOptions) -> DrainAnswer:
        from msgspec.structs import replace

        from sliceplane.consume.io.draining import drain_pods
        from sliceplane.diagnose.io.rolling_drain import RollingDrain
        from sliceplane.kit.rng import Rng

        pods = await self._find()
        rng = Rng(int.from_bytes(os.urandom(8)))
        drain = partial(drain_pods, self._client, clock=self._clock, rng=rng, reporter=self)
        is_rolling = self._kind == "deployment" and options.removal
        if is_rolling and pods:
            rolling = RollingDrain(
                self._client,
                f"{self._namespace}/{self._name}",
                clock=self._clock,
                reporter=self,
            )
            answer = await rolling.run(
                pods, options, lambda pod, chosen: drain([pod], f"pod {pod.metadata.name}", chosen)
            )
        else:
            answer = await drain(pods, self._what, options)
            if answer.refused and self._kind == "deployment":
                answer = replace(answer, refused=f"{answer.refused}; --evict takes Pod by Pod")
        if answer.marked:
            self.on_aborted((), answer.marked)
        return answer

    async def undo(self) -> UndoAnswer:
        from sliceplane.consume.drain.answer import UndoAnswer
        from sliceplane.consume.io.drain_marks import DrainMarks

        marks = DrainMarks(self._client, self._clock)
        for pod in await self._find():
            marks.adopt(pod)
        before = marks.marked
        self.on_progress("taking marks away")
        remaining = await marks.take_back()
        if remaining:
            self.on_aborted((), remaining)
        return UndoAnswer(
            self._what, tuple(key for key in before if key not in remaining), remaining
        )

    async def _find(self) -> list[Pod]:
        from sliceplane.diagnose.io.drain_targets import find_pods
        from sliceplane.watch.io.bounds import question

        async with question():
            return await find_pods(self._client, self._kind, self._namespace, self._name)

    async def report(self) -> None:
        """Until cancelled."""
        with self._progress:
            while True:
                self._progress(self._action)
                await asyncio.sleep(_REPORT_S)

    def on_plan(self, plan: DrainPlan) -> None:
        from sliceplane.consume.drain.text import plan_lines

        self._progress.clear()
        for line in plan_lines(plan, screen_width()):
            note(line)

    def on_progress(self, action: str) -> None:
        self._action = action

    def on_aborted(self, taken_back: tuple[str, ...], marked: tuple[str, ...]) -> None:
        self._progress.clear()
        if taken_back:
            note(f"Marks taken back: {', '.join(taken_back)}")
        if marked:
            note(
                f"Still marked, so out of their Services: {', '.join(marked)}.  To take the marks "
                "away:"
            )
            note(f"  {self._undo_command}")


async def _until_signal(work: Coroutine[Any, Any, _T], run: _Run) -> _T:
    """The result of *work*.  A first signal cancels it, which takes its marks back; a second one
    ends that, too.
    """
    reporting = asyncio.create_task(run.report(), name="drain progress")
    working = asyncio.create_task(work, name="drain")
    if threading.current_thread() is threading.main_thread():  # elsewhere there are no signals
        on_stop_signal(working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        raise _Interrupted("interrupted") from None
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


def _text(answer: DrainAnswer | UndoAnswer, width: int | None) -> str:
    from sliceplane.api.findings.text import fact
    from sliceplane.consume.drain.text import answer_text

    return "\n".join(
        line
        for head, detail in answer_text(answer)
        for line in (printable(head), *fact("", detail, width))
    )


def _cluster_flags(cluster: TargetCluster) -> str:
    """Returns the options of *cluster*, for a command that a user may paste."""
    named = (("kubeconfig", cluster.kubeconfig), ("context", cluster.context))
    return "".join(
        f" --{name} {shlex.quote(str(value))}" for name, value in named if value is not None
    )


def _kind_and_name(what: tuple[str, ...]) -> tuple[TargetKind, str]:
    """``pod web``, ``pod/web``, ``po shop/web``."""
    kind, _, name = "/".join(what).partition("/")
    if kind not in _KINDS or not name or name.count("/") > 1:
        raise click.UsageError("name what to drain: pod NAME, deployment NAME or node NAME")
    return cast("TargetKind", _KINDS[kind]), name
