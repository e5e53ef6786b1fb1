"""Allocation of addresses and node ports to Services, each to one Service at a time (KEP-1880,
KEP-3070, KEP-3668).

Nothing is reserved ahead: ``admit`` chooses free numbers and writes them into the document.
``on_stored`` records the holder only after the document was staged. The registry has one writer, so
no other write comes in between.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping

from sliceplane.api.errors import FieldErrors, StatusError, internal, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ServiceCIDRs, Services
from sliceplane.api.service_rules import NO_CLUSTER_IP, has_health_check_port, takes_node_ports
from sliceplane.kit.ip import Family, family, parse_lenient
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.admission import ip_families
from sliceplane.server.registry.admission.address_book import (
    AddressBook,
    NumberLedger,
    Range,
    family_of,
    static_band,
)
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.store.types import Key

API_SERVICE = Key(Services.storage_key, "default", "kubernetes")
#: the port in the answer of a dry run, which allocates none
DRY_RUN_NODE_PORT = 32769
_PORT_BAND_SHARE = 32
_PORT_BAND_MAX = 128
_ALLOCATED_IP = "provided IP is already allocated"
_FOREIGN_IP = "the provided network does not match the current range"
_ALLOCATED_PORT = "provided port is already allocated"


class ServiceLedgers:
    """The holders of addresses and node ports.  A ``server.registry.core.Follower``; *book* has the
    ranges, and is notified first.
    """

    follows = frozenset((Services.storage_key, ServiceCIDRs.storage_key))

    def __init__(self, config: RegistryConfig, rng: Rng, book: AddressBook) -> None:
        self._rng = rng
        self._book = book
        self._addresses: dict[Family, NumberLedger] = {}
        for text in config.service_cidrs:
            ip_family: Family = "IPv4" if ipaddress.ip_network(text).version == 4 else "IPv6"
            assert ip_family not in self._addresses, (
                f"two {ip_family} ranges in {config.service_cidrs}"
            )
            ranges = book.ranges(ip_family)
            # The first address of the primary range is always reserved for the API server's own
            # Service.
            self._addresses[ip_family] = NumberLedger(
                ranges, reserved=() if self._addresses else (ranges[0].first,)
            )
        assert self._addresses, "at least one service CIDR is needed"
        self._families = tuple(self._addresses)
        self._reserved = _address_text(
            self._families[0], self._addresses[self._families[0]].ranges[0].first
        )
        first = config.node_port_first
        last = config.node_port_last
        size = last - first + 1
        band = static_band(size, share=_PORT_BAND_SHARE, most=_PORT_BAND_MAX)
        self._ports = NumberLedger((Range(first, last, band),))

    @property
    def reserved_address(self) -> str:
        """The first address of the primary range, reserved for the API server's own Service."""
        return self._reserved

    # Following the store

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        for ledger in (*self._addresses.values(), self._ports):
            ledger.clear()
        self._on_ranges()
        for key, document in objects:
            if key.resource == Services.storage_key:
                self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        if key.resource == ServiceCIDRs.storage_key:
            self._on_ranges()
            return
        addresses, ports = _allocations(document)
        for ip_family, ledger in self._addresses.items():
            ledger.assign(key, addresses.get(ip_family, ()))
        self._ports.assign(key, ports)

    def on_removed(self, key: Key) -> None:
        if key.resource == ServiceCIDRs.storage_key:
            self._on_ranges()
        for ledger in (*self._addresses.values(), self._ports):
            ledger.assign(key, ())

    def _on_ranges(self) -> None:
        """Handles a change of the book's ranges."""
        for ip_family, ledger in self._addresses.items():
            ledger.set_ranges(self._book.ranges(ip_family))

    def addresses(self, key: Key) -> tuple[str, ...]:
        """Returns the canonical addresses of a Service, in the order of families and numbers."""
        return tuple(
            _address_text(ip_family, number)
            for ip_family, ledger in self._addresses.items()
            for number in ledger.numbers(key)
        )

    def holder(self, name: str) -> Key | None:
        """Returns the Service that has a (canonical) address."""
        ledger = self._addresses.get(family_of(name))
        return ledger.holder(int(ipaddress.ip_address(name))) if ledger else None

    def all_addresses(self) -> list[str]:
        """Returns the addresses of all Services."""
        holders = frozenset[Key]().union(*(ledger.keys() for ledger in self._addresses.values()))
        return sorted(text for key in holders for text in self.addresses(key))

    # For a registry that does not have all Services (``server.registry.offload``)

    def others(self, key: Key) -> tuple[dict[Family, tuple[int, ...]], tuple[int, ...]]:
        """Returns the addresses and node ports of all Services except *key*."""
        return {
            ip_family: ledger.others(key) for ip_family, ledger in self._addresses.items()
        }, self._ports.others(key)

    def occupy(
        self, key: Key, addresses: Mapping[Family, Collection[int]], ports: Collection[int]
    ) -> None:
        """Assigns *addresses* and *ports* to *key*, which stands for all Services that are not
        here.
        """
        for ip_family, ledger in self._addresses.items():
            ledger.assign(key, addresses.get(ip_family, ()))
        self._ports.assign(key, ports)

    def are_free(self, key: Key, spec: Document) -> bool:
        """Returns True if no other Service than *key* has the numbers of *spec*."""
        addresses, ports = _allocations({"spec": spec})
        claims = [
            (ledger, addresses.get(ip_family, ())) for ip_family, ledger in self._addresses.items()
        ]
        for ledger, numbers in (*claims, (self._ports, ports)):
            if any(ledger.holder(number) not in (None, key) for number in numbers):
                return False
        entries = (
            self._book.entry(_address_text(ip_family, number))
            for ip_family, ledger in self._addresses.items()
            for number in addresses.get(ip_family, ())
            if ledger.holder(number) is None
        )
        return all(entry is None or entry.service == key for entry in entries)

    # Admission

    def admit(self, new: Document, old: Document | None, *, dry_run: bool) -> None:
        """Sets families, addresses and node ports.  Raises StatusError 422, or 500 if a range is
        full.
        """
        key = Key(Services.storage_key, new["metadata"]["namespace"], new["metadata"]["name"])
        ip_families.fill(new, old, self._families)
        self._allocate_addresses(key, new, dry_run)
        if takes_node_ports(
            new["spec"].get("type"), new["spec"].get("allocateLoadBalancerNodePorts")
        ):
            self._allocate_ports(key, new, old, dry_run)
        if _needs_health_port(new["spec"]):
            self._allocate_health_port(key, new, dry_run)

    def _allocate_addresses(self, key: Key, document: Document, dry_run: bool) -> None:
        spec = document["spec"]
        if spec["type"] == "ExternalName" or spec.get("clusterIP") == NO_CLUSTER_IP:
            return
        addresses: list[str] = list(spec.get("clusterIPs", ()))
        for text in addresses:
            problem = self._address_problem(key, text)
            if problem:
                error = invalid_value(
                    "spec.clusterIPs", addresses, f"failed to allocate IP {text}: {problem}"
                )
                raise _invalid(document, [error])
        for ip_family in spec["ipFamilies"][len(addresses) :]:
            ledger = self._addresses[ip_family]
            number = self._choose_address(ip_family, ledger, dry_run)
            if number is None:
                raise internal(
                    "Internal error occurred: failed to allocate a serviceIP: range is full"
                )
            addresses.append(_address_text(ip_family, number))
        spec["clusterIP"] = addresses[0]
        spec["clusterIPs"] = addresses

    def _choose_address(self, ip_family: Family, ledger: NumberLedger, dry_run: bool) -> int | None:
        """Returns a free address; for a dry run the first one of the range."""
        if dry_run and ledger.ranges:
            return ledger.ranges[0].first
        return ledger.choose(self._rng, self._book.numbers[ip_family])

    def _address_problem(self, key: Key, text: str) -> str:
        address = parse_lenient(text)
        assert address is not None, f"validation let clusterIP {text!r} pass"
        ledger = self._addresses.get(family(address))
        number = int(address)
        if ledger is None or number not in ledger:
            return _FOREIGN_IP
        holder = ledger.holder(number)
        reserved = text == self.reserved_address and key != API_SERVICE
        entry = self._book.entry(str(address))
        taken = entry is not None and entry.service != key
        return (
            _ALLOCATED_IP
            if reserved or holder not in (None, key) or (taken and holder != key)
            else ""
        )

    def _allocate_ports(
        self, key: Key, document: Document, old: Document | None, dry_run: bool
    ) -> None:
        """Allocates node ports.  The Service's own health check port is excluded, as two listeners
        cannot share it.
        """
        ports: list[Document] = document["spec"].get("ports", [])
        health = (
            document["spec"].get("healthCheckNodePort", 0)
            if _needs_health_port(document["spec"])
            else 0
        )
        own = health if old is not None and old["spec"].get("healthCheckNodePort") == health else 0
        chosen: dict[int, int] = {}
        for index, port in enumerate(ports):
            number = port.get("nodePort", 0)
            if number:
                self._claim_port(key, document, f"spec.ports[{index}].nodePort", number, {own})
                chosen.setdefault(port["port"], number)
        taken = {port["nodePort"] for port in ports if port.get("nodePort")} | {health}
        used = {(port.get("nodePort"), port.get("protocol")) for port in ports}
        for port in ports:
            if port.get("nodePort"):
                continue
            # The same port number with two protocols gets one node port.
            number = chosen.get(port["port"], 0)
            if not number or (number, port.get("protocol")) in used:
                number = self._new_port(taken, dry_run)
            chosen[port["port"]] = port["nodePort"] = number
            taken.add(number)
            used.add((number, port.get("protocol")))

    def _allocate_health_port(self, key: Key, document: Document, dry_run: bool) -> None:
        spec = document["spec"]
        number = spec.get("healthCheckNodePort", 0)
        taken = {port["nodePort"] for port in spec.get("ports", ()) if port.get("nodePort")}
        if number:
            self._claim_port(key, document, "spec.healthCheckNodePort", number, taken)
            return
        spec["healthCheckNodePort"] = self._new_port(taken, dry_run)

    def _claim_port(
        self, key: Key, document: Document, path: str, number: int, own: set[int]
    ) -> None:
        """Checks a requested port.  *own*: ports that the Service itself uses otherwise."""
        problem = ""
        if number not in self._ports:
            valid = f"{self._ports.ranges[0].first}-{self._ports.ranges[0].last}"
            problem = (
                f"provided port is not in the valid range. The range of valid ports is {valid}"
            )
        elif number in own or self._ports.holder(number) not in (None, key):
            problem = _ALLOCATED_PORT
        if problem:
            raise _invalid(document, [invalid_value(path, number, problem)])

    def _new_port(self, taken: set[int], dry_run: bool) -> int:
        if dry_run:
            return DRY_RUN_NODE_PORT
        number = self._ports.choose(self._rng, taken)
        if number is None:
            raise internal("Internal error occurred: failed to allocate a nodePort: range is full")
        return number

    # Invariants

    def check(self, objects: list[tuple[Key, Document]]) -> None:
        """Asserts that each address and port of Services has one holder, and no other has one."""
        services = [
            (key, document) for key, document in objects if key.resource == Services.storage_key
        ]
        for ledger in (*self._addresses.values(), self._ports):
            ledger.check()
        for key, document in services:
            addresses, ports = _allocations(document)
            for ip_family, ledger in self._addresses.items():
                expected = tuple(sorted(addresses.get(ip_family, ())))
                assert ledger.numbers(key) == expected, (
                    f"{key} holds {ledger.numbers(key)}, its object has {expected}"
                )
            assert self._ports.numbers(key) == tuple(sorted(ports)), (
                f"{key} holds {self._ports.numbers(key)}, its object has {ports}"
            )
        existing = {key for key, _ in services}
        for ledger in (*self._addresses.values(), self._ports):
            leaked = ledger.keys() - existing
            assert not leaked, f"held by removed Services: {sorted(leaked)}"


def _allocations(document: Document) -> tuple[dict[Family, list[int]], set[int]]:
    """Returns the allocations of a stored Service: addresses by family, and node ports."""
    spec = document.get("spec", {})
    addresses: dict[Family, list[int]] = {}
    for text in spec.get("clusterIPs", ()):
        address = parse_lenient(text)
        if address is not None:
            addresses.setdefault(family(address), []).append(int(address))
    ports = {port["nodePort"] for port in spec.get("ports", ()) if port.get("nodePort")}
    if spec.get("healthCheckNodePort"):
        ports.add(spec["healthCheckNodePort"])
    return addresses, ports


def _needs_health_port(spec: Document) -> bool:
    return has_health_check_port(spec.get("type"), spec.get("externalTrafficPolicy"))


def _address_text(ip_family: Family, number: int) -> str:
    return str(
        ipaddress.IPv4Address(number) if ip_family == "IPv4" else ipaddress.IPv6Address(number)
    )


def _invalid(document: Document, errors: FieldErrors) -> StatusError:
    return invalid(Services.kind, Services.group, document["metadata"]["name"], errors)
