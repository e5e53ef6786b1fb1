"""Sets, maps and their elements.

Keys and targets are concatenations: each part is padded to four bytes, the size of a register.
Addresses and ports are in network byte order, numbers that ``numgen`` draws in host byte order.

A set's *user data* has the facts that ``nft`` needs for a listing and the kernel does not: small
nested records of kind, length and value (libnftnl's udata). Their numbers are nft's own.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from sliceplane.node.nft.netlink.messages import (
    LIST_ELEMENT,
    Inexpressible,
    attribute,
    host_number,
    long_number,
    nest,
    number,
    text,
)
from sliceplane.node.nft.objects import DnatTarget, Item, Key, NftContainer, RemainingTime, Value
from sliceplane.node.nft.statements import NftFamily

PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
ADDRESS_BYTES: dict[NftFamily, int] = {"ip": 4, "ip6": 16}

#: bytes of elements in one message: the bound of an attribute, less space for the largest element
_ELEMENTS_BYTES_MAX = 60_000

# NFTA_SET_*
_TABLE, _NAME, _FLAGS, _KEY_TYPE, _KEY_BYTES, _DATA_TYPE, _DATA_BYTES = 1, 2, 3, 4, 5, 6, 7
_DESCRIPTION, _ID, _TIMEOUT_MS, _USERDATA, _EXPRESSION = 9, 10, 11, 13, 17
# NFT_SET_*
_ANONYMOUS, _CONSTANT, _INTERVAL, _MAP, _TIMEOUT, _DYNAMIC = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
_VERDICT = 0xFFFFFF00  # NFT_DATA_VERDICT
# NFTA_SET_ELEM_LIST_*, NFTA_SET_ELEM_*
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS, _LIST_ID = 1, 2, 3, 4
_KEY, _DATA, _ELEMENT_FLAGS, _EXPIRES_MS, _ELEMENT_USERDATA = 1, 2, 3, 5, 6
_INTERVAL_END = 1
# NFTA_DATA_*, NFTA_VERDICT_*; NF_DROP, NFT_JUMP, NFT_GOTO
_VALUE, _DATA_VERDICT = 1, 2
_CODE, _CHAIN = 1, 2
DROP_CODE, JUMP_CODE, GOTO_CODE = 0, -3, -4
_VERDICT_CODES = {"drop": DROP_CODE, "jump": JUMP_CODE, "goto": GOTO_CODE}

# nft's numbers for types of data; in a concatenation six bits each
_INTEGER, _PROTOCOL_TYPE, _PORT_TYPE = 4, 12, 13
_ADDRESS_TYPE: dict[NftFamily, int] = {"ip": 7, "ip6": 8}
_TYPE_BITS = 6
# ... for byte orders, of expressions, and of header fields, by header and field
_NO_ORDER, _HOST_ORDER, _NETWORK_ORDER = 0, 1, 2
(
    _EXPRESSION_VERDICT,
    _EXPRESSION_PAYLOAD,
    _EXPRESSION_META,
    _EXPRESSION_CONCATENATION,
    _EXPRESSION_NUMGEN,
) = (
    1,
    7,
    9,
    13,
    23,
)
_META_L4PROTO = 16
_FIELDS: dict[tuple[str, str], tuple[int, int]] = {
    ("ip", "saddr"): (12, 11),
    ("ip", "daddr"): (12, 12),
    ("ip6", "saddr"): (13, 8),
    ("ip6", "daddr"): (13, 9),
    ("tcp", "dport"): (8, 2),
    ("udp", "dport"): (6, 2),
    ("sctp", "dport"): (10, 2),
    ("th", "dport"): (11, 2),
}
# ... and in user data of a set, and of an element
_KEY_ORDER, _DATA_ORDER, _MERGED, _KEY_TYPEOF, _DATA_TYPEOF, _DATA_INTERVAL = 0, 1, 2, 3, 4, 6
_OPEN_INTERVAL = b"\x01\x04" + host_number(1)

_PORT = struct.Struct(">H2x")
#: parts of a key of a bucket: a destination (three), and a number that ``numgen`` draws
_BUCKET_KEY_PARTS = 4


def address(value: str | int, family: NftFamily) -> bytes:
    """Packs an address of *family*.  Raises ``ValueError`` for anything else."""
    if not isinstance(value, str):
        raise Inexpressible(f"{value} is no address")
    if family == "ip6":
        return ipaddress.IPv6Address(value).packed
    packed = bytes(map(int, value.split(".")))
    if len(packed) != 4:
        raise Inexpressible(f"address {value}")
    return packed


def port(value: str | int) -> bytes:
    """Packs a port as a register has it."""
    if not isinstance(value, int):
        raise Inexpressible(f"{value} is no port")
    return _PORT.pack(value)


def verdict(code: int, chain: str = "") -> bytes:
    """Encodes a verdict, as ``NFTA_DATA_VERDICT``."""
    parts = (number(_CODE, code), text(_CHAIN, chain)) if chain else (number(_CODE, code),)
    return nest(_DATA_VERDICT, *parts)


def value(data: bytes) -> bytes:
    """Encodes a value, as ``NFTA_DATA_VALUE``."""
    return attribute(_VALUE, data)


def definition(table: str, container: NftContainer, family: NftFamily, set_id: int) -> bytes:
    """Returns the body of a ``NEWSET`` message."""
    parts = [_type_of(part, family) for part in container.key]
    lengths = [length for _, length in parts]
    key_bytes = lengths[0] if len(parts) == 1 else sum(length + 3 & ~3 for length in lengths)
    flags = (_TIMEOUT | _DYNAMIC if container.timeout_s else 0) | (
        0 if container.value == "none" else _MAP
    )
    body = [text(_TABLE, table), text(_NAME, container.name), number(_FLAGS, flags)]
    body += [number(_KEY_TYPE, _joined(kind for kind, _ in parts)), number(_KEY_BYTES, key_bytes)]
    if container.value == "verdict":
        body += [number(_DATA_TYPE, _VERDICT), number(_DATA_BYTES, 0)]
    elif container.value == "target":
        kinds = (_ADDRESS_TYPE[family], _PORT_TYPE)
        body += [number(_DATA_TYPE, _joined(kinds)), number(_DATA_BYTES, ADDRESS_BYTES[family] + 4)]
    body.append(number(_ID, set_id))
    if container.timeout_s:
        body.append(long_number(_TIMEOUT_MS, container.timeout_s * 1000))
    if container.size:
        body.append(nest(_DESCRIPTION, number(1, container.size)))
    body.append(attribute(_USERDATA, _userdata(container, family)))
    if container.has_counters:
        body.append(nest(_EXPRESSION, text(1, "counter"), nest(2)))
    return b"".join(body)


def anonymous_map(table: str, size: int, set_id: int) -> bytes:
    """Returns the body of a ``NEWSET`` of one rule's map from numbers of ``numgen`` to verdicts."""
    return b"".join(
        (
            text(_TABLE, table),
            text(_NAME, ANONYMOUS_MAP),
            number(_FLAGS, _ANONYMOUS | _CONSTANT | _MAP),
            number(_KEY_TYPE, _INTEGER),
            number(_KEY_BYTES, 4),
            number(_DATA_TYPE, _VERDICT),
            number(_DATA_BYTES, 0),
            number(_ID, set_id),
            nest(_DESCRIPTION, number(1, size)),
            attribute(
                _USERDATA,
                _order(_KEY_ORDER, _HOST_ORDER)
                + _order(_DATA_ORDER, _NO_ORDER)
                + _record(_DATA_TYPEOF, _expression(_EXPRESSION_VERDICT, b""))
                + _order(_DATA_INTERVAL, 0),
            ),
        )
    )


