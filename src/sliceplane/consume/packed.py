"""The endpoints of a slice as columns of text, for readers that cache every slice of a cluster.

A decoded endpoint takes some 800 bytes in a dozen objects. Its addresses and names differ from those
of its neighbours; its conditions, zone, hints and kind of target are those of thousands of others. So
the former are one string for each slice, and the latter one shared ``EndpointShape``: some 90 bytes.

``PackedEndpoints`` is a sequence of ``SliceEndpoint`` that builds its items on demand, equal to those
that were packed. ``rows`` reads endpoints without building them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, overload

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.discovery import HINTS_MAX, EndpointSlice, SliceEndpoint

#: shapes that are shared; the bound exceeds the number of those that a cluster has at a time
SHAPES_MAX: Final = 10_000
_SEPARATOR: Final = "\n"


class EndpointShape(msgspec.Struct, frozen=True, gc=False):
    """The part of an endpoint that others have, too. Absent conditions are already read as KEP-0752
    says.
    """

    #: the endpoint without its columns
    template: SliceEndpoint
    ready: bool
    serving: bool
    terminating: bool
    zone_hints: tuple[str, ...]
    node_hints: tuple[str, ...]


#: an endpoint, as far as merging needs it: its shape, its first address ("": it has none), True if it
#: is on the reader's node, and its index
EndpointRow = tuple[EndpointShape, str, bool, int]


class PackedEndpoints(Sequence[SliceEndpoint]):
    """At least one endpoint; immutable.  Each column has an item for each shape."""

    __slots__ = ("_addresses", "_hostnames", "_node_names", "_shapes", "_target_names", "_uids")

    def __init__(self, endpoints: Sequence[SliceEndpoint], shapes: Sequence[EndpointShape]) -> None:
        targets = [endpoint.target_ref for endpoint in endpoints]
        self._shapes = tuple(shapes)
        self._addresses = _SEPARATOR.join([endpoint.addresses[0] for endpoint in endpoints])
        self._node_names = _SEPARATOR.join([endpoint.node_name or "" for endpoint in endpoints])
        self._hostnames = _SEPARATOR.join([endpoint.hostname or "" for endpoint in endpoints])
        self._target_names = _SEPARATOR.join([target.name if target else "" for target in targets])
        self._uids = _SEPARATOR.join([target.uid if target else "" for target in targets])

    @property
    def _columns(self) -> tuple[str, ...]:
        names = (self._node_names, self._hostnames, self._target_names)
        return (self._addresses, *names, self._uids)

    @property
    def is_exact(self) -> bool:
        """Returns False if a text has the separator: its column cannot be split again."""
        return all(column.count(_SEPARATOR) == len(self) - 1 for column in self._columns)

    def rows(self, node_name: str) -> Iterator[EndpointRow]:
        addresses = self._addresses.split(_SEPARATOR)
        local: Iterable[bool] = repeat(False)
        if node_name and node_name in self._node_names:
            local = [name == node_name for name in self._node_names.split(_SEPARATOR)]
        return zip(self._shapes, addresses, local, range(len(self)), strict=False)

    def target_uid(self, index: int) -> str:
        return _split_uids(self._uids)[index]

    def __len__(self) -> int:
        return len(self._shapes)

    def __iter__(self) -> Iterator[SliceEndpoint]:
        columns = [column.split(_SEPARATOR) for column in self._columns]
        return map(_unpack, self._shapes, zip(*columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> SliceEndpoint: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SliceEndpoint]: ...
    def __getitem__(self, index: int | slice) -> SliceEndpoint | Sequence[SliceEndpoint]:
        """O(the slice)."""
        if isinstance(index, slice):
            return tuple(self)[index]
        texts = [column.split(_SEPARATOR)[index] for column in self._columns]
        return _unpack(self._shapes[index], texts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedEndpoints):
            return NotImplemented
        return self._columns == other._columns and self._shapes == other._shapes

    def __hash__(self) -> int:
        return hash(self._columns)


class EndpointPacker:
    """Packs slices, and shares the shapes of their endpoints.  Owned by one reader."""

    def __init__(self) -> None:
        self._shapes: dict[SliceEndpoint, EndpointShape] = {}

    def decode(self, body: bytes) -> EndpointSlice:
        """Decodes a slice and packs its endpoints.  Raises ``msgspec.DecodeError``."""
        decoded = decode(body, EndpointSlice)
        if decoded.endpoints:
            # Nobody else has the object yet.
            packed = self.pack(decoded.endpoints)
            msgspec.structs.force_setattr(decoded, "endpoints", packed)
        return decoded

    def pack(self, endpoints: Sequence[SliceEndpoint]) -> Sequence[SliceEndpoint]:
        """Returns *endpoints*, packed unless one of them is of a form that no controller writes."""
        if not endpoints or any(map(_is_unusual, endpoints)):
            return endpoints
        packed = PackedEndpoints(endpoints, [self._shape(endpoint) for endpoint in endpoints])
        return packed if packed.is_exact else endpoints

    def _shape(self, endpoint: SliceEndpoint) -> EndpointShape:
        template = _template(endpoint)
        shape = self._shapes.get(template)
        if shape is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            shape = self._shapes[template] = _shape(template)
        return shape


def rows(endpoints: Sequence[SliceEndpoint], node_name: str) -> Iterator[EndpointRow]:
    """Yields a row for each of *endpoints*, packed or not, as the node *node_name* reads it."""
    if isinstance(endpoints, PackedEndpoints):
        return endpoints.rows(node_name)
    return (
        (
            _shape(endpoint),
            endpoint.addresses[0] if endpoint.addresses else "",
            endpoint.node_name == node_name != "",
            index,
        )
        for index, endpoint in enumerate(endpoints)
    )


def target_uid(endpoints: Sequence[SliceEndpoint], index: int) -> str:
    """Returns the uid of the Pod of an endpoint; "": unknown."""
    if isinstance(endpoints, PackedEndpoints):
        return endpoints.target_uid(index)
    target = endpoints[index].target_ref
    return target.uid if target is not None else ""


@lru_cache(maxsize=64)
def _split_uids(uids: str) -> list[str]:
    """Splits a column once for all endpoints that its slice has in common with others."""
    return uids.split(_SEPARATOR)


def _shape(template: SliceEndpoint) -> EndpointShape:
    conditions, hints = template.conditions, template.hints
    zones = (hints.for_zones or ())[:HINTS_MAX] if hints is not None else ()
    nodes = (hints.for_nodes or ())[:HINTS_MAX] if hints is not None else ()
    return EndpointShape(
        template,
        conditions.ready is not False,
        conditions.serving is not False,
        conditions.terminating is True,
        tuple([zone.name for zone in zones]),
        tuple([node.name for node in nodes]),
    )


def _is_unusual(endpoint: SliceEndpoint) -> bool:
    """Returns True if the columns cannot express *endpoint*: they have one address, and "" for an
    absent text.
    """
    return (
        len(endpoint.addresses) != 1
        or endpoint.node_name == ""
        or endpoint.hostname == ""
        or endpoint.deprecated_topology is not None
    )


def _template(endpoint: SliceEndpoint) -> SliceEndpoint:
    target = endpoint.target_ref
    return SliceEndpoint(
        conditions=endpoint.conditions,
        zone=endpoint.zone,
        hints=endpoint.hints,
        target_ref=None if target is None else msgspec.structs.replace(target, name="", uid=""),
    )


def _unpack(shape: EndpointShape, texts: Sequence[str]) -> SliceEndpoint:
    """Returns the endpoint of *shape* and the *texts* of its columns."""
    address, node_name, hostname, target_name, uid = texts
    target = shape.template.target_ref
    if target is not None:
        target = msgspec.structs.replace(target, name=target_name, uid=uid)
    return msgspec.structs.replace(
        shape.template,
        addresses=(address,),
        node_name=node_name or None,
        hostname=hostname or None,
        target_ref=target,
    )
