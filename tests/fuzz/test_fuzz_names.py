"""A few thousand packets of ``python -m tests.fuzz.names``."""

from __future__ import annotations

from tests.fuzz import names


def test_hostile_packets_meet_no_fault() -> None:
    findings = names.run(seconds=300.0, seed=1, rounds=4)
    assert not findings.told, findings.told
    assert findings.done.total() == 2000
    assert min(findings.done[kind] for kind in ("answered", "no answer", "forwarded", "reply")) > 50
