"""The measure itself: it sees what is quadratic, also beside work in proportion, and lets pass what
is not.
"""

from __future__ import annotations

import pytest
from tests.growth.measure import Run, assert_linear


def _linear(count: int) -> Run:
    return lambda: sum(index % 7 for index in range(100 * count))


def _mixed(count: int) -> Run:
    """At 2,400 entries the quadratic part is about two thirds of the whole."""
    linear, entries = _linear(count), list(range(count))
    return lambda: (linear(), sum(entries.count(index) for index in range(count)))


def test_what_is_in_proportion_passes() -> None:
    assert_linear(_linear, 8000)


def test_what_is_quadratic_beside_what_is_not_is_named_with_its_figures() -> None:
    with pytest.raises(
        AssertionError, match=r"4 times the entries \(2400, then twice that\) take \["
    ):
        assert_linear(_mixed, 2400)
