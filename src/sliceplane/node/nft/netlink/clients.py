"""Messages that read the sets that packets change: the list of dynamic sets, the clients in one of
them, and the counters of a set that has them.

The kernel sends a dump of a set in parts of some kilobytes, each at a read, so a reader may stop
after any number of clients. The program ``nft`` first builds a list of all elements of all sets.
(linux/netfilter/nf_tables.h)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final, NamedTuple

from sliceplane.node.nft.netlink.expressions import NFPROTO
from sliceplane.node.nft.netlink.messages import HEADER, message, parse_attributes, text
from sliceplane.node.nft.objects import TableRef

#: maximum number of clients of one table that are restored when it is replaced: some 10 MiB and half
#: a second
REMEMBERED_MAX: Final = 100_000
_GET_SET, _NEW_SET, _GET_ELEMENTS, _NEW_ELEMENTS = (
    10 << 8 | 10,
    10 << 8 | 9,
    10 << 8 | 13,
    10 << 8 | 12,
)
_DUMP: Final = 0x300  # NLM_F_DUMP
_ERROR, _DONE = 2, 3
_TABLE, _SET, _LIST = 1, 2, 3  # NFTA_SET_TABLE, NFTA_SET_NAME; NFTA_SET_ELEM_LIST_*
_KEY, _EXPIRATION, _EXPRESSION = 1, 5, 7  # NFTA_SET_ELEM_*
_EXPRESSION_DATA, _PACKETS = 2, 2  # NFTA_EXPR_DATA, NFTA_COUNTER_PACKETS
_PREFIX: Final = "affinity-"


class DumpPart(NamedTuple):
    """``names`` of sets, or ``clients`` of one set with the remaining seconds of each; ``counts``:
    packets by key, if the set has counters; ``done``: the dump is complete; ``refused``: the kernel
    has no such set.
    """

    names: tuple[str, ...] = ()
    clients: tuple[tuple[str, int], ...] = ()
    counts: tuple[tuple[bytes, int], ...] = ()
    done: bool = False
    refused: bool = False


def sets_request(table: TableRef) -> bytes:
    return message(_GET_SET, _DUMP, 1, NFPROTO[table.family], text(_TABLE, table.name))


def elements_request(table: TableRef, name: str) -> bytes:
    return message(
        _GET_ELEMENTS, _DUMP, 1, NFPROTO[table.family], text(_TABLE, table.name) + text(_SET, name)
    )


def parse_part(data: bytes, table: TableRef) -> DumpPart:
    """Parses one read of the socket.  An error ends the dump: a missing set has no elements."""
    names: list[str] = []
    clients: list[tuple[str, int]] = []
    counts: list[tuple[bytes, int]] = []
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size or kind in {_ERROR, _DONE}:
            refused = kind == _ERROR
            return DumpPart(tuple(names), tuple(clients), tuple(counts), True, refused)
        body = data[at + HEADER.size + 4 : at + length]
        if kind == _NEW_SET:
            members = dict(parse_attributes(body))
            name = members.get(_SET, b"").rstrip(b"\0").decode(errors="replace")
            if members.get(_TABLE, b"").rstrip(b"\0") == table.name.encode() and name.startswith(
                _PREFIX
            ):
                names.append(name)
        elif kind == _NEW_ELEMENTS:
            for element in (
                part
                for number, parts in parse_attributes(body)
                if number == _LIST
                for part in _values(parts)
            ):
                members = dict(parse_attributes(element))
                key = b"".join(_values(members.get(_KEY, b"")))
                remaining_ms = int.from_bytes(members.get(_EXPIRATION, b""), "big")
                if _EXPRESSION in members:
                    counts.append((key, _packets(members[_EXPRESSION])))
                elif len(key) in {4, 16}:
                    clients.append((str(ipaddress.ip_address(key)), remaining_ms // 1000))
        at += length + 3 & ~3
    return DumpPart(tuple(names), tuple(clients), tuple(counts))


def _packets(expression: bytes) -> int:
    counter = dict(parse_attributes(dict(parse_attributes(expression)).get(_EXPRESSION_DATA, b"")))
    return int.from_bytes(counter.get(_PACKETS, b""), "big")


def limits(names: tuple[str, ...]) -> dict[str, int]:
    """Returns the maximum number of clients to read, by set: an equal share for each namespace, and
    within it for each set. So full sets of one tenant do not displace the clients of others.
    """
    by_namespace: dict[str, list[str]] = {}
    for name in names:
        by_namespace.setdefault(name.split("-", 2)[-1].partition("/")[0], []).append(name)
    share = REMEMBERED_MAX // max(1, len(by_namespace))
    return {name: share // len(own) for own in by_namespace.values() for name in own}


def _values(body: bytes) -> Iterator[bytes]:
    return (value for _, value in parse_attributes(body))
