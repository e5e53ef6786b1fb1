"""The canonical form of an Endpoints object's subsets: equal exactly if they say the same.

Every port is in one subset: with the addresses that any subset gave it, each once by IP and target's uid, not ready
if any subset said so.  Ports that have the same addresses, ready and not ready, share a subset.  Addresses are in the
order of (IP as text, uid), ports and subsets in the order of (name, protocol, number, application protocol); upstream
orders the latter by hash, so an object that it wrote may have another order and still be equal.

``SubsetText`` is the one place that spells a subset, so that texts made address by address and texts made from a
whole object are equal when they should be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import EndpointAddress, EndpointSubset
from sliceplane.slices.ports import Port

#: what addresses are sorted by, and what makes two of them one: IP and uid of the target
AddressKey = tuple[str, str]


class Subset(NamedTuple):
    """``ports`` empty: all ports, as subsets of headless Services without ports have it."""

    ports: tuple[Port, ...]
    ready: tuple[EndpointAddress, ...]
    waiting: tuple[EndpointAddress, ...]


#: addresses of one port: which they are, whether they are ready, how they are written
_Addresses = dict[AddressKey, tuple[bool, EndpointAddress]]

#: stands for "all ports" where a subset has none
_ALL: Final = Port("", "", None)


def canonical(subsets: Iterable[EndpointSubset]) -> tuple[Subset, ...]:
    listed = [subset for subset in subsets if subset.addresses or subset.not_ready_addresses]
    parts = [_addresses(subset) for subset in listed]
    origins: dict[Port, list[int]] = {}
    for index, subset in enumerate(listed):
        for port in dict.fromkeys(_ports(subset)):
            origins.setdefault(port, []).append(index)
    # ports that come from the same subsets have the same addresses; others may
    together: dict[tuple[int, ...], list[Port]] = {}
    for port, indexes in origins.items():
        together.setdefault(tuple(indexes), []).append(port)
    found: dict[object, tuple[_Addresses, list[Port]]] = {}
    for origin, ports in together.items():
        merged = _merge([parts[index] for index in origin])
        # "all ports" is no port among others, whatever addresses they have
        alone = len(together) == 1 or ports[0] is _ALL
        found.setdefault(origin if alone else _content(merged), (merged, []))[1].extend(ports)
    return tuple(sorted((_subset(*each) for each in found.values()), key=lambda each: [p.order for p in each.ports]))


def _content(addresses: _Addresses) -> object:
    return frozenset((key, ready) for key, (ready, _) in addresses.items())


def _ports(subset: EndpointSubset) -> Iterable[Port]:
    if not subset.ports:
        return (_ALL,)
    return (Port(each.name, each.protocol, each.port, each.app_protocol) for each in subset.ports)


def _addresses(subset: EndpointSubset) -> _Addresses:
    found: _Addresses = {}
    for address in subset.addresses or ():
        found.setdefault(address_key(address), (True, address))
    for address in subset.not_ready_addresses or ():
        found[address_key(address)] = (False, address)
    return found


def _merge(parts: list[_Addresses]) -> _Addresses:
    if len(parts) == 1:
        return parts[0]
    merged = dict(parts[0])
    for part in parts[1:]:
        for key, (ready, address) in part.items():
            known = merged.get(key)
            if known is None or (known[0] and not ready):
                merged[key] = (ready, address)
    return merged


def _subset(addresses: _Addresses, ports: list[Port]) -> Subset:
    ordered = [addresses[key] for key in sorted(addresses)]
    plain = tuple(sorted((port for port in ports if port is not _ALL), key=lambda port: port.order))
    return Subset(
        plain,
        tuple(address for ready, address in ordered if ready),
        tuple(address for ready, address in ordered if not ready),
    )


def address_key(address: EndpointAddress) -> AddressKey:
    return address.ip, "" if address.target_ref is None else address.target_ref.uid


class SubsetText(NamedTuple):
    """A subset as JSON, in pieces: each address is one."""

    ready: Iterable[bytes]
    waiting: Iterable[bytes]
    ports: bytes

    def join(self) -> bytes:
        ready, waiting = b",".join(self.ready), b",".join(self.waiting)
        members = []
        if ready:
            members.append(b'"addresses":[' + ready + b"]")
        if waiting:
            members.append(b'"notReadyAddresses":[' + waiting + b"]")
        if self.ports:
            members.append(b'"ports":' + self.ports)
        return b"{" + b",".join(members) + b"}"


def ports_text(ports: tuple[Port, ...]) -> bytes:
    """ "" for no ports."""
    if not ports:
        return b""
    entries = []
    for port in ports:
        entry: dict[str, str | int | None] = {"name": port.name} if port.name else {}
        entry |= {"port": port.port, "protocol": port.protocol}
        if port.app_protocol is not None:
            entry["appProtocol"] = port.app_protocol
        entries.append(entry)
    return encode(entries)


def text_of(subsets: Iterable[EndpointSubset]) -> bytes:
    """The canonical subsets as a JSON list, without what no comparison looks at."""
    texts = (
        SubsetText(map(_address_text, each.ready), map(_address_text, each.waiting), ports_text(each.ports)).join()
        for each in canonical(subsets)
    )
    return b"[" + b",".join(texts) + b"]"


def _address_text(address: EndpointAddress) -> bytes:
    """Old writers put the Pod's version into targetRef; an empty node name is none."""
    target = address.target_ref
    if target is not None and target.resource_version:
        target = msgspec.structs.replace(target, resource_version="")
    return encode(
        EndpointAddress(
            ip=address.ip, hostname=address.hostname, node_name=address.node_name or None, target_ref=target
        )
    )


def pod_address(ip: str, hostname: str, node_name: str, target: bytes) -> bytes:
    """The same text for a Pod's address; *target* is ``,"targetRef":...`` (``slices.facts.PodFacts``)."""
    host = b',"hostname":' + encode(hostname) if hostname else b""
    node = b',"nodeName":' + encode(node_name) if node_name else b""
    return b"".join((b'{"ip":', encode(ip), host, node, target, b"}"))
