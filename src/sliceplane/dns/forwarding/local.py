"""Names that are answered without an upstream: special names and a table of hosts.

Special names are ``localhost`` (RFC 6761, 6.3), ``invalid`` (RFC 6761, 6.4), ``onion`` (RFC 7686),
``local`` for multicast DNS (RFC 6762, 22.1), ``test`` (RFC 6761, 6.2), and ``alt`` (RFC 9476); a
stub zone at or below one of them overrides this. Types from 128 to 255 are meta types, and are
never forwarded; ANY is answered with one record (RFC 8482, 4.2).

The table has the format of ``hosts(5)``: in each line an address and its names. Questions for a
name in the table are answered only from the table, whatever their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sliceplane.dns.forwarding.message import Content, WholeRecord, names_above
from sliceplane.dns.wire import (
    AAAA,
    ANY,
    HINFO,
    NOERROR,
    NXDOMAIN,
    PTR,
    REFUSED,
    SOA,
    A,
    WireError,
    name_of,
)
from sliceplane.kit.ip import Address, parse_lenient

HOSTS_TTL_S: Final = 60
#: names of one table; further ones are ignored, with a warning
HOSTS_MAX: Final = 10_000
SPECIAL_TTL_S: Final = 10_800

_LOCALHOST: Final = name_of("localhost")
_ABSENT: Final = {name_of(name) for name in ("invalid", "onion", "local", "test", "alt")}
_LOOPBACK: Final = {A: bytes((127, 0, 0, 1)), AAAA: bytes((*bytes(15), 1))}
#: "RFC8482" as processor, no system
_MINIMAL_ANY: Final = b"\x07RFC8482\x00"
_META_TYPES: Final = range(128, 256)


class HostTable(msgspec.Struct, frozen=True):
    """A table of hosts.  ``names``: record data by type, by name in wire form.  ``problems``:
    descriptions of invalid lines.
    """

    names: Mapping[bytes, Mapping[int, tuple[bytes, ...]]] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def answer(self, name: bytes, kind: int) -> Content | None:
        records = self.names.get(name.lower())
        if records is None:
            return None
        answer = tuple(WholeRecord(name, kind, HOSTS_TTL_S, data) for data in records.get(kind, ()))
        return Content(NOERROR, answer, () if answer else (_soa(name, HOSTS_TTL_S),))


def parse_hosts(text: str) -> HostTable:
    names: dict[bytes, dict[int, list[bytes]]] = {}
    problems: list[str] = []
    entries = 0
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        address = parse_lenient(fields[0].partition("%")[0])
        if address is None or len(fields) < 2:
            problems.append(f"line {number}: an address and its names are expected")
            continue
        for field in fields[1:]:
            try:
                name = name_of(field).lower()
            except WireError as error:
                problems.append(f"line {number}: {error}")
                continue
            entries += 1
            if entries > HOSTS_MAX:
                problems.append(f"line {number}: more than {HOSTS_MAX} names; the rest is ignored")
                return _frozen(names, problems)
            kind = A if address.version == 4 else AAAA
            _add(names, name, kind, address.packed)
            _add(names, reverse_name(address), PTR, name)
    return _frozen(names, problems)


def _add(names: dict[bytes, dict[int, list[bytes]]], name: bytes, kind: int, data: bytes) -> None:
    records = names.setdefault(name, {}).setdefault(kind, [])
    if data not in records:
        records.append(data)


def _frozen(names: dict[bytes, dict[int, list[bytes]]], problems: list[str]) -> HostTable:
    table = {
        name: {kind: tuple(data) for kind, data in records.items()}
        for name, records in names.items()
    }
    return HostTable(table, tuple(problems[:20]))


def reverse_name(address: Address) -> bytes:
    return name_of(address.reverse_pointer)


def answer_meta(name: bytes, kind: int) -> Content | None:
    """Returns the answer to a type that is never forwarded; ``None`` for other types."""
    if kind == ANY:
        return Content(NOERROR, (WholeRecord(name, HINFO, SPECIAL_TTL_S, _MINIMAL_ANY),))
    return Content(REFUSED) if kind in _META_TYPES or kind in (0, 41) else None


def special_zone(name: bytes) -> bytes | None:
    """Returns the special zone of *name*, if any."""
    above = [suffix for _, suffix in names_above(name.lower())]
    return above[-1] if above and above[-1] in (_LOCALHOST, *_ABSENT) else None


def answer_special(zone: bytes, name: bytes, kind: int) -> Content:
    """Returns the answer for a name in a special *zone*: loopback for localhost and names below it,
    NXDOMAIN otherwise.
    """
    denial = (_soa(zone, SPECIAL_TTL_S),)
    if zone != _LOCALHOST:
        return Content(NXDOMAIN, (), denial)
    data = _LOOPBACK.get(kind)
    return (
        Content(NOERROR, (), denial)
        if data is None
        else Content(NOERROR, (WholeRecord(name, kind, SPECIAL_TTL_S, data),))
    )


def _soa(zone: bytes, ttl: int) -> WholeRecord:
    """Returns the SOA that RFC 6303, 3 defines for zones that every server answers itself."""
    timers = b"".join(number.to_bytes(4, "big") for number in (1, 3600, 1200, 604_800, ttl))
    return WholeRecord(zone, SOA, ttl, _LOCALHOST + name_of("nobody.invalid") + timers)
