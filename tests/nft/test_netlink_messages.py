"""The form of netlink messages: nothing is left out, nothing is too long, and any bytes may be an
answer.

That they mean what ``nft`` means by the text is for ``tests/kernel/test_netlink_equals_nft.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.node.nft.layout import CLUSTER_IPS, SERVICE_IPS
from sliceplane.node.nft.netlink.batch import encode
from sliceplane.node.nft.netlink.messages import (
    ATTRIBUTE_BYTES_MAX,
    Inexpressible,
    KernelAnswer,
    attribute,
    parse_answers,
)
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    Command,
    DeleteElements,
    DnatTarget,
    FlushChain,
    NftContainer,
    NftRule,
    TableRef,
    Transaction,
    goto,
)
from sliceplane.node.nft.statements import AddressIn, Balance, Dnat, FromInterface, GotoOneOf

TABLE = TableRef("ip", "sliceplane")
HEADER = struct.Struct("=IHHII")
NEW_ELEMENTS, NEW_RULE, NEW_SET = 0xA0C, 0xA06, 0xA09
CREATE, ACK, REQUEST = 0x400, 0x4, 0x1


def messages(data: bytes | bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence number, attributes."""
    at = 0
    while at < len(data):
        length, kind, flags, sequence, sender = HEADER.unpack_from(data, at)
        assert (length % 4, sender) == (0, 0)
        yield kind, flags, sequence, bytes(data[at + HEADER.size + 4 : at + length])
        at += length
    assert at == len(data)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        assert length >= 4
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def of(commands: tuple[Command, ...], table: TableRef = TABLE) -> list[tuple[int, int, int, bytes]]:
    return list(messages(encode(Transaction(table, commands)).data))


def test_a_batch_has_ends_and_the_last_command_is_acknowledged() -> None:
    batch = encode(Transaction(TABLE, (FlushChain("writer-a"), AddChain("c"))))
    found = [(kind, flags, sequence) for kind, flags, sequence, _ in messages(batch.data)]
    assert found == [
        (16, REQUEST, 0),
        (0xA08, REQUEST, 1),
        (0xA03, REQUEST | CREATE | ACK, 2),
        (17, REQUEST, 3),
    ]
    assert batch.last == 2


def test_a_target_as_nft_writes_it() -> None:
    """Bytes that nft 1.0.6 was seen to send for ``1048576 : 10.0.0.1 . 8080``."""
    (_, (_, _, _, body), _) = of(
        (AddElements("endpoints-tcp-0", (((1048576,), DnatTarget("10.0.0.1", 8080)),)),)
    )
    parts = dict(attributes(body))
    assert parts[1] == b"sliceplane\0"
    assert parts[2] == b"endpoints-tcp-0\0"
    (_, element), *others = attributes(parts[3])
    assert not others
    key, data = attributes(element)
    assert (key[0], dict(attributes(key[1]))) == (1, {1: struct.pack("=I", 1048576)})
    assert (data[0], dict(attributes(data[1]))) == (2, {1: bytes([10, 0, 0, 1, 0x1F, 0x90, 0, 0])})


@given(st.integers(1, 9_000), st.sampled_from(["ip", "ip6"]), st.booleans())
def test_elements_are_told_in_pieces_and_all_of_them(
    count: int, family: str, targets: bool
) -> None:
    table = TableRef("ip" if family == "ip" else "ip6", "sliceplane")
    prefix = "10.0" if family == "ip" else "fd00:"
    ips = [
        f"{prefix}.{n >> 8}.{n & 255}" if family == "ip" else f"{prefix}:{n:x}"
        for n in range(count)
    ]
    if targets:
        command = AddElements("m", tuple(((n,), DnatTarget(ip, 80)) for n, ip in enumerate(ips)))
    else:
        command = AddElements(
            SERVICE_IPS.name, tuple(((ip, "tcp", 80), goto(f"service-{ip}")) for ip in ips)
        )
    found = [
        body
        for kind, _, sequence, body in of((command,), table)
        if kind == NEW_ELEMENTS and sequence == 1
    ]
    elements = [element for body in found for _, element in attributes(dict(attributes(body))[3])]
    assert all(len(body) <= ATTRIBUTE_BYTES_MAX for body in found)
    assert len(elements) == len(set(elements)) == count


