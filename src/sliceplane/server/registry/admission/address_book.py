"""Ledgers of numbers (the addresses of an IP family, the node ports), and the book of IPAddress
objects.

A ledger is derived from the newest Services and never stored, so it cannot disagree with them after
a crash, and a failed write allocates nothing. Numbers are allocated from *ranges*, which may be
added and removed; a holder keeps its number when the range is removed.

The lowest numbers of a range are for requests of a certain number: they are chosen only when all
others are allocated (KEP-3070 for addresses, KEP-3668 for node ports). The choice is random for a
few tries, then sequential: about one check while the range is mostly free.

The address book is derived from the IPAddress and ServiceCIDR objects: the allocated addresses, and
the ranges of new ones. It is a pure follower of the newest staged objects, as the ledgers are of
Services. An address may be in both: a Service has it, and an IPAddress names it. Every write of
either makes the address a *suspect* until ``server.registry.service_addresses`` has compared the
two, so only the start compares all addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sliceplane.api.meta import Document
from sliceplane.api.scheme import IPAddresses, ServiceCIDRs, Services
from sliceplane.kit.ip import Family, parse_strict
from sliceplane.kit.rng import Rng
from sliceplane.server.store.types import Key

_RANDOM_TRIES = 16
_BAND_MIN = 16


class Range(NamedTuple):
    """Numbers ``first..last``, of which the ``band`` lowest are chosen last."""

    first: int
    last: int
    band: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last


def static_band(size: int, *, share: int, most: int) -> int:
    """Returns how many of *size* numbers are chosen last: one in *share*, at least 16 and at most
    *most*.
    """
    return 0 if size <= _BAND_MIN else min(max(_BAND_MIN, size // share), most)


class NumberLedger:
    """Numbers and their holders.  ``reserved`` ones are never chosen.  Owned by
    ``ServiceLedgers``.
    """

    def __init__(self, ranges: tuple[Range, ...], reserved: Collection[int] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._holder: dict[int, Key] = {}
        self._numbers: dict[Key, tuple[int, ...]] = {}
        self.ranges: tuple[Range, ...]
        self.set_ranges(ranges)

    def set_ranges(self, ranges: tuple[Range, ...]) -> None:
        """Sets the ranges from which numbers are chosen, in this order."""
        for first, last, band in ranges:
            assert first <= last, f"range {first}..{last} is empty"
            assert 0 <= band <= last - first + 1, (
                f"{band} numbers of {first}..{last} are chosen last"
            )
        self.ranges = ranges

    def __contains__(self, number: int) -> bool:
        """Returns True if the number is in any range."""
        return any(number in span for span in self.ranges)

    def holder(self, number: int) -> Key | None:
        return self._holder.get(number)

    def numbers(self, key: Key) -> tuple[int, ...]:
        return self._numbers.get(key, ())

    def others(self, key: Key) -> tuple[int, ...]:
        """Returns the numbers of all holders except *key*."""
        return tuple(number for number, holder in self._holder.items() if holder != key)

    def keys(self) -> frozenset[Key]:
        """Returns all holders."""
        return frozenset(self._numbers)

    def assign(self, key: Key, numbers: Collection[int]) -> None:
        """Makes *key* the holder of exactly those of *numbers* that have no other holder."""
        for number in self._numbers.pop(key, ()):
            del self._holder[number]
        kept = tuple(sorted({n for n in numbers if n not in self._holder}))
        for number in kept:
            self._holder[number] = key
        if kept:
            self._numbers[key] = kept

    def clear(self) -> None:
        self._holder.clear()
        self._numbers.clear()

    def choose(self, rng: Rng, excluded: Collection[int] = ()) -> int | None:
        """Returns a free number, or ``None``.  Does not allocate it."""
        for first, last, band in self.ranges:
            for low, high in ((first + band, last), (first, first + band - 1)):
                number = self._choose_between(low, high, rng, excluded) if low <= high else None
                if number is not None:
                    return number
        return None

    def _choose_between(
        self, low: int, high: int, rng: Rng, excluded: Collection[int]
    ) -> int | None:
        size = high - low + 1
        for _ in range(_RANDOM_TRIES):
            number = low + rng.below(size)
            if self._is_free(number, excluded):
                return number
        # One number more than are allocated suffices: one of them is free, if there is any.
        reach = min(size, len(self._holder) + len(self._reserved) + len(excluded) + 1)
        start = rng.below(size)
        for step in range(reach):
            number = low + (start + step) % size
            if self._is_free(number, excluded):
                return number
        return None

    def _is_free(self, number: int, excluded: Collection[int]) -> bool:
        return (
            number not in self._holder and number not in self._reserved and number not in excluded
        )

    def check(self) -> None:
        """Asserts that both directions agree."""
        forward = {number: key for key, numbers in self._numbers.items() for number in numbers}
        assert forward == self._holder, f"numbers {forward} and holders {self._holder} differ"


MANAGED_BY_LABEL: Final = "ipaddress.kubernetes.io/managed-by"
FAMILY_LABEL: Final = "ipaddress.kubernetes.io/ip-family"
ALLOCATOR: Final = "ipallocator.k8s.io"
READY: Final = "Ready"
_BAND_SHARE = 16
_BAND_MAX = 256

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressClaimant(NamedTuple):
    """One IPAddress.  ``service`` is ``None`` if its parent is not a Service."""

    service: Key | None
    managed: bool
    #: managed, with correct labels, and not being deleted: correct if its Service has the address
    intact: bool


class ServiceRange(NamedTuple):
    """One ServiceCIDR.  New addresses come from it only while it is ``usable``."""

    networks: tuple[Network, ...]
    usable: bool
    deleting: bool


class AddressBook:
    """The IPAddresses and ServiceCIDRs.  A ``server.registry.core.Follower``."""

    follows = frozenset((IPAddresses.storage_key, ServiceCIDRs.storage_key))

    def __init__(self, configured: tuple[str, ...]) -> None:
        self._configured = tuple(map(ipaddress.ip_network, configured))
        self._entries: dict[str, AddressClaimant] = {}
        #: the numbers of all IPAddresses, by family: another Service must not get them
        self.numbers: dict[Family, set[int]] = {"IPv4": set(), "IPv6": set()}
        self._ranges: dict[str, ServiceRange] = {}
        #: addresses whose IPAddress and Service must be compared
        self.suspects: set[str] = set()
        #: whether ServiceCIDRs must be checked
        self.ranges_changed = True

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._entries.clear()
        self.numbers = {"IPv4": set(), "IPv6": set()}
        self._ranges.clear()
        self.suspects.clear()
        self.ranges_changed = True
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        if key.resource == IPAddresses.storage_key:
            self._on_address(key.name, document)
        else:
            self._on_range(key.name, document)

    def on_removed(self, key: Key) -> None:
        if key.resource == ServiceCIDRs.storage_key:
            self._ranges.pop(key.name, None)
            self.ranges_changed = True
        elif key.name in self._entries:
            self._on_address_removed(key.name)

    # IPAddresses

    def entry(self, name: str) -> AddressClaimant | None:
        return self._entries.get(name)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def names_of(self, service: Key) -> list[str]:
        """Returns the IPAddresses that name *service*."""
        return [name for name, entry in self._entries.items() if entry.service == service]

    def numbers_without(self, names: Collection[str]) -> dict[Family, set[int]]:
        """Returns the numbers of all IPAddresses except *names*."""
        remaining = {ip_family: set(numbers) for ip_family, numbers in self.numbers.items()}
        for name in names:
            remaining[family_of(name)].discard(_number(name))
        return remaining

    def _on_address(self, name: str, document: Document) -> None:
        head = document["metadata"]
        managed = is_managed(document)
        ip_family = family_of(name)
        intact = (
            managed
            and head["labels"].get(FAMILY_LABEL) == ip_family
            and "deletionTimestamp" not in head
        )
        if name not in self._entries:
            self.numbers[ip_family].add(_number(name))
        self._entries[name] = AddressClaimant(parent_of(document), managed, intact)
        self.suspects.add(name)

    def _on_address_removed(self, name: str) -> None:
        del self._entries[name]
        self.numbers[family_of(name)].discard(_number(name))
        self.suspects.add(name)
        if any(span.deleting for span in self._ranges.values()):
            self.ranges_changed = True

    # ServiceCIDRs

    def _on_range(self, name: str, document: Document) -> None:
        networks = tuple(
            ipaddress.ip_network(text) for text in document.get("spec", {}).get("cidrs", ())
        )
        deleting = "deletionTimestamp" in document["metadata"]
        conditions: list[Document] = document.get("status", {}).get("conditions", [])
        ready = any(
            condition.get("type") == READY and condition.get("status") == "True"
            for condition in conditions
        )
        self._ranges[name] = ServiceRange(networks, ready and not deleting, deleting)
        self.ranges_changed = True

    def ranges(self, ip_family: Family) -> tuple[Range, ...]:
        """Returns the ranges of new addresses: the configured ones first, then those of usable
        ServiceCIDRs.

        A configured range counts also without a ServiceCIDR, but not while its ServiceCIDR is being
        deleted.
        """
        covered = {network for span in self._ranges.values() for network in span.networks}
        usable = [
            network
            for name in sorted(self._ranges)
            if self._ranges[name].usable
            for network in self._ranges[name].networks
        ]
        configured = [
            network for network in self._configured if network in usable or network not in covered
        ]
        version = 4 if ip_family == "IPv4" else 6
        return tuple(
            dict.fromkeys(
                _range(network) for network in (*configured, *usable) if network.version == version
            )
        )

    def covers(self, name: str) -> bool:
        """Returns True if an address is in any range, also in one that is not usable."""
        address = ipaddress.ip_address(name)
        covered = (network for span in self._ranges.values() for network in span.networks)
        return any(address in network for network in (*self._configured, *covered))

    def is_needed(self, name: str) -> bool:
        """Returns True if an address would be in no usable range without the ServiceCIDR.
        O(addresses).
        """
        others = [
            network
            for other, span in self._ranges.items()
            if other != name and span.usable
            for network in span.networks
        ]
        mine = self._ranges[name].networks
        for text in self._entries:
            address = parse_strict(text)
            assert address is not None, f"IPAddress {text!r} is no address"
            inside = any(address in network for network in mine)
            if inside and not any(address in network for network in others):
                return True
        return False

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        stored = {key.name for key, _ in objects if key.resource == IPAddresses.storage_key}
        assert self._entries.keys() == stored, (
            f"{sorted(self._entries)} are indexed, there are {sorted(stored)}"
        )
        for ip_family, numbers in self.numbers.items():
            expected = {_number(name) for name in self._entries if family_of(name) == ip_family}
            assert numbers == expected, (
                f"{ip_family} numbers {sorted(numbers)}, IPAddresses have {sorted(expected)}"
            )


def family_of(name: str) -> Family:
    """Returns the family of a canonical address."""
    return "IPv6" if ":" in name else "IPv4"


def _number(name: str) -> int:
    return int(ipaddress.ip_address(name))


def parent_of(document: Document) -> Key | None:
    """Returns the Service that an IPAddress names, or ``None`` for another parent."""
    parent: Document = document.get("spec", {}).get("parentRef") or {}
    if parent.get("group") or parent.get("resource") != Services.plural:
        return None
    return Key(Services.storage_key, parent.get("namespace", ""), parent.get("name", ""))


def is_managed(document: Document) -> bool:
    return bool(document["metadata"].get("labels", {}).get(MANAGED_BY_LABEL) == ALLOCATOR)


def _range(network: Network) -> Range:
    """Returns the addresses for Services: without the network address and the IPv4 broadcast
    address.
    """
    first = int(network.network_address)
    last = int(network.broadcast_address)
    size = last - first + 1
    if size > 2:
        first = first + 1
        last = last - (1 if network.version == 4 else 0)
    band = static_band(size, share=_BAND_SHARE, most=_BAND_MAX)
    return Range(first, last, min(band, last - first + 1))
