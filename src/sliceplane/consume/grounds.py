"""Addresses that are spoken for, whatever Services say: ranges of cluster IPs, Nodes, Pods, the API
server.

An administrator says these, and no right that is given to users of a namespace can change them. So
a Service that names one of them as an address for clients outside asks for what is another's
(CVE-2020-8554). Endpoints do not count: who may write an EndpointSlice could take an address from
all others by listing it.

**Cost.**  An address is looked up once for each length of prefix that there is, which are a few
however many Nodes there are; a Node that changes costs what it has.

Owned by one ``claims.AddressClaims``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")


class Ground(NamedTuple):
    """The addresses and networks of one owner; in canonical form, of one family."""

    addresses: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()


_NOTHING: Final = Ground()
_Range = tuple[int, int]  # length of the prefix, its bits


class AddressOwners:
    """All grounds by owner: a few words, such as ``Node n1``."""

    def __init__(self) -> None:
        self._of: dict[str, Ground] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._ranges: dict[_Range, tuple[str, ...]] = {}
        self._lengths: dict[int, int] = {}  # how many ranges have it

    def set(self, owner: str, ground: Ground) -> bool:
        """*owner* has *ground*, and nothing else; whether that is new."""
        before = self._of.get(owner, _NOTHING)
        if before == ground:
            return False
        for ip in before.addresses:
            _leave(self._addresses, ip, owner)
        for prefix in _ranges(before.networks):
            if _leave(self._ranges, prefix, owner):
                self._lengths[prefix[0]] -= 1
                if not self._lengths[prefix[0]]:
                    del self._lengths[prefix[0]]
        for ip in ground.addresses:
            _join(self._addresses, ip, owner)
        for prefix in _ranges(ground.networks):
            if _join(self._ranges, prefix, owner):
                self._lengths[prefix[0]] = self._lengths.get(prefix[0], 0) + 1
        if ground == _NOTHING:
            del self._of[owner]
        else:
            self._of[owner] = ground
        return True

    def get(self, owner: str) -> Ground:
        return self._of.get(owner, _NOTHING)

    def owners(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted(self._of))

    def holder(self, ip: str) -> str:
        """Whose the canonical *ip* is; "": none of them. An address counts before a range, a longer
        prefix before a shorter one, the first name among equals.
        """
        owners = self._addresses.get(ip)
        if owners is not None:
            return owners[0]
        address = ipaddress.ip_address(ip)
        number = int(address)
        bits = address.max_prefixlen
        for length in sorted(self._lengths, reverse=True):
            owners = self._ranges.get((length, number >> (bits - length)))
            if owners is not None:
                return owners[0]
        return ""

    def check(self) -> None:
        """The indexes say what owners have.  O(state)."""
        addresses: dict[str, list[str]] = {}
        ranges: dict[_Range, list[str]] = {}
        for owner in sorted(self._of):
            for ip in dict.fromkeys(self._of[owner].addresses):
                addresses.setdefault(ip, []).append(owner)
            for prefix in dict.fromkeys(_ranges(self._of[owner].networks)):
                ranges.setdefault(prefix, []).append(owner)
        assert {ip: tuple(owners) for ip, owners in addresses.items()} == self._addresses, (
            f"{self._addresses}"
        )
        assert {prefix: tuple(owners) for prefix, owners in ranges.items()} == self._ranges, (
            f"{self._ranges}"
        )
        lengths = [length for length, _ in ranges]
        assert {length: lengths.count(length) for length in lengths} == self._lengths, (
            f"{self._lengths}"
        )


def _ranges(networks: Iterable[str]) -> Iterable[_Range]:
    for text in networks:
        network = ipaddress.ip_network(text)
        yield (
            network.prefixlen,
            int(network.network_address) >> (network.max_prefixlen - network.prefixlen),
        )


def _join(index: dict[T, tuple[str, ...]], key: T, owner: str) -> bool:
    """Adds an owner; returns True if the key is new."""
    owners = index.get(key, ())
    if owner not in owners:
        index[key] = tuple(sorted((*owners, owner)))
    return not owners


def _leave(index: dict[T, tuple[str, ...]], key: T, owner: str) -> bool:
    """Removes an owner; returns True if the key is gone."""
    if key not in index:
        return False
    owners = tuple(other for other in index[key] if other != owner)
    if owners:
        index[key] = owners
        return False
    del index[key]
    return True
