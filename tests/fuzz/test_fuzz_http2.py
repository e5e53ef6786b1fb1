"""Some clients of ``python -m tests.fuzz.http2``; ``make fuzz`` and ``make soak`` have many more."""

from __future__ import annotations

from tests.effort import scaled
from tests.fuzz import http2


def test_hostile_clients_of_http2_find_nothing() -> None:
    for number in range(scaled(500)):
        http2.case(number)
