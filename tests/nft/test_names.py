"""Names: readable, valid, bounded, distinct."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.model import ServiceKey, ServicePortName
from sliceplane.node.nft.names import NAME_LENGTH_MAX, chain_name

#: nft's grammar: a letter, then these
VALID = re.compile(r"[A-Za-z][A-Za-z0-9/_.\-]*")


def name(
    namespace: str = "ns1", service: str = "svc1", port: str = "p80", protocol: str = "TCP"
) -> str:
    return chain_name("service", ServicePortName(ServiceKey(namespace, service), port, protocol))


def test_is_what_people_know_from_kube_proxy() -> None:
    assert name() == "service-ULMVA6XW-ns1/svc1/tcp/p80"


def test_the_longest_valid_objects_are_not_cut() -> None:
    longest = name("n" * 63, "s" * 63, "p" * 63, "SCTP")
    assert len(longest) == 213
    assert longest.endswith("/" + "p" * 63)


def test_different_objects_have_different_names() -> None:
    names = [
        name(),
        name(port="p81"),
        name(protocol="UDP"),
        name("ns1/svc1", "tcp"),
        name(port=""),
        name("x" * 300),
    ]
    names.append(name("x" * 300, port="p81"))
    names.append(name("ns 1"))
    names.append(name("ns:1"))
    assert len(set(names)) == len(names)


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_anything_becomes_a_name_that_nft_reads(namespace: str, service: str, port: str) -> None:
    made = name(namespace, service, port)
    assert VALID.fullmatch(made)
    assert len(made.encode()) <= NAME_LENGTH_MAX
