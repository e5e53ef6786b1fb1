"""Subsets of Endpoints: the packing of addresses into them, the limit of one object, and their
text.

``pack`` returns the canonical form: two objects are equivalent exactly if their canonical forms are
equal. Every port is in one subset, with the addresses of all parts that have the port, each once by
IP and target's uid. Ports with the same addresses, ready and not ready, share a subset. Addresses
are in the order of (IP as text, uid), ports and subsets in that of (name, protocol, number,
application protocol). Upstream (``pkg/api/v1/endpoints/util.go``) orders the latter by hash, so an
object that it wrote may have another order and still be equivalent.

One object holds at most ``ADDRESSES_MAX`` addresses, each counted once in every subset with it.
Ready addresses come first; the others get the remaining capacity. ``shares`` are in proportion,
rounded up, so the last subsets may get less.

``subset_text`` alone encodes subsets, so that texts built address by address and texts built from a
whole object are equal if their content is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from sliceplane.api.codec import encode
from sliceplane.api.core import EndpointAddress, EndpointSubset
from sliceplane.api.gates import Release
from sliceplane.api.meta import ObjectReference
from sliceplane.slices.content import Port, Ports, without_version

ADDRESSES_MAX: Final = 1000
_WARNS_SINCE: Final[Release] = (1, 21)
_TRUNCATES_SINCE: Final[Release] = (1, 22)


class Capacity(Enum):
    """The treatment of an object with more than ``ADDRESSES_MAX`` addresses. The value is that of
    its annotation.
    """

    UNLIMITED = ""
    WARN = "warning"
    TRUNCATE = "truncated"


def capacity_at(release: Release) -> Capacity:
    """Returns the behaviour of *release* (KEP-0752, "Endpoints Controller (classic)")."""
    if release >= _TRUNCATES_SINCE:
        return Capacity.TRUNCATE
    return Capacity.WARN if release >= _WARNS_SINCE else Capacity.UNLIMITED


def shares(sizes: Sequence[tuple[int, int]], limit: int = ADDRESSES_MAX) -> list[tuple[int, int]]:
    """Returns how many (ready, not ready) addresses each subset of *sizes* keeps, so that together
    they are at most *limit*.
    """
    ready = sum(size[0] for size in sizes)
    not_ready = sum(size[1] for size in sizes)
    if ready + not_ready <= limit:
        return list(sizes)
    if ready > limit:
        return [(kept, 0) for kept in _proportional([size[0] for size in sizes], ready, limit)]
    kept = _proportional([size[1] for size in sizes], not_ready, limit - ready)
    return [(size[0], count) for size, count in zip(sizes, kept, strict=True)]


def _proportional(counts: list[int], total: int, limit: int) -> list[int]:
    remaining = limit
    kept = []
    for count in counts:
        share = min(-(-count * limit // total), remaining)
        kept.append(share)
        remaining -= share
    return kept


A = TypeVar("A")

#: the sort key and identity of an address: IP and uid of the target, followed by further fields of
#: the caller
AddressKey = tuple[str, ...]


class Subset(NamedTuple, Generic[A]):
    """One subset. ``ports`` empty: all ports, as for headless Services without ports.

    Addresses are in the order of their keys; no key is on both sides. Before packing, several
    subsets may have the same port or address.
    """

    ports: Ports
    ready: Mapping[AddressKey, A]
    not_ready: Mapping[AddressKey, A]


def pack(
    parts: Iterable[Subset[A]], *, ready_wins: bool = False, named: bool = False
) -> list[Subset[A]]:
    """Returns the canonical subsets of all *parts*. Costs O(addresses) unless there is one part.

    *ready_wins*: an address that is ready in one part and not in another is ready; otherwise it is
    not. *named*: in a subset of several ports each port has a name, as the API server requires; a
    port without a name gets its own subset.
    """
    filled = [part for part in parts if part.ready or part.not_ready]
    packed = filled if len(filled) <= 1 else _pack(filled, ready_wins=ready_wins)
    if named:
        packed = [
            Subset(ports, part.ready, part.not_ready)
            for part in packed
            for ports in _split(part.ports)
        ]
    if len(packed) > 1:
        packed = sorted(packed, key=lambda part: [port.order for port in part.ports])
    return packed


def _pack(parts: Sequence[Subset[A]], *, ready_wins: bool) -> list[Subset[A]]:
    # None stands for all ports. It never shares a subset with other ports, whatever its addresses.
    origins: dict[Port | None, list[int]] = {}
    for index, part in enumerate(parts):
        for port in part.ports or (None,):
            origins.setdefault(port, []).append(index)
    # Ports from the same parts have the same addresses; other ports may have them, too.
    ports_by_origin: dict[tuple[int, ...], list[Port | None]] = {}
    for port, indexes in origins.items():
        ports_by_origin.setdefault(tuple(indexes), []).append(port)
    packed: dict[object, tuple[list[Port | None], Subset[A]]] = {}
    for origin, ports in ports_by_origin.items():
        merged = _merge([parts[index] for index in origin], ready_wins=ready_wins)
        alone = len(ports_by_origin) == 1 or None in ports
        which: object = origin if alone else (frozenset(merged.ready), frozenset(merged.not_ready))
        packed.setdefault(which, ([], merged))[0].extend(ports)
    return [
        Subset(_ordered(ports), merged.ready, merged.not_ready) for ports, merged in packed.values()
    ]


def _merge(parts: Sequence[Subset[A]], *, ready_wins: bool) -> Subset[A]:
    if len(parts) == 1:
        return parts[0]
    winning: dict[AddressKey, A] = {}
    losing: dict[AddressKey, A] = {}
    for part in parts:
        for key, address in (part.ready if ready_wins else part.not_ready).items():
            winning.setdefault(key, address)
    for part in parts:
        for key, address in (part.not_ready if ready_wins else part.ready).items():
            if key not in winning:
                losing.setdefault(key, address)
    sides = [{key: side[key] for key in sorted(side)} for side in (winning, losing)]
    return Subset((), *(sides if ready_wins else reversed(sides)))


def _split(ports: Ports) -> list[Ports]:
    if len(ports) <= 1 or ports[0].name:
        return [ports]
    return [
        *((port,) for port in ports if not port.name),
        tuple(port for port in ports if port.name),
    ]


def _ordered(ports: Iterable[Port | None]) -> Ports:
    return tuple(sorted((port for port in ports if port is not None), key=lambda port: port.order))


def canonical(
    subsets: Iterable[EndpointSubset], *, named: bool = False
) -> list[Subset[EndpointAddress]]:
    """Returns the canonical subsets of an object as read."""
    return pack(map(_read_subset, subsets), named=named)


def _read_subset(subset: EndpointSubset) -> Subset[EndpointAddress]:
    not_ready = {_key(address): address for address in subset.not_ready_addresses or ()}
    ready: dict[AddressKey, EndpointAddress] = {}
    for address in subset.addresses or ():
        key = _key(address)
        if key not in not_ready:
            ready.setdefault(key, address)
    ports = {
        Port(port.name, port.protocol, port.port, port.app_protocol) for port in subset.ports or ()
    }
    return Subset(
        _ordered(ports),
        {key: ready[key] for key in sorted(ready)},
        {key: not_ready[key] for key in sorted(not_ready)},
    )


def _key(address: EndpointAddress) -> AddressKey:
    return address.ip, "" if address.target_ref is None else address.target_ref.uid


# -- texts


class RenderedSubsets(NamedTuple):
    """Encoded subsets. ``text``: a JSON list; ``total``: the number of addresses,
    written or not.
    """

    text: bytes
    total: int


def render(
    parts: Iterable[Subset[bytes]], *, truncate: bool, ready_wins: bool = False, named: bool = False
) -> RenderedSubsets:
    """Packs and encodes *parts*; with *truncate* at most as many addresses as one object may hold.

    Costs O(ports + addresses that are written) if there is one part.
    """
    subsets = pack(parts, ready_wins=ready_wins, named=named)
    sizes = [(len(subset.ready), len(subset.not_ready)) for subset in subsets]
    total = sum(map(sum, sizes))
    if truncate and total > ADDRESSES_MAX:
        # the remainders of two subsets may be equal: then they are one subset
        truncated = [
            Subset(subset.ports, _first(subset.ready, ready), _first(subset.not_ready, not_ready))
            for subset, (ready, not_ready) in zip(subsets, shares(sizes), strict=True)
        ]
        subsets = pack(truncated, named=named)
    # values() of a SortedDict is ten times slower than looking up each of its keys
    texts = (
        subset_text(
            map(part.ready.__getitem__, part.ready),
            map(part.not_ready.__getitem__, part.not_ready),
            part.ports,
        )
        for part in subsets
    )
    return RenderedSubsets(b"[" + b",".join(texts) + b"]", total)


def _first(addresses: Mapping[AddressKey, bytes], count: int) -> dict[AddressKey, bytes]:
    return {key: addresses[key] for key in islice(addresses, count)}


def text_of(subsets: Iterable[EndpointSubset], *, named: bool = False) -> bytes:
    """Returns the canonical subsets of an object as a JSON list, without the fields that no
    comparison reads.
    """
    texts = (
        subset_text(
            map(_text, subset.ready.values()), map(_text, subset.not_ready.values()), subset.ports
        )
        for subset in canonical(subsets, named=named)
    )
    return b"[" + b",".join(texts) + b"]"


def subset_text(ready: Iterable[bytes], not_ready: Iterable[bytes], ports: Ports) -> bytes:
    """Returns a subset as JSON. Each address is an encoded text."""
    members = [
        b'"%s":[%s]' % (name, addresses)
        for name, addresses in (
            (b"addresses", b",".join(ready)),
            (b"notReadyAddresses", b",".join(not_ready)),
        )
        if addresses
    ]
    if ports:
        entries = []
        for port in ports:
            entry: dict[str, str | int | None] = {"name": port.name} if port.name else {}
            entry |= {"port": port.port, "protocol": port.protocol}
            if port.app_protocol is not None:
                entry["appProtocol"] = port.app_protocol
            entries.append(entry)
        members.append(b'"ports":' + encode(entries))
    return b"{" + b",".join(members) + b"}"


def _text(address: EndpointAddress) -> bytes:
    return address_text(address.ip, address.hostname, address.node_name, address.target_ref)


def address_text(
    ip: str, hostname: str, node_name: str | None, target: ObjectReference | None
) -> bytes:
    """Returns an address as JSON. An empty node name is omitted."""
    return encode(
        EndpointAddress(
            ip=ip,
            hostname=hostname,
            node_name=node_name or None,
            target_ref=without_version(target),
        )
    )


def pod_address(ip: str, hostname: str, node_name: str, target: bytes) -> bytes:
    """Returns the same text for a Pod's address. *target* is ``,"targetRef":...``
    (``slices.facts.PodFacts``).
    """
    host = b',"hostname":' + encode(hostname) if hostname else b""
    node = b',"nodeName":' + encode(node_name) if node_name else b""
    return b"".join((b'{"ip":', encode(ip), host, node, target, b"}"))
