"""What every long-running command owes the shell that started it: streams, signals, the line that says "ready"."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, NoReturn, TypeVar

import click

T = TypeVar("T")

#: how long a line waits for a reader before work goes on without
SAY_MAX_S = 1.0
#: net new containers after which the garbage collector looks at the young ones
GC_YOUNG_OBJECTS = 50_000


def screen_width() -> int | None:
    """Columns that lines may have: ``COLUMNS``, or those of the terminal; ``None``: nobody looks, a program reads."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def require(*modules: str) -> None:
    """Raises ``ModuleNotFoundError`` for one that is not installed, which ``cli.entry`` turns into words: at once, not
    when it is first used, in the middle of work."""
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on uvloop's loop, whose turns, sockets and TLS cost a fraction of asyncio's own."""
    import asyncio

    try:
        import uvloop
    except ModuleNotFoundError:
        main.close()  # or Python complains that it was never awaited, under the sentence that helps
        raise
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def spare_collector() -> None:
    """Let the garbage collector look less often: a burst of events makes tens of thousands of short-lived objects,
    hardly any of them in a cycle."""
    gc.set_threshold(GC_YOUNG_OBJECTS, 10, 10)


def open_standard_streams() -> None:
    """Give descriptors 0, 1 and 2 something to lead to if the caller closed them (``>&-``): otherwise the next socket
    gets such a number, is written to as if it were the terminal, and libuv ends the process when it is closed."""
    opened = os.open(os.devnull, os.O_RDWR)
    while opened <= 2:
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)


def on_stop_signal(callback: Callable[[], object]) -> None:
    """Call *callback* at SIGINT, SIGTERM and, unless it is ignored (``nohup``), SIGHUP: the terminal was closed."""
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


def spare_descriptors() -> None:
    """As many as the administrator allows, and one line in the log when they are not enough.  Inside the loop."""
    import asyncio

    from sliceplane.shell.process import descriptors

    descriptors.raise_limit()
    descriptors.tell_of_exhaustion(asyncio.get_running_loop())


def fail(sentence: str, exit_code: int = 1) -> NoReturn:
    """End the command with *sentence* on stderr."""
    click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(exit_code)


def show(text: str, *, newline: bool = True, exit_code: int = 1) -> None:
    """Print *text*, which the command was run for: if it cannot be printed whole, the command failed.  A reader that
    has read enough (``| head``) ends it without a word, as click does."""
    try:
        click.echo(text, nl=newline)
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        fail(f"cannot write to stdout: {(error.strerror or str(error)).lower()}", exit_code)


def say(line: str) -> None:
    """Print *line*.  If nobody can be told (a closed pipe, a full disk, a terminal stopped with ^S), that is no reason
    to stop working."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # what a test runner put there
        click.echo(line)
        return
    from sliceplane.shell.process.line_writer import LineWriter

    problems: list[OSError] = []

    def write(lines: list[bytes]) -> int:
        try:
            for each in lines:
                os.write(descriptor, each)
        except OSError as error:
            problems.append(error)
        return 0

    writer = LineWriter("stdout", write, bytes_max=64 * 1024)
    writer.put(f"{line}\n".encode())
    writer.close(SAY_MAX_S)
    for error in problems:
        from sliceplane.shell.process.log import get_logger

        get_logger("cli").warning("cannot print to stdout", line=line, problem=str(error))
        _give_up_stdout()


def say_ready(line: str) -> None:
    """Tell whoever started the process that it works now: a service manager first, since stdout may be slow."""
    notify(f"READY=1\nSTATUS={line}")
    say(f"ready {line}")


def notify(state: str) -> None:
    """*state* for systemd (sd_notify(3)), if that started us and waits for it; one that is gone is told nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        try:
            manager.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
        except OSError as error:
            from sliceplane.shell.process.log import get_logger

            get_logger("cli").warning("the service manager was not told", state=state, problem=str(error))


def _give_up_stdout() -> None:
    """What is still in its buffer would fail again at the end of the process, with an exit code of its own."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
