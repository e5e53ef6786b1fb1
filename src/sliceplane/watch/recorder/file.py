"""The saved form: JSON lines. The first says what it is, each other has its own checksum, the last
how many there are::

    {"recording": 3, "program": "...", "component": "...", "saved": ..., "reason": "...", ...}
    {"crc": ..., "part": ["segment", 3, ...]}
    {"crc": ..., "part": ["objects", 3, "..."]}
    {"crc": ..., "part": ["names", 3, "..."]}
    {"crc": ..., "part": ["entries", 3, "..."]}
    {"end": 4, "crc": ...}

The text of a part is a block of lines, as the ring has it: JSON, deflated, in base64. So a file
that was cut, or that a disk spoiled, is read up to the first line that is not right, and says so
(``Recording.problem``). A file of another format is refused; one of another version of the program
is read, since members have names.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final
from zlib import crc32

import msgspec

from sliceplane.watch.recorder.blocks import RecordingError
from sliceplane.watch.recorder.entries import FORMAT
from sliceplane.watch.recorder.ring import LoopState, Segment

#: a line that is longer was not made by us; the longest is a block with a few objects of 1.5 MiB
#: each
LINE_BYTES_MAX: Final = 64 << 20
#: of the first line: names of members, flags
HEADER_BYTES_MAX: Final = 1 << 20
#: of a file, and of an answer; what is read of it stays in memory
FILE_BYTES_MAX: Final = 1 << 30

_json: Final = msgspec.json.Encoder().encode


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """``settings``: with which flags the controllers ran, for ``replay``.  ``saved`` is seconds
    since the epoch.
    """

    recording: int = FORMAT
    program: str = ""
    component: str = ""
    host: str = ""
    saved: float = 0.0
    reason: str = ""
    settings: dict[str, Any] = {}
    #: how many are in it, and how many the ring let go before
    entries: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class Recording:
    """``problem``: why it ends before its end; "" for a whole one."""

    header: Header
    segments: list[Segment]
    problem: str = ""


class _Line(msgspec.Struct):
    crc: int
    part: msgspec.Raw = msgspec.Raw()
    end: int = -1


def write_lines(header: Header, segments: Sequence[Segment]) -> Iterator[bytes]:
    """The lines of a file, each with its newline."""
    yield _json(header) + b"\n"
    lines = 0
    total = 0
    for segment in segments:
        loops = [(loop.number, loop.name, loop.synced, loop.busy) for loop in segment.loops]
        yield (line := _line(("segment", segment.number, segment.began, segment.whole, loops)))
        lines, total = lines + 1, crc32(line, total)
        parts = [("objects", block) for block in segment.checkpoint]
        for names, block in zip(segment.names, segment.blocks, strict=True):
            parts += (("names", names), ("entries", block))
        for name, block in parts:
            yield (line := _line((name, segment.number, b64encode(block).decode())))
            lines, total = lines + 1, crc32(line, total)
    yield b'{"end":%d,"crc":%d}\n' % (lines, total)


def _line(part: Any) -> bytes:
    text = _json(part)
    return b'{"crc":%d,"part":%b}\n' % (crc32(text), text)


def read_header(line: bytes) -> Header:
    """Raises ``RecordingError``."""
    if len(line) > HEADER_BYTES_MAX:
        raise RecordingError(
            f"this is no recording: its first line has more than {HEADER_BYTES_MAX:,} bytes"
        )
    try:
        first = msgspec.json.decode(line)
        header = msgspec.json.decode(line, type=Header)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"this is no recording: its first line is {line[:60]!r}") from error
    if "recording" not in first:
        raise RecordingError("this is no recording: its first line does not say so")
    if header.recording != FORMAT:
        raise RecordingError(
            f"this recording has format {header.recording}, made by sliceplane "
            f"{header.program or '?'}; "
            f"this is format {FORMAT}: read it with that version"
        )
    return header


def read_lines(lines: Iterable[bytes]) -> Recording:
    """Reads the valid part of *lines*.  Raises ``RecordingError`` if there is none."""
    source = iter(lines)
    first = next(source, b"")
    if not first:
        raise RecordingError("the file is empty")
    recording = Recording(read_header(first), [])
    total = 0
    number = 0
    for line in source:
        number += 1
        where = f"line {number + 1}"
        if len(line) > LINE_BYTES_MAX:
            recording.problem = (
                f"{where} has more than {LINE_BYTES_MAX:,} bytes; what follows it is lost"
            )
            return recording
        try:
            read = msgspec.json.decode(line, type=_Line)
        except (ValueError, RecursionError):
            recording.problem = f"{where} is cut or spoiled; what follows it is lost"
            return recording
        if read.end >= 0:
            if read.end != number - 1 or read.crc != total:
                recording.problem = f"it ends with {number - 1} lines where {read.end} were written"
            return recording
        if crc32(bytes(read.part)) != read.crc:
            recording.problem = (
                f"{where} has another checksum than it was written with; what follows it is lost"
            )
            return recording
        total = crc32(line, total)
        try:
            _take(recording, msgspec.json.decode(read.part))
        except (ValueError, TypeError, LookupError, RecursionError):
            recording.problem = f"{where} is no part of a recording; what follows it is lost"
            return recording
    recording.problem = f"it ends after line {number + 1} without its last line: it was cut"
    return recording


def _take(recording: Recording, part: list[Any]) -> None:
    kind, number, *rest = part
    if kind == "segment":
        began, whole, loops = rest
        if not isfinite(began):
            raise ValueError("a segment begins at a time")
        states = tuple(
            LoopState(loop, name, synced, tuple(busy)) for loop, name, synced, busy in loops
        )
        recording.segments.append(Segment(number, float(began), states, whole))
        return
    segment = recording.segments[-1]
    blocks = {"objects": segment.checkpoint, "names": segment.names, "entries": segment.blocks}
    blocks[kind].append(b64decode(rest[0]))
