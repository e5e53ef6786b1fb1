"""Fields by hand: read back as written, defaults left out, and any octets are a message or an
error.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.protobuf import MalformedProtobuf
from sliceplane.xds.wire import (
    any_of,
    as_bytes,
    as_integer,
    as_text,
    collect,
    fields,
    head,
    integer,
    message,
    text,
    wrapped,
)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1023), st.one_of(st.integers(1, 2**64 - 1), st.binary(max_size=300))
        )
    )
)
def test_fields_are_read_as_they_were_written(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        integer(at, value) if isinstance(value, int) else message(at, value)
        for at, value in written
    )
    assert list(fields(data)) == written


@given(st.binary(max_size=200))
def test_any_octets_are_a_message_or_malformed(data: bytes) -> None:
    try:
        read = list(fields(data))
    except MalformedProtobuf:
        return
    assert all(number > 0 for number, _ in read)


def grouped(data: bytes) -> dict[int, list[int | bytes]] | None:
    """The oracle of ``collect``; ``None``: malformed."""
    found: dict[int, list[int | bytes]] = {}
    try:
        for number, value in fields(data):
            found.setdefault(number, []).append(value)
    except MalformedProtobuf:
        return None
    return found


def collected(data: bytes, step: int) -> dict[int, list[int | bytes]] | None:
    found: dict[int, list[int | bytes]] = {}
    position = 0
    try:
        while position < len(data):
            before = sum(map(len, found.values()))
            position = collect(data, position, step, found, {})
            assert sum(map(len, found.values())) - before <= step
    except MalformedProtobuf:
        return None
    return found


SHORT = st.binary(max_size=3)
RUNS = st.lists(
    st.one_of(
        st.binary(max_size=3),
        st.builds(
            lambda at, values: b"".join(message(at, value) for value in values),
            st.integers(1, 20),
            st.lists(st.one_of(SHORT, SHORT, SHORT, st.binary(min_size=126, max_size=130))),
        ),
        st.builds(integer, st.integers(1, 20), st.integers(1, 300)),
    )
).map(b"".join)


@given(data=RUNS, step=st.integers(1, 5), restrict=st.integers(0, 3))
def test_steps_collect_what_fields_reads(data: bytes, step: int, restrict: int) -> None:
    data = data[: max(0, len(data) - restrict)]
    assert collected(data, step) == grouped(data)


def test_defaults_are_left_out_but_not_messages() -> None:
    assert (integer(1, 0), text(1, "")) == (b"", b"")
    assert message(1) == b"\x0a\x00" == wrapped(1, 0)
    assert any_of("t", b"") == b"\x0a\x01t"
    assert head(2, 300) + bytes(300) == message(2, bytes(300))


def test_a_field_of_another_kind_is_malformed() -> None:
    for read in (
        lambda: as_bytes(1),
        lambda: as_text(1),
        lambda: as_text(b"\xff"),
        lambda: as_integer(b""),
    ):
        with pytest.raises(MalformedProtobuf):
            read()
