"""Ledgers of numbers (the addresses of an IP family, the node ports), and the book of IPAddress
objects.

A ledger is derived from the newest Services and never stored, so it cannot disagree with them after
a crash, and a write that fails has held nothing. Numbers are given out of *ranges*, of which there
may be several, and which may come and go; a holder keeps its number when the range goes.

The lowest numbers of a range are left to those who ask for a certain one: they are given out only
when all others are taken (KEP-3070 for addresses, KEP-3668 for node ports). Choosing is by chance
with a few tries, then by a walk: about one look while the range is mostly free.

The address book has what the IPAddress and ServiceCIDR objects say: which addresses are spoken for,
and from which ranges new ones come. It is a pure follower of the newest staged objects, as the
ledgers are of Services; the two together are what an address can be in: held by a Service, and told
of by an IPAddress. Every write of either makes the address a *suspect* until
``server.registry.service_addresses`` has compared the two, so all of them are compared at the start
alone.
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
    """Numbers ``first..last``, of which the ``band`` lowest are given out last."""

    first: int
    last: int
    band: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last


def static_band(size: int, *, share: int, most: int) -> int:
    """Returns how many of *size* numbers are given out last: one in *share*, at least 16 and at
    most *most*.
    """
    return 0 if size <= _BAND_MIN else min(max(_BAND_MIN, size // share), most)


class NumberLedger:
    """Numbers and their holders.  ``reserved`` ones are never chosen.  Owned by
    ``ServiceLedgers``.
    """

    def __init__(self, ranges: tuple[Range, ...], reserved: Collection[int] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._holder: dict[int, Key] = {}
        self._held: dict[Key, tuple[int, ...]] = {}
        self.ranges: tuple[Range, ...]
        self.set_ranges(ranges)

    def set_ranges(self, ranges: tuple[Range, ...]) -> None:
        """Numbers are given out of *ranges* from now on, in this order."""
        for first, last, band in ranges:
            assert first <= last, f"range {first}..{last} is empty"
            assert 0 <= band <= last - first + 1, (
                f"{band} numbers of {first}..{last} are given out last"
            )
        self.ranges = ranges

    def __contains__(self, number: int) -> bool:
        """Returns True if the number is in a range at all."""
        return any(number in span for span in self.ranges)

    def holder(self, number: int) -> Key | None:
        return self._holder.get(number)

    def held(self, key: Key) -> tuple[int, ...]:
        return self._held.get(key, ())

    def others(self, key: Key) -> tuple[int, ...]:
        """Returns what all others than *key* hold."""
        return tuple(number for number, holder in self._holder.items() if holder != key)

    def keys(self) -> frozenset[Key]:
        """All holders."""
        return frozenset(self._held)

    def assign(self, key: Key, numbers: Collection[int]) -> None:
        """From now on *key* holds exactly those of *numbers* that are free of others."""
        for number in self._held.pop(key, ()):
            del self._holder[number]
        kept = tuple(sorted({n for n in numbers if n not in self._holder}))
        for number in kept:
            self._holder[number] = key
        if kept:
            self._held[key] = kept

    def clear(self) -> None:
        self._holder.clear()
        self._held.clear()

    def choose(self, rng: Rng, also_taken: Collection[int] = ()) -> int | None:
        """A free number, or ``None``.  It is not held by this."""
        for first, last, band in self.ranges:
            for low, high in ((first + band, last), (first, first + band - 1)):
                number = self._choose_between(low, high, rng, also_taken) if low <= high else None
                if number is not None:
                    return number
        return None

    def _choose_between(
        self, low: int, high: int, rng: Rng, also_taken: Collection[int]
    ) -> int | None:
        size = high - low + 1
        for _ in range(_RANDOM_TRIES):
            number = low + rng.below(size)
            if self._is_free(number, also_taken):
                return number
        # More numbers than are taken suffice: among them is a free one, if there is any at all.
        reach = min(size, len(self._holder) + len(self._reserved) + len(also_taken) + 1)
        start = rng.below(size)
        for step in range(reach):
            number = low + (start + step) % size
            if self._is_free(number, also_taken):
                return number
        return None

    def _is_free(self, number: int, also_taken: Collection[int]) -> bool:
        return (
            number not in self._holder and number not in self._reserved and number not in also_taken
        )

    def check(self) -> None:
        """Both directions agree."""
        forward = {number: key for key, numbers in self._held.items() for number in numbers}
        assert forward == self._holder, f"holdings {forward} and holders {self._holder} differ"


MANAGED_BY_LABEL: Final = "ipaddress.kubernetes.io/managed-by"
FAMILY_LABEL: Final = "ipaddress.kubernetes.io/ip-family"
ALLOCATOR: Final = "ipallocator.k8s.io"
READY: Final = "Ready"
_BAND_SHARE = 16
_BAND_MAX = 256

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Told(NamedTuple):
    """One IPAddress.  ``service`` is ``None`` where its parent is something else."""

    service: Key | None
    managed: bool
    #: managed, with its labels as they must be, and not being deleted: fine if its Service has the
    #: address
    whole: bool


class ServiceRange(NamedTuple):
    """One ServiceCIDR.  New addresses come from it only while it is ``usable``."""

    networks: tuple[Network, ...]
    usable: bool
    going: bool


class AddressBook:
    """A ``server.registry.core.Follower`` of the two kinds."""

    follows = frozenset((IPAddresses.storage_key, ServiceCIDRs.storage_key))

    def __init__(self, configured: tuple[str, ...]) -> None:
        self._configured = tuple(map(ipaddress.ip_network, configured))
        self._told: dict[str, Told] = {}
        #: the numbers of all IPAddresses, by family: no other Service may have them
        self.numbers: dict[Family, set[int]] = {"IPv4": set(), "IPv6": set()}
        self._ranges: dict[str, ServiceRange] = {}
        #: addresses whose IPAddress and whose Service are to be compared
        self.suspects: set[str] = set()
        #: ServiceCIDRs are to be looked at
        self.ranges_changed = True

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._told.clear()
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
        elif key.name in self._told:
            self._on_address_removed(key.name)

    # IPAddresses

    def told(self, name: str) -> Told | None:
        return self._told.get(name)

    def names(self) -> list[str]:
        return sorted(self._told)

    def names_of(self, service: Key) -> list[str]:
        """The IPAddresses that name *service*."""
        return [name for name, entry in self._told.items() if entry.service == service]

    def numbers_without(self, names: Collection[str]) -> dict[Family, set[int]]:
        """The numbers of all IPAddresses but *names*."""
        left = {family_wanted: set(numbers) for family_wanted, numbers in self.numbers.items()}
        for name in names:
            left[family_of(name)].discard(_number(name))
        return left

    def _on_address(self, name: str, document: Document) -> None:
        head = document["metadata"]
        managed = is_managed(document)
        wanted = family_of(name)
        whole = (
            managed
            and head["labels"].get(FAMILY_LABEL) == wanted
            and "deletionTimestamp" not in head
        )
        if name not in self._told:
            self.numbers[wanted].add(_number(name))
        self._told[name] = Told(parent_of(document), managed, whole)
        self.suspects.add(name)

    def _on_address_removed(self, name: str) -> None:
        del self._told[name]
        self.numbers[family_of(name)].discard(_number(name))
        self.suspects.add(name)
        if any(span.going for span in self._ranges.values()):
            self.ranges_changed = True

    # ServiceCIDRs

    def _on_range(self, name: str, document: Document) -> None:
        networks = tuple(
            ipaddress.ip_network(text) for text in document.get("spec", {}).get("cidrs", ())
        )
        going = "deletionTimestamp" in document["metadata"]
        conditions: list[Document] = document.get("status", {}).get("conditions", [])
        ready = any(
            condition.get("type") == READY and condition.get("status") == "True"
            for condition in conditions
        )
        self._ranges[name] = ServiceRange(networks, ready and not going, going)
        self.ranges_changed = True

    def ranges(self, wanted: Family) -> tuple[Range, ...]:
        """Returns the ranges of new addresses: the configured ones first, then those of usable
        ServiceCIDRs.

        A configured range counts also where no ServiceCIDR tells of it, and not while the one that
        does is going.
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
        version = 4 if wanted == "IPv4" else 6
        return tuple(
            dict.fromkeys(
                _range(network) for network in (*configured, *usable) if network.version == version
            )
        )

    def covers(self, name: str) -> bool:
        """Returns True if an address is in any range, also in one without new addresses."""
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
        for text in self._told:
            address = parse_strict(text)
            assert address is not None, f"IPAddress {text!r} is no address"
            inside = any(address in network for network in mine)
            if inside and not any(address in network for network in others):
                return True
        return False

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        stored = {key.name for key, _ in objects if key.resource == IPAddresses.storage_key}
        assert self._told.keys() == stored, (
            f"{sorted(self._told)} are told of, there are {sorted(stored)}"
        )
        for wanted, numbers in self.numbers.items():
            expected = {_number(name) for name in self._told if family_of(name) == wanted}
            assert numbers == expected, (
                f"{wanted} numbers {sorted(numbers)}, IPAddresses say {sorted(expected)}"
            )


def family_of(name: str) -> Family:
    """Returns the family of a canonical address."""
    return "IPv6" if ":" in name else "IPv4"


def _number(name: str) -> int:
    return int(ipaddress.ip_address(name))


def parent_of(document: Document) -> Key | None:
    """The Service that an IPAddress names, if it names a Service."""
    parent: Document = document.get("spec", {}).get("parentRef") or {}
    if parent.get("group") or parent.get("resource") != Services.plural:
        return None
    return Key(Services.storage_key, parent.get("namespace", ""), parent.get("name", ""))


def is_managed(document: Document) -> bool:
    return bool(document["metadata"].get("labels", {}).get(MANAGED_BY_LABEL) == ALLOCATOR)


def _range(network: Network) -> Range:
    """The addresses that Services can have: not the network's own nor, in IPv4, the one for
    broadcast.
    """
    first = int(network.network_address)
    last = int(network.broadcast_address)
    size = last - first + 1
    if size > 2:
        first = first + 1
        last = last - (1 if network.version == 4 else 0)
    band = static_band(size, share=_BAND_SHARE, most=_BAND_MAX)
    return Range(first, last, min(band, last - first + 1))
