"""Runs ``sliceplane`` with calls that fail on demand: ``python -m tests.attack.faulty_process FILE
ARGUMENTS...``.

Whoever has FILE mapped says by its first byte which errno every open, socket, pipe, accept, process
and thread of the program gets (0: none), and reads in the eight bytes after it how many calls have
failed. A thread that cannot be had is ``RuntimeError``, as in life.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

CONTROL_BYTES = 9


def install(control: mmap.mmap) -> None:
    """Wrap all that takes a descriptor, a process or a thread.  Modules are still loaded."""

    def failing(
        name: str, call: Callable[..., Any], error: Callable[[int], Exception]
    ) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            code = control[0]
            if name == "accept" and code == errno.ENOSPC:
                code = 0  # accept(2) never says so
            if code and not str(arguments[0] if arguments else "").endswith((".py", ".pyc", ".so")):
                control[1:9] = (int.from_bytes(control[1:9], "little") + 1).to_bytes(8, "little")
                raise error(code)
            return call(*arguments, **named)

        return wrapped

    def os_error(code: int) -> OSError:
        return OSError(code, os.strerror(code))

    for owner, name in (
        *(
            (os, name)
            for name in ("open", "pipe", "pipe2", "memfd_create", "dup", "scandir", "listdir")
        ),
        *((module, "open") for module in (builtins, io)),
        *((socket.socket, name) for name in ("__init__", "accept")),
        (socket, "socketpair"),
        (subprocess.Popen, "__init__"),
    ):
        setattr(owner, name, failing(name, getattr(owner, name), os_error))
    real_start = threading.Thread.start
    threading.Thread.start = failing(
        "start", real_start, lambda _: RuntimeError("can't start new thread")
    )  # type: ignore[method-assign]


def main() -> None:
    with open(sys.argv[1], "r+b") as file:
        control = mmap.mmap(file.fileno(), CONTROL_BYTES)
    install(control)
    sys.argv = ["sliceplane", *sys.argv[2:]]
    from sliceplane.cli.entry import main as command

    command()


if __name__ == "__main__":
    main()
