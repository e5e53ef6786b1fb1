"""Replies are read as dnspython reads them, whatever is hostile raises one error, and answers say
what they must.
"""

from __future__ import annotations

import dns.exception
import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.forwarding.world import SOA, lines, reply_to
from tests.effort import effort

from sliceplane.dns.forwarding.message import (
    CHAIN_MAX,
    RECORDS_MAX,
    Content,
    WholeRecord,
    encode_answer,
    encode_query,
    read_reply,
    select_content,
)
from sliceplane.dns.wire import CNAME, DnsQuestion, Edns, WireError, name_of

ASKED = dns.message.make_query("www.example.org.", "A", id=7, use_edns=0).to_wire()
NAME = name_of("www.example.org.")
RECORDS = [
    "www.example.org. 60 IN A 203.0.113.5",
    "www.example.org. 61 IN A 203.0.113.6",
    "www.example.org. 60 IN AAAA 2001:db8::5",
    "www.example.org. 60 IN CNAME b.example.org.",
    "b.example.org. 50 IN CNAME C.example.com.",
    "c.example.com. 40 IN A 203.0.113.7",
    "c.example.com. 30 IN CNAME www.example.org.",
    "other.example.org. 60 IN A 198.51.100.66",
    "www.example.org. 60 IN MX 10 mail.example.org.",
    "www.example.org. 60 IN SRV 0 1 80 b.example.org.",
    'www.example.org. 60 IN TXT "v=spf1 -all" "x"',
    "www.example.org. 60 IN NS ns.example.org.",
    "www.example.org. 60 IN HTTPS 1 . alpn=h2",
    'www.example.org. 60 IN NAPTR 10 20 "u" "E2U+sip" "!.*!sip:x!" .',
    SOA,
]


def question(kind: int = 1, *, edns: Edns | None = None, flags: int = 0x0100) -> DnsQuestion:
    return DnsQuestion(9, flags, b"\3WWW\7example\3org\0", kind, 1, edns)


def content(packet: bytes, kind: int = 1, *, do: bool = False) -> Content:
    return select_content(read_reply(packet), NAME, kind, do=do, ttl_max=3600, denial_ttl_max=1800)


@given(
    st.lists(st.sampled_from(RECORDS), max_size=8),
    st.lists(st.sampled_from(RECORDS), max_size=3),
    st.data(),
)
@effort(300)
def test_a_reply_of_dnspython_is_read_as_it_was_written(
    answer: list[str], authority: list[str], data: st.DataObject
) -> None:
    message = reply_to(
        ASKED, *answer, authority=authority, rcode=data.draw(st.sampled_from((0, 2, 3, 5)))
    )
    packet = message.to_wire(max_size=65535)
    reply = read_reply(packet)
    assert (reply.id, reply.rcode, reply.name, reply.type) == (7, message.rcode(), NAME, 1)
    for section, records in ((message.answer, reply.answer), (message.authority, reply.authority)):
        told = [
            dns.rrset.from_rdata(
                dns.name.from_wire(record.owner, 0)[0],
                record.ttl,
                dns.rdata.from_wire("IN", record.type, record.data, 0, len(record.data)),
            )
            for record in records
        ]
        assert [line.lower() for line in lines(told)] == [line.lower() for line in lines(section)]


@given(st.binary(max_size=300))
@effort(2000)
def test_any_bytes_are_a_reply_or_one_error(junk: bytes) -> None:
    for packet in (
        junk,
        ASKED[:2] + b"\x81\x80" + junk,
        reply_to(ASKED, RECORDS[0]).to_wire()[:-1] + junk,
    ):
        try:
            reply = read_reply(packet)
        except WireError:
            continue
        select_content(reply, NAME, 1, do=True, ttl_max=60, denial_ttl_max=60)


