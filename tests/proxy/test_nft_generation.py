"""What the kernel answers when asked for the generation of its rules."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.node.io.kernel.nft_netlink import parse_generation


def message(kind: int, *attributes: tuple[int, bytes]) -> bytes:
    body = struct.pack("=BBH", 0, 0, 0)
    for name, value in attributes:
        body += struct.pack("=HH", 4 + len(value), name) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def test_the_number_is_found_among_other_attributes() -> None:
    answer = message(10 << 8 | 15, (3, b"nft\0extra"), (1, (77).to_bytes(4, "big")), (2, bytes(4)))
    assert parse_generation(answer) == 77


def test_an_error_says_nothing() -> None:
    assert parse_generation(message(2, (1, (77).to_bytes(4, "big")))) is None
    assert parse_generation(message(10 << 8 | 15, (2, bytes(4)))) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_read_to_their_end(noise: bytes) -> None:
    parse_generation(noise)
    parse_generation(message(10 << 8 | 15) + noise)
