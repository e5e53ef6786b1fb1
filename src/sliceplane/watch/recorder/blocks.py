"""Blocks of a recording back to rows, within bounds: a recording may come from a stranger.

A block is deflated MessagePack. 160 kB of zeros and empty lists inflate to 160 MB of bytes, and
these decode to 10 GB of Python objects; so three things are bounded before anything is decoded: the
inflated size of a block, absolutely and as a multiple of its deflated size, and the number of
values in it. Values are counted from above, at the speed of C: each MessagePack value but a small
integer begins with a byte above 0x7f, and text hardly has such bytes.

Names and objects of a whole segment are in memory together, so their number is bounded, too: by the
deflated bytes that a file spends on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from sliceplane.watch.recorder.entries import BlockNames

#: bytes of one inflated block; the largest that a recorder makes has 64 objects of 1 MiB
BLOCK_BYTES_MAX: Final = 64 << 20
#: inflated bytes for each deflated one, beyond the first ones; recorders reach 25
RATIO_MAX: Final = 64
BLOCK_BYTES_FREE: Final = 1 << 20
#: values in one block: 80 bytes of memory each, at most
VALUES_MAX: Final = 2_000_000
#: values in one object that is encoded whole; an Endpoints of 1.5 MiB has 300,000
OBJECT_VALUES_MAX: Final = 500_000
#: names, texts or objects of one segment that are kept whatever its size; then one for so many
#: deflated bytes
NAMES_FREE: Final = 20_000
BYTES_PER_NAME_MIN: Final = 4

#: first bytes of values that take memory
_ASCII_ONLY: Final = bytes(range(0x80, 0x100))
_unpack_names: Final = msgspec.msgpack.Decoder(BlockNames).decode
_unpack_rows: Final = msgspec.msgpack.Decoder(list[list[Any]]).decode


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
    """Returns *raw*, which is MessagePack.  Raises ``RecordingError`` if it may have more than
    *values_max* values.
    """
    if len(raw) > values_max and len(raw) - len(raw.translate(None, _ASCII_ONLY)) > values_max:
        raise RecordingError(f"a part of it has more than {values_max:,} values")
    return raw


def rows_of(block: bytes) -> list[list[Any]]:
    """Raises ``RecordingError``, and ``ValueError`` for what is no list of rows."""
    return _unpack_rows(check_values(inflated(block)))


def rows_of_all(blocks: Sequence[bytes]) -> Iterator[list[Any]]:
    """The rows of a checkpoint, of which there are no more than its deflated size allows."""
    count = 0
    for block in blocks:
        rows = rows_of(block)
        count += len(rows)
        _check_count(count, blocks)
        yield from rows


def names_of_all(blocks: Sequence[bytes]) -> list[BlockNames]:
    """As ``rows_of_all``."""
    made: list[BlockNames] = []
    count = 0
    for block in blocks:
        names = _unpack_names(check_values(inflated(block)))
        count += len(names.keys) + len(names.texts) + (len(names.touched) + len(names.planned)) // 8
        _check_count(count, blocks)
        made.append(names)
    return made


def _check_count(count: int, blocks: Iterable[bytes]) -> None:
    if count > NAMES_FREE and count > NAMES_FREE + sum(map(len, blocks)) // BYTES_PER_NAME_MIN:
        raise RecordingError(
            f"a segment of it has more than {count:,} names, which no recorder writes so short"
        )
