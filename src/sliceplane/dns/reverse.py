"""Index of reverse lookups: the names of each address.

A cluster IP has its Service's name. An endpoint has the names of the best class that it has one in:
hosts of headless Services by their hostname, before those by dashed address, before those below
Services with a cluster IP; all of that class in order, ``NAMES_MAX`` at most.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from sliceplane.consume.usable import Locality
from sliceplane.dns.service import HostChange, NamedService, label_of
from sliceplane.kit.ip import Network

NAMES_MAX: Final = 16
_NOWHERE: Final = Locality()
_Entry = tuple[NamedService, HostChange]


class Reverse:
    """The index.  Owned by ``dns.view``."""

    def __init__(self, cidrs: Iterable[Network]) -> None:
        self._cidrs = tuple(cidrs)
        self._services: dict[bytes, tuple[NamedService, ...]] = {}
        #: nearly always one
        self._hosts: dict[bytes, tuple[_Entry, ...]] = {}
        #: of addresses with more than ``NAMES_MAX`` entries: the result of ``names``, until a
        #: Service or host changes
        self._best: dict[bytes, list[bytes]] = {}

    def on_cluster_addresses(self, named: NamedService, *, present: bool) -> None:
        """Adds the cluster IPs of *named* if it is *present*; otherwise removes them."""
        self._best.clear()
        for packed in [item for items in named.cluster_addresses().values() for item in items]:
            others = tuple(other for other in self._services.get(packed, ()) if other is not named)
            services = (*others, named) if present else others
            if services:
                self._services[packed] = services
            else:
                self._services.pop(packed, None)

    def on_hosts(self, named: NamedService, changes: Iterable[HostChange]) -> None:
        self._best.clear()
        for change in changes:
            packed = change.host.packed
            entries = self._hosts.get(packed, ())
            if change.present:
                self._hosts[packed] = (*entries, (named, change))
                continue
            removed = (named, change._replace(present=True))
            remaining = tuple(entry for entry in entries if entry != removed)
            if remaining:
                self._hosts[packed] = remaining
            else:
                del self._hosts[packed]

    def names(self, packed: bytes) -> list[bytes]:
        """Without the zone."""
        services = sorted(named.relative for named in self._services.get(packed, ()))
        if services:
            return services[:NAMES_MAX]
        entries = self._hosts.get(packed, ())
        if len(entries) <= NAMES_MAX:
            return self._best_of(entries)
        if packed not in self._best:
            self._best[packed] = self._best_of(entries)
        return self._best[packed]

    @staticmethod
    def _best_of(entries: tuple[_Entry, ...]) -> list[bytes]:
        classes: dict[int, set[bytes]] = {}
        for named, change in entries:
            if named.kind in ("headless", "cluster"):
                rank = 2 if named.kind == "cluster" else 0 if change.host.endpoint.hostname else 1
                classes.setdefault(rank, set()).add(label_of(change.label) + named.relative)
        return sorted(classes[min(classes)])[:NAMES_MAX] if classes else []

    def locality_of(self, packed: bytes) -> Locality:
        """Returns the location of the endpoint with this address."""
        for _, change in self._hosts.get(packed, ()):
            endpoint = change.host.endpoint
            if endpoint.zone or endpoint.node:
                return Locality(node=endpoint.node, zone=endpoint.zone)
        return _NOWHERE

    def is_ours(self, packed: bytes) -> bool:
        address = ipaddress.ip_address(packed)
        return any(address in network for network in self._cidrs)

    def check(self) -> None:
        for packed, entries in self._hosts.items():
            for named, change in entries:
                assert change.host in named.hosts.get(change.label, ()), (
                    f"{packed!r} leads to {change}, which is gone"
                )


def reversed_address(labels: tuple[bytes, ...]) -> bytes | None:
    """The address whose reversed name these lower-cased labels are (RFC 1035 section 3.5, RFC 3596
    section 2.5).
    """
    parts = [label.decode("ascii", "replace") for label in reversed(labels[:-2])]
    try:
        if labels[-2] == b"in-addr" and len(parts) == 4:
            return ipaddress.IPv4Address(".".join(parts)).packed
        if labels[-2] == b"ip6" and len(parts) == 32 and all(len(part) == 1 for part in parts):
            return bytes.fromhex("".join(parts))
    except ValueError:
        pass
    return None
