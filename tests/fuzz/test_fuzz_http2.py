"""Some clients of ``python -m tests.fuzz.http2``; ``make fuzz`` and ``make soak`` have many
more.
"""

from __future__ import annotations

import pytest
from tests.effort import scaled
from tests.fuzz import http2


def test_hostile_clients_of_http2_find_nothing() -> None:
    for number in range(scaled(500)):
        http2.case(number)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            428639850221, id="what ends a call counts for the frames behind it in the same read"
        ),
        pytest.param(
            907894955489,
            id="what is not HTTP/2 is told at its first wrong byte, also where the first was right",
        ),
        pytest.param(
            620056246270, id="what a client is told of its fault has no address in memory"
        ),
    ],
)
def test_what_was_found(number: int) -> None:
    http2.case(number)