@given(st.lists(st.sampled_from(RECORDS), min_size=1, max_size=6), st.data())
@effort(500)
def test_a_changed_reply_is_one_that_dnspython_reads_too_or_one_error(
    answer: list[str], data: st.DataObject
) -> None:
    packet = bytearray(reply_to(ASKED, *answer, authority=[SOA]).to_wire(max_size=65535))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    try:
        reply = read_reply(bytes(packet))
    except WireError:
        return
    answered = encode_answer(
        question(), select_content(reply, NAME, 1, do=False, ttl_max=60, denial_ttl_max=60), 1232
    )
    told = dns.message.from_wire(answered)
    assert told.question[0].name.to_text() == "WWW.example.org."


def test_a_name_made_of_pointers_costs_no_more_than_its_length() -> None:
    chain = b"".join(
        (0xC000 | 12 + 2 * max(place - 1, 0)).to_bytes(2, "big") for place in range(8000)
    )
    with pytest.raises(WireError):
        read_reply(b"\0\7\x81\x80\0\0\x0f\xff\0\0\0\0" + chain)
    with pytest.raises(WireError):
        read_reply(b"\0\7\x81\x80\0\0" + (RECORDS_MAX + 1).to_bytes(2, "big") + bytes(65000))


@given(st.permutations(RECORDS[3:8]))
@effort(50)
def test_an_answer_keeps_the_chain_of_its_question_alone_in_any_order(answer: list[str]) -> None:
    found = content(reply_to(ASKED, *answer).to_wire())
    assert [record.owner.lower() for record in found.answer[:2]] == [
        NAME,
        name_of("b.example.org."),
    ]
    assert {record.owner.lower() for record in found.answer} == {
        NAME,
        name_of("b.example.org."),
        name_of("c.example.com."),
    }
    assert found.ttl == 30
    told = dns.message.from_wire(encode_answer(question(), found, 512))
    assert "198.51.100.66" not in str(told)
    assert told.additional == []


def test_a_circle_and_a_long_chain_end() -> None:
    chain = [
        f"{'www.example.org.' if not n else f'n{n}.example.org.'} 60 IN CNAME n{n + 1}.example.org."
        for n in range(30)
    ]
    found = content(reply_to(ASKED, *chain).to_wire(max_size=65535))
    assert len(found.answer) == CHAIN_MAX + 1
    assert found.ttl == 0
    circle = content(
        reply_to(ASKED, RECORDS[3], "b.example.org. 9 IN CNAME www.example.org.").to_wire()
    )
    assert len(circle.answer) == 2
    assert circle.ttl == 0


def test_one_set_has_one_ttl_and_nothing_twice() -> None:
    packet = reply_to(ASKED, RECORDS[0], RECORDS[1], RECORDS[0]).to_wire()
    found = content(packet)
    assert [record.ttl for record in found.answer] == [60, 60]
    assert found.ttl == 60
    # the first bit of a TTL makes it none
    place = packet.index(b"\0\0\0\x3c")
    assert content(packet[:place] + b"\x80" + packet[place + 1 :]).ttl == 0


@pytest.mark.parametrize(
    ("soa", "ttl"),
    [
        (SOA, 60),
        (SOA.replace(" 300 ", " 20 "), 20),
        (SOA.replace(" 300 ", " 86400 ").replace(" 60", " 86400"), 1800),
        (SOA.replace("example.org. 300", ". 300", 1), 60),
        (SOA.replace("example.org. 300", "www.example.org. 300", 1), 60),
        (SOA.replace("example.org. 300", "example.com. 300", 1), 0),
        (SOA.replace("example.org. 300", "b.www.example.org. 300", 1), 0),
    ],
)
def test_a_denial_is_that_of_a_zone_above_the_name(soa: str, ttl: int) -> None:
    found = content(reply_to(ASKED, authority=[soa, RECORDS[-4]], rcode=3).to_wire())
    assert found.ttl == ttl
    assert [record.type for record in found.authority] == ([6] if ttl else [])
    assert found.is_denial


