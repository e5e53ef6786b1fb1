"""Messages of the forwarder: queries to upstreams, their replies, and answers to clients.

Decoding of replies is strict: counts must match, names within data are decompressed, and an address
has the length of its family. Invalid bytes raise ``WireError`` and nothing else. Names that
pointers repeat are decoded once, and all names of a reply are bounded by ``NAMES_BYTES_MAX``, so
that no reply takes long to decode.

An answer has the records of a reply that the question's chain of CNAMEs leads to, and only the SOA
of the authority section. With DO it also has the proof of a denial (RFC 4035, 3.1.3), which is used
for no other name. It has no additional records.
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

#: records of one reply; legitimate replies to clients of a cluster have fewer
RECORDS_MAX: Final = 4000
#: bytes of all names of one reply; names that pointers repeat count once
NAMES_BYTES_MAX: Final = 192 * 1024
#: CNAMEs that one answer follows
CHAIN_MAX: Final = 10
_TTL_MAX: Final = 0x7FFFFFFF
_OPTION_EDE: Final = 15
_POINTER: Final = 0xC000
_POINTER_MAX: Final = 0x3FFF

_header: Final = Struct("!6H")
_two: Final = Struct("!2H")
#: positions of names in data, which may be compressed (RFC 1035, 3.3; RFC 3597, 4): bytes before
#: them, their number, bytes after them
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
    """A record of class IN without compressed names."""

    owner: bytes
    type: int
    ttl: int
    data: bytes


class Reply(NamedTuple):
    """A decoded reply.  ``name`` is ``None`` if it has no question; ``error``: an extended error
    (RFC 8914).
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
    """The answer to a question, independent of the client.  ``ttl``: seconds for which it may be
    cached; 0: not at all.
    """

    rcode: int
    answer: tuple[WholeRecord, ...] = ()
    authority: tuple[WholeRecord, ...] = ()
    authenticated: bool = False
    error: int | None = None
    ttl: int = 0

    @property
    def is_denial(self) -> bool:
        """Returns True if a name or its records do not exist."""
        return self.rcode == NXDOMAIN or any(record.type == SOA for record in self.authority)


def encode_query(number: int, name: bytes, kind: int, *, edns: bool, do: bool, flags: int) -> bytes:
    """Encodes a query with the CD bit of *flags*, those of a client.

    AD requests that bit in the reply (RFC 6840, 5.7). The OPT record has no options: the subnet of
    a client is not disclosed to upstreams.
    """
    query = header(number, RD | AD | flags & CD, 1, more=int(edns)) + name + _two.pack(kind, IN)
    return query + opt(do=do) if edns else query


