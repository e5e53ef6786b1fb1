"""The contract of long-running commands with the process that started them: streams, signals, the
line that reports readiness.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sliceplane.cli.answers import discard_stdout
from sliceplane.kit.terminal_text import printable_lines

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: how long a line waits for a reader before work goes on without
PRINT_TIMEOUT_S = 1.0
#: of lines that wait for a reader
_QUEUED_BYTES_MAX = 1024 * 1024


def require(*modules: str) -> None:
    """Raises ``ModuleNotFoundError`` for one that is not installed, which ``cli.entry`` turns into
    words: at once, not when it is first used, in the middle of work.
    """
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(main: Coroutine[Any, Any, T], *, spare: bool = False) -> T:
    """``asyncio.run`` on uvloop's loop, whose turns, sockets and TLS cost a fraction of asyncio's
    own. *spare*: where uvloop is not installed, asyncio's will do.
    """
    import asyncio

    try:
        import uvloop
    except ModuleNotFoundError:
        if spare:
            return asyncio.run(main)
        main.close()  # or Python complains that it was never awaited, under the sentence that helps
        raise
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def open_standard_streams() -> None:
    """Give descriptors 0, 1 and 2 something to lead to if the caller closed them (``>&-``):
    otherwise the next socket gets such a number, is written to as if it were the terminal, and
    libuv ends the process when it is closed.
    """
    opened = os.open(os.devnull, os.O_RDWR)
    while opened <= 2:
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)


def on_stop_signal(callback: Callable[[], object]) -> None:
    """Call *callback* at SIGINT, SIGTERM and, unless it is ignored (``nohup``), SIGHUP: the
    terminal was closed.
    """
    import asyncio

    def stop() -> None:
        notify("STOPPING=1")
        callback()

    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop)


def begin_service() -> asyncio.Event:
    """Prepares the process for long work; returns the event that a stop signal sets. Inside the
    loop.
    """
    import asyncio

    stop = asyncio.Event()
    on_stop_signal(stop.set)
    spare_descriptors()
    return stop


async def work_until(
    stop: asyncio.Event,
    *work: Coroutine[Any, Any, object] | asyncio.Future[Any],
    beside: Sequence[Coroutine[Any, Any, object]] = (),
    farewell: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Runs *work* and what goes on *beside* it until *stop* is set or one of *work* ends, then
    cancels the rest.

    An error of *work* is a fault of ours, and raised. *farewell*: what ends the service while the
    others still run.
    """
    import asyncio

    ending = [asyncio.ensure_future(task) for task in (*work, stop.wait())]
    tasks = [*ending, *map(asyncio.ensure_future, beside)]
    try:
        ended, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            await task
        if farewell is not None:
            await farewell()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def spare_descriptors() -> None:
    """As many as the administrator allows, and one line in the log when they are not enough.
    Inside the loop.
    """
    import asyncio

    from sliceplane.kit.io.process import descriptors

    descriptors.raise_limit()
    descriptors.report_exhaustion(asyncio.get_running_loop())


def is_journal() -> bool:
    """Returns True if stdout is kept in systemd's journal (systemd.exec(5), ``JOURNAL_STREAM``)."""
    try:
        status = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def print_line(line: str, *, control: str = "", is_secret: bool = False) -> None:
    """Print *line*, after *control*, which steers the terminal. *is_secret*: no log may have it.
    That stdout takes no line (a closed pipe, a full disk, a terminal stopped with ^S) is no reason
    to stop working.
    """
    with line_printer(control, is_secret=is_secret) as put:
        put(line)


@contextmanager
def line_printer(control: str = "", *, is_secret: bool = False) -> Iterator[Callable[[str], None]]:
    """``print_line`` for a program that says many lines and may never wait for one: what stdout does not
    take is lost. At the end lines that wait have ``PRINT_TIMEOUT_S``.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # what a test runner put there
        yield lambda line: click.echo(control + printable_lines(line))
        return
    from sliceplane.kit.io.logs.line_writer import LineWriter

    problems: list[tuple[bytes, OSError]] = []

    def write(lines: list[bytes]) -> int:
        for piece in lines:
            try:
                os.write(descriptor, piece)
            except OSError as error:
                problems.append((piece, error))
        return 0

    def put(line: str) -> None:
        writer.put(f"{control}{printable_lines(line)}\n".encode())
        report()

    def report() -> None:
        while problems:
            from sliceplane.kit.io.log import get_logger

            piece, error = problems.pop()
            line = "" if is_secret else piece.decode().rstrip("\n")
            get_logger("cli").warning("cannot print to stdout", line=line, problem=str(error))
            discard_stdout()

    writer = LineWriter("stdout", write, bytes_max=_QUEUED_BYTES_MAX)
    try:
        yield put
    finally:
        writer.close(PRINT_TIMEOUT_S)
        report()


def print_ready(line: str) -> None:
    """Tell the starter of this process that it works now: a service manager first, since stdout may
    be slow.
    """
    notify(f"READY=1\nSTATUS={line}")
    print_line(f"ready {line}")


def print_listening(listening: Iterable[tuple[str, int]]) -> None:
    """Reports ready with the addresses that the service listens on."""
    print_ready(
        " ".join(
            f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            for address, port in listening
        )
    )


def notify(state: str) -> None:
    """*state* for systemd (sd_notify(3)), if that started us and waits for it; one that is gone is
    told nothing.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        try:
            manager.sendto(
                state.encode(), f"\0{address[1:]}" if address.startswith("@") else address
            )
        except OSError as error:
            _warn_of_manager(str(error))


@lru_cache(maxsize=16)
def _warn_of_manager(problem: str) -> None:
    """Logs each problem once: a watchdog is notified several times a second."""
    from sliceplane.kit.io.log import get_logger

    get_logger("cli").warning("the service manager was not notified", problem=problem)
