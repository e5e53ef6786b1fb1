"""Where to ask: flags, resolv.conf, hosts; what is wrong is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.dns.forwarding.configuration import (
    ZoneServers,
    check_zones,
    parse_resolv_conf,
    parse_server,
    parse_stub,
)
from sliceplane.dns.forwarding.local import HOSTS_MAX, parse_hosts
from sliceplane.dns.forwarding.upstreams import SocketAddress
from sliceplane.dns.wire import ROOT, name_of


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("1.1.1.1", ("1.1.1.1", 53)),
        (" 1.1.1.1:5353 ", ("1.1.1.1", 5353)),
        ("2606:4700::1111", ("2606:4700::1111", 53)),
        ("[2606:4700:0::1111]:5353", ("2606:4700::1111", 5353)),
        ("[::1]", ("::1", 53)),
        ("fe80::1%eth0", ("fe80::1%eth0", 53)),
    ],
)
def test_a_server_is_an_address_with_or_without_a_port(text: str, server: tuple[str, int]) -> None:
    assert parse_server(text) == server
    assert parse_server(str(parse_server(text))) == server


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dns.example",
        "1.1.1.1:",
        "1.1.1.1:0",
        "1.1.1.1:65536",
        "1.1.1.1:x",
        "1.1.1",
        "[::1]53",
        "[::1",
        "1.1.1.1%eth0",
    ],
)
def test_what_is_no_server_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is no name server"):
        parse_server(text)


def test_resolv_conf_is_read_as_resolvers_do() -> None:
    text = (
        "search x\nnameserver 10.0.0.2 # b\nnameserver\nnameserver x\nnameserver "
        "fe80::1%lo\n;nameserver 1.1.1.1\n"
    )
    assert parse_resolv_conf(text) == ZoneServers(
        ROOT, (parse_server("10.0.0.2"), parse_server("fe80::1%lo"))
    )
    rotating = parse_resolv_conf(
        "options ndots:5 rotate\nnameserver 10.0.0.2\nnameserver 10.0.0.2\n"
    )
    assert rotating == ZoneServers(ROOT, (parse_server("10.0.0.2"),), "random")
    assert parse_resolv_conf("search x\n") is None


@given(st.text())
def test_any_text_is_a_resolv_conf_and_a_hosts_table(text: str) -> None:
    parse_resolv_conf(text)
    parse_resolv_conf(f"nameserver {text}")
    parse_hosts(text)
    parse_hosts(f"10.0.0.1 {text}")


def test_stub_zones_and_what_is_none() -> None:
    assert parse_stub("Corp.Example=10.0.0.2,10.0.0.3:5353") == ZoneServers(
        name_of("corp.example."), (parse_server("10.0.0.2"), parse_server("10.0.0.3:5353"))
    )
    assert parse_stub(".=10.0.0.2").zone == ROOT
    for text in (
        "corp.example",
        "=10.0.0.2",
        "a..b=10.0.0.2",
        "corp.example=",
        "corp.example=dns.example",
        "x" * 64 + "=::1",
    ):
        with pytest.raises(ValueError, match=r"is no (stub zone|domain name|name server)"):
            parse_stub(text)


def test_zones_are_checked_and_we_are_not_asked_ourselves() -> None:
    def own(server: SocketAddress) -> bool:
        return server == parse_server("127.0.0.1:5300")

    zones = [
        parse_stub("corp=10.0.0.2"),
        parse_stub("a.corp=10.0.0.3"),
        ZoneServers(ROOT, (parse_server("1.1.1.1"),)),
    ]
    assert [zone.text for zone in check_zones(zones, own)] == ["a.corp.", "corp.", "."]
    with pytest.raises(ValueError, match="given twice"):
        check_zones([*zones, parse_stub("CORP=10.0.0.9")], own)
    with pytest.raises(
        ValueError, match=r"127\.0\.0\.1:5300, which names under x\. .* is this server itself"
    ):
        check_zones([parse_stub("x=10.0.0.2,127.0.0.1:5300")], own)
    with pytest.raises(ValueError, match="15 is the most"):
        check_zones([parse_stub("x=" + ",".join(f"10.0.0.{number}" for number in range(16)))], own)
    with pytest.raises(ValueError, match="100 is the most"):
        check_zones([parse_stub(f"x{number}=10.0.0.1") for number in range(101)], own)


def test_a_hosts_table_says_what_it_passed_over() -> None:
    table = parse_hosts(
        "10.0.0.1 a\n# x\n10.0.0.x b\n10.0.0.2\n10.0.0.3 c..d e # f\nfe80::1%lo0 g\n"
    )
    assert {name_of("a"), name_of("e"), name_of("g")} == {
        name for name in table.names if len(name) == 3
    }
    assert [problem.partition(":")[0] for problem in table.problems] == [
        "line 3",
        "line 4",
        "line 5",
    ]
    many = parse_hosts(
        "\n".join(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255} n{n}" for n in range(HOSTS_MAX + 5))
    )
    assert len(many.names) == 2 * HOSTS_MAX
    assert "the rest is ignored" in many.problems[0]
