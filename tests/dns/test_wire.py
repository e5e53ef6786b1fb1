"""Messages are read as strictly as dnspython reads them, and nothing makes the reader raise or
wait.
"""

from __future__ import annotations

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.dns import wire
from sliceplane.dns.wire import (
    DnsQuestion,
    Edns,
    Malformed,
    WireError,
    name_of,
    read_name,
    read_query,
    text_of,
)

HEADER = b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0"
QUESTION = b"\4demo\0\0\1\0\1"


def asked(name: str = "demo.default.svc.cluster.local.", kind: str = "A", **more: object) -> bytes:
    return bytes(dns.message.make_query(name, kind, id=0x1234, **more).to_wire())  # type: ignore[arg-type]


def malformed(packet: bytes) -> Malformed:
    found = read_query(packet)
    assert isinstance(found, Malformed), found
    assert found.answer[:2] == packet[:2]
    parsed = dns.message.from_wire(found.answer)
    assert parsed.rcode() == found.rcode
    assert parsed.flags & dns.flags.QR
    return found


def test_a_plain_query_and_one_with_edns() -> None:
    assert read_query(asked("De.x.")) == DnsQuestion(0x1234, wire.RD, b"\2De\1x\0", wire.A, wire.IN)
    question = read_query(asked(use_edns=0, payload=4096, want_dnssec=True))
    assert isinstance(question, DnsQuestion)
    assert question.edns == Edns(4096, do=True)
    assert question.key == name_of("demo.default.svc.cluster.local")


def test_how_much_a_client_takes() -> None:
    """RFC 6891 section 6.2.3: less than 512 means 512; RFC 9715: no more than 1232."""

    def takes(payload: int | None, transport: str = "udp") -> int:
        edns = None if payload is None else Edns(payload, do=False)
        return DnsQuestion(1, 0, b"\0", 1, 1, edns).payload_of(transport)

    assert [takes(payload) for payload in (None, 0, 100, 512, 800, 1232, 4096)] == [
        512,
        512,
        512,
        512,
        800,
        1232,
        1232,
    ]
    assert takes(None, "tcp") == 65535


def test_what_gets_no_answer() -> None:
    assert read_query(b"") is None
    assert read_query(HEADER[:11]) is None
    assert read_query(b"\x12\x34\x81\x00" + HEADER[4:] + QUESTION) is None


@pytest.mark.parametrize("questions", [b"\0\0", b"\0\2", b"\xff\xff"])
def test_one_question_exactly(questions: bytes) -> None:
    """RFC 9619."""
    assert malformed(HEADER[:4] + questions + HEADER[6:] + QUESTION).rcode == wire.FORMERR


@pytest.mark.parametrize(
    "packet",
    [
        HEADER,
        HEADER + QUESTION[:-1],
        HEADER + b"\4dem",
        HEADER + b"\xc0\x0c\0\1\0\1",  # points to itself
        HEADER + b"\xc0\x00\0\1\0\1",  # into the header
        HEADER + b"\x41" + b"a" * 65 + b"\0\0\1\0\1",  # label types 01 and 10
        HEADER + b"\x80" + b"a" * 128 + b"\0\0\1\0\1",
        HEADER
        + b"\x3f"
        + b"a" * 63
        + b"\x3f"
        + b"b" * 63
        + b"\x3f"
        + b"c" * 63
        + b"\x3f"
        + b"d" * 63
        + b"\0\0\1\0\1",
        HEADER[:10] + b"\0\1" + QUESTION,  # says that there is a record
        HEADER[:10] + b"\0\2" + QUESTION + wire.opt() * 2,
        HEADER[:10] + b"\0\1" + QUESTION + b"\1a" + wire.opt(),
        HEADER[:10]
        + b"\0\1"
        + QUESTION
        + wire.opt()[:-2]
        + b"\0\4\0\x0f\0\5",  # an option longer than its record
    ],
)
def test_what_cannot_be_read_is_a_format_error(packet: bytes) -> None:
    assert malformed(packet).rcode == wire.FORMERR


def test_records_of_a_query_are_not_walked_beyond_what_a_query_has() -> None:
    """An OPT, a TSIG and the SOA of an IXFR; before, thousands were read, each with 126 pointers
    (issue 30).
    """
    record = b"\xc0\x0c" + b"\0\x10\0\1\0\0\0\0\0\0"
    for count in range(7):
        packet = HEADER[:10] + count.to_bytes(2, "big") + QUESTION + record * count
        found = read_query(packet)
        assert isinstance(found, DnsQuestion) == (count <= 3), count
    # What follows is not even looked at.
    assert malformed(HEADER[:10] + b"\xff\xff" + QUESTION).rcode == wire.FORMERR


