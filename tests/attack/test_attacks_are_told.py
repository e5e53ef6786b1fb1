"""Each attack has a name of its own, and the document tells of it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.attack.__main__ import attacks

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


def test_every_attack_is_in_the_document_and_no_other() -> None:
    told = set(re.findall(r"^\| `([a-z-]+)` \|", SECURITY.read_text(), re.MULTILINE))
    assert told == set(attacks()), "docs/security.md has a row for each attack"
