"""Shard selectors (KEP-5866): the grammar, the hash, and that shards divide a collection."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.errors import StatusError
from sliceplane.api.selectors.shards import END, ShardSelector, fnv1a, parse_shards

LOW, HIGH = "0x0000000000000000", "0x8000000000000000"
LAST = "0x10000000000000000"


def shard(start: str, end: str, field: str = "object.metadata.uid") -> str:
    return f"shardRange({field}, '{start}', '{end}')"


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_hash_is_fnv_1a(text: str, value: int) -> None:
    assert fnv1a(text) == value


@pytest.mark.parametrize(
    "text",
    [
        shard(LOW, HIGH),
        f" ( {shard(LOW, HIGH)} ) ",
        shard(LOW, HIGH).replace("'", '"'),
        f"shardRange (object.metadata.uid,'{LOW}','{HIGH}')",
    ],
)
def test_spellings_of_one_range(text: str) -> None:
    assert parse_shards(text) == ShardSelector("object.metadata.uid", ((0, 1 << 63),))
    assert str(parse_shards(text)) == shard(LOW, HIGH)


def test_alternatives_are_of_one_field() -> None:
    found = parse_shards(f"{shard(LOW, HIGH)} || ({shard(HIGH, LAST)})")
    assert found.ranges == ((0, 1 << 63), (1 << 63, END))
    assert parse_shards(str(found)) == found
    with pytest.raises(StatusError, match="must use the same field"):
        parse_shards(f"{shard(LOW, HIGH)} || {shard(HIGH, LAST, 'object.metadata.namespace')}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty shard selector is not allowed; omit the parameter for unfiltered lists"),
        ("true", 'unsupported expression "true"; only shardRange() and || are allowed'),
        ("size(object)", 'unsupported function "size"; only shardRange() and || are allowed'),
        ("shardRange(object.metadata.uid)", "shardRange() requires exactly 3 arguments, got 1"),
        (
            shard(LOW, HIGH, "object.spec"),
            'unsupported field path "object.spec"; supported: object.metadata.uid',
        ),
        (shard(HIGH, LOW), f"shard range start {HIGH} must be less than end {LOW}"),
        (shard(LOW, LOW), "must be less than end"),
        (shard("0", HIGH), "hexStart must have '0x' prefix, got \"0\""),
        (shard("0x", HIGH), "hexStart: hex value is required after '0x'"),
        (shard(LOW, "0x8"), 'got "0x8" (did you mean "0x0000000000000008"?)'),
        (shard(LOW, "0xG000000000000000"), 'hexEnd: invalid hex character "G"'),
        (
            shard(LOW, "0x20000000000000000"),
            "17-digit hex value must be '0x10000000000000000' (2^64)",
        ),
        (shard(LOW, "0x100000000000000000"), "hex value too long (18 chars, max 17)"),
        (
            "shardRange(object.metadata.uid, 0, 1)",
            "hexStart must be a string literal (e.g. '0xff'), got \"0\"",
        ),
        (f"{shard(LOW, HIGH)} && {shard(LOW, HIGH)}", 'unexpected "&"'),
        (f"{shard(LOW, HIGH)} ||", "ends too early"),
        (f"({shard(LOW, HIGH)}", "ends too early"),
        ("(" * 60 + shard(LOW, HIGH) + ")" * 60, "more than 50 brackets are open"),
        ("shardRange(object.metadata.uid, 'unclosed", "expected"),
    ],
)
def test_errors_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_shards(text)
    assert caught.value.code == 400
    assert caught.value.message.startswith("invalid shard selector: ")
    assert why in caught.value.message


@given(text=st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(StatusError):
        parse_shards(text)


@given(
    cuts=st.sets(st.integers(1, END - 1), max_size=6),
    uids=st.lists(st.text(max_size=40).filter(lambda text: text.isascii()), max_size=20),
)
def test_shards_that_meet_divide_everything(cuts: set[int], uids: list[str]) -> None:
    bounds = [0, *sorted(cuts), END]
    shards = [
        parse_shards(shard(f"0x{start:016x}", f"0x{end:016x}"))
        for start, end in itertools.pairwise(bounds)
    ]
    for uid in uids:
        assert sum(each.matches(uid, "") for each in shards) == 1
