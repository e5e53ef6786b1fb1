"""Messages of the forwarder: queries to upstreams, their replies, and the answers that are made of
them.

A reply is read strictly: every count is met, names within data are made whole, an address has the
length of its family. What breaks a rule raises ``WireError`` and nothing else, whatever the bytes
are; names that pointers repeat are read once, and all names of a reply have ``NAMES_BYTES_MAX``
together, so that no reply takes long to read.

Of a reply an answer keeps what the question's own chain of CNAMEs leads to, no additional records,
and of the authority section the SOA alone; with DO set also what proves a denial (RFC 4035, 3.1.3),
which is used for no other name.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from sliceplane.dns.wire import (
    AAAA,
    AD,
    CD,
    CNAME,
    HEADER_BYTES,
    IN,
    NS,
    NXDOMAIN,
    OPT,
    PTR,
    QR,
    RA,
    RD,
    SOA,
    SRV,
    TC,
    A,
    DnsQuestion,
    DnsRecord,
    WireError,
    encode_record,
    header,
    opt,
    read_name,
    read_record,
    reply_flags,
)

DNAME: Final = 39
RRSIG: Final = 46
_NSEC: Final = 47
_NSEC3: Final = 50
_OPCODE: Final = 0x7800

#: of one reply; more is no answer that a client of a cluster waits for
RECORDS_MAX: Final = 4000
#: names of one reply, those that pointers repeat counted once
NAMES_BYTES_MAX: Final = 192 * 1024
#: CNAMEs that one answer follows
CHAIN_MAX: Final = 10
_TTL_MAX: Final = 0x7FFFFFFF
_OPTION_EDE: Final = 15
_POINTER: Final = 0xC000
_POINTER_MAX: Final = 0x3FFF

_header: Final = Struct("!6H")
_two: Final = Struct("!2H")
#: where names stand in data, which a sender may have compressed (RFC 1035, 3.3; RFC 3597, 4): bytes
#: before them, their number, bytes after them
_NAMES_IN_DATA: Final = {
    **dict.fromkeys((NS, 3, 4, CNAME, 7, 8, 9, PTR, DNAME), (0, 1, 0)),
    **dict.fromkeys((14, 17), (0, 2, 0)),
    **dict.fromkeys((15, 18, 21, 36), (2, 1, 0)),
    SOA: (0, 2, 20),
    26: (2, 2, 0),
    SRV: (6, 1, 0),
}
_LENGTHS: Final = {A: 4, AAAA: 16}
_PROOFS: Final = (RRSIG, _NSEC, _NSEC3)


class WholeRecord(NamedTuple):
    """Of class IN; the names in it are whole."""

    owner: bytes
    type: int
    ttl: int
    data: bytes


class Reply(NamedTuple):
    """``name`` is ``None`` if the reply has no question; ``error``: an extended error (RFC
    8914).
    """

    id: int
    flags: int
    rcode: int
    name: bytes | None
    type: int
    answer: tuple[WholeRecord, ...]
    authority: tuple[WholeRecord, ...]
    error: int | None


class Content(NamedTuple):
    """What is answered to a question, whoever asks it; ``ttl``: how long it may be kept, 0: not at
    all.
    """

    rcode: int
    answer: tuple[WholeRecord, ...] = ()
    authority: tuple[WholeRecord, ...] = ()
    authenticated: bool = False
    error: int | None = None
    ttl: int = 0

    @property
    def is_denial(self) -> bool:
        """It says that a name or its records are not there."""
        return self.rcode == NXDOMAIN or any(record.type == SOA for record in self.authority)


def encode_query(number: int, name: bytes, kind: int, *, edns: bool, do: bool, flags: int) -> bytes:
    """CD as in *flags*, those of a client. AD asks for the bit of the same name in the reply (RFC
    6840, 5.7). The OPT carries no option: a client's subnet goes to no upstream.
    """
    asked = header(number, RD | AD | flags & CD, 1, more=int(edns)) + name + _two.pack(kind, IN)
    return asked + opt(do=do) if edns else asked


class _Names:
    """The names of one reply."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        #: by where a pointer leads
        self._read: dict[int, bytes] = {}
        self._bytes_left = NAMES_BYTES_MAX

    def at(self, offset: int) -> tuple[bytes, int]:
        """Reads like ``read_name``.  Raises ``WireError``, too, if the reply's names are too long
        together.
        """
        pointer = int.from_bytes(self._packet[offset : offset + 2], "big")
        name = self._read.get(pointer)
        if name is not None:
            return name, offset + 2
        name, end = read_name(self._packet, offset)
        self._bytes_left -= len(name)
        if self._bytes_left < 0:
            raise WireError("names are too long together")
        if pointer >= _POINTER:
            self._read[pointer] = name
        return name, end


