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
from sliceplane.cli.process import say

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(
    "snapshot",
    cls=CommandGroup,
    examples=[
        ("a copy of a server that runs", "sliceplane snapshot save monday.snapshot"),
        (
            "a data directory made of it",
            "sliceplane snapshot restore monday.snapshot --data-dir restored",
        ),
    ],
)
def command() -> None:
    """Copy the whole state of a server that runs to a file, and make a data directory of such a
    file.
    """


@cluster_command(
    "save",
    parent=command,
    output=False,
    once=False,
    short_help="Copy everything, as of one revision, to FILE.",
    examples=[
        ("a copy of a server that runs", "sliceplane snapshot save monday.snapshot"),
    ],
)
@click.argument("file", type=_FILE)
def save(*, cluster: TargetCluster, file: Path) -> None:
    """Write everything that the server keeps, as of one revision, to FILE.

    The server goes on meanwhile. FILE is there when it is whole, checked and on disk, or not at
    all; only its owner may read it, for Secrets are in it. Needs the right to get the non-resource
    URL /sliceplane/snapshot.
    """
    from sliceplane.diagnose.io import snapshot

    _end_at_sigterm()
    saved = cluster.ask(
        lambda client, _: snapshot.save(client, file), snapshot.SnapshotError, exit_code=1
    )
    say(
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
    """Read FILE to its end and say whether it is whole."""
    from sliceplane.diagnose.io import snapshot

    read = attempt(lambda: snapshot.inspect(file), snapshot.SnapshotError)
    say(f"whole: {read.objects:,} objects of revision {read.revision} ({read.bytes:,} bytes)")


@command.command(
    "restore",
    short_help="Make a data directory's database of FILE.",
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
    "How far beyond the snapshot's revision to go on: further than the server wrote after it.",
    1_000_000_000,
    least=0,
)
def restore(*, file: Path, data_dir: str, bump_revision: int) -> None:
    """Make the database of a data directory that has none.

    Certificates and tokens are not in FILE: put back pki/ and tokens.csv, or new ones are made.
    Versions go on far beyond those of FILE, so that none is given out twice and every client lists
    again.
    """
    from sliceplane.diagnose.io import snapshot

    _end_at_sigterm()
    made = attempt(
        lambda: snapshot.restore(file, data_dir, bump=bump_revision), snapshot.SnapshotError
    )
    say(f"restored {made.objects:,} objects; versions go on from {made.revision}")


def _end_at_sigterm() -> None:
    """Half a file is removed on the way out, also when a timer or an orchestrator loses
    patience.
    """

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