def anonymous_set(table: str, size: int, family: NftFamily, field: str, set_id: int) -> bytes:
    """Returns the body of a ``NEWSET`` of one rule's set of intervals of addresses."""
    userdata = _order(_KEY_ORDER, _NETWORK_ORDER) + _order(_MERGED, 1)
    return b"".join(
        (
            text(_TABLE, table),
            text(_NAME, ANONYMOUS_SET),
            number(_FLAGS, _ANONYMOUS | _CONSTANT | _INTERVAL),
            number(_KEY_TYPE, _ADDRESS_TYPE[family]),
            number(_KEY_BYTES, ADDRESS_BYTES[family]),
            number(_ID, set_id),
            nest(_DESCRIPTION, number(1, size)),
            attribute(_USERDATA, userdata + _record(_KEY_TYPEOF, _header_field(family, field))),
        )
    )


#: the kernel replaces ``%d`` with a number
ANONYMOUS_MAP, ANONYMOUS_SET = "__map%d", "__set%d"


def reference(table: str, name: str) -> bytes:
    """Returns the body of a ``DELSET`` message; in a ``DELSETELEM`` message it means all elements."""
    return text(_TABLE, table) + text(_NAME, name)


def element_lists(
    table: str, name: str, elements: Iterable[bytes], set_id: int | None = None
) -> Iterator[bytes]:
    """Yields the bodies of as many ``NEWSETELEM`` or ``DELSETELEM`` messages as needed. No elements
    raise ``Inexpressible``, since an empty message would mean all elements.
    """
    head = text(_LIST_TABLE, table) + text(_LIST_SET, name)
    if set_id is not None:
        head += number(_LIST_ID, set_id)
    part: list[bytes] = []
    size = 0
    for element in elements:
        if size + len(element) > _ELEMENTS_BYTES_MAX:
            yield head + nest(_LIST_ELEMENTS, *part)
            part = []
            size = 0
        part.append(element)
        size += len(element)
    if not part:
        raise Inexpressible(f"no elements of {name}")
    yield head + nest(_LIST_ELEMENTS, *part)


