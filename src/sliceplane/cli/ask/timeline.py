"""``sliceplane timeline``: what happened to a Service, who did it, and what followed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import GOOD, NO_ANSWER, fail, note, screen_width, show
from sliceplane.cli.ask.recorder import making_sense, read
from sliceplane.cli.cluster import ask, namespace_option, question_options
from sliceplane.cli.flags import EXISTING_FILE, choice, duration, option, switch
from sliceplane.cli.object_names import names_of
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.values import ParsedType

if TYPE_CHECKING:
    from sliceplane.diagnose.timeline.timeline import Line, Timeline
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
    """What happened, who did it, and what followed from it."""


@command.command(
    "service",
    short_help="What happened to a Service.",
    examples=[
        ("the last hour", "sliceplane timeline service web --since 1h"),
        ("its endpoints before and after", "sliceplane timeline service web --diff 10m 1m"),
    ],
)
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=names_of("services"))
@namespace_option()
@duration("--since", "How far back.", "10m")
@option(
    "--diff",
    "Instead: its endpoints at both of these moments (times, or how long ago).",
    type=ParsedType("time|ago", _moment),
    nargs=2,
    metavar="T1 T2",
)
@switch(
    "--open opened", "Each line with the changes that are joined in it, and a row for each Pod."
)
@option(
    "--from file", "A recording, in the place of what the running plane keeps.", type=EXISTING_FILE
)
@choice("-o --output", "Lines for people, or one document for programs.", ("text", "json"), "text")
@question_options
def service(
    *,
    name: str,
    namespace: str,
    since: float,
    diff: tuple[float, float] | None,
    opened: bool,
    file: Path | None,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """A line for each cause: when, who, what, and what followed (slices, bytes, nodes).

    A cause is a change that somebody made, with all that belongs to it: a rollout is one line
    (--open shows its changes). On a cluster that is no plane of ours nothing is recorded; what
    managedFields and Events tell is shown, and stderr says so.

    Exit code 0: answered, maybe that nothing happened; 2: no answer, stderr says why.
    """
    where, _, plain = name.rpartition("/")
    if file is not None:
        where = where or namespace or "default"
        from_file = read(file)
        with making_sense(file):
            _answer(
                _timeline(from_file, where, plain),
                since,
                diff,
                opened=opened,
                as_json=output == "json",
            )
        return
    from sliceplane.diagnose.io import recordings
    from sliceplane.diagnose.timeline.elsewhere import NOTICE
    from sliceplane.watch.recorder.file import RecordingError

    async def work(client: Any, default: str) -> tuple[Recording | None, str, list[Line]]:
        there = where or namespace or default
        recording = await recordings.recorded(client)
        if recording is not None:
            return recording, there, []
        return (
            None,
            there,
            await recordings.lines_elsewhere(client, there, plain, time.time() - since),
        )

    recording, there, lines = ask(kubeconfig, context, work, RecordingError, exit_code=NO_ANSWER)
    if recording is not None:
        with making_sense(None):
            _answer(
                _timeline(recording, there, plain),
                since,
                diff,
                opened=opened,
                as_json=output == "json",
            )
        return
    note(f"Note: {NOTICE}")
    if diff is not None:
        fail("--diff needs a recording", NO_ANSWER)
    _show(lines, opened=opened, as_json=output == "json")


def _timeline(recording: Recording, namespace: str, name: str) -> Timeline:
    """Ends the command where the recording has nothing of the Service."""
    from sliceplane.diagnose.timeline.index import Index
    from sliceplane.diagnose.timeline.timeline import Timeline

    if recording.problem:
        note(f"Note: {recording.problem}")
    timeline = Timeline(Index(recording), namespace, name)
    if not timeline.known:
        fail(f"the recording has nothing of Service {namespace}/{name}", NO_ANSWER)
    return timeline


def _answer(
    timeline: Timeline,
    since: float,
    diff: tuple[float, float] | None,
    *,
    opened: bool,
    as_json: bool,
) -> None:
    from sliceplane.diagnose.timeline.text import membership_text

    if diff is None:
        _show(timeline.lines(timeline.ended - since), opened=opened, as_json=as_json)
        return
    before, after = (moment if moment > _AGO_MAX_S else timeline.ended - moment for moment in diff)
    membership = timeline.membership(before, after)
    if as_json:
        show(json.dumps({"before": membership.before, "after": membership.after}, indent=2))
    else:
        show(membership_text(membership))


def _show(lines: list[Line], *, opened: bool, as_json: bool) -> None:
    from sliceplane.diagnose.timeline.text import line_document, line_text

    if as_json:
        show(json.dumps([line_document(line) for line in lines], indent=2))
    elif lines:
        for line in lines:
            show(line_text(line, opened=opened, width=screen_width()))
    else:
        show("nothing happened in this time")
    raise SystemExit(GOOD)
