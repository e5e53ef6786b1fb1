"""DNS messages as bytes: queries read strictly, names with their limits, and the parts of answers.

``read_query`` is for what clients send, and says what to do with what is no query: drop it
(``None``) or answer it with an error (``Malformed``). ``read_name`` and ``read_record`` are for
messages of any origin; they raise ``WireError``.

Names are uncompressed wire form including the root (RFC 1035 section 3.1), with the case in which
they were written; ``lower`` makes the key for comparing (RFC 4343). Any octet is legal in a label
(RFC 2181 section 11).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from struct import Struct
from typing import Final, NamedTuple

HEADER_BYTES: Final = 12
NAME_MAX: Final = 255
LABEL_MAX: Final = 63
#: of a message over UDP: what a client without EDNS takes (RFC 1035 section 2.3.4), and what we
#: send and take with it (RFC 9715: larger ones are fragmented)
PLAIN_BYTES: Final = 512
PAYLOAD_BYTES: Final = 1232
TCP_BYTES: Final = 65535
#: pointers that one name may follow, of a client or of an upstream
POINTERS_MAX: Final = 10
#: records of a query: an OPT, a TSIG or SIG(0), and the SOA of an IXFR (RFC 1995); more is a format
#: error, unread
QUERY_RECORDS_MAX: Final = 3
#: options of an OPT that are read; more is a format error
OPTIONS_MAX: Final = 32
ROOT: Final = b"\0"

IN: Final = 1
A, NS, CNAME, SOA, PTR, HINFO, TXT, AAAA, SRV, OPT = 1, 2, 5, 6, 12, 13, 16, 28, 33, 41
IXFR, AXFR, ANY = 251, 252, 255
TYPE_NAMES: Final = {
    1: "A",
    2: "NS",
    5: "CNAME",
    6: "SOA",
    12: "PTR",
    13: "HINFO",
    15: "MX",
    16: "TXT",
    28: "AAAA",
    33: "SRV",
    35: "NAPTR",
    43: "DS",
    48: "DNSKEY",
    64: "SVCB",
    65: "HTTPS",
    251: "IXFR",
    252: "AXFR",
    255: "ANY",
}

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
RCODE_NAMES: Final = {
    0: "NOERROR",
    1: "FORMERR",
    2: "SERVFAIL",
    3: "NXDOMAIN",
    4: "NOTIMP",
    5: "REFUSED",
    16: "BADVERS",
}

QR, AA, TC, RD, RA, AD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
_OPCODE: Final = 0x7800
DO: Final = 0x8000

#: extended errors (RFC 8914 section 4)
EDE_STALE, EDE_NOT_READY, EDE_BLOCKED, EDE_PROHIBITED, EDE_NOT_AUTHORITATIVE = 3, 14, 15, 18, 20
EDE_NO_REACHABLE_AUTHORITY, EDE_NETWORK_ERROR = 22, 23
_OPTION_EDE: Final = 15

_header: Final = Struct("!HHHHHH")
_fields: Final = Struct("!HHIH")
_two: Final = Struct("!HH")
_ESCAPED: Final = re.compile(rb"[^!-~]|[.\\\"();@$]")


class WireError(ValueError):
    """These bytes are no DNS message."""


class Edns(NamedTuple):
    """Payload size and DO of a query's OPT (RFC 6891)."""

    payload: int
    do: bool


class DnsQuestion(NamedTuple):
    """The one question of a query, and what its answer depends on."""

    id: int
    #: as they came: opcode, RD, CD
    flags: int
    #: as it was written
    name: bytes
    type: int
    cls: int
    edns: Edns | None = None

    @property
    def key(self) -> bytes:
        return self.name.lower()

    @property
    def wire(self) -> bytes:
        """The question section, byte for byte."""
        return self.name + _two.pack(self.type, self.cls)

    def payload_of(self, transport: str) -> int:
        """How many bytes its answer may have."""
        if transport != "udp":
            return TCP_BYTES
        return (
            PLAIN_BYTES
            if self.edns is None
            else min(max(self.edns.payload, PLAIN_BYTES), PAYLOAD_BYTES)
        )


class Malformed(NamedTuple):
    """Bytes that are answered with an error."""

    answer: bytes
    rcode: int


class DnsRecord(NamedTuple):
    """A record of a message: ``packet[data:end]`` is its data, in which names may be compressed."""

    name: bytes
    type: int
    cls: int
    ttl: int
    data: int
    end: int