def test_a_name_follows_so_many_pointers_and_no_more() -> None:
    packet = (
        HEADER
        + b"\1a\0"
        + b"".join(b"\xc0" + bytes((12 if at == 0 else 15 + 2 * (at - 1),)) for at in range(12))
    )
    assert read_name(packet, 15 + 2 * (wire.POINTERS_MAX - 1))[0] == b"\1a\0"
    with pytest.raises(WireError):
        read_name(packet, 15 + 2 * wire.POINTERS_MAX)


def test_an_opt_has_so_many_options_and_no_more() -> None:
    for count in (0, 1, 32, 33, 300):
        options = b"\0\x0a\0\1x" * count
        opt = wire.opt()[:-2] + len(options).to_bytes(2, "big") + options
        found = read_query(HEADER[:10] + b"\0\1" + QUESTION + opt)
        assert isinstance(found, DnsQuestion) == (count <= 32), count


def test_other_operations_are_not_implemented() -> None:
    for opcode in (1, 2, 4, 5, 15):
        packet = HEADER[:2] + (opcode << 11).to_bytes(2, "big") + HEADER[4:] + QUESTION
        answer = malformed(packet)
        assert answer.rcode == wire.NOTIMP
        assert dns.opcode.from_flags(dns.message.from_wire(answer.answer).flags) == opcode


def test_a_later_version_of_edns_is_refused_with_ours() -> None:
    answer = malformed(asked(use_edns=1))
    assert answer.rcode == wire.BADVERS
    parsed = dns.message.from_wire(answer.answer)
    assert parsed.edns == 0
    assert len(parsed.question) == 1


def test_extended_errors_are_told_only_to_those_who_speak_edns() -> None:
    plain = read_query(asked())
    extended = read_query(asked(use_edns=0, want_dnssec=True))
    assert isinstance(plain, DnsQuestion)
    assert isinstance(extended, DnsQuestion)
    assert (
        dns.message.from_wire(wire.error(plain, wire.SERVFAIL, ede=wire.EDE_NOT_READY)).edns == -1
    )
    parsed = dns.message.from_wire(
        wire.error(extended, wire.SERVFAIL, ede=wire.EDE_NOT_READY, text="no list yet")
    )
    assert parsed.rcode() == dns.rcode.SERVFAIL
    assert parsed.ednsflags & dns.flags.DO
    assert parsed.payload == 1232
    assert [option.to_text() for option in parsed.options] == ["EDE 14 (Not Ready): no list yet"]


def test_pointers_lead_backwards_only() -> None:
    packet = HEADER + b"\3svc\0" + b"\4demo\xc0\x0c" + b"\1x\xc0\x11" + b"\xc0\x1b"
    assert read_name(packet, 12) == (b"\3svc\0", 17)
    assert read_name(packet, 17) == (b"\4demo\3svc\0", 24)
    assert read_name(packet, 24) == (b"\1x\4demo\3svc\0", 28)
    for offset in (28, 29, len(packet)):
        with pytest.raises(WireError):
            read_name(packet, offset)


@given(st.lists(st.binary(min_size=1, max_size=63), max_size=5))
def test_names_are_written_as_dnspython_writes_them(labels: list[bytes]) -> None:
    try:
        name = dns.name.Name([*labels, b""])
    except dns.name.NameTooLong:
        return
    packed = name.to_wire()
    assert packed is not None
    assert read_name(HEADER + packed, 12, compressed=False) == (packed, 12 + len(packed))
    assert wire.labels_of(packed) == tuple(labels)
    assert text_of(packed) == name.to_text().removesuffix(".") + "."


def test_a_name_of_a_person() -> None:
    assert name_of("demo.default.svc") == name_of("demo.default.svc.") == b"\4demo\7default\3svc\0"
    assert name_of(".") == name_of("") == b"\0"
    for text in ("a..b", "x" * 64, ".".join(["x" * 60] * 5)):
        with pytest.raises(WireError):
            name_of(text)


@given(st.one_of(st.binary(max_size=80), st.binary(max_size=60).map(lambda tail: HEADER + tail)))
def test_any_bytes_are_read_or_refused_as_dnspython_does(packet: bytes) -> None:
    found = read_query(packet)
    if isinstance(found, Malformed):
        assert dns.message.from_wire(found.answer, ignore_trailing=False).id == int.from_bytes(
            packet[:2], "big"
        )
    elif found is not None:
        assert found.wire == packet[12 : 12 + len(found.wire)]
        parsed = dns.message.from_wire(packet, ignore_trailing=True)
        assert parsed.question[0].name.to_wire() == found.name


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("A", "10.96.0.7"),
        ("AAAA", "fd00::7"),
        ("CNAME", "a.b."),
        ("PTR", "x\\.y.b."),
        ("SRV", "10 50 8080 a.b."),
        ("TXT", '"1.1.0"'),
        ("HINFO", '"RFC8482" ""'),
        ("NS", "ns.dns.b."),
    ],
)
def test_data_as_dnspython_writes_them(kind: str, text: str) -> None:
    data = dns.rdata.from_text("IN", kind, text)
    assert wire.data_text(int(data.rdtype), data.to_wire()) == text == data.to_text()
