"""Messages that delete entries of the kernel's connection tracking (ctnetlink;
linux/netfilter/nfnetlink_conntrack.h).

The tuple of its first packet (protocol, addresses, ports) and the zone identify an entry. Each
message requests an answer: 0 if the entry existed, ``ENOENT`` if it had expired.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.conntrack import TrackedFlow
from sliceplane.node.nft.netlink.messages import ACK, attribute, message, nest

_DELETE: Final = 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
_TUPLE, _ZONE = 1, 18  # CTA_TUPLE_ORIG, CTA_ZONE
_ADDRESSES, _PROTOCOL = 1, 2  # CTA_TUPLE_IP, CTA_TUPLE_PROTO
#: source and destination: CTA_IP_V4_SRC..., CTA_IP_V6_SRC...
_SOURCE_AND_DESTINATION: Final[dict[Family, tuple[int, int]]] = {"IPv4": (1, 2), "IPv6": (3, 4)}
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_NUM...
_FAMILY: Final[dict[Family, int]] = {"IPv4": 2, "IPv6": 10}  # AF_INET, AF_INET6
_UDP = 17
_SHORT = struct.Struct(">H")


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
