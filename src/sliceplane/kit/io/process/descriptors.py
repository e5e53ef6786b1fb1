"""File descriptors: every connection, pipe and socket uses one, and their number is limited
(``RLIMIT_NOFILE``).

Exhaustion of descriptors, or of the kernel's memory for them, must not end a process, and is
reported with a remedy. Descriptors that clients can cause (connections to pages, ports of Services)
are limited to a share, so the rest stays available for the process's own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import time
from typing import Any

from sliceplane.kit.io.log import get_logger

#: too many descriptors in this process, or on the whole machine
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
REPORT_AGAIN_S = 60.0

_DESCRIPTORS = "out of file descriptors; what needs one waits until there are some again"
_MEMORY = (
    "the kernel has no memory for a socket or process; what needs one waits until there is some "
    "again"
)
_RAISE = "raise the limit (ulimit -n, LimitNOFILE= of systemd), or find what holds so many"
#: log message and remedy by error number
_MESSAGES = {
    errno.EMFILE: (_DESCRIPTORS, _RAISE),
    errno.ENFILE: (_DESCRIPTORS, "raise fs.file-max, or find what on this machine holds so many"),
    errno.ENOMEM: (_MEMORY, "give the machine or its control group more memory"),
    errno.ENOBUFS: (_MEMORY, "give the machine or its control group more memory"),
}

_log = get_logger("descriptors")


def limit() -> int:
    """Returns the maximum number of descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> None:
    """Raises the soft limit, which is often 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _ExhaustionReporter:
    """Reports exhaustion at most once per period and error: a process without descriptors fails
    many times a second.
    """

    def __init__(self) -> None:
        self._reported_at: dict[int, float] = {}

    def report(self, error: BaseException, what: str) -> bool:
        """Returns True if *error* means a lack of descriptors or memory, and occasionally logs that
        *what* failed.
        """
        message = _MESSAGES.get(error.errno or 0) if isinstance(error, OSError) else None
        if message is None:
            return False
        assert isinstance(error, OSError), "it has words"
        now = time.monotonic()
        code = error.errno or 0
        if now - self._reported_at.get(code, -REPORT_AGAIN_S) >= REPORT_AGAIN_S:
            self._reported_at[code] = now
            sentence, advice = message
            _log.error(sentence, failed=what, limit=limit(), advice=advice)
        return True


_reporter = _ExhaustionReporter()
report = _reporter.report


def report_exhaustion(loop: asyncio.AbstractEventLoop) -> None:
    """Makes *loop* report connections that it cannot accept in one line, instead of a traceback for
    each.
    """

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or not report(
            error, str(context.get("message", "accept")).partition("\n")[0]
        ):
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
