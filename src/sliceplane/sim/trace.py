"""What happened, one line an event: virtual time, actor, verb, object, result, revision.

Two runs are the same exactly if their digests are.  The lines of an object's story are found by ``about``.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

#: lines kept for ``about`` when nobody wants them all
KEPT_LINES_MAX = 20_000


class Trace:
    """Owned by one simulation; *sink* gets every line, with its newline."""

    def __init__(self, began: float, sink: Callable[[str], object] | None = None) -> None:
        self._began = began
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)
        self._kept: deque[str] = deque(maxlen=KEPT_LINES_MAX)
        self.lines = 0

    def note(self, now: float, actor: str, verb: str, what: str, result: str = "", *, revision: int = 0) -> None:
        at = f"{now - self._began:12.6f}"
        line = f"{at} {actor} {verb} {what} {result or '-'} {revision or '-'}"
        self.lines += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self._kept.append(line)
        if self._sink is not None:
            self._sink(line + "\n")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def about(self, subject: str, most: int = 20) -> tuple[str, ...]:
        """The newest *most* lines in which *subject* is named; the newest of all if it never is."""
        found = [line for line in self._kept if subject in line] if subject else []
        return tuple((found or list(self._kept))[-most:])
