"""Messages that delete and read entries of the kernel's connection tracking (ctnetlink;
linux/netfilter/nfnetlink_conntrack.h).

**Deleting.** The tuple of its first packet (protocol, addresses, ports) and the zone identify an
entry. Each message requests an answer: 0 if the entry existed, ``ENOENT`` if it had expired.

**Reading.** A dump of the entries that some addresses answer. The kernel filters it by one IPv4
address, from 5.8 on (CTA_FILTER). Its comparison of IPv6 addresses is inverted (Linux 6.18,
ctnetlink_filter_match_tuple), so there, as for older kernels, the reader alone filters.
"""

from __future__ import annotations

import ipaddress
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.conntrack import OpenFlow, TrackedFlow
from sliceplane.node.nft.netlink.messages import (
    ACK,
    HEADER,
    attribute,
    message,
    nest,
    parse_attributes,
)

_NEW, _GET, _DELETE = 1 << 8, 1 << 8 | 1, 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_*
_ERROR, _DONE = 2, 3
_DUMP, _INTERRUPTED = 0x300, 0x10  # NLM_F_DUMP, NLM_F_DUMP_INTR
_TUPLE, _REPLY_TUPLE, _STATUS, _PROTOCOL_INFO, _ZONE, _FILTER = 1, 2, 3, 4, 18, 25  # CTA_*
_FILTER_REPLY, _FILTER_SOURCE = 2, 1  # CTA_FILTER_REPLY_FLAGS, CTA_FILTER_F_CTA_IP_SRC
_TCP_INFO, _TCP_STATE = 1, 1  # CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
#: TCP_CONNTRACK_SYN_SENT, SYN_RECV, ESTABLISHED and SYN_SENT2: a packet under way may establish it
_OPEN_STATES: Final = frozenset((1, 2, 3, 9))
_ASSURED: Final = 1 << 2  # IPS_ASSURED
#: addresses for which the kernel walks its table one after the other; more are faster together
FILTERED_MAX: Final = 8
_ADDRESSES, _PROTOCOL = 1, 2  # CTA_TUPLE_IP, CTA_TUPLE_PROTO
#: source and destination: CTA_IP_V4_SRC..., CTA_IP_V6_SRC...
_SOURCE_AND_DESTINATION: Final[dict[Family, tuple[int, int]]] = {"IPv4": (1, 2), "IPv6": (3, 4)}
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_NUM...
_FAMILY: Final[dict[Family, int]] = {"IPv4": 2, "IPv6": 10}  # AF_INET, AF_INET6
_TCP, _UDP = 6, 17
_SHORT = struct.Struct(">H")
_HOST_LONG = struct.Struct("=I")


class FlowsPart(NamedTuple):
    """The open flows in one read of the socket; ``done``: the dump is complete; ``errno``: the
    kernel refused or interrupted it.
    """

    flows: tuple[OpenFlow, ...] = ()
    done: bool = False
    is_interrupted: bool = False
    errno: int = 0


def deletions(family: Family, flows: Iterable[TrackedFlow]) -> bytes:
    """Returns one message for each of *flows*, UDP flows of *family*, as one datagram."""
    return b"".join(
        message(_DELETE, ACK, sequence, _FAMILY[family], _name(family, tracked))
        for sequence, tracked in enumerate(flows, 1)
    )


def _name(family: Family, tracked: TrackedFlow) -> bytes:
    (source, source_port), (destination, destination_port) = tracked.client, tracked.flow.sent_to
    kinds = _SOURCE_AND_DESTINATION[family]
    addresses = [
        attribute(kind, ipaddress.ip_address(ip).packed)
        for kind, ip in zip(kinds, (source, destination), strict=True)
    ]
    protocol = (
        attribute(_NUMBER, bytes([_UDP])),
        attribute(_SOURCE_PORT, _SHORT.pack(source_port)),
        attribute(_DESTINATION_PORT, _SHORT.pack(destination_port)),
    )
    entry = nest(_TUPLE, nest(_ADDRESSES, *addresses), nest(_PROTOCOL, *protocol))
    return entry + (attribute(_ZONE, _SHORT.pack(tracked.zone)) if tracked.zone else b"")


