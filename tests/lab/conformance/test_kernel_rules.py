"""Where rules send a connection: by statements alone, whichever proxy wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.lab.conformance.consumers.kernel_rules import UnknownStatement, destinations

PROTOCOL = {"meta": {"key": "l4proto"}}
DADDR = {"payload": {"protocol": "ip", "field": "daddr"}}
DPORT = {"payload": {"protocol": "th", "field": "dport"}}
SERVICE = {"concat": [DADDR, PROTOCOL, DPORT]}
JUMP = {"jump": {"target": "services"}}
TO_WEB = {"vmap": {"key": SERVICE, "data": "@service-ips"}}
TWO = [[0, {"concat": ["10.1.0.1", 8080]}], [1, {"concat": ["10.1.0.2", 8080]}]]


def by_number(data: Any) -> dict[str, Any]:
    return {
        "dnat": {
            "family": "ip",
            "addr": {"map": {"key": {"numgen": {"mode": "random", "mod": 2}}, "data": data}},
        }
    }


def listing(
    *web: list[dict[str, Any]],
    services: tuple[list[dict[str, Any]], ...] = ([TO_WEB],),
    **maps: Any,
) -> str:
    """A table whose chain ``services`` leads to ``web``, for 10.96.0.10:80."""
    home = {"family": "ip", "table": "any"}
    hook = {"type": "nat", "hook": "output", "prio": -100, "policy": "accept"}
    element = [
        {"elem": {"val": {"concat": ["10.96.0.10", "tcp", 80]}, "comment": "x/web"}},
        {"goto": {"target": "web"}},
    ]
    rules = [
        ("nat-output", [JUMP]),
        *(("services", rule) for rule in services),
        *(("web", rule) for rule in web),
    ]
    entries = [
        {"table": {"family": "ip", "name": "any"}},
        {"chain": {**home, "name": "nat-output", **hook}},
        *({"chain": {**home, "name": name}} for name in ("services", "web", "one", "two")),
        {"map": {**home, "name": "service-ips", "elem": [element]}},
        *({"map": {**home, "name": name, "elem": elements}} for name, elements in maps.items()),
        *({"rule": {**home, "chain": chain, "expr": rule}} for chain, rule in rules),
        {"rule": {**home, "chain": "one", "expr": [{"dnat": {"addr": "10.1.0.1", "port": 8080}}]}},
        {"rule": {**home, "chain": "two", "expr": [{"dnat": {"addr": "10.1.0.2"}}]}},
    ]
    return json.dumps({"nftables": [{"metainfo": {}}, *entries]})


def found(text: str, address: str = "10.96.0.10", port: int = 80) -> list[str] | None:
    ends = destinations(text, address, port, "192.0.2.1")
    return None if ends is None else sorted(ends)


def test_a_random_choice_is_every_choice() -> None:
    both = ["10.1.0.1:8080", "10.1.0.2:8080"]
    assert found(listing([by_number({"set": TWO})])) == both
    assert found(listing([by_number("@ends")], ends=TWO)) == both


def test_a_number_drawn_after_the_destination_is_every_number_of_that_destination() -> None:
    draw = {
        "dnat": {
            "addr": {
                "map": {
                    "key": {"concat": [DADDR, PROTOCOL, DPORT, {"numgen": {}}]},
                    "data": "@places",
                }
            }
        }
    }
    places = [
        [{"concat": [ip, "tcp", 80, number]}, {"concat": [f"10.1.0.{end}", 8080]}]
        for ip, number, end in (("10.96.0.10", 0, 1), ("10.96.0.10", 3, 2), ("10.96.0.11", 1, 3))
    ]
    text = listing(services=([draw], [draw]), places=places)
    assert found(text) == ["10.1.0.1:8080", "10.1.0.2:8080"]
    assert found(text, address="10.96.0.11") == ["10.1.0.3:8080"]
    assert found(text, address="10.96.0.12") == []


def test_a_random_chain_is_every_chain() -> None:
    chains = {"set": [[0, {"goto": {"target": "one"}}], [1, {"goto": {"target": "two"}}]]}
    assert found(listing([{"vmap": {"key": {"numgen": {}}, "data": chains}}])) == [
        "10.1.0.1:8080",
        "10.1.0.2:80",
    ]


def test_another_address_or_port_goes_where_it_went() -> None:
    text = listing([by_number({"set": TWO})])
    assert found(text, address="10.96.0.11") == []
    assert found(text, port=81) == []


def test_an_element_that_is_missing_leaves_the_rule() -> None:
    lookup = {"dnat": {"family": "ip", "addr": {"map": {"key": SERVICE, "data": "@single"}}}}
    assert found(listing([by_number({"set": TWO})], services=([lookup], [TO_WEB]), single=[])) == [
        "10.1.0.1:8080",
        "10.1.0.2:8080",
    ]


@pytest.mark.parametrize(
    ("right", "op", "holds"),
    [
        ("tcp", "==", True),
        ("udp", "==", False),
        ("udp", "!=", True),
        ({"set": ["udp", "sctp"]}, "==", False),
        ({"set": ["udp", "tcp"]}, "==", True),
    ],
)
def test_a_match_decides(right: Any, op: str, holds: bool) -> None:
    match = {"match": {"op": op, "left": PROTOCOL, "right": right}}
    assert found(listing([match, by_number({"set": TWO})])) == (
        ["10.1.0.1:8080", "10.1.0.2:8080"] if holds else []
    )


def test_what_is_dropped_goes_nowhere() -> None:
    assert found(listing([{"drop": None}], [by_number({"set": TWO})])) == []


def test_a_chain_that_returns_goes_on_behind_its_jump() -> None:
    jump = {"jump": {"target": "web"}}
    assert found(listing([{"return": None}], services=([jump], [by_number({"set": TWO})]))) == [
        "10.1.0.1:8080",
        "10.1.0.2:8080",
    ]


def test_without_rules_of_the_family_nothing_is_known() -> None:
    assert found(listing([by_number({"set": TWO})]), address="fd00::1") is None


def test_a_statement_that_is_not_known_is_told() -> None:
    with pytest.raises(UnknownStatement, match="queue"):
        found(listing([{"queue": {"num": 1}}]))
