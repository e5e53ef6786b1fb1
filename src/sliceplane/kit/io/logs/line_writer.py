"""Writes lines to a file that may be slow, full, or unread: a caller never waits.

``put`` appends to a queue; a thread takes the queued lines in batches and writes them. Only that
thread accesses the file: a terminal stopped with ^S, a pipe without a reader, a FIFO that is not
open, or a hung network file system blocks that thread and nothing else. The queue has a bound in
bytes; lines beyond it, and lines that the file refuses, are lost and counted.

The thread is a daemon and starts with the first line. At the end ``close`` gives it a few seconds
to write the queue; a log never keeps a finished process alive.

``logging.handlers.QueueHandler`` with its listener is similar, but its bound counts records instead
of bytes, and its ``stop`` waits for ever.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

#: bytes of one batch of lines
RUN_BYTES_MAX = 256 * 1024


class LineWriter:
    """Owns the queue and the thread; *write* owns the file. ``put`` and ``close`` may be called
    from any thread.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[bytes]], int],
        *,
        bytes_max: int,
        at_start: Callable[[], object] = lambda: None,
    ) -> None:
        """*write* is called in the thread with a batch of lines; it returns the number of lost
        ones, and raises ``OSError`` if all are lost. *at_start* is called there once, before
        anything else: it may open the file.
        """
        self._name = name
        self._write = write
        self._at_start = at_start
        self._bytes_max = bytes_max
        self._lines: deque[bytes] = deque()
        #: bytes of queued lines, and of lines that are being written
        self._waiting_bytes = 0
        self._lost = 0
        self._writing = self._closing = False
        self._thread: threading.Thread | None = None
        #: guards all of the above, and signals new work, completion and the end
        self._changed = threading.Condition()

    @property
    def lost(self) -> int:
        """The number of lines that were lost since the beginning."""
        return self._lost

    def start(self) -> None:
        """Starts the thread if it does not run yet."""
        with self._changed:
            self._start()

    def put(self, line: bytes) -> bool:
        """Queues one line, its newline included; returns False if there is no room."""
        with self._changed:
            if self._waiting_bytes + len(line) > self._bytes_max or self._closing:
                self._lost += 1
                return False
            self._waiting_bytes += len(line)
            self._lines.append(line)
            with contextlib.suppress(
                RuntimeError
            ):  # no further thread is possible: the next line tries again
                self._start()
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Waits until the queue is empty, at most *timeout_s*; returns True if it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Writes the queue for at most *timeout_s*; later lines are lost. Returns True if the
        thread has ended.
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
        """Starts the thread; the caller holds the lock. Raises ``RuntimeError`` if no thread is
        possible.
        """
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
        """Takes the next batch and its size; the caller holds the lock."""
        run: list[bytes] = []
        size = 0
        while self._lines and (not run or size + len(self._lines[0]) <= RUN_BYTES_MAX):
            run.append(self._lines.popleft())
            size += len(run[-1])
        self._writing = bool(run)
        return run, size
