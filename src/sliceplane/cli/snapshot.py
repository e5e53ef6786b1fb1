"""``sliceplane snapshot``: a copy of everything while the server runs, and a data directory made of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sliceplane.cli.cluster import asked, cluster_options, connect
from sliceplane.cli.options import Group
from sliceplane.cli.process import say

if TYPE_CHECKING:
    from sliceplane.shell.tools.snapshot import Summary

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("snapshot", cls=Group)
def command() -> None:
    """Copy the whole state of a server that runs to a file, and make a data directory of such a file."""


@command.command("save", short_help="Copy everything, as of one revision, to FILE.")
@click.argument("file", type=_FILE)
@cluster_options
def save(*, file: Path, kubeconfig: Path | None, context: str | None) -> None:
    """Write everything that the server keeps, as of one revision, to FILE.

    The server goes on meanwhile.  FILE is there when it is whole, checked and on disk, or not at all; only its owner
    may read it, for Secrets are in it.  Needs the right to get the non-resource URL /sliceplane/snapshot.
    """
    from sliceplane.shell.tools import snapshot

    done = _told(lambda: asyncio.run(snapshot.save(connect(kubeconfig, context), file)))
    say(f"saved {done.objects:,} objects of revision {done.revision} to {file} ({done.bytes:,} bytes)")


@command.command("inspect", short_help="Say whether FILE is whole.")
@click.argument("file", type=_FILE)
def inspect(*, file: Path) -> None:
    """Read FILE to its end and say whether it is whole."""
    from sliceplane.shell.tools import snapshot

    done = _told(lambda: snapshot.inspect(file))
    say(f"whole: {done.objects:,} objects of revision {done.revision} ({done.bytes:,} bytes)")


@command.command("restore", short_help="Make a data directory's database of FILE.")
@click.argument("file", type=_FILE)
@click.option("--data-dir", default="", metavar="DIR",
    help="Where.  [default: $XDG_DATA_HOME/sliceplane, else ~/.local/share/sliceplane]")  # fmt: skip
@click.option("--bump-revision", type=click.IntRange(min=0), default=1_000_000_000, show_default=True,
    help="How far beyond the snapshot's revision to go on: further than the server wrote after it.")  # fmt: skip
def restore(*, file: Path, data_dir: str, bump_revision: int) -> None:
    """Make the database of a data directory that has none.

    Certificates and tokens are not in FILE: put back pki/ and tokens.csv, or new ones are made.  Versions go on far
    beyond those of FILE, so that none is given out twice and every client lists again.
    """
    from sliceplane.shell.tools import snapshot

    done = _told(lambda: snapshot.restore(file, data_dir, bump=bump_revision))
    say(f"restored {done.objects:,} objects; versions go on from {done.revision}")


def _told(work: Callable[[], Summary]) -> Summary:
    from sliceplane.shell.tools.snapshot import SnapshotError

    # Half a file is removed on the way out, also when a timer or an orchestrator loses patience.
    signal.signal(signal.SIGTERM, _end)
    return asked(work, SnapshotError)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
