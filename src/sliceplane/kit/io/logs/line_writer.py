"""Lines for a file that may be slow, full, or read by no one: a caller never waits.

``put`` appends to a queue; a thread takes what waits there, a run of lines at a time, and writes
it. Only that thread ever meets the file: a terminal stopped with ^S, a pipe without a reader, a
FIFO that is not even open, a hung network file system hold up it and nothing else. The queue has a
bound in bytes; what comes beyond it is lost and counted, and so is what the file refuses.

The thread is a daemon and starts with the first line. At the end ``close`` gives it a few seconds
to write what waits; a process does not outlive its work because of its log.

``logging.handlers.QueueHandler`` with its listener is the same idea without what matters here: its
bound counts records and not bytes, and its ``stop`` waits for ever.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

#: of the lines that are handed to the file at a time
RUN_BYTES_MAX = 256 * 1024


class LineWriter:
    """Owns the queue and the thread; *write* owns the file.  ``put`` and ``close`` from any
    thread.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[bytes]], int],
        *,
        bytes_max: int,
        at_start: Callable[[], object] = lambda: None,
    ) -> None:
        """*write* is called in the thread with a run of lines; it returns how many of them are
        lost, and raises ``OSError`` if all are. *at_start* is called there once, before anything
        else: it may open the file.
        """
        self._name = name
        self._write = write
        self._at_start = at_start
        self._bytes_max = bytes_max
        self._lines: deque[bytes] = deque()
        #: of lines that wait, and of those that are being written
        self._waiting_bytes = 0
        self._lost = 0
        self._writing = self._closing = False
        self._thread: threading.Thread | None = None
        #: guards all of the above and says that there is work, that it is done, or that it is over
        self._changed = threading.Condition()

    @property
    def lost(self) -> int:
        """Lines that were not written, since the beginning."""
        return self._lost

    def start(self) -> None:
        """Start the thread now, if it does not run yet."""
        with self._changed:
            self._start()

    def put(self, line: bytes) -> bool:
        """Queue one line, its end included; whether there was room."""
        with self._changed:
            if self._waiting_bytes + len(line) > self._bytes_max or self._closing:
                self._lost += 1
                return False
            self._waiting_bytes += len(line)
            self._lines.append(line)
            with contextlib.suppress(
                RuntimeError
            ):  # no room for one more thread: the next line tries again
                self._start()
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing waits, for *timeout_s* at most; whether that came about."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for *timeout_s* at most; later lines are lost.  Whether the thread has
        ended.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _start(self) -> None:
        """With the lock held.  Raises ``RuntimeError`` where no thread can be had."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        self._at_start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                run, size = self._take()
            if not run:
                return
            try:
                lost = self._write(run)
            except OSError:
                lost = len(run)
            with self._changed:
                self._lost += lost
                self._waiting_bytes -= size
                self._writing = False
                self._changed.notify_all()

    def _take(self) -> tuple[list[bytes], int]:
        """With the lock held: what is written next, and its size."""
        run: list[bytes] = []
        size = 0
        while self._lines and (not run or size + len(self._lines[0]) <= RUN_BYTES_MAX):
            run.append(self._lines.popleft())
            size += len(run[-1])
        self._writing = bool(run)
        return run, size