def elements(items: Iterable[Item], family: NftFamily) -> Iterator[bytes]:
    """Returns the elements to add, as ``element_lists`` takes them."""
    pack_target = _target_packer(family)
    destination: Key = ()
    pack_bucket: Callable[[str | int, DnatTarget], bytes] | None = None
    for key, stored in items:
        if isinstance(stored, DnatTarget) and len(key) == 1:
            yield pack_target(key, stored)
        elif isinstance(stored, DnatTarget) and len(key) == _BUCKET_KEY_PARTS:
            if pack_bucket is None or key[:3] != destination:
                destination = key[:3]
                pack_bucket = _bucket_packer(pack_key(destination, family), family)
            yield pack_bucket(key[3], stored)
        else:
            yield _element(pack_key(key, family), stored, family)


def keys(removed: Iterable[Key], family: NftFamily) -> Iterator[bytes]:
    """Returns the keys of the elements to delete, as ``element_lists`` takes them."""
    for key in removed:
        yield nest(LIST_ELEMENT, nest(_KEY, value(pack_key(key, family))))


def bound(packed: bytes, *, end: bool = False, is_open: bool = False) -> bytes:
    """Returns the first address of an interval, or (*end*) the first one after it; *is_open*: the
    interval includes the last address of the family.
    """
    parts = [number(_ELEMENT_FLAGS, _INTERVAL_END)] if end else []
    parts.append(nest(_KEY, value(packed)))
    if is_open:
        parts.append(attribute(_ELEMENT_USERDATA, _OPEN_INTERVAL))
    return nest(LIST_ELEMENT, *parts)


@cache
def _target_packer(family: NftFamily) -> Callable[[Key, DnatTarget], bytes]:
    """Returns a fast packer of elements of maps from numbers to targets.  They have the same layout,
    and there may be hundreds of thousands.
    """
    size = ADDRESS_BYTES[family]
    sample = nest(LIST_ELEMENT, nest(_KEY, value(bytes(4))), nest(_DATA, value(bytes(size + 4))))
    form = struct.Struct(f"=12sI8s{size}s4s")
    head = sample[:12]
    middle = sample[16:24]
    pack = form.pack
    pack_port = _PORT.pack
    assert form.size == len(sample), f"{form.size} bytes are not {len(sample)}"

    def packed(key: Key, target: DnatTarget) -> bytes:
        (index,) = key
        return pack(head, index, middle, address(target.ip, family), pack_port(target.port))

    return packed


def _bucket_packer(
    destination: bytes, family: NftFamily
) -> Callable[[str | int, DnatTarget], bytes]:
    """Returns a fast packer of elements of maps from *destination* and number to targets, of which
    there may be as many.
    """
    size = ADDRESS_BYTES[family]
    sample = nest(
        LIST_ELEMENT, nest(_KEY, value(destination + bytes(4))), nest(_DATA, value(bytes(size + 4)))
    )
    begin = 12 + len(destination)
    head, middle = sample[:begin], sample[begin + 4 : begin + 12]
    form = struct.Struct(f"={begin}sI8s{size}s4s")
    pack = form.pack
    pack_port = _PORT.pack
    assert form.size == len(sample), f"{form.size} bytes are not {len(sample)}"
    return lambda number, target: pack(
        head, number, middle, address(target.ip, family), pack_port(target.port)
    )


