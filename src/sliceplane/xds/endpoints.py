"""Encodes endpoints and assignments, the most frequent messages, from pieces that are encoded once.

A piece is an ``LbEndpoint`` as an item of its locality. An assignment is a join of pieces and few
octets between them, so it costs as much as a copy, whatever the number of endpoints.

No message is one that a client refuses: Envoy aborts at a member of a collection whose address is no
IP, and gRPC rejects an assignment with a locality without an id or a weight, a gap in priorities, or
a duplicate address. So there is one priority, and each locality has a weight. Callers omit endpoints
without an ordinary address (``is_servable``), and this module asserts that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sliceplane.api.service_rules import is_port
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.model import ordinary_of
from sliceplane.kit.ip import Family
from sliceplane.xds.names import PortKey
from sliceplane.xds.wire import (
    as_bytes,
    as_integer,
    as_text,
    fields,
    head,
    integer,
    message,
    text,
    wrapped,
)

DRAINING: Final = 3
#: fields of a ``ConfigSource``: this stream, in version 3
ADS: Final = message(3) + integer(6, 2)
_METADATA_KEY: Final = "sliceplane"


class MergedEndpoint(NamedTuple):
    """A Pod with the address of the Service's first family, and that of the other one, if any."""

    endpoint: Endpoint
    other: Endpoint | None = None


class LocalityPieces(NamedTuple):
    """``size``: octets of all pieces.  ``usable``: pieces that are not draining."""

    zone: str
    region: str
    pieces: Sequence[bytes]
    size: int
    usable: int


def is_servable(endpoint: Endpoint) -> bool:
    """Returns True if *endpoint* has a port and an address that means the same host for every
    client.
    """
    family: Family = "IPv6" if ":" in endpoint.address else "IPv4"
    return is_port(endpoint.port) and ordinary_of(endpoint.address, family) == endpoint.address


def endpoint_message(
    merged: MergedEndpoint, *, draining: bool = False, with_names: bool = False
) -> bytes:
    """Encodes an ``LbEndpoint``."""
    first, other = merged
    also = b"" if other is None else message(4, message(1, _address(other)))
    metadata = _names(first) if with_names else b""
    return (
        message(1, message(1, _address(first)), also)
        + integer(2, DRAINING if draining else 0)
        + metadata
    )


def piece(body: bytes) -> bytes:
    """Encodes an ``LbEndpoint`` as an item of a locality."""
    return message(2, body)


def body_of(encoded: bytes) -> bytes:
    """Returns the argument of ``piece``."""
    at = 1
    while encoded[at] & 0x80:
        at += 1
    return encoded[at + 1 :]


def assignment(key: PortKey, localities: Iterable[LocalityPieces]) -> bytes:
    """Encodes a ``ClusterLoadAssignment``; *localities* sorted by zone, each with at least one
    piece.
    """
    parts = [text(1, str(key))]
    for zone, region, pieces, size, usable in localities:
        before = _locality(zone, region)
        after = wrapped(3, max(1, usable))
        parts += (head(2, len(before) + size + len(after)), before, b"".join(pieces), after)
    return b"".join(parts)


def collected_assignment(key: PortKey, localities: Iterable[tuple[str, str, str]]) -> bytes:
    """Encodes an assignment of collections: zone, region and glob of each.

    Weights do not count endpoints: it must not change when one is added or removed."""
    return text(1, str(key)) + b"".join(
        message(
            2, _locality(zone, region), wrapped(3, 1), message(8, message(1, ADS), text(2, glob))
        )
        for zone, region, glob in localities
    )


def draining_by_endpoint(assignment: bytes) -> dict[tuple[str, int], bool]:
    """Returns the address and port of each endpoint of an assignment without collections, and True if
    it is draining.
    """
    result: dict[tuple[str, int], bool] = {}
    for locality in _messages(assignment, 2):
        for entry in _messages(locality, 2):
            parts = dict(fields(entry))
            endpoint = as_bytes(parts[1])
            socket = dict(fields(next(_messages(next(_messages(endpoint, 1)), 1))))
            result[as_text(socket[2]), as_integer(socket[3])] = parts.get(2) == DRAINING
    return result


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (as_bytes(value) for of, value in fields(data) if of == number)


def struct(**texts: str) -> bytes:
    """Encodes a ``google.protobuf.Struct`` of texts, in the order of the arguments."""
    return b"".join(
        message(1, text(1, name), message(2, message(3, of.encode()))) for name, of in texts.items()
    )


def filter_metadata(number: int, name: str, body: bytes) -> bytes:
    """Encodes ``Metadata`` with one entry, in the field *number*."""
    return message(number, message(1, text(1, name), message(2, body)))


def _locality(zone: str, region: str) -> bytes:
    return message(1, text(1, region), text(2, zone))


def _names(endpoint: Endpoint) -> bytes:
    names = {
        name: value for name, value in (("node", endpoint.node), ("pod", endpoint.pod)) if value
    }
    return filter_metadata(3, _METADATA_KEY, struct(**names)) if names else b""


def _address(endpoint: Endpoint) -> bytes:
    assert is_servable(endpoint), f"{endpoint.authority} is no address that a client takes"
    return message(1, text(2, endpoint.address) + integer(3, endpoint.port))
