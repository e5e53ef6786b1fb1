"""Child processes of this program that end with their parent, whatever ends it: SIGKILL and the OOM
killer included.

A child that runs our own code ends itself, by two means that do not depend on each other:

* the kernel's parent-death signal (``prctl(2)``, ``PR_SET_PDEATHSIG``), where there is one. It
  reaches a child that is stopped or busy too. The kernel sends it when the *thread* that started
  the child ends; children are started by the thread of the event loop, which lasts as long as what
  the children are for;
* a pipe whose write end only the parent has. A thread of the child reads it, and its end is the
  parent's end.

Either way the child ends at once, as by SIGKILL: its server is gone, so there is nothing to sign
off from. A child that is useful without its parent for a while has a *grace*: a pipe of its own,
which the parent may close before it ends, and no signal; the child ends so many seconds later.
Meanwhile it logs nothing: the terminal is others' by then.

A foreign program (a check, a program under test, a child of the agent) knows neither:
``kit.io.process.orphans``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

#: in a child's environment: "PID:DESCRIPTOR:GRACE" of its parent, of the pipe, and in seconds
VARIABLE: Final = "SLICEPLANE_PARENT"
#: of a child whose parent is gone; nobody is left to read it, but a tracer
EXIT_CODE: Final = 75
#: <linux/prctl.h>
_PR_SET_PDEATHSIG: Final = 1


class Lifeline(NamedTuple):
    """Arguments for the start of a child that calls ``end_with_parent``.

    ``write_end``: of a child with a grace, the end of its pipe whose close lets it go; -1 for others.
    """

    environment: dict[str, str]
    descriptors: tuple[int, ...]
    write_end: int


def lifeline(grace_s: int = 0) -> Lifeline:
    """For ``env`` and ``pass_fds`` of a child's start. With a grace it is for one child alone, and
    its descriptors are the caller's to close. Raises ``OSError``.
    """
    read_end, write_end = os.pipe() if grace_s else (_pipe(os.getpid()), -1)
    return Lifeline(
        {**os.environ, VARIABLE: f"{os.getpid()}:{read_end}:{grace_s}"}, (read_end,), write_end
    )


@cache
def _pipe(_: int) -> int:
    """The read end of this process's pipe; the write end stays open until the process has ended."""
    read_end, _write_end = os.pipe()
    return read_end


def end_with_parent() -> None:
    """In the child, before anything else: nothing, for a process that was started without a
    ``lifeline``.
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
    """The same in a worker process of ``multiprocessing``, which has a pipe of its own; *parent* is
    its parent's id.
    """
    from multiprocessing import parent_process  # which most processes never need

    owner = parent_process()
    assert owner is not None, "a worker has a parent"
    _end_with(parent, owner.join)


def _end_with(parent: int, wait: Callable[[], object]) -> None:
    _set_death_signal()
    if os.getppid() != parent:  # it ended before the kernel knew what to do
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
    except (ImportError, OSError, AttributeError):  # another kernel than Linux: the pipe alone
        return
