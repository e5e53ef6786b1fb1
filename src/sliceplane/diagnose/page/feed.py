"""One view, shown to any number of tabs: the whole once for each that comes, differences for those
that stay.

A message is a line of JSON. ``view`` has everything, ``delta`` what changed since the message
before (parts whole, tables by row); both are numbered. What a feed remembers is bounded in messages
and in bytes: a reader that has missed more than that has to load the view anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.diagnose.page.tables import PageTable, difference

REMEMBERED_MESSAGES: Final = 64
REMEMBERED_BYTES: Final = 4_000_000


class PageView(msgspec.Struct, frozen=True):
    """``command`` prints the same.  ``parts``: JSON by name; ``tables``: rows by name."""

    name: str
    command: str
    parts: Mapping[str, Any]
    tables: Mapping[str, PageTable]


def line(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(document) + b"\n"


class FeedMessages(NamedTuple):
    """The messages that a feed keeps. ``number`` is that of the last message; 0: no model yet."""

    number: int
    deltas: tuple[bytes, ...]

    def after(self, number: int) -> tuple[bytes, ...] | None:
        """Returns the messages after *number*; ``None`` if some are no longer kept."""
        missed = self.number - number
        if missed > len(self.deltas):
            return None
        return self.deltas[len(self.deltas) - missed :]


class ViewFeed:
    """Owned by whoever shows the view; ``said`` may be read by other threads."""

    def __init__(self) -> None:
        self.said = FeedMessages(0, ())
        self._view: PageView | None = None
        self._at = 0.0
        self._whole = b""
        self._deltas: deque[bytes] = deque()
        self._bytes = 0

    @property
    def number(self) -> int:
        return self.said.number

    def show(self, view: PageView, at: float) -> bool:
        """*view* is what was so *at* that time.  Whether it says anything new."""
        before = self._view
        self._at = at
        if before is not None and _is_kin(before, view):
            delta = _delta(before, view)
            if delta is None:
                self._view = view
                return False
            self._remember(line({"type": "delta", "number": self.number + 1, "at": at, **delta}))
        else:
            self._deltas.clear()
            self._bytes = 0
        self._view = view
        self._whole = b""
        self.said = FeedMessages(self.number + 1, tuple(self._deltas))
        return True

    def whole(self) -> bytes:
        """The last view as one message."""
        assert self._view is not None, "nothing was shown yet"
        if not self._whole:
            self._whole = line(
                {
                    "type": "view",
                    "number": self.number,
                    "at": self._at,
                    "name": self._view.name,
                    "command": self._view.command,
                    "parts": self._view.parts,
                    "tables": {
                        name: table.as_document() for name, table in self._view.tables.items()
                    },
                }
            )
        return self._whole

    def _remember(self, message: bytes) -> None:
        self._deltas.append(message)
        self._bytes += len(message)
        while len(self._deltas) > REMEMBERED_MESSAGES or self._bytes > REMEMBERED_BYTES:
            self._bytes -= len(self._deltas.popleft())

    def check(self) -> None:
        """Asserts the invariants."""
        assert len(self._deltas) <= min(REMEMBERED_MESSAGES, self.number)
        assert self.said.deltas == tuple(self._deltas)
        assert self._bytes == sum(map(len, self._deltas)) <= REMEMBERED_BYTES


def _is_kin(before: PageView, after: PageView) -> bool:
    """A difference can be told."""
    return (before.name, before.tables.keys()) == (after.name, after.tables.keys()) and all(
        before.tables[name].columns == table.columns for name, table in after.tables.items()
    )


def _delta(before: PageView, after: PageView) -> dict[str, Any] | None:
    parts = {
        name: part
        for name, part in after.parts.items()
        if name not in before.parts or before.parts[name] != part
    }
    parts |= {name: None for name in before.parts if name not in after.parts}
    rows = {name: difference(before.tables[name], table) for name, table in after.tables.items()}
    told = {name: change for name, change in rows.items() if change is not None}
    command = {"command": after.command} if after.command != before.command else {}
    if not parts and not told and not command:
        return None
    return {"parts": parts, "tables": told, **command}
