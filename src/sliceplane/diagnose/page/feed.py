"""One view for any number of tabs: a new tab receives all of it once, then differences.

A message is a line of JSON. ``view`` has everything, ``delta`` the changes since the previous
message (complete parts, tables by row); both are numbered. The messages that a feed keeps are
bounded in number and bytes: a reader that has missed more must reload the view.
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
    """``command`` prints the same content. ``parts``: JSON by name; ``tables``: rows by name."""

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
    """The feed of one view. Owned by the hub; other threads may read ``messages``."""

    def __init__(self) -> None:
        self.messages = FeedMessages(0, ())
        self._view: PageView | None = None
        self._at = 0.0
        self._whole = b""
        self._deltas: deque[bytes] = deque()
        self._bytes = 0

    @property
    def number(self) -> int:
        return self.messages.number

    def show(self, view: PageView, at: float) -> bool:
        """Takes the model *view* of the time *at*. Returns True if it differs from the last one."""
        before = self._view
        self._at = at
        if before is not None and _is_comparable(before, view):
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
        self.messages = FeedMessages(self.number + 1, tuple(self._deltas))
        return True

    def whole(self) -> bytes:
        """Returns the last view as one message."""
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
        assert self.messages.deltas == tuple(self._deltas)
        assert self._bytes == sum(map(len, self._deltas)) <= REMEMBERED_BYTES


def _is_comparable(before: PageView, after: PageView) -> bool:
    """Returns True if a difference between the two can be encoded."""
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
    tables = {name: change for name, change in rows.items() if change is not None}
    command = {"command": after.command} if after.command != before.command else {}
    if not parts and not tables and not command:
        return None
    return {"parts": parts, "tables": tables, **command}
