"""Where rules that iptables lists send a connection, whichever proxy wrote them."""

from __future__ import annotations

import pytest

from sliceplane.lab.conformance.consumers.kernel_rules import UnknownStatement
from sliceplane.lab.conformance.consumers.saved_rules import saved_destinations

TO_SERVICES = '-A OUTPUT -m comment --comment "service portals" -j SERVICES'
TO_WEB = (
    '-A SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "x/web:http cluster IP" -m tcp '
    "--dport 80 -j WEB"
)
ONE = "-A ONE -p tcp -m tcp -j DNAT --to-destination 10.1.0.1:8080"
TWO = "-A TWO -p tcp -m tcp -j DNAT --to-destination 10.1.0.2:8080"
HALF = "-A WEB -m statistic --mode random --probability 0.50000000000 -j ONE"


def found(*rules: str, address: str = "10.96.0.10", port: int = 80) -> list[str] | None:
    names = ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING", "SERVICES", "WEB", "ONE", "TWO")
    chains = "\n".join(f":{name} - [0:0]" for name in names)
    saved = "\n".join(["*nat", chains, TO_SERVICES, TO_WEB, *rules, ONE, TWO, "COMMIT", ""])
    ends = saved_destinations(saved, address, port, "192.0.2.1")
    return None if ends is None else sorted(ends)


def test_a_random_choice_is_every_choice() -> None:
    assert found(HALF, "-A WEB -j TWO") == ["10.1.0.1:8080", "10.1.0.2:8080"]


def test_what_surely_matches_ends_the_walk() -> None:
    assert found("-A WEB -j TWO", "-A WEB -j ONE") == ["10.1.0.2:8080"]
    assert found("-A WEB -j RETURN", "-A WEB -j ONE") == []


def test_another_service_is_not_followed() -> None:
    assert found("-A WEB -j ONE", port=81) == []
    assert found("-A WEB -j ONE", address="10.96.0.11") == []


def test_a_packet_of_the_node_itself_is_its_first() -> None:
    marked = "-A WEB ! -s 10.1.0.0/16 -j MARK --set-xmark 0x4000/0x4000"
    from_the_node = "-A WEB -m addrtype --src-type LOCAL -j ONE"
    affinity = (
        "-A WEB -m recent --rcheck --seconds 10 --reap --name ONE --mask 255.255.255.255 "
        "--rsource -j TWO"
    )
    assert found(marked, affinity, from_the_node, "-A WEB -j TWO") == ["10.1.0.1:8080"]
    assert found("-A WEB -m addrtype ! --src-type LOCAL -j ONE", "-A WEB -g TWO") == [
        "10.1.0.2:8080"
    ]


def test_the_kernels_own_chains_are_no_proxy() -> None:
    assert (
        saved_destinations("*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n", "10.96.0.10", 80, "192.0.2.1")
        is None
    )


@pytest.mark.parametrize(
    "rule", ["-A WEB -m set --match-set web dst -j ONE", "-A WEB -j REDIRECT --to-ports 90"]
)
def test_what_is_not_known_is_told(rule: str) -> None:
    with pytest.raises(UnknownStatement, match="cannot follow"):
        found(rule)
