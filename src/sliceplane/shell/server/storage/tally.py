"""What a database says of itself: one row that every transaction writes anew, and that proves what it says.

    tally(id = 0, text)      "slpl-tally REVISION ROWS TOTAL ACKNOWLEDGED DIGEST", numbers in hexadecimal

ROWS and TOTAL are the number of rows of ``history`` and the sum of their checksums, so they name the set of rows,
whatever the order is.  A database that is put together of pages of two moments (an older file under a newer log, an
older log over a newer file, a checkpoint whose log is gone) has a tally that is not that of its rows.

ACKNOWLEDGED is the newest revision that was on disk for certain when the transaction began.  A log that has lost its
end still has, in what follows the damage, the tallies of later transactions, and each proves what had been acknowledged
before it.  So they are looked for in the log's bytes (``proved``), whatever SQLite takes for its end.  A write that was
torn by a crash leaves no such proof of itself, as nothing began after it.

DIGEST is keyed with the history's number, which never leaves the database: bodies are in the log as well, and who
writes one must not be able to write a proof.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sliceplane.shell.server.storage.rows import Row, checksum_of

CREATE: Final = "CREATE TABLE tally (id INTEGER PRIMARY KEY CHECK (id = 0), text TEXT NOT NULL)"
SET: Final = "INSERT OR REPLACE INTO tally VALUES (0, ?)"
GET: Final = "SELECT text FROM tally WHERE id = 0"
#: rows, and the sum of their checksums, of a history that is there
COUNT: Final = "SELECT count(*), coalesce(sum(crc), 0) FROM history"

_PATTERN: Final = re.compile(rb"slpl-tally ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Tally:
    revision: int
    rows: int
    #: of their checksums
    total: int
    #: the newest revision that was on disk for certain before
    acknowledged: int

    def with_rows(self, rows: Iterable[Row], revision: int) -> Tally:
        """After an append of *rows* to what is acknowledged."""
        checksums = [checksum_of(row) for row in rows]
        return Tally(revision, self.rows + len(checksums), self.total + sum(checksums), self.revision)

    def without(self, rows: int, total: int) -> Tally:
        """After a compaction, which adds nothing."""
        return replace(self, rows=self.rows - rows, total=self.total - total)

    def encode(self, history: int) -> str:
        content = f"slpl-tally {self.revision:016x} {self.rows:016x} {self.total:016x} {self.acknowledged:016x}"
        return f"{content} {_digest(content.encode(), history)}"


def decode(text: str, history: int) -> Tally:
    """Raises ``ValueError`` if it is not a tally of this *history*."""
    match = _PATTERN.fullmatch(text.encode())
    tally = _proof(match, history) if match is not None else None
    if tally is None:
        raise ValueError("its tally is wrong")
    return tally


def proved(log: Path, history: int) -> int:
    """The newest revision that *log* proves to have been acknowledged; 0: none.  Raises ``OSError``."""
    with log.open("rb") as file:
        if not file.seek(0, 2):
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            tallies = (_proof(match, history) for match in _PATTERN.finditer(content))
            return max((tally.acknowledged for tally in tallies if tally is not None), default=0)


def _proof(match: re.Match[bytes], history: int) -> Tally | None:
    content = match[0][: -len(match[5]) - 1]
    if _digest(content, history).encode() != match[5]:
        return None
    return Tally(*(int(match[number], 16) for number in range(1, 5)))


def _digest(content: bytes, history: int) -> str:
    return hashlib.blake2b(content, digest_size=16, key=history.to_bytes(8, "big")).hexdigest()
