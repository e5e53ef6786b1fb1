"""``sliceplane snapshot``: a copy of everything while the server runs, and a data directory made of
it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from sliceplane.cli.cluster import TargetCluster, attempt, cluster_command
from sliceplane.cli.flags import number, string
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.process import print_line

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(
    "snapshot",
    cls=CommandGroup,
    examples=[
        ("a copy of a running server", "sliceplane snapshot save monday.snapshot"),
        (
            "a data directory from it",
            "sliceplane snapshot restore monday.snapshot --data-dir restored",
        ),
    ],
)
def command() -> None:
    """Copy the state of a running server to a file, or restore a data directory from one."""


@cluster_command(
    "save",
    parent=command,
    output=False,
    is_bounded=False,
    short_help="Copy the state at one revision to FILE.",
    examples=[
        ("a copy of a running server", "sliceplane snapshot save monday.snapshot"),
    ],
)
@click.argument("file", type=_FILE)
def save(*, cluster: TargetCluster, file: Path) -> None:
    """Write the state of the server at one revision to FILE.

    The server continues to serve. FILE appears complete, checked and synced to disk, or not at all;
    only its owner may read it, since it contains Secrets. Needs the right to get the non-resource
    URL /sliceplane/snapshot.
    """
    from sliceplane.diagnose.io import snapshot

    _end_at_sigterm()
    saved = cluster.query(
        lambda client, _: snapshot.save(client, file), snapshot.SnapshotError, exit_code=1
    )
    print_line(
        f"saved {saved.objects:,} objects of revision {saved.revision} to {file} ({saved.bytes:,} "
        "bytes)"
    )


@command.command(
    "inspect",
    short_help="Say whether FILE is whole.",
    examples=[
        ("before it is needed", "sliceplane snapshot inspect monday.snapshot"),
    ],
)
@click.argument("file", type=_FILE)
def inspect(*, file: Path) -> None:
    """Read FILE to its end and report whether it is complete."""
    from sliceplane.diagnose.io import snapshot

    read = attempt(lambda: snapshot.inspect(file), snapshot.SnapshotError)
    print_line(
        f"whole: {read.objects:,} objects of revision {read.revision} ({read.bytes:,} bytes)"
    )


@command.command(
    "restore",
    short_help="Restore a data directory's database from FILE.",
    examples=[
        (
            "a server that goes on from it",
            "sliceplane snapshot restore monday.snapshot --data-dir restored",
        ),
    ],
)
@click.argument("file", type=_FILE)
@string(
    "--data-dir",
    "DIR",
    "Where.  [default: $XDG_DATA_HOME/sliceplane, else ~/.local/share/sliceplane]",
)
@number(
    "--bump-revision",
    "Continue this far beyond the snapshot's revision: more than the server wrote after it.",
    1_000_000_000,
    least=0,
)
def restore(*, file: Path, data_dir: str, bump_revision: int) -> None:
    """Create the database of a data directory that has none.

    FILE has no certificates or tokens: put back pki/ and tokens.csv, or new ones are created.
    Revisions continue far beyond those of FILE, so that none is used twice and every client lists
    again.
    """
    from sliceplane.diagnose.io import snapshot

    _end_at_sigterm()
    restored = attempt(
        lambda: snapshot.restore(file, data_dir, bump=bump_revision), snapshot.SnapshotError
    )
    print_line(f"restored {restored.objects:,} objects; versions go on from {restored.revision}")


def _end_at_sigterm() -> None:
    """Half a file is removed on the way out, also when a timer or an orchestrator loses
    patience.
    """

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