class _Names:
    """Decoder of the names of one reply, with a cache and a bound."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        #: decoded names by pointer
        self._read: dict[int, bytes] = {}
        self._remaining_bytes = NAMES_BYTES_MAX

    def at(self, offset: int) -> tuple[bytes, int]:
        """Decodes a name like ``read_name``.  Also raises ``WireError`` if the names of the reply
        exceed the bound.
        """
        pointer = int.from_bytes(self._packet[offset : offset + 2], "big")
        name = self._read.get(pointer)
        if name is not None:
            return name, offset + 2
        name, end = read_name(self._packet, offset)
        self._remaining_bytes -= len(name)
        if self._remaining_bytes < 0:
            raise WireError("names are too long together")
        if pointer >= _POINTER:
            self._read[pointer] = name
        return name, end


def read_reply(packet: bytes) -> Reply:
    """Decodes a reply.  Raises ``WireError``."""
    if len(packet) < HEADER_BYTES:
        raise WireError("shorter than a header")
    number, flags, questions, *counts = _header.unpack_from(packet)
    if not flags & QR or flags & _OPCODE or questions > 1 or sum(counts) > RECORDS_MAX:
        raise WireError("not a response to a query")
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
                records.append(_decompress_record(packet, record, names))
        sections.append(records)
    if at != len(packet):
        raise WireError("trailing bytes after the last record")
    return Reply(number, flags, rcode, name, kind, tuple(sections[0]), tuple(sections[1]), error)


def _decompress_record(packet: bytes, record: DnsRecord, names_of: _Names) -> WholeRecord:
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
    # A TTL with its highest bit set counts as zero (RFC 2181, 8).
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
    """Yields *name* and each name above it except the root, with its offset."""
    at = 0
    while name[at]:
        yield at, name[at:]
        at += name[at] + 1


def select_content(
    reply: Reply, name: bytes, kind: int, *, do: bool, ttl_max: int, denial_ttl_max: int
) -> Content:
    """Returns the content of *reply* that answers the question for *name*.

    It may be cached for its shortest TTL, a denial for that of its SOA (RFC 2308, 5); a denial
    without an SOA is not cached.
    """
    chain, end = _follow_chain(reply.answer, name.lower(), kind, do=do)
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


def _follow_chain(
    records: Iterable[WholeRecord], name: bytes, kind: int, *, do: bool
) -> tuple[tuple[WholeRecord, ...], bytes]:
    """Returns the records that *name* leads to, in their order, and the name at the end of the
    chain of CNAMEs.
    """
    by_owner: dict[bytes, list[WholeRecord]] = {}
    for record in records:
        by_owner.setdefault(record.owner.lower(), []).append(record)
    chain: list[WholeRecord] = []
    for _ in range(CHAIN_MAX + 1):
        if do:
            for _, above in list(names_above(name))[1:]:
                chain += _equalize_ttls(
                    record for record in by_owner.get(above, ()) if record.type in (DNAME, RRSIG)
                )
        here = by_owner.pop(name, [])  # so that a cycle ends
        chain += _equalize_ttls(
            record
            for record in here
            if record.type in (kind, CNAME) or (do and record.type == RRSIG)
        )
        aliases = [record.data.lower() for record in here if record.type == CNAME]
        if not aliases or any(record.type == kind for record in here):
            break
        name = aliases[0]
    return tuple(dict.fromkeys(chain)), name


def _equalize_ttls(records: Iterable[WholeRecord]) -> Iterable[WholeRecord]:
    """Sets the TTL of all records of a set to the shortest one (RFC 2181, 5.2).  *records* are
    those of one owner.
    """
    originals = tuple(records)
    shortest: dict[int, int] = {}
    for record in originals:
        shortest[record.type] = min(shortest.get(record.type, _TTL_MAX), record.ttl)
    return [record._replace(ttl=shortest[record.type]) for record in originals]


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
    """Encodes *content*, cached *age_s* ago, after the records *before* it; *text* explains an
    extended error.

    Records beyond *size* are omitted, with TC set (RFC 2181, 9): a client without TCP uses the
    others.
    """
    edns = b""
    if question.edns is not None:
        edns = opt(do=question.edns.do, ede=content.error, text=text)
    packet = bytearray(HEADER_BYTES) + question.wire
    pointers = {name: _POINTER | HEADER_BYTES + at for at, name in names_above(question.key)}
    counts = [0, 0]
    sections = ((0, 0, before), (0, age_s, content.answer), (1, age_s, content.authority))
    for section, record, age in (
        (section, record, age) for section, age, records in sections for record in records
    ):
        start = len(packet)
        pointer = pointers.get(record.owner.lower())
        owner = record.owner if pointer is None else pointer.to_bytes(2, "big")
        packet += encode_record(owner, record.type, max(record.ttl - age, 0), record.data)
        if len(packet) + len(edns) > size:
            del packet[start:]
            flags |= TC
            break
        counts[section] += 1
        _note_pointer(pointers, record.owner.lower(), start)
        if record.type == CNAME:
            _note_pointer(pointers, record.data.lower(), len(packet) - len(record.data))
    flags |= reply_flags(question.flags) | content.rcode & 15
    if content.authenticated and (
        question.flags & AD or (question.edns is not None and question.edns.do)
    ):
        flags |= AD
    packet[:HEADER_BYTES] = header(
        question.id, flags, 1, counts[0], authority=counts[1], more=int(question.edns is not None)
    )
    return bytes(packet + edns)


def _note_pointer(pointers: dict[bytes, int], name: bytes, at: int) -> None:
    """Records that *name* is at *at*, unless it has an earlier offset or a pointer cannot reach it."""
    if at <= _POINTER_MAX:
        pointers.setdefault(name, _POINTER | at)
