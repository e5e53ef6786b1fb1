"""Numbers from strangers: what strconv reads is read, everything else is refused and nothing raises
another error.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.integers import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    NotAnInteger,
    parse_int64,
    parse_uint64,
)


@pytest.mark.parametrize(
    "text", ["", "-", "+", " 1", "1 ", "1_0", "0x1", "1.0", "٣", "²", "1e3", "--1", "nan"]
)
def test_what_is_no_number(text: str) -> None:
    for parse in (parse_int64, parse_uint64):
        with pytest.raises(NotAnInteger, match="invalid syntax"):
            parse(text)


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000, "1" + "0" * 100_000])
def test_more_digits_than_python_converts(digits: str) -> None:
    for parse in (parse_int64, parse_uint64):
        with pytest.raises(NotAnInteger, match="value out of range"):
            parse(digits)
    with pytest.raises(NotAnInteger, match="value out of range"):
        parse_int64(f"-{digits}")


@given(st.integers(INT64_MIN - 2, UINT64_MAX + 2), st.integers(0, 30))
def test_bounds_and_leading_zeros(number: int, zeros: int) -> None:
    text = re.sub(r"(\d+)", lambda found: "0" * zeros + found[0], str(number))
    if INT64_MIN <= number <= INT64_MAX:
        assert parse_int64(text) == number
    else:
        with pytest.raises(NotAnInteger):
            parse_int64(text)
    if 0 <= number <= UINT64_MAX:
        assert parse_uint64(text) == number
    else:
        with pytest.raises(NotAnInteger):
            parse_uint64(text)