def flows_requests(addresses: Collection[str]) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
    """Yields requests for the entries whose answers come from *addresses*, in canonical form, and
    the packed addresses that each concerns.
    """
    parsed = [ipaddress.ip_address(address) for address in sorted(addresses)]
    for family in FAMILIES:
        version = 4 if family == "IPv4" else 6
        packed = tuple(address.packed for address in parsed if address.version == version)
        if family == "IPv4" and len(packed) <= FILTERED_MAX:
            for address in packed:
                yield message(_GET, _DUMP, 1, _FAMILY[family], _filter_by(address)), (address,)
        elif packed:
            yield message(_GET, _DUMP, 1, _FAMILY[family], b""), packed


def _filter_by(address: bytes) -> bytes:
    source = attribute(_SOURCE_AND_DESTINATION["IPv4"][0], address)
    flags = attribute(_FILTER_REPLY, _HOST_LONG.pack(_FILTER_SOURCE))
    return nest(_REPLY_TUPLE, nest(_ADDRESSES, source)) + nest(_FILTER, flags)


def parse_flows(data: bytes, addresses: Collection[bytes]) -> FlowsPart:
    """Parses one read of the socket after a request that concerns the packed *addresses*."""
    flows: list[OpenFlow] = []
    interrupted = False
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, *_ = HEADER.unpack_from(data, at)
        interrupted |= bool(flags & _INTERRUPTED)
        if length < HEADER.size or kind in {_ERROR, _DONE}:
            code = -int.from_bytes(data[at + HEADER.size :][:4], sys.byteorder, signed=True)
            return FlowsPart(tuple(flows), True, interrupted, code)
        body = data[at + HEADER.size + 4 : at + length]
        if kind == _NEW and any(address in body for address in addresses):
            flow = _open_flow(body, addresses)
            if flow is not None:
                flows.append(flow)
        at += length + 3 & ~3
    return FlowsPart(tuple(flows), False, interrupted)


def _open_flow(body: bytes, addresses: Collection[bytes]) -> OpenFlow | None:
    """Returns the entry in *body* if one of *addresses* answers it and it is open. TCP is open until one
    side closes; the kernel reports no state of a flow that it offloaded, which is open. Others are
    open while the kernel calls them assured (packets in both directions), until they expire.
    """
    entry = dict(parse_attributes(body))
    sent, answers = _ends(entry.get(_TUPLE, b"")), _ends(entry.get(_REPLY_TUPLE, b""))
    if answers.source not in addresses:
        return None
    if answers.protocol == _TCP:
        info = dict(parse_attributes(entry.get(_PROTOCOL_INFO, b""))).get(_TCP_INFO, b"")
        state = dict(parse_attributes(info)).get(_TCP_STATE, b"\x03")[0]
        is_open = state in _OPEN_STATES
    else:
        is_open = bool(int.from_bytes(entry.get(_STATUS, b""), "big") & _ASSURED)
    sent_to = (sent.destination, sent.destination_port)
    is_translated = sent_to != (answers.source, answers.source_port)
    endpoint = (
        str(ipaddress.ip_address(answers.source)),
        int.from_bytes(answers.source_port, "big"),
    )
    return OpenFlow(endpoint, answers.protocol == _TCP, is_translated) if is_open else None


class _Ends(NamedTuple):
    """The packed ends of one direction."""

    source: bytes
    destination: bytes
    protocol: int
    source_port: bytes
    destination_port: bytes


def _ends(body: bytes) -> _Ends:
    parts = dict(parse_attributes(body))
    addresses = [value for _, value in sorted(parse_attributes(parts.get(_ADDRESSES, b"")))]
    source, destination, *_ = (*addresses, b"", b"")
    protocol = dict(parse_attributes(parts.get(_PROTOCOL, b"")))
    return _Ends(
        source,
        destination,
        int.from_bytes(protocol.get(_NUMBER, b""), "big"),
        protocol.get(_SOURCE_PORT, b""),
        protocol.get(_DESTINATION_PORT, b""),
    )