def read_reply(packet: bytes) -> Reply:
    """Raises ``WireError``."""
    if len(packet) < HEADER_BYTES:
        raise WireError("shorter than a header")
    number, flags, questions, *counts = _header.unpack_from(packet)
    if not flags & QR or flags & _OPCODE or questions > 1 or sum(counts) > RECORDS_MAX:
        raise WireError("no response to a query")
    at = HEADER_BYTES
    name: bytes | None = None
    kind = 0
    if questions:
        name, at = read_name(packet, at, compressed=False)
        if packet[at + 2 : at + 4] != b"\0\1":
            raise WireError("its question ends early, or is of another class")
        kind = int.from_bytes(packet[at : at + 2], "big")
        at += 4
    sections: list[list[WholeRecord]] = []
    rcode = flags & 15
    error: int | None = None
    names = _Names(packet)
    for count in counts:
        records = []
        for _ in range(count):
            record = read_record(packet, at, names.at)
            at = record.end
            if record.type == OPT:
                rcode |= record.ttl >> 20 & 0xFF0
                error = _extended_error(packet[record.data : record.end])
            elif record.cls == IN:
                records.append(_whole(packet, record, names))
        sections.append(records)
    if at != len(packet):
        raise WireError("longer than it says")
    return Reply(number, flags, rcode, name, kind, tuple(sections[0]), tuple(sections[1]), error)


def _whole(packet: bytes, record: DnsRecord, names_of: _Names) -> WholeRecord:
    at, end = record.data, record.end
    if _LENGTHS.get(record.type, end - at) != end - at:
        raise WireError("an address of a wrong length")
    data = packet[at:end]
    layout = _NAMES_IN_DATA.get(record.type)
    if layout is not None:
        before, names, after = layout
        at += before
        data = data[:before]
        for _ in range(names):
            name, at = names_of.at(at)
            data += name
        if at + after != end:
            raise WireError("data of a wrong length")
        data += packet[at:end]
    # A TTL with its first bit set is none (RFC 2181, 8).
    return WholeRecord(record.name, record.type, record.ttl if record.ttl <= _TTL_MAX else 0, data)


def _extended_error(options: bytes) -> int | None:
    at = 0
    while at + 4 <= len(options):
        code, size = _two.unpack_from(options, at)
        if code == _OPTION_EDE and size >= 2 and at + 6 <= len(options):
            return int.from_bytes(options[at + 4 : at + 6], "big")
        at += 4 + size
    return None


def names_above(name: bytes) -> Iterable[tuple[int, bytes]]:
    """*name* itself, then each name above it but the root, with its offset."""
    at = 0
    while name[at]:
        yield at, name[at:]
        at += name[at] + 1


def content_of(
    reply: Reply, name: bytes, kind: int, *, do: bool, ttl_max: int, denial_ttl_max: int
) -> Content:
    """What of *reply* answers the question for *name*. It is kept as long as its shortest TTL says,
    a denial as its SOA does (RFC 2308, 5), and what denies without an SOA is not kept.
    """
    chain, end = _chain(reply.answer, name.lower(), kind, do=do)
    ttl = min((ttl_max, *(record.ttl for record in chain)))
    authority: tuple[WholeRecord, ...] = ()
    if not any(record.type == kind for record in chain):
        zones = {b"\0", *(zone for _, zone in names_above(end))}
        soas = [
            record
            for record in reply.authority
            if record.type == SOA and record.owner.lower() in zones
        ]
        if soas:
            soa = soas[0]._replace(ttl=min(soas[0].ttl, int.from_bytes(soas[0].data[-4:], "big")))
            authority = (
                soa,
                *(record for record in reply.authority if do and record.type in _PROOFS),
            )
        ttl = min(ttl, denial_ttl_max, soa.ttl) if soas else 0
    return Content(reply.rcode, chain, authority, bool(reply.flags & AD), reply.error, ttl)


