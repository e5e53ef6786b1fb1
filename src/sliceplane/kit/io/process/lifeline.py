"""Child processes of this program that end with their parent, whatever ends it, including SIGKILL
and the OOM killer.

A child that runs our own code ends itself by two independent means:

* the kernel's parent-death signal (``prctl(2)``, ``PR_SET_PDEATHSIG``), if available. It also
  reaches a stopped or busy child. The kernel sends it when the *thread* that started the child
  ends; the thread of the event loop starts children, and it lasts as long as they are needed;
* a pipe whose write end only the parent has. A thread of the child reads it, and its end of file
  means the end of the parent.

In both cases the child ends immediately, as by SIGKILL: its server has ended, so no cleanup is
needed. A child that is useful without its parent for a while has a *grace*: its own pipe, which the
parent may close before it ends, and no signal; the child ends that many seconds later. In that time
it logs nothing, because the terminal may belong to another program.

``kit.io.process.orphans`` handles foreign programs (a check, a program under test, a child of the
agent).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

#: environment variable of a child, "PID:DESCRIPTOR:GRACE": its parent, its pipe, and its grace in
#: seconds
VARIABLE: Final = "SLICEPLANE_PARENT"
#: exit code of a child whose parent has ended; only a tracer can read it
EXIT_CODE: Final = 75
#: <linux/prctl.h>
_PR_SET_PDEATHSIG: Final = 1


class Lifeline(NamedTuple):
    """Arguments for the start of a child that calls ``end_with_parent``.

    ``write_end``: the end of the pipe of a child with a grace, whose close starts the grace; -1 for
    others.
    """

    environment: dict[str, str]
    descriptors: tuple[int, ...]
    write_end: int


def lifeline(grace_s: int = 0) -> Lifeline:
    """Returns ``env`` and ``pass_fds`` for the start of a child. With a grace it is for one child
    only, and the caller must close its descriptors. Raises ``OSError``.
    """
    read_end, write_end = os.pipe() if grace_s else (_pipe(os.getpid()), -1)
    return Lifeline(
        {**os.environ, VARIABLE: f"{os.getpid()}:{read_end}:{grace_s}"}, (read_end,), write_end
    )


@cache
def _pipe(_: int) -> int:
    """Returns the read end of this process's pipe; the write end stays open until the process has
    ended.
    """
    read_end, _write_end = os.pipe()
    return read_end


def end_with_parent() -> None:
    """Ends this child with its parent; the child calls it first. Without a ``lifeline`` it does
    nothing.
    """
    fields = os.environ.pop(VARIABLE, "").split(":")
    if len(fields) != 3 or not all(field.isdecimal() for field in fields):
        return
    pid, descriptor, grace_s = fields
    read_end = int(descriptor)
    try:
        os.set_inheritable(read_end, False)
    except OSError:  # the value came from elsewhere: there is no such descriptor
        return

    def wait() -> None:
        while os.read(read_end, 1):
            pass
        if int(grace_s):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            time.sleep(int(grace_s))

    if int(grace_s):
        _watch(wait)
    else:
        _end_with(int(pid), wait)


def end_with_pool(parent: int) -> None:
    """Ends a worker process of ``multiprocessing``, which has its own pipe, with its parent, whose
    id is *parent*.
    """
    from multiprocessing import parent_process  # imported here: most processes never need it

    owner = parent_process()
    assert owner is not None, "a worker has a parent"
    _end_with(parent, owner.join)


def _end_with(parent: int, wait: Callable[[], object]) -> None:
    _set_death_signal()
    if os.getppid() != parent:  # it ended before the death signal was set
        os._exit(EXIT_CODE)
    _watch(wait)


def _watch(wait: Callable[[], object]) -> None:
    def watch() -> None:
        try:
            wait()
        finally:
            os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _set_death_signal() -> None:
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):  # not Linux: only the pipe is used
        return
