"""``python -m sliceplane.testing``: a plane for tests in any language.

It prints one line, ``ready URL kubeconfig=PATH``, when all given objects exist. It ends without
residue at the first of: a signal, the end of its standard input (a pipe), or the end of its parent
process. So a killed test leaves no server behind.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import sys
from pathlib import Path

import click

from sliceplane.lab.testing.plane import Plane

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(0, 250),
    default=0,
    show_default=True,
    help="Emulate so many Nodes, named node-1, node-2, ...; Deployments then become ready Pods.",
)
@click.option(
    "--zones", default="", metavar="ZONE,ZONE", help="Zones that the Nodes are spread over in turn."
)
@click.option(
    "--controllers/--no-controllers",
    default=True,
    show_default=True,
    help="Run controllers beside the API.",
)
@click.option(
    "--secure-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="0 picks a free port.",
)
@click.argument("files", nargs=-1, type=_FILE)
def main(
    *, nodes: int, zones: str, controllers: bool, secure_port: int, files: tuple[Path, ...]
) -> None:
    """A plane in memory for a test, with the objects of FILES.

    Prints "ready URL kubeconfig=PATH"; ends with its standard input, with its parent, or at a
    signal.
    """
    from sliceplane.api.errors import StatusError
    from sliceplane.kit.io.start_error import StartError

    signals = _signals()
    parent = _parent()
    named = tuple(zone.strip() for zone in zones.split(",") if zone.strip())
    try:
        with Plane(nodes=nodes, zones=named, controllers=controllers, port=secure_port) as plane:
            for file in files:
                _apply(plane, file)
            print(f"ready {plane.url} kubeconfig={plane.kubeconfig}", flush=True)
            _wait(signals, parent)
    except (StartError, StatusError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _apply(plane: Plane, file: Path) -> None:
    """Applies a file. Raises ``ValueError`` that names the file."""
    from sliceplane.api.errors import StatusError

    try:
        plane.apply(file)
    except (StatusError, ValueError, OSError) as error:
        raise ValueError(f"{file}: {error}") from error


def _signals() -> socket.socket:
    """Returns a socket that becomes readable at a signal to end."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _parent() -> int | None:
    """Returns a descriptor that becomes readable when the parent has ended; ``None`` if it cannot
    be watched.
    """
    try:
        return os.pidfd_open(os.getppid())
    except OSError:
        return None


def _input() -> int | None:
    """Returns standard input if its end is meaningful: a pipe or a socket, but no terminal and not
    ``/dev/null``.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return 0 if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def _wait(signals: socket.socket, parent: int | None) -> None:
    """Waits for the first reason to end."""
    poll = select.poll()
    standard_input = _input()
    for descriptor in (signals.fileno(), parent, standard_input):
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != standard_input or not os.read(descriptor, 65536):
                return
