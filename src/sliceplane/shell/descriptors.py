"""File descriptors: every connection, pipe and socket is one, and a process has only so many (``RLIMIT_NOFILE``).

Running out must not end a process, and is told with what to do.  What strangers can open (connections to pages, ports
that Services ask for) gets a share, so that the rest is there for what the process is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import time
from typing import Any

from sliceplane.shell.log import get_logger

#: too many in this process, or on the whole machine
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
TELL_AGAIN_SECONDS = 60.0
ADVICE = "raise the limit (ulimit -n, LimitNOFILE= of systemd, or fs.file-max), or find what holds so many"

_log = get_logger("descriptors")


def limit() -> int:
    """How many this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> None:
    """To what the administrator allows; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Teller:
    """Owns the moment at which it was last told: a process without descriptors fails many times a second."""

    def __init__(self) -> None:
        self._told_at = -TELL_AGAIN_SECONDS

    def tell(self, error: BaseException, what: str) -> bool:
        """Log that *what* failed, now and then, if it is for lack of descriptors; whether it is."""
        if not isinstance(error, OSError) or error.errno not in EXHAUSTED:
            return False
        now = time.monotonic()
        if now - self._told_at >= TELL_AGAIN_SECONDS:
            self._told_at = now
            why = "the process" if error.errno == errno.EMFILE else "the machine"
            _log.error(
                "out of file descriptors; what needs one waits until there are some again",
                failed=what,
                who=why,
                limit=limit(),
                advice=ADVICE,
            )
        return True


_teller = _Teller()
tell = _teller.tell


def tell_of_exhaustion(loop: asyncio.AbstractEventLoop) -> None:
    """Have *loop* tell in one line of connections that it cannot accept, where it would show a traceback for each
    try."""

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or not tell(error, str(context.get("message", "accept"))):
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
