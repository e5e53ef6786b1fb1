"""Blocks of a recording back to lines, within bounds: a recording may come from a stranger.

A block is deflated lines of JSON. 160 kB of empty lists inflate to 160 MB of text, and these decode
to 10 GB of Python objects; so three things are bounded before anything is decoded: the inflated
size of a block, absolutely and as a multiple of its deflated size, and the number of values in it.
Values are counted from above, at the speed of C: before each is a comma, a colon, a bracket or the
end of a line.

Names and objects of a whole segment are in memory together, so their number is bounded, too: by the
deflated bytes that a file spends on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from sliceplane.watch.recorder.entries import BlockNames

#: bytes of one inflated block; a recorder ends one at 256 KiB, or with one object that is larger
BLOCK_BYTES_MAX: Final = 64 << 20
#: inflated bytes for each deflated one, beyond the first ones; recorders reach 30
RATIO_MAX: Final = 64
BLOCK_BYTES_FREE: Final = 1 << 20
#: values in one block: 80 bytes of memory each, at most; an Endpoints of 1.5 MiB has 300,000
VALUES_MAX: Final = 1_000_000
#: names or objects of one segment that are kept whatever its size; then one for so many deflated
#: bytes
NAMES_FREE: Final = 20_000
BYTES_PER_NAME_MIN: Final = 2

#: what is before a value
_SEPARATORS: Final = b",:[{\n"
_decode_names: Final = msgspec.json.Decoder(BlockNames).decode
_decode_lines: Final = msgspec.json.Decoder(list[Any]).decode_lines


class RecordingError(Exception):
    """A sentence: why nothing of it can be read."""


def inflated(block: bytes) -> bytes:
    """Raises ``RecordingError`` for a block that is spoiled or too large."""
    bytes_max = min(BLOCK_BYTES_MAX, max(BLOCK_BYTES_FREE, RATIO_MAX * len(block)))
    inflating = zlib.decompressobj()
    try:
        raw = inflating.decompress(block, bytes_max + 1)
    except zlib.error as error:
        raise RecordingError(f"a block of it is spoiled: {error}") from error
    if len(raw) > bytes_max:
        raise RecordingError(f"a block of {len(block):,} bytes inflates to more than {bytes_max:,}")
    if not inflating.eof:
        raise RecordingError("a block of it is cut")
    return raw


def check_values(raw: bytes, values_max: int = VALUES_MAX) -> bytes:
    """Returns *raw*, which is JSON.  Raises ``RecordingError`` if it may have more than
    *values_max* values.
    """
    if len(raw) > values_max and len(raw) - len(raw.translate(None, _SEPARATORS)) > values_max:
        raise RecordingError(f"a part of it has more than {values_max:,} values")
    return raw


def lines_of(block: bytes) -> list[list[Any]]:
    """Raises ``RecordingError``, and ``ValueError`` for what is no list of lines."""
    lines: list[list[Any]] = _decode_lines(check_values(inflated(block)))
    return lines


def objects_of(blocks: Sequence[bytes]) -> Iterator[list[Any]]:
    """The lines of a checkpoint, of which there are no more than its deflated size allows."""
    count = 0
    for block in blocks:
        lines = lines_of(block)
        count += len(lines)
        _check_count(count, blocks)
        yield from lines


def names_of(blocks: Sequence[bytes]) -> list[BlockNames]:
    """As ``objects_of``."""
    block_names: list[BlockNames] = []
    count = 0
    for block in blocks:
        names = _decode_names(check_values(inflated(block)))
        count += len(names.touched) + len(names.planned)
        _check_count(count, blocks)
        block_names.append(names)
    return block_names


def _check_count(count: int, blocks: Iterable[bytes]) -> None:
    if count > NAMES_FREE and count > NAMES_FREE + sum(map(len, blocks)) // BYTES_PER_NAME_MIN:
        raise RecordingError(
            f"a segment of it has more than {count:,} names, which no recorder writes so short"
        )
