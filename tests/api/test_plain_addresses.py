"""``plain_version`` says yes only where every other rule about addresses has nothing to say."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sliceplane.kit.ip import parse_lenient
from sliceplane.server.registry.validation.addresses import (
    ip_problem,
    plain_version,
    special_problem,
    spelling,
    version_of,
)

ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses().map(lambda address: address.exploded),
    st.text("0123456789.:abcdefF%", max_size=20),
)


@given(ADDRESSES)
@example("01.2.3.4")
@example("::ffff:1.2.3.4")
@example("fe80::1%eth0")
def test_plain_means_that_no_rule_complains(text: str) -> None:
    version = plain_version(text)
    if version:
        assert (ip_problem(text), ip_problem(text, canonical=True), special_problem(text)) == (
            "",
            "",
            "",
        )
        assert version_of(text) == version
        assert str(parse_lenient(text)) == text
    elif not ip_problem(text, canonical=True):
        assert special_problem(text), f"{text!r} has nothing against it and is not plain"


@pytest.mark.parametrize(
    ("text", "version"), [("10.1.2.3", 4), ("2001:db8::1", 6), ("127.0.0.1", 0), ("FD00::1", 0)]
)
def test_versions(text: str, version: int) -> None:
    assert plain_version(text) == version


def test_what_is_not_plain_is_still_told_of() -> None:
    assert "use" in spelling("01.2.3.4")
    assert "canonical" in spelling("FD00::1")
    assert not spelling("127.0.0.1")