def read_query(packet: bytes) -> DnsQuestion | Malformed | None:
    """``None``: no answer at all, as to an answer (two servers would go on for ever) and to a stump
    of a header.
    """
    if len(packet) < HEADER_BYTES:
        return None
    number, flags, questions, answers, authorities, additionals = _header.unpack_from(packet)
    if flags & QR:
        return None
    if flags & _OPCODE:
        return _malformed(number, flags, NOTIMP)
    records = answers + authorities + additionals
    if questions != 1 or records > QUERY_RECORDS_MAX:  # RFC 9619
        return _malformed(number, flags, FORMERR)
    edns: Edns | None = None
    try:
        name, offset = read_name(packet, HEADER_BYTES, compressed=False)
        if offset + 4 > len(packet):
            raise WireError("the question ends early")
        kind, cls = _two.unpack_from(packet, offset)
        offset += 4
        for index in range(records):
            record = read_record(packet, offset)
            offset = record.end
            if record.type != OPT:
                continue
            if edns is not None or record.name != ROOT or index < answers + authorities:
                raise WireError("a second OPT, or one that is none")
            if record.ttl >> 16 & 0xFF:
                section = packet[HEADER_BYTES : HEADER_BYTES + len(name) + 4]
                answer = header(number, reply_flags(flags), 1, more=1) + section + opt(BADVERS)
                return Malformed(answer, BADVERS)
            _check_options(packet, record)
            edns = Edns(record.cls, bool(record.ttl & DO))
    except WireError:
        return _malformed(number, flags, FORMERR)
    return DnsQuestion(number, flags, name, kind, cls, edns)


def _check_options(packet: bytes, record: DnsRecord) -> None:
    """Raises ``WireError`` if the data of an OPT are not a list of at most ``OPTIONS_MAX``
    options.
    """
    offset = record.data
    for _ in range(OPTIONS_MAX):
        if offset == record.end:
            return
        if offset + 4 > record.end:
            break
        offset += 4 + int.from_bytes(packet[offset + 2 : offset + 4], "big")
    if offset != record.end:
        raise WireError("an option ends early, or there are too many")


def _malformed(number: int, flags: int, rcode: int) -> Malformed:
    """The header alone: what followed it cannot be repeated.  The opcode stays, as RFC 1035 section
    4.1.1 wants it.
    """
    return Malformed(header(number, reply_flags(flags) | flags & _OPCODE | rcode), rcode)


def reply_flags(flags: int) -> int:
    """Returns the flags of an answer to a query with *flags*: with its RD and CD, without AD, as
    this server does not validate.
    """
    return QR | flags & (RD | CD)


def header(
    number: int,
    flags: int,
    questions: int = 0,
    answers: int = 0,
    *,
    authority: int = 0,
    more: int = 0,
) -> bytes:
    """*more*: records of the additional section."""
    return _header.pack(number, flags, questions, answers, authority, more)


def opt(rcode: int = NOERROR, *, do: bool = False, ede: int | None = None, text: str = "") -> bytes:
    """The OPT record of an answer.  *ede*: an extended error, with *text* for a person (RFC
    8914).
    """
    data = b""
    if ede is not None:
        encoded = text.encode()[:200]
        data = _two.pack(_OPTION_EDE, 2 + len(encoded)) + ede.to_bytes(2, "big") + encoded
    return (
        ROOT
        + _fields.pack(OPT, PAYLOAD_BYTES, rcode >> 4 << 24 | (DO if do else 0), len(data))
        + data
    )


def error(
    question: DnsQuestion, rcode: int, *, ra: bool = False, ede: int | None = None, text: str = ""
) -> bytes:
    """An answer without records."""
    flags = reply_flags(question.flags) | (RA if ra else 0) | rcode
    edns = b"" if question.edns is None else opt(do=question.edns.do, ede=ede, text=text)
    return header(question.id, flags, 1, more=1 if edns else 0) + question.wire + edns


def encode_record(owner: bytes, kind: int, ttl: int, data: bytes) -> bytes:
    return owner + _fields.pack(kind, IN, ttl, len(data)) + data


# -- reading