def test_proofs_of_a_denial_are_for_those_who_set_do() -> None:
    proof = "a.example.org. 60 IN NSEC z.example.org. A RRSIG NSEC"
    packet = reply_to(ASKED, authority=[SOA, proof, RECORDS[-4]], rcode=3).to_wire()
    assert [record.type for record in content(packet).authority] == [6]
    assert [record.type for record in content(packet, do=True).authority] == [6, 47]


@given(st.integers(1, 60), st.integers(512, 1232), st.booleans())
@effort(100)
def test_a_part_that_fits_is_sent_with_tc(count: int, size: int, edns: bool) -> None:
    records = tuple(WholeRecord(NAME, 1, 60, bytes((203, 0, 113, n))) for n in range(count))
    asked = question(edns=Edns(1232, do=False) if edns else None)
    packet = encode_answer(asked, Content(0, records), size)
    told = dns.message.from_wire(packet)
    fits = min(count, (size - 12 - 21 - (11 if edns else 0)) // 16)
    assert len(packet) <= size
    assert len(lines(told.answer)) == fits
    assert bool(told.flags & dns.flags.TC) == (fits < count)
    assert told.edns == (0 if edns else -1)


def test_a_long_answer_is_compressed_and_points_nowhere_that_a_pointer_does_not_reach() -> None:
    far = name_of("far." + "a" * 60 + ".example.org.")
    records = (
        WholeRecord(NAME, CNAME, 60, far),
        *(WholeRecord(far, 16, 60, b"\xff" + bytes([65 + n % 26]) * 255) for n in range(70)),
        WholeRecord(name_of("late.example.org."), CNAME, 60, name_of("later.example.org.")),
        *(
            WholeRecord(name_of("later.example.org."), 1, 60, bytes((10, 0, 0, n)))
            for n in range(2)
        ),
    )
    packet = encode_answer(question(16), Content(0, records), 65535)
    told = [(rrset.name.to_text(), rrset.ttl) for rrset in dns.message.from_wire(packet).answer]
    assert told == [
        ("WWW.example.org.", 60),
        ("far." + "a" * 60 + ".example.org.", 60),
        ("late.example.org.", 60),
        ("later.example.org.", 60),
    ]
    assert len(packet) < 70 * 270 + 300


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_query_is_one_that_dnspython_reads(edns: bool, do: bool, cd: bool) -> None:
    packet = encode_query(0xABCD, NAME, 28, edns=edns, do=do, flags=0x10 if cd else 0)
    told = dns.message.from_wire(packet)
    assert (told.id, told.question[0].to_text()) == (0xABCD, "www.example.org. IN AAAA")
    assert told.flags == dns.flags.RD | dns.flags.AD | (dns.flags.CD if cd else 0)
    assert told.edns == (0 if edns else -1)
    assert told.options == ()
    if edns:
        assert (told.payload, bool(told.ednsflags & dns.flags.DO)) == (1232, do)


def test_names_of_a_reply_are_bounded_together_and_read_once() -> None:
    """A hostile zone's reply over TCP: 4,000 records whose names have 120 labels each (issue
    30).
    """
    head = b"\0\7\x81\x80\0\1"
    question = b"\1a\0\0\1\0\1"
    record = b"\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
    whole = b"\1b" * 120 + b"\0" + record
    fresh = head + (200).to_bytes(2, "big") + bytes(4) + question + whole * 200
    assert len(read_reply(fresh).answer) == 200
    many = 64_000 // (len(record) + 4)
    # Each name begins with a label of its own and goes on at a pointer, so that none is a
    # repetition.
    chained = (
        head
        + (many + 1).to_bytes(2, "big")
        + bytes(4)
        + question
        + whole
        + (b"\1c\xc0\x13" + record) * many
    )
    with pytest.raises(WireError, match="too long together"):
        read_reply(chained)
    repeated = (
        head
        + (3000).to_bytes(2, "big")
        + bytes(4)
        + question
        + whole
        + (b"\xc0\x13" + record) * 2999
    )
    assert len(read_reply(repeated).answer) == 3000
