"""Some clients of ``python -m tests.fuzz.xds_requests``; ``make fuzz`` and ``make soak`` have many
more.
"""

from __future__ import annotations

from tests.effort import scaled
from tests.fuzz import xds_requests


def test_hostile_clients_of_xds_find_nothing() -> None:
    for number in range(scaled(400)):
        xds_requests.case(number)
