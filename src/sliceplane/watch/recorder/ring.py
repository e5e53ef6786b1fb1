"""A ring of bytes: the newest segments of a recording, each of which can be read without those
before it.

A segment is what was true when it began (the *checkpoint*: every object, every controller loop,
its unfinished jobs) and the rows since. The oldest segment goes when all of them together are too
many bytes; the newest never does, so the ring keeps less than its limit by one segment at the most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

SEGMENT_BYTES: Final = 8 << 20
#: a ring has this many segments at least, or there would be nothing to let go of
SEGMENTS_MIN: Final = 4


class LoopState(msgspec.Struct, frozen=True):
    """A controller loop as it was when a segment began."""

    number: int
    name: str
    synced: bool
    busy: tuple[str, ...]


@dataclass(slots=True)
class Segment:
    """``checkpoint`` and ``blocks`` are encoded rows, ``names`` those of the blocks.

    ``whole``: the checkpoint is there, or nothing was before.
    """

    number: int
    began: float
    loops: tuple[LoopState, ...]
    whole: bool = True
    checkpoint: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    checkpoint_bytes: int = 0
    size_bytes: int = 0
    entries: int = 0


class Ring:
    """Owned by one recorder."""

    def __init__(self, limit_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        assert limit_bytes > 0, f"a ring of {limit_bytes} bytes"
        self.limit_bytes: Final = limit_bytes
        self._segment_bytes = min(segment_bytes, limit_bytes // SEGMENTS_MIN)
        self.segments: deque[Segment] = deque()
        self.size_bytes = 0
        #: entries that were let go
        self.forgotten = 0

    @property
    def newest(self) -> Segment:
        return self.segments[-1]

    @property
    def entries(self) -> int:
        return sum(segment.entries for segment in self.segments)

    def begin(self, began: float, loops: tuple[LoopState, ...], *, whole: bool) -> Segment:
        number = self.segments[-1].number + 1 if self.segments else 0
        segment = Segment(number, began, loops, whole)
        self.segments.append(segment)
        return segment

    def add(self, names: bytes, block: bytes, entries: int) -> None:
        segment = self.newest
        segment.names.append(names)
        segment.blocks.append(block)
        segment.entries += entries
        self._grow(segment, len(names) + len(block))

    def add_checkpoint(self, segment: Segment, block: bytes) -> None:
        segment.checkpoint.append(block)
        segment.checkpoint_bytes += len(block)
        self._grow(segment, len(block))

    def _grow(self, segment: Segment, size: int) -> None:
        segment.size_bytes += size
        self.size_bytes += size
        while self.size_bytes > self.limit_bytes and len(self.segments) > 1:
            oldest = self.segments.popleft()
            self.size_bytes -= oldest.size_bytes
            self.forgotten += oldest.entries

    def is_full(self, *, at_rest: bool) -> bool:
        """The newest segment should end; *at_rest* is a good moment, as no job is under way."""
        segment = self.newest
        # A checkpoint that is large is made seldom: it must not be most of what is kept.
        due = max(self._segment_bytes, min(2 * segment.checkpoint_bytes, self.limit_bytes // 2))
        grown = segment.size_bytes - segment.checkpoint_bytes
        return (
            grown >= (due if at_rest else due + due // 2) or segment.size_bytes >= self.limit_bytes
        )

    def affords(self, checkpoint_bytes: int) -> bool:
        """Returns True if a checkpoint of about that size leaves room for later entries."""
        return checkpoint_bytes <= self.limit_bytes // 2

    def check(self) -> None:
        assert self.size_bytes == sum(segment.size_bytes for segment in self.segments), (
            "bytes are miscounted"
        )
        for segment in self.segments:
            blocks = sum(
                sum(map(len, part)) for part in (segment.checkpoint, segment.names, segment.blocks)
            )
            assert segment.size_bytes == blocks, f"segment {segment.number} has {blocks} bytes"
        assert self.size_bytes <= self.limit_bytes or len(self.segments) == 1, (
            f"{self.size_bytes} bytes are kept"
        )
