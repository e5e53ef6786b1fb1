"""A few seconds of ``python -m tests.fuzz.wire``: a server process, and clients that break rules of
TLS and HTTP.
"""

from __future__ import annotations

import logging

import pytest
from tests.fuzz import wire

SECONDS, SEED = 3.0, 1


# The clients cut their connections in every way there is, and asyncio warns of what it finds open.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_server_stands_and_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        findings = wire.run(SECONDS, SEED)
    assert not findings.told, findings.told
    assert findings.codes[200] > 0
    assert findings.codes.total() > 50
