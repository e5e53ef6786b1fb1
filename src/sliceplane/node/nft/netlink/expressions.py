"""Encodes statements as the kernel's expressions: steps that load, compare and change registers.

Registers are counted in units of four bytes; evaluation of a rule ends at a comparison that fails.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache

from sliceplane.node.nft import statements
from sliceplane.node.nft.netlink import containers
from sliceplane.node.nft.netlink.containers import (
    ADDRESS_BYTES,
    ANONYMOUS_MAP,
    ANONYMOUS_SET,
    DROP_CODE,
    GOTO_CODE,
    JUMP_CODE,
    PROTOCOLS,
    address,
    port,
    value,
    verdict,
)
from sliceplane.node.nft.netlink.messages import (
    LIST_ELEMENT,
    Inexpressible,
    attribute,
    host_number,
    nest,
    number,
    text,
)
from sliceplane.node.nft.objects import goto

NFPROTO: dict[statements.NftFamily, int] = {"ip": 2, "ip6": 10}
_SADDR_OFFSET: dict[statements.NftFamily, int] = {"ip": 12, "ip6": 8}
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_EQUAL, _NOT_EQUAL = 0, 1
_META_MARK, _META_IIFNAME, _META_L4PROTO = 3, 6, 16
_CT_STATE, _CT_STATUS = 0, 2
_STATE_NEW, _STATUS_DNAT = 8, 32
_FIB_TYPE, _FIB_SADDR, _FIB_DADDR, _RTN_LOCAL = 3, 1, 2, 2
_PORT_UNREACHABLE: dict[statements.NftFamily, int] = {"ip": 3, "ip6": 4}
_REJECT_ICMP, _REJECT_RESET = 0, 1
_NUMGEN_RANDOM, _NAT_DNAT, _DYNSET_UPDATE = 1, 1, 1
_FULLY_RANDOM, _PORT_SPECIFIED = 0x10, 0x2
_INTERFACE_BYTES = 16
_ALL_BITS = 0xFFFFFFFF

#: appends one rule's anonymous set and returns its number; arguments: its name, a function from the
#: number to the message's body, and its elements
SetMaker = Callable[[str, Callable[[int], bytes], Sequence[bytes]], int]


#: caches expressions that the rules of a table have in common; the bound exceeds their number
_remembered = lru_cache(maxsize=256)


def register(unit: int) -> int:
    """Returns the number of the register at offset *unit* (of four bytes). Registers of 16 bytes have
    numbers from 1; those of 4 bytes (from 8 on) are used at the other offsets.
    """
    return 1 + unit // 4 if unit % 4 == 0 else 8 + unit


def _make(name: str, *attributes: bytes) -> bytes:
    return nest(LIST_ELEMENT, text(1, name), nest(2, *attributes))


def _meta(key: int, unit: int = 0) -> bytes:
    return _make("meta", number(2, key), number(1, register(unit)))


def _compare(how: int, data: bytes) -> bytes:
    return _make("cmp", number(1, register(0)), number(2, how), nest(3, value(data)))


def _payload(base: int, offset: int, length: int, unit: int = 0) -> bytes:
    return _make(
        "payload", number(1, register(unit)), number(2, base), number(3, offset), number(4, length)
    )


def _bitwise(mask: bytes, flip: bytes) -> bytes:
    """Masks the register with *mask*, then flips the bits of *flip*."""
    first = number(1, register(0)), number(2, register(0))
    return _make(
        "bitwise", *first, number(3, len(mask)), nest(4, value(mask)), nest(5, value(flip))
    )


def _immediate(unit: int, data: bytes) -> bytes:
    return _make("immediate", number(1, register(unit)), nest(2, value(data)))


def _decide(code: int, chain: str = "") -> bytes:
    return _make("immediate", number(1, 0), nest(2, verdict(code, chain)))


@_remembered
def _lookup(
    name: str, *, into: int | None = None, set_id: int | None = None, inverted: bool = False
) -> bytes:
    """Looks up the register in a set or map.  *into*: the register for a map's value; 0 is the
    verdict.
    """
    parts = [number(2, register(0))]
    if into is not None:
        parts.append(number(3, into))
    parts.append(text(1, name))
    if set_id is not None:
        parts.append(number(4, set_id))
    if inverted:
        parts.append(number(5, 1))
    return _make("lookup", *parts)


def _numgen(count: int, offset: int = 0, unit: int = 0) -> bytes:
    return _make(
        "numgen",
        number(1, register(unit)),
        number(2, count),
        number(3, _NUMGEN_RANDOM),
        number(4, offset),
    )


@_remembered
def _nat(family: statements.NftFamily, port_unit: int, flags: int = 0) -> bytes:
    parts = [
        number(1, _NAT_DNAT),
        number(2, NFPROTO[family]),
        number(3, register(0)),
        number(5, register(port_unit)),
    ]
    return _make("nat", *parts, *([number(7, flags)] if flags else []))


@_remembered
def _is_protocol(protocol: str) -> bytes:
    return _meta(_META_L4PROTO) + _compare(_EQUAL, bytes((PROTOCOLS[protocol],)))


def _has_bit(load: bytes, bit: int) -> bytes:
    return load + _bitwise(host_number(bit), bytes(4)) + _compare(_NOT_EQUAL, bytes(4))


def _flip_mark(mask: int) -> bytes:
    changed = _bitwise(host_number(mask), host_number(statements.MASQUERADE_MARK))
    return (
        _meta(_META_MARK) + changed + _make("meta", number(2, _META_MARK), number(3, register(0)))
    )


@_remembered
def _load(fields: tuple[statements.Field, ...], family: statements.NftFamily) -> bytes:
    """Loads the fields one after the other, each from the start of a register."""
    parts = []
    unit = 0
    for field in fields:
        match field:
            case "saddr" | "daddr":
                size = ADDRESS_BYTES[family]
                offset = _SADDR_OFFSET[family] + (size if field == "daddr" else 0)
                parts.append(_payload(_NETWORK_HEADER, offset, size, unit))
                unit += size // 4
            case "proto":
                parts.append(_meta(_META_L4PROTO, unit))
                unit += 1
            case "dport":
                parts.append(_payload(_TRANSPORT_HEADER, 2, 2, unit))
                unit += 1
    return b"".join(parts)


class Expressions:
    """Encodes the statements of one family's rules; *make_set* appends their anonymous sets."""

    def __init__(self, table: str, family: statements.NftFamily, make_set: SetMaker) -> None:
        self._table = table
        self._family = family
        self._make_set = make_set

    def encode(self, parts: Sequence[statements.Statement]) -> bytes:
        """Encodes the statements of a rule.  Raises ``ValueError`` if that is impossible."""
        return b"".join(map(self._encode, parts))

    def _encode(self, statement: statements.Statement) -> bytes:
        family = self._family
        match statement:
            case statements.CtStateNew():
                return _has_bit(
                    _make("ct", number(2, _CT_STATE), number(1, register(0))), _STATE_NEW
                )
            case statements.CtStatusDnat():
                return _has_bit(
                    _make("ct", number(2, _CT_STATUS), number(1, register(0))), _STATUS_DNAT
                )
            case statements.InSet(fields, name):
                return _load(fields, family) + _lookup(name)
            case statements.Vmap(fields, name):
                return _load(fields, family) + _lookup(name, into=0)
            case statements.AddressIn(field, networks, inside):
                return self._address_in(field, networks, inside)
            case statements.FromInterface(name, inside):
                return _from_interface(name, inside)
            case statements.IsOwnAddress(field):
                which = _FIB_SADDR if field == "saddr" else _FIB_DADDR
                load = _make("fib", number(3, which), number(2, _FIB_TYPE), number(1, register(0)))
                return load + _compare(_EQUAL, host_number(_RTN_LOCAL))
            case statements.ClearMark():
                return _has_bit(_meta(_META_MARK), statements.MASQUERADE_MARK) + _flip_mark(
                    _ALL_BITS
                )
        return self._act(statement)

    def _act(self, statement: statements.Statement) -> bytes:
        family = self._family
        match statement:
            case statements.Jump(chain):
                return _decide(JUMP_CODE, chain)
            case statements.Goto(chain):
                return _decide(GOTO_CODE, chain)
            case statements.Drop():
                return _decide(DROP_CODE)
            case statements.Reject():
                return _make(
                    "reject",
                    number(1, _REJECT_ICMP),
                    attribute(2, bytes((_PORT_UNREACHABLE[family],))),
                )
            case statements.ResetTcp():
                return _is_protocol("tcp") + _make(
                    "reject", number(1, _REJECT_RESET), attribute(2, bytes(1))
                )
            case statements.Masquerade():
                return _make("masq", number(1, _FULLY_RANDOM))
            case statements.SetMark():
                return _flip_mark(_ALL_BITS & ~statements.MASQUERADE_MARK)
            case statements.Remember(name):
                return _load(("saddr",), family) + _make(
                    "dynset", number(4, register(0)), number(3, _DYNSET_UPDATE), text(1, name)
                )
            case statements.Balance(protocol, count, offset, name):
                lookup = _numgen(count, offset) + _lookup(name, into=register(0))
                return _is_protocol(protocol) + lookup + _nat(family, ADDRESS_BYTES[family] // 4)
            case statements.DnatMap(fields, name):
                return (
                    _load(fields, family)
                    + _lookup(name, into=register(0))
                    + _nat(family, ADDRESS_BYTES[family] // 4)
                )
            case statements.DnatBucket(fields, count, name):
                units = ADDRESS_BYTES[family] // 4
                loaded = _load(fields, family) + _numgen(count, unit=units + len(fields) - 1)
                return loaded + _lookup(name, into=register(0)) + _nat(family, units)
            case statements.Dnat(protocol, ip, to_port):
                where = _immediate(0, address(ip, family)) + _immediate(4, port(to_port)[:2])
                return _is_protocol(protocol) + where + _nat(family, 4, _PORT_SPECIFIED)
            case statements.GotoOneOf(chains):
                return self._goto_one_of(chains)
        raise Inexpressible(f"{statement}")

    def _goto_one_of(self, chains: tuple[str, ...]) -> bytes:
        items = [((index,), goto(chain)) for index, chain in enumerate(chains)]
        set_id = self._make_set(
            ANONYMOUS_MAP,
            lambda chosen: containers.anonymous_map(self._table, len(items), chosen),
            list(containers.elements(items, self._family)),
        )
        return _numgen(len(items)) + _lookup(ANONYMOUS_MAP, into=0, set_id=set_id)

    def _address_in(self, field: str, networks: tuple[str, ...], inside: bool) -> bytes:
        size = ADDRESS_BYTES[self._family]
        how = _EQUAL if inside else _NOT_EQUAL
        offset = _SADDR_OFFSET[self._family] + (size if field == "daddr" else 0)
        ranges = _ranges(networks, self._family)
        if len(networks) > 1:
            marks = _bounds(ranges, size)
            set_id = self._make_set(
                ANONYMOUS_SET,
                lambda chosen: containers.anonymous_set(
                    self._table, len(marks) + 1, self._family, field, chosen
                ),
                marks,
            )
            load = _payload(_NETWORK_HEADER, offset, size)
            return load + _lookup(ANONYMOUS_SET, set_id=set_id, inverted=not inside)
        ((first, last),) = ranges
        free = (first ^ last).bit_length()  # bits of the address outside the prefix
        fixed = size - free // 8
        if free % 8 == 0 and fixed:
            return _payload(_NETWORK_HEADER, offset, fixed) + _compare(
                how, first.to_bytes(size)[:fixed]
            )
        mask = ((1 << size * 8) - 1) >> free << free
        masked = _bitwise(mask.to_bytes(size), bytes(size))
        return (
            _payload(_NETWORK_HEADER, offset, size) + masked + _compare(how, first.to_bytes(size))
        )


def _from_interface(name: str, inside: bool) -> bytes:
    how = _EQUAL if inside else _NOT_EQUAL
    if name.endswith("*"):
        data = name[:-1].encode()
        if not data or data.endswith(b"\\"):
            raise Inexpressible(f"interface {name}")
    else:
        data = name.encode().ljust(_INTERFACE_BYTES, b"\0")
    if len(data) > _INTERFACE_BYTES:
        raise Inexpressible(f"interface {name}")
    return _meta(_META_IIFNAME) + _compare(how, data)


def _ranges(networks: tuple[str, ...], family: statements.NftFamily) -> list[tuple[int, int]]:
    """Returns the first and the last address of each network, sorted."""
    kind = ipaddress.IPv4Network if family == "ip" else ipaddress.IPv6Network
    parsed = [kind(network) for network in networks]
    return sorted(
        (int(network.network_address), int(network.broadcast_address)) for network in parsed
    )


def _bounds(ranges: list[tuple[int, int]], size: int) -> list[bytes]:
    """Returns the elements of a set of intervals as ``nft`` writes them. Adjacent intervals are
    merged, the first bound is at the lowest address, and an interval up to the highest address has
    no end.
    """
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and merged[-1][1] + 1 >= first:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    highest = (1 << size * 8) - 1
    marks = [] if merged[0][0] == 0 else [containers.bound(bytes(size), end=True)]
    for first, last in merged:
        marks.append(containers.bound(first.to_bytes(size), is_open=last == highest))
        if last != highest:
            marks.append(containers.bound((last + 1).to_bytes(size), end=True))
    return marks
