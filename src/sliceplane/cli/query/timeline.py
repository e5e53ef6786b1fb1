"""``sliceplane timeline``: what happened to a Service, who did it, and what followed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sliceplane.cli.answers import NO_ANSWER, Output, fail, note
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import EXISTING_FILE, duration, option, switch
from sliceplane.cli.object_names import names_of
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.query.recorder import making_sense, read
from sliceplane.cli.values import ParsedType

if TYPE_CHECKING:
    from sliceplane.diagnose.timeline.timeline import Line, Timeline
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.recorder.file import Recording


def _moment(text: str) -> float:
    """Returns a time, or how long ago; what is below ``_AGO_MAX_S`` is the latter."""
    from sliceplane.kit.times import parse_duration, parse_time

    ago = parse_duration(text)
    if ago is not None and ago >= 0:
        return ago
    try:
        return parse_time(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is neither a time (2026-01-31T12:00:00Z) nor how long ago (10m)"
        ) from error


_AGO_MAX_S = 1e9


@click.group(
    "timeline",
    cls=CommandGroup,
    examples=[
        ("the last ten minutes of a Service", "sliceplane timeline service web --since 10m"),
        ("the same out of a file", "sliceplane timeline service web --from incident.recording"),
    ],
)
def command() -> None:
    """Shows changes, their authors and their effects."""


@cluster_command(
    "service",
    parent=command,
    scope="namespace",
    short_help="What happened to a Service.",
    examples=[
        ("the last hour", "sliceplane timeline service web --since 1h"),
        ("its endpoints before and after", "sliceplane timeline service web --diff 10m 1m"),
    ],
)
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=names_of("services"))
@duration("--since", "How far back.", "10m")
@option(
    "--diff",
    "Instead: its endpoints at both times (times of day, or how long ago).",
    type=ParsedType("time|ago", _moment),
    nargs=2,
    metavar="T1 T2",
)
@switch("--open opened", "Show the changes that a line combines, and a row for each Pod.")
@option("--from file", "Read a saved recording instead of the running plane's.", type=EXISTING_FILE)
def service(
    *,
    cluster: TargetCluster,
    name: str,
    since: float,
    diff: tuple[float, float] | None,
    opened: bool,
    file: Path | None,
    output: Output,
) -> None:
    """Print a line for each cause: when, who, what, and what followed (slices, bytes, nodes).

    A cause is a user's change with all its effects: a rollout is one line (--open shows its
    changes). Other clusters record nothing: there the lines come from managedFields and Events, and
    stderr notes it.

    Exit code 0: answered, perhaps that nothing happened; 2: no answer, stderr has the reason.
    """
    from sliceplane.diagnose.timeline.elsewhere import NOTICE

    namespace_in_name, _, plain = name.rpartition("/")
    lines: list[Line] = []
    if file is not None:
        recording: Recording | None = read(file)
        namespace = namespace_in_name or cluster.namespace or "default"
    else:
        recording, namespace, lines = _read_cluster(cluster, namespace_in_name, plain, since)
    if recording is None:
        note(f"Note: {NOTICE}")
        if diff is not None:
            fail("--diff needs a recording", NO_ANSWER)
        _show(lines, output, opened=opened)
        return
    with making_sense(file):
        timeline = _timeline(recording, namespace, plain)
        if diff is None:
            _show(timeline.lines(timeline.ended - since), output, opened=opened)
        else:
            _show_difference(timeline, diff, output)


def _read_cluster(
    cluster: TargetCluster, namespace_in_name: str, name: str, since_s: float
) -> tuple[Recording | None, str, list[Line]]:
    """Returns the recording of a plane, or ``None`` and lines that any cluster has; and the
    Service's namespace.
    """
    from sliceplane.diagnose.io import recordings
    from sliceplane.watch.recorder.blocks import RecordingError

    async def work(client: HttpClient, namespace: str) -> tuple[Recording | None, str, list[Line]]:
        namespace = namespace_in_name or namespace
        recording = await recordings.recorded(client)
        if recording is not None:
            return recording, namespace, []
        began = time.time() - since_s
        return None, namespace, await recordings.lines_elsewhere(client, namespace, name, began)

    return cluster.query(work, RecordingError)


def _timeline(recording: Recording, namespace: str, name: str) -> Timeline:
    """Ends the command where the recording has nothing of the Service."""
    from sliceplane.diagnose.timeline.index import Index
    from sliceplane.diagnose.timeline.timeline import Timeline

    if recording.problem:
        note(f"Note: {recording.problem}")
    timeline = Timeline(Index(recording), namespace, name)
    if not timeline.is_recorded:
        fail(f"the recording has nothing of Service {namespace}/{name}", NO_ANSWER)
    return timeline


def _show_difference(timeline: Timeline, diff: tuple[float, float], output: Output) -> None:
    from sliceplane.diagnose.timeline.text import membership_text

    before, after = (moment if moment > _AGO_MAX_S else timeline.ended - moment for moment in diff)
    membership = timeline.membership(before, after)
    output.show(
        lambda: {"before": membership.before, "after": membership.after},
        lambda _: membership_text(membership),
    )


def _show(lines: list[Line], output: Output, *, opened: bool) -> None:
    from sliceplane.diagnose.timeline.text import line_document, line_text

    def text(width: int | None) -> str:
        texts = [line_text(line, opened=opened, width=width) for line in lines]
        return "\n".join(texts or ["nothing happened in this time"])

    output.show(lambda: [line_document(line) for line in lines], text)