def _element(packed: bytes, stored: Value, family: NftFamily) -> bytes:
    key = nest(_KEY, value(packed))
    if stored is None:
        return nest(LIST_ELEMENT, key)
    if isinstance(stored, RemainingTime):
        return nest(LIST_ELEMENT, long_number(_EXPIRES_MS, stored.seconds * 1000), key)
    if isinstance(stored, DnatTarget):
        return nest(
            LIST_ELEMENT, key, nest(_DATA, value(address(stored.ip, family) + port(stored.port)))
        )
    return nest(LIST_ELEMENT, key, nest(_DATA, verdict(_VERDICT_CODES[stored.kind], stored.chain)))


def pack_key(key: Key, family: NftFamily) -> bytes:
    """Packs a key.  A number alone, or after a port, is one that ``numgen`` draws; any other number
    is a port (``NftContainer.key``).
    """
    if len(key) == 1:
        (only,) = key
        return host_number(only) if isinstance(only, int) else address(only, family)
    if len(key) == _BUCKET_KEY_PARTS and isinstance(key[2], int) and isinstance(key[3], int):
        return pack_key(key[:3], family) + host_number(key[3])
    parts = []
    for part in key:
        if isinstance(part, int):
            parts.append(_PORT.pack(part))
        else:
            protocol = PROTOCOLS.get(part)
            parts.append(address(part, family) if protocol is None else bytes((protocol, 0, 0, 0)))
    return b"".join(parts)


def _type_of(part: str, family: NftFamily) -> tuple[int, int]:
    """Returns nft's number of the type and its length in bytes."""
    expressions = {
        "addr": (_ADDRESS_TYPE[family], ADDRESS_BYTES[family]),
        "proto": (_PROTOCOL_TYPE, 1),
    }
    return (expressions | {"port": (_PORT_TYPE, 2), "numgen": (_INTEGER, 4)})[part]


def _joined(kinds: Iterable[int]) -> int:
    joined = 0
    for kind in kinds:
        joined = joined << _TYPE_BITS | kind
    return joined


def _userdata(container: NftContainer, family: NftFamily) -> bytes:
    numgen = _expression(
        _EXPRESSION_NUMGEN, _order(0, 1) + _order(1, 2) + _order(2, 0)
    )  # random mod 2 offset 0
    address_of, port_of = _header_field(family, "daddr"), _header_field("th", "dport")
    if "numgen" in container.key and not container.by_number:
        expressions = {
            "addr": address_of,
            "proto": _expression(_EXPRESSION_META, _order(0, _META_L4PROTO)),
            "port": port_of,
        }
        key = _concatenation(*(expressions.get(part, numgen) for part in container.key))
        orders = (
            _order(_KEY_ORDER, _NO_ORDER)
            + _order(_DATA_ORDER, _NO_ORDER)
            + _record(_KEY_TYPEOF, key)
        )
        return (
            orders
            + _record(_DATA_TYPEOF, _concatenation(address_of, port_of))
            + _order(_DATA_INTERVAL, 0)
        )
    if container.by_number:
        target = _concatenation(address_of, _header_field(container.protocol, "dport"))
        orders = (
            _order(_KEY_ORDER, _HOST_ORDER)
            + _order(_DATA_ORDER, _NO_ORDER)
            + _record(_KEY_TYPEOF, numgen)
        )
        return orders + _record(_DATA_TYPEOF, target) + _order(_DATA_INTERVAL, 0)
    if len(container.key) == 1:
        if container.key != ("addr",) or container.value != "none":
            raise Inexpressible(f"{container}")
        return _order(_KEY_ORDER, _NETWORK_ORDER)
    joined = _concatenation()
    key = _record(_KEY_TYPEOF, joined)
    if container.value == "none":
        return _order(_KEY_ORDER, _NO_ORDER) + key
    data = _record(_DATA_TYPEOF, joined) if container.value == "target" else b""
    return (
        _order(_KEY_ORDER, _NO_ORDER)
        + _order(_DATA_ORDER, _NO_ORDER)
        + key
        + data
        + _order(_DATA_INTERVAL, 0)
    )


def _record(kind: int, body: bytes) -> bytes:
    return bytes((kind, len(body))) + body


def _order(kind: int, number_: int) -> bytes:
    return _record(kind, host_number(number_))


def _expression(kind: int, body: bytes) -> bytes:
    return _order(0, kind) + _record(1, body)


def _concatenation(*parts: bytes) -> bytes:
    return _expression(
        _EXPRESSION_CONCATENATION, b"".join(_record(at, part) for at, part in enumerate(parts))
    )


def _header_field(header: str, field: str) -> bytes:
    described, template = _FIELDS[header, field]
    return _expression(_EXPRESSION_PAYLOAD, _order(0, described) + _order(1, template))
