"""Durations as Go writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.times import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("15m0s", 900.0),
        ("1h0m0s", 3600.0),
        ("24h0m0s", 86400.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("1h15m30.5s", 4530.5),
        (".5s", 0.5),
        ("-30s", -30.0),
        ("+5s", 5.0),
        ("100us", 1e-4),
        ("100ns", 1e-7),
        ("100\u00b5s", 1e-4),
        ("100\u03bcs", 1e-4),
        ("", None),
        ("s", None),
        ("5", None),
        ("-", None),
        ("1 s", None),
        ("1d", None),
        ("1s ", None),
        ("٣s", None),
        ("9999999999h", None),
    ],
)
def test_what_go_reads(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (900, "15m0s"),
        (3600, "1h0m0s"),
        (0.25, "250ms"),
        (1.5, "1.5s"),
        (-61, "-1m1s"),
        (0.0001, "100µs"),
    ],
)
def test_what_go_writes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(-(10**13), 10**13))
def test_what_is_written_is_read_again(micros: int) -> None:
    assert parse_duration(format_duration(micros / 1e6)) == pytest.approx(micros / 1e6, abs=5e-7)