def read_name(packet: bytes, offset: int, *, compressed: bool = True) -> tuple[bytes, int]:
    """The name at *offset*, and where what follows it begins. Pointers lead backwards only (RFC
    1035 section 4.1.4), at most ``POINTERS_MAX`` of them; the label types 01 and 10 are refused
    (RFC 6891 section 5).
    """
    labels: list[bytes] = []
    size = 1
    end = 0
    barrier = offset
    pointers = 0
    while True:
        if offset >= len(packet):
            raise WireError("a name ends early")
        length = packet[offset]
        if length == 0:
            labels.append(ROOT)
            return b"".join(labels), end or offset + 1
        if length >= 0xC0:
            if not compressed or offset + 1 >= len(packet):
                raise WireError("a pointer where there can be none")
            target = (length & 0x3F) << 8 | packet[offset + 1]
            end = end or offset + 2
            pointers += 1
            if target >= barrier or target < HEADER_BYTES or pointers > POINTERS_MAX:
                raise WireError("a pointer that does not lead backwards")
            barrier = offset = target
            continue
        if length > LABEL_MAX:
            raise WireError("a label of a type that there is not")
        label = packet[offset : offset + 1 + length]
        size += len(label)
        if size > NAME_MAX or len(label) <= length:
            raise WireError("a name that is too long, or ends early")
        labels.append(label)
        offset += 1 + length


def read_record(
    packet: bytes, offset: int, name_at: Callable[[int], tuple[bytes, int]] | None = None
) -> DnsRecord:
    """*name_at* reads its owner in the place of ``read_name``."""
    name, offset = read_name(packet, offset) if name_at is None else name_at(offset)
    if offset + _fields.size > len(packet):
        raise WireError("a record ends early")
    kind, cls, ttl, size = _fields.unpack_from(packet, offset)
    data = offset + _fields.size
    if data + size > len(packet):
        raise WireError("a record's data end early")
    return DnsRecord(name, kind, cls, ttl, data, data + size)


# -- names


def name_of(text: str) -> bytes:
    """The wire form of a name that a person or an API object writes, without escapes; the dot at
    its end may lack. Raises ``WireError``.
    """
    bare = text.removesuffix(".")
    labels = [label.encode() for label in bare.split(".")] if bare else []
    if not all(0 < len(label) <= LABEL_MAX for label in labels):
        raise WireError(f"{text!r} is no domain name: a label has 1 to {LABEL_MAX} octets")
    name = b"".join([bytes((len(label),)) + label for label in labels]) + ROOT
    if len(name) > NAME_MAX:
        raise WireError(f"{text!r} is no domain name: it has more than {NAME_MAX} octets")
    return name


def labels_of(name: bytes) -> tuple[bytes, ...]:
    """The labels of a name that is known to be one, with or without the root at its end."""
    labels = []
    offset = 0
    while offset < len(name) and (length := name[offset]):
        labels.append(name[offset + 1 : offset + 1 + length])
        offset += 1 + length
    return tuple(labels)


def text_of(name: bytes) -> str:
    """For a person and for logs: every octet that is not plain is escaped (RFC 1035 section
    5.1).
    """
    return "".join(_ESCAPED.sub(_escape, label).decode() + "." for label in labels_of(name)) or "."


def _escape(match: re.Match[bytes]) -> bytes:
    octet = match[0]
    return b"\\" + octet if b"!" <= octet <= b"~" else b"\\%03d" % octet[0]


def data_text(kind: int, data: bytes) -> str:
    """The data of a record of ours, as zone files have them (RFC 1035 section 5); names in it are
    whole.
    """
    match kind:
        case 1 | 28:
            return str(ip_address(data))
        case 2 | 5 | 12:
            return text_of(data)
        case 33:
            return (
                f"{data[0] << 8 | data[1]} {data[2] << 8 | data[3]} {data[4] << 8 | data[5]} "
                f"{text_of(data[6:])}"
            )
        case 13 | 16:
            strings = []
            while data:
                strings.append(data[1 : 1 + data[0]].decode("ascii", "replace"))
                data = data[1 + data[0] :]
            return " ".join(f'"{string}"' for string in strings)
    return f"\\# {len(data)} {data.hex()}"  # RFC 3597 section 5


def type_text(kind: int) -> str:
    """As RFC 3597 section 5 spells those without a name."""
    return TYPE_NAMES.get(kind) or f"TYPE{kind}"


def assembled(
    question: DnsQuestion,
    flags: int,
    records: Iterable[bytes],
    authority: list[bytes],
    *,
    limit: int,
    opt: bytes,
) -> bytes:
    """Returns an answer with as many of the records, in order, as fit."""
    room = limit - HEADER_BYTES - len(question.wire) - len(opt)
    taken: list[bytes] = []
    for record in records:
        if len(record) > room:
            flags |= TC
            break
        room -= len(record)
        taken.append(record)
    last = [record for record in authority if len(record) <= room][:1] if not flags & TC else []
    head = header(question.id, flags, 1, len(taken), authority=len(last), more=1 if opt else 0)
    return b"".join((head, question.wire, *taken, *last, opt))
