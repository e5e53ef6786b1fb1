"""``sliceplane recorder``: saves, shows and replays the events that controllers received."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane import __version__
from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, fail, note, show
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import FOLDER, choice, option, switch, with_options
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.process import print_line
from sliceplane.kit.terminal_text import printable

if TYPE_CHECKING:
    from sliceplane.diagnose.timeline.replay import ReplayReport
    from sliceplane.watch.controller.base import Controller
    from sliceplane.watch.io.flight import FlightConfig
    from sliceplane.watch.recorder.file import Header, Recording

FILE = click.Path(dir_okay=False, path_type=Path)
_EXISTING = click.Path(dir_okay=False, exists=True, path_type=Path)


def recorder_options(size_mib: int) -> Callable[..., Any]:
    """The flags of a process that records."""
    return with_options(
        option(
            "--recorder-size",
            "What the flight recorder keeps in memory; 0: nothing is recorded.",
            size_mib,
            type=click.IntRange(0),
            metavar="MEGABYTES",
        ),
        option(
            "--recordings",
            "Folder for recordings that are saved when something goes wrong, and at SIGUSR1.  "
            "[default: in the data directory; without one "
            "$XDG_STATE_HOME/sliceplane/recordings]",
            type=FOLDER,
        ),
    )


def flight_config(flags: dict[str, Any]) -> FlightConfig:
    from sliceplane.watch.io.flight import FlightConfig

    return FlightConfig(flags["recorder_size"] << 20, flags["recordings"])


@click.group(
    "recorder",
    cls=CommandGroup,
    examples=[
        ("what led here, as a file", "sliceplane recorder save incident.recording"),
        (
            "do this version's controllers decide the same?",
            "sliceplane recorder replay incident.recording",
        ),
    ],
)
def command() -> None:
    """Saves, shows and replays the inputs of controllers, with their times.

    Every plane keeps the newest inputs in memory (--recorder-size), and saves them by itself when
    something goes wrong.
    """


@cluster_command(
    "save",
    parent=command,
    output=False,
    short_help="Save the running plane's recording to FILE.",
    examples=[
        ("before it is forgotten", "sliceplane recorder save incident.recording"),
    ],
)
@click.argument("file", type=FILE)
def save(*, cluster: TargetCluster, file: Path) -> None:
    """Save the recording of the running plane to FILE.

    FILE appears complete and synced to disk, or not at all. Needs the right to get the
    non-resource URL /sliceplane/recording. A process that is no API server (sliceplane controllers,
    sliceplane proxy) saves at SIGUSR1, and logs the file's path.
    """
    from sliceplane.diagnose.io import recordings
    from sliceplane.watch.recorder.blocks import RecordingError

    saved = cluster.query(
        lambda client, _: recordings.save(client, file), RecordingError, exit_code=1
    )
    print_line(
        f"saved {saved.header.entries:,} entries of {_span(saved)} to {file} "
        f"({file.stat().st_size:,} bytes)"
    )


@command.command(
    "show",
    short_help="Print the contents of FILE.",
    examples=[
        ("the header alone", "sliceplane recorder show incident.recording --head"),
    ],
)
@click.argument("file", type=_EXISTING)
@choice("-o --output", "Lines for people, or one JSON object a line.", ("text", "json"), "text")
@switch("--head", "Only the header: program, time, trigger, and whether it is complete.")
def show_command(*, file: Path, output: str, head: bool) -> None:
    """Print the header of FILE, and a line for each entry.

    Exit code 0: the file is complete; 1: it is truncated or corrupt, and the readable part is
    shown; 2: it is no recording.
    """
    recording = read(file)
    as_json = output == "json"
    with making_sense(file):
        show(json.dumps(_head_document(recording)) if as_json else head_text(recording))
        if not head:
            for line in _entry_lines(recording, as_json=as_json):
                show(printable(line))
    _print_problem(recording)


def _entry_lines(recording: Recording, *, as_json: bool) -> Iterator[str]:
    from sliceplane.diagnose.timeline.reader import entries
    from sliceplane.diagnose.timeline.wording import entry_document, entry_text
    from sliceplane.watch.recorder.blocks import RecordingError

    names: dict[int, str] = {}
    try:
        for entry in entries(recording):
            yield json.dumps(entry_document(entry, names)) if as_json else entry_text(entry, names)
    except RecordingError as error:
        recording.problem = recording.problem or str(error)


@command.command(
    "replay",
    short_help="Replay FILE with this version's controllers.",
    examples=[
        (
            "do this version's controllers decide the same?",
            "sliceplane recorder replay incident.recording",
        ),
    ],
)
@click.argument("file", type=_EXISTING)
def replay(*, file: Path) -> None:
    """Replay the events of FILE with controllers of this version, and compare their writes.

    Each write is compared with the digest of the recorded write; the server's answers are the
    recorded ones.

    Exit code 0: the same writes; 1: the first difference of each controller is shown; 2: FILE
    cannot be replayed.
    """
    from sliceplane.diagnose.timeline.replay import Replay

    recording = read(file)
    with making_sense(file):
        report = Replay(makers_of(recording.header)).run(recording)
        show(head_text(recording))
        show(replay_text(report))
    if recording.problem:
        note(f"Note: {recording.problem}")
    raise SystemExit(GOOD if report.same else BAD)


@command.command(
    "export",
    short_help="Convert FILE for another program.",
    examples=[
        ("for a viewer of traces", "sliceplane recorder export incident.recording --format chrome"),
    ],
)
@click.argument("file", type=_EXISTING)
@choice(
    "--format form",
    "chrome: trace events, for ui.perfetto.dev and chrome://tracing.",
    ("chrome",),
    "chrome",
)
def export(*, file: Path, form: str) -> None:
    """Print FILE for a trace viewer: processes are controllers and nodes, threads are Services.

    Spans are changes, jobs and slices on their way to nodes, with arrows between them. A span whose
    start or end the recording lacks is closed and marked.
    """
    from sliceplane.diagnose.timeline.chrome import ChromeTrace
    from sliceplane.diagnose.timeline.reader import entries
    from sliceplane.watch.recorder.blocks import RecordingError

    assert form == "chrome", f"form {form!r}"
    recording = read(file)
    trace = ChromeTrace()
    with making_sense(file):
        try:
            trace.add_all(entries(recording))
        except RecordingError as error:
            recording.problem = recording.problem or str(error)
        show(json.dumps({"traceEvents": trace.events}, separators=(",", ":")))
    _print_problem(recording)


def read(file: Path) -> Recording:
    """Ends the command where *file* is no recording."""
    import gc

    from sliceplane.kit.io.files import opened_lines
    from sliceplane.watch.recorder.blocks import RecordingError
    from sliceplane.watch.recorder.file import FILE_BYTES_MAX, LINE_BYTES_MAX, read_lines

    # millions of small lists, and none of them in a cycle: collecting would take longer than
    # reading
    gc.disable()
    try:
        with opened_lines(file, bytes_max=FILE_BYTES_MAX, line_bytes_max=LINE_BYTES_MAX) as lines:
            return read_lines(lines)
    except RecordingError as error:
        fail(f"{file}: {error}", NO_ANSWER)
    except OSError as error:
        fail(f"{file}: {error.strerror}", NO_ANSWER)


@contextlib.contextmanager
def making_sense(file: Path | None) -> Iterator[None]:
    """Ends the command where the block finds that a recording has rows, times or settings that no
    recorder writes.
    """
    from sliceplane.diagnose.timeline.reader import UNREADABLE
    from sliceplane.watch.recorder.blocks import RecordingError

    name = "the recording" if file is None else str(file)
    try:
        yield
    except RecordingError as error:
        fail(f"{name}: {error}", NO_ANSWER)
    except UNREADABLE as error:
        fail(f"{name} cannot be read by this version: {type(error).__name__}: {error}", NO_ANSWER)


def makers_of(header: Header) -> dict[str, Callable[[], Controller]]:
    """The controllers of a recording.  Ends the command where its settings make no sense here."""
    from sliceplane.diagnose.timeline.reader import UNREADABLE

    if header.component == "node-proxy":
        return {}
    try:
        if header.component == "simulator":
            from sliceplane.lab.sim.recording import makers_of as simulated

            return simulated(header.settings)
        from sliceplane.controllers.io.settings import makers_of as hosted

        return hosted(header.settings)
    except UNREADABLE as error:
        fail(f"the recording's settings are none of this version: {error}", NO_ANSWER)


def _span(recording: Recording) -> str:
    from sliceplane.diagnose.timeline.reader import last_time
    from sliceplane.kit.times import format_duration

    if not recording.segments:
        return "no time"
    return format_duration(round(max(last_time(recording) - recording.segments[0].began, 0.0)))


def head_text(recording: Recording) -> str:
    from sliceplane.kit.times import format_time

    header = recording.header
    by, host, why = map(printable, (header.component, header.host, header.reason))
    forgotten = f", {header.forgotten:,} older ones were let go" if header.forgotten else ""
    lines = [
        f"recorded  by {by} on {host}, saved at {format_time(header.saved)}: {why}",
        f"entries   {recording.header.entries:,} in {_span(recording)}{forgotten}",
    ]
    if header.program != __version__:
        lines.append(
            f"version   made by sliceplane {printable(header.program) or '?'}, this is "
            f"{__version__}"
        )
    if recording.problem:
        lines.append(f"problem   {printable(recording.problem)}")
    return "\n".join(lines)


def _head_document(recording: Recording) -> dict[str, Any]:
    import msgspec

    header: dict[str, Any] = msgspec.to_builtins(recording.header)
    return header | {"segments": len(recording.segments), "problem": recording.problem}


def _print_problem(recording: Recording) -> None:
    if recording.problem:
        note(f"Note: {recording.problem}")
        raise SystemExit(BAD)


def replay_text(report: ReplayReport) -> str:
    from sliceplane.kit.times import format_micro_time

    lines: list[str] = []
    start = (
        f", from a checkpoint: {report.unsettled} keys had work pending"
        if report.checkpoint
        else ""
    )
    lines.append(
        f"replayed  {report.entries:,} entries, {report.jobs:,} jobs, {report.writes:,} writes "
        f"the same{start}"
    )
    if not report.jobs and report.skipped:
        lines.append("nothing    no controller is in it that could be replayed")
    lines += [f"left out  {name}: {why}" for name, why in sorted(report.skipped.items())]
    for difference in report.differences:
        lines += [
            (
                f"differs   {difference.controller} at {format_micro_time(difference.at)}, "
                f"{difference.key or 'at large'}"
            ),
            f"  recorded  {difference.recorded}",
            f"  replayed  {difference.replayed}",
        ]
        lines += [f"  was       {difference.observed}"] if difference.observed else []
        lines += [f"  would be  {line}" for line in difference.body.splitlines()]
    if report.same:
        lines.append("same      every controller wants to write what it wrote then")
    return "\n".join(lines)