def _chain(
    records: Iterable[WholeRecord], name: bytes, kind: int, *, do: bool
) -> tuple[tuple[WholeRecord, ...], bytes]:
    """The records that *name* leads to, in their order, and the name at the end of the chain of
    CNAMEs.
    """
    by_owner: dict[bytes, list[WholeRecord]] = {}
    for record in records:
        by_owner.setdefault(record.owner.lower(), []).append(record)
    chain: list[WholeRecord] = []
    for _ in range(CHAIN_MAX + 1):
        if do:
            for _, above in list(names_above(name))[1:]:
                chain += _of_one_ttl(
                    record for record in by_owner.get(above, ()) if record.type in (DNAME, RRSIG)
                )
        here = by_owner.pop(name, [])  # so that a circle ends
        chain += _of_one_ttl(
            record
            for record in here
            if record.type in (kind, CNAME) or (do and record.type == RRSIG)
        )
        aliases = [record.data.lower() for record in here if record.type == CNAME]
        if not aliases or any(record.type == kind for record in here):
            break
        name = aliases[0]
    return tuple(dict.fromkeys(chain)), name


def _of_one_ttl(records: Iterable[WholeRecord]) -> Iterable[WholeRecord]:
    """Of one owner: one TTL for each set, the shortest (RFC 2181, 5.2)."""
    given = tuple(records)
    shortest: dict[int, int] = {}
    for record in given:
        shortest[record.type] = min(shortest.get(record.type, _TTL_MAX), record.ttl)
    return [record._replace(ttl=shortest[record.type]) for record in given]


def encode_answer(
    question: DnsQuestion,
    content: Content,
    size: int,
    *,
    age_s: int = 0,
    before: tuple[WholeRecord, ...] = (),
    flags: int = RA,
    text: str = "",
) -> bytes:
    """*content* of *age_s* for one client, after the records *before* it; *text* goes with an
    extended error.

    What does not fit in *size* is left out, with TC (RFC 2181, 9): a client without TCP uses the
    part that came.
    """
    edns = b""
    if question.edns is not None:
        edns = opt(do=question.edns.do, ede=content.error, text=text)
    packet = bytearray(HEADER_BYTES) + question.wire
    places = {name: _POINTER | HEADER_BYTES + at for at, name in names_above(question.key)}
    counts = [0, 0]
    sections = ((0, 0, before), (0, age_s, content.answer), (1, age_s, content.authority))
    for section, record, age in (
        (section, record, age) for section, age, records in sections for record in records
    ):
        start = len(packet)
        place = places.get(record.owner.lower())
        owner = record.owner if place is None else place.to_bytes(2, "big")
        packet += encode_record(owner, record.type, max(record.ttl - age, 0), record.data)
        if len(packet) + len(edns) > size:
            del packet[start:]
            flags |= TC
            break
        counts[section] += 1
        _remember(places, record.owner.lower(), start)
        if record.type == CNAME:
            _remember(places, record.data.lower(), len(packet) - len(record.data))
    flags |= reply_flags(question.flags) | content.rcode & 15
    if content.authenticated and (
        question.flags & AD or (question.edns is not None and question.edns.do)
    ):
        flags |= AD
    packet[:HEADER_BYTES] = header(
        question.id, flags, 1, counts[0], authority=counts[1], more=int(question.edns is not None)
    )
    return bytes(packet + edns)


def _remember(places: dict[bytes, int], name: bytes, at: int) -> None:
    """That *name* stands whole at *at*, if a pointer reaches it and it has no earlier place."""
    if at <= _POINTER_MAX:
        places.setdefault(name, _POINTER | at)