def test_sets_of_a_rule_come_before_it_under_its_number() -> None:
    chains = tuple(f"c{n}" for n in range(5000))
    rule = AddRule(
        "c", NftRule((AddressIn("saddr", ("10.0.0.0/8", "11.0.0.0/16")), GotoOneOf(chains)))
    )
    inner = of((AddChain("c"), rule))[2:-1]
    assert {sequence for _, _, sequence, _ in inner} == {2}
    kinds = [kind for kind, *_ in inner]
    assert kinds[:3] == [NEW_SET, NEW_ELEMENTS, NEW_SET]
    assert set(kinds[3:-1]) == {NEW_ELEMENTS}, kinds
    assert kinds[-1] == NEW_RULE
    flags = [flags & ACK for _, flags, _, _ in inner]
    assert flags == [0] * (len(inner) - 1) + [ACK]


@pytest.mark.parametrize(
    "command",
    [
        AddElements("m", ()),
        DeleteElements("m", ()),
        AddElements("m", ((("k",), DnatTarget("10.0.0.1", 80)),)),
        AddElements("m", (((1,), DnatTarget("fd00::1", 80)),)),
        AddElements("m", (((1,), DnatTarget("10.0.0.256", 80)),)),
        AddElements("m", (((1,), DnatTarget("10.0.0.1", 65536)),)),
        AddElements("m", ((("10.0.0.1", "TCP", 80), goto("c")),)),
        AddContainer(NftContainer("m", ("port",))),
        AddContainer(NftContainer("m", ("addr",), "verdict")),
        AddRule("c", NftRule((FromInterface("*"),))),
        AddRule("c", NftRule((FromInterface("an-interface-with-a-long-name"),))),
        AddRule("c", NftRule((AddressIn("saddr", ()),))),
        AddRule("c", NftRule((AddressIn("saddr", ("fd00::/8",)),))),
        AddRule("c", NftRule((Dnat("icmp", "10.0.0.1", 80),))),
        AddRule("c", NftRule((Balance("icmp", 1, 0, "m"),))),
    ],
)
def test_what_cannot_be_said_is_refused(command: Command) -> None:
    with pytest.raises(Inexpressible):
        encode(Transaction(TABLE, (FlushChain("writer-a"), command)))


def test_an_attribute_tells_its_length_in_16_bits() -> None:
    assert len(attribute(1, bytes(ATTRIBUTE_BYTES_MAX - 4))) == ATTRIBUTE_BYTES_MAX + 1
    with pytest.raises(Inexpressible):
        attribute(1, bytes(ATTRIBUTE_BYTES_MAX - 3))


def answer(
    sequence: int, errno: int, inner: bytes = b"", text: str = "", *, capped: bool = True
) -> bytes:
    about = HEADER.pack(HEADER.size + len(inner), 0xA09, REQUEST, sequence, 7)
    body = struct.pack("=i", -errno) + about + (b"" if capped else inner)
    if text:
        body += attribute(1, text.encode() + b"\0")
    flags = (0x100 if capped else 0) | (0x200 if text else 0)
    return HEADER.pack(HEADER.size + len(body), 2, flags, sequence, 7) + body


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.integers(0, 130),
            st.text("abc ", max_size=9),
            st.booleans(),
        )
    )
)
def test_answers_are_read_back(told: list[tuple[int, int, str, bool]]) -> None:
    """Whether they repeat what they are about or not; those that say "done" never do."""
    data = b"".join(
        answer(sequence, errno, bytes(8), text.strip(), capped=capped or not errno)
        for sequence, errno, text, capped in told
    )
    assert list(parse_answers(data)) == [
        KernelAnswer(sequence, errno, text.strip()) for sequence, errno, text, _ in told
    ]


@given(st.binary(max_size=200))
def test_any_bytes_may_be_an_answer(data: bytes) -> None:
    list(parse_answers(data))


@given(st.binary(max_size=200), st.integers(0, 60))
def test_an_answer_may_be_cut_short(data: bytes, length: int) -> None:
    whole = answer(3, 2, text="no such thing")
    list(parse_answers(whole[:length] + data))


def test_the_address_of_a_set_is_told_as_it_stands() -> None:
    (_, (_, _, _, body), _) = of(
        (AddElements(CLUSTER_IPS.name, ((("fd00::1",), None),)),), TableRef("ip6", "t")
    )
    (_, element), *_ = attributes(dict(attributes(body))[3])
    assert dict(attributes(dict(attributes(element))[1])) == {1: b"\xfd" + bytes(14) + b"\x01"}
