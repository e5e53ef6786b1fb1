"""One Service's part of the zone: its addresses, its hosts and its ports, kept by differences.

``balancing.merge`` says which entry of an address counts where slices disagree, so that names and node proxies do not;
one merge for each family and set of ports, since an endpoint may be offered with several.  Only ready endpoints have
names (Kubernetes DNS specification 1.1.0, sections 2.3 and 2.4); terminating ones leave at once, also where a proxy
would still use them.

A changed slice costs O(that slice); the sets of records are made when they are asked for, and dropped by the next
change.  Owned by ``dns.view``.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from typing import Any, Final, Literal, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointPort, EndpointSlice
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.balancing.merge import EndpointMerge, PortChoice
from sliceplane.balancing.model import Endpoint
from sliceplane.dns.wire import LABEL_MAX, WireError, name_of
from sliceplane.kit.ip import FAMILIES, Family, parse_lenient
from sliceplane.proxy.usable import Choice, Locality, choose

ServiceNamesKind = Literal["cluster", "headless", "external", "absent"]
#: a question for addresses from another place makes another set; of so many places sets are kept
_PLACES_MAX: Final = 256
#: and so many of those sets, with what is below ``_zone``
FOUND_MAX: Final = 1024
_ANY_PORT: Final = PortChoice(0)
#: of SRV records of endpoints: those that hints name for the client, and the others
PRIORITY_NEAR: Final = 0
PRIORITY_FAR: Final = 10


class Host(NamedTuple):
    """A ready endpoint and the ports that its slice offers."""

    packed: bytes
    ports: tuple[EndpointPort, ...]
    endpoint: Endpoint


class HostChange(NamedTuple):
    label: bytes
    host: Host
    present: bool


class SrvTarget(NamedTuple):
    """``label`` "": the Service itself."""

    priority: int
    weight: int
    port: int
    label: bytes


class NamedService:
    """See the module."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace: Final = namespace
        self.name: Final = name
        #: the labels of its name up to the zone
        self.relative: Final = label_of(name.encode()) + label_of(namespace.encode()) + b"\3svc"
        self.service: Service | None = None
        self._merges: dict[tuple[Family, tuple[EndpointPort, ...]], EndpointMerge] = {}
        self._merge_of: dict[str, tuple[Family, tuple[EndpointPort, ...]]] = {}
        #: by lower-cased first label
        self.hosts: dict[bytes, tuple[Host, ...]] = {}
        #: of ready endpoints, each once, in order
        self.addresses: Final[dict[Family, list[bytes]]] = {family: [] for family in FAMILIES}
        self._entries: dict[bytes, int] = {}
        #: ready endpoints with hints, and all endpoints
        self._hinted = 0
        self._chosen: dict[Locality, Choice[Endpoint]] = {}
        self._by_zone: dict[str, list[Endpoint]] | None = None
        #: what ``dns.view`` found for a place, by what was asked; it is gone with the next change
        self.found: Final[dict[Hashable, Any]] = {}
        #: names under which answers of it are kept
        self.asked: set[bytes] = set()

    @property
    def kind(self) -> ServiceNamesKind:
        if self.service is None:
            return "absent"
        spec = self.service.spec
        if spec.type == "ExternalName":
            return "external"
        return "headless" if spec.cluster_ip == "None" else "cluster"

    @property
    def is_empty(self) -> bool:
        return self.service is None and not self._merge_of

    @property
    def exists(self) -> bool:
        """Whether there is anything at its name or below it: not of a headless one without ready endpoints, for which
        the specification (2.4.1) prefers NXDOMAIN."""
        return self.kind in ("cluster", "external") or (self.kind == "headless" and bool(self.hosts))

    def cluster_addresses(self) -> dict[Family, list[bytes]]:
        packed: dict[Family, list[bytes]] = {family: [] for family in FAMILIES}
        if self.kind == "cluster" and self.service is not None:
            spec = self.service.spec
            for text in spec.cluster_ips or (spec.cluster_ip,):
                address = parse_lenient(text)
                if address is not None:
                    of = packed["IPv4" if address.version == 4 else "IPv6"]
                    if address.packed not in of:
                        of.append(address.packed)
        return packed

    # -- changes -----------------------------------------------------------------------------------------

    def on_service(self, service: Service | None) -> None:
        self.service = service
        self._forget()

    def _forget(self) -> None:
        self._chosen.clear()
        self._by_zone = None
        self.found.clear()

    def on_slice(self, key: str, new: EndpointSlice | None) -> list[HostChange]:
        """The slice *key* is now *new* (``None``: gone, or another Service's)."""
        family = next((kind for kind in FAMILIES if new is not None and kind == new.address_type), None)
        group = None if new is None or family is None else (family, tuple(new.ports or ()))
        before = self._merge_of.get(key)
        changes: list[HostChange] = []
        if before is not None and before != group:
            del self._merge_of[key]
            changes += self._merged(before, key, None)
            if before not in self._merge_of.values():
                del self._merges[before]
        if group is not None:
            self._merge_of[key] = group
            changes += self._merged(group, key, new)
        if changes or before != group:
            self._forget()
        return changes

    def _merged(
        self, group: tuple[Family, tuple[EndpointPort, ...]], key: str, new: EndpointSlice | None
    ) -> Iterable[HostChange]:
        family, ports = group
        merge = self._merges.get(group)
        if merge is None:
            merge = self._merges[group] = EndpointMerge(_ANY_PORT, family)
        merge.on_slice(key, new)
        changes = []
        for identity, before in merge.take_touched().items():
            after = merge.visible.get(identity)
            for endpoint, present in ((before, False), (after, True)):
                if endpoint is not None and endpoint.ready:
                    packed = ipaddress.ip_address(endpoint.address).packed
                    changes.append(HostChange(host_label(endpoint), Host(packed, ports, endpoint), present))
        if changes:
            # A new list: sets of records that were made share the old one.
            addresses = self.addresses[family] = self.addresses[family].copy()
            for change in changes:
                self._note(change, addresses)
        return changes

    def _note(self, change: HostChange, addresses: list[bytes]) -> None:
        packed = change.host.packed
        hosts = self.hosts.get(change.label, ())
        count = self._entries.get(packed, 0) + (1 if change.present else -1)
        hinted = bool(change.host.endpoint.zone_hints or change.host.endpoint.node_hints)
        if change.present:
            self.hosts[change.label] = tuple(sorted((*hosts, change.host), key=_order)) if hosts else (change.host,)
            self._hinted += hinted
        else:
            left = list(hosts)
            left.remove(change.host)
            if left:
                self.hosts[change.label] = tuple(left)
            else:
                del self.hosts[change.label]
            self._hinted -= hinted
        if count == 0:
            del self._entries[packed]
            del addresses[bisect_left(addresses, packed)]
        else:
            self._entries[packed] = count
            if count == 1 and change.present:
                insort(addresses, packed)

    # -- what is asked -----------------------------------------------------------------------------------

    @property
    def is_narrowed(self) -> bool:
        """Whether answers depend on the client's place.  Members of a Service that publishes addresses that are not
        ready look for all others (kubernetes.io, "StatefulSet", stable network IDs), so it never does there."""
        if self.kind != "headless" or not self._hinted or self.service is None:
            return False
        return not self.service.spec.publish_not_ready_addresses

    def near(self, place: Locality) -> Choice[Endpoint]:
        """What ``proxy.usable`` leaves of the ready endpoints for clients at *place*."""
        choice = self._chosen.get(place)
        if choice is None:
            if len(self._chosen) >= _PLACES_MAX:
                self._chosen.clear()
            choice = self._chosen[place] = choose(self.endpoints(), place)
        return choice

    def endpoints(self) -> list[Endpoint]:
        """The ready ones, by the name of their host."""
        return [host.endpoint for label in sorted(self.hosts) for host in self.hosts[label]]

    def in_zone(self, zone: str) -> list[Endpoint]:
        """By where they are, whatever hints say."""
        if self._by_zone is None:
            self._by_zone = {}
            for endpoint in self.endpoints():
                self._by_zone.setdefault(endpoint.zone.lower(), []).append(endpoint)
        return self._by_zone.get(zone, [])

    def protocols(self) -> set[str]:
        """Of named ports: lower-cased, with an SRV record below each."""
        return {protocol for name, protocol, _ in self._offers() if name}

    def srv(
        self, port: str | None, protocol: str | None, label: bytes = b"", near: Iterable[Endpoint] | None = None
    ) -> list[SrvTarget]:
        """*port* ``None``: all of them, as CoreDNS answers where labels for a port lack.  *label*: of this host alone.
        *near*: these come first."""
        if self.kind == "cluster" and not label and self.service is not None:
            addresses = sum(map(len, self.cluster_addresses().values()))
            numbers = [item for name, of, item in self._offers() if _is_asked(name, of, port, protocol)]
            entries = [(PRIORITY_NEAR, number, b"") for number in numbers for _ in range(addresses)]
        else:
            first = None if near is None else set(near)
            labels = [label] if label else sorted(self.hosts)
            entries = [
                (PRIORITY_NEAR if first is None or host.endpoint in first else PRIORITY_FAR, number, name)
                for name in labels
                for host in self.hosts.get(name, ())
                for offered, of, number in _offered(host.ports)
                if _is_asked(offered, of, port, protocol)
            ]
        weights = {
            of: max(1, 100 // sum(entry[0] == of for entry in entries)) for of in {entry[0] for entry in entries}
        }
        unique = dict.fromkeys(entries)
        return [SrvTarget(priority, weights[priority], number, name) for priority, number, name in unique]

    def _offers(self) -> list[tuple[str, str, int]]:
        if self.kind == "cluster" and self.service is not None:
            return [(port.name, port.protocol.lower(), port.port) for port in self.service.spec.ports or ()]
        return [offer for _, ports in sorted(self._merges, key=repr) for offer in _offered(ports)]

    def check(self) -> None:
        """Everything kept is what the merges show.  O(endpoints)."""
        shown = [
            (host_label(endpoint), endpoint)
            for merge in self._merges.values()
            for endpoint in merge.visible.values()
            if endpoint.ready
        ]
        kept = [(label, host.endpoint) for label, hosts in self.hosts.items() for host in hosts]
        assert sorted(map(repr, shown)) == sorted(map(repr, kept)), f"merges show {shown}, hosts are {kept}"
        packed = sorted({ipaddress.ip_address(endpoint.address).packed for _, endpoint in shown}, key=_by_family)
        assert [*self.addresses["IPv4"], *self.addresses["IPv6"]] == packed, "addresses are not those of the hosts"
        for merge in self._merges.values():
            merge.check()


def label_of(octets: bytes) -> bytes:
    """A label in wire form.  Raises ``WireError``."""
    if not 0 < len(octets) <= LABEL_MAX:
        raise WireError(f"{octets!r} is no label")
    return bytes((len(octets),)) + octets


def host_label(endpoint: Endpoint) -> bytes:
    """Its hostname; else its address, dashes for dots and colons, as kube-dns and CoreDNS make it."""
    hostname = endpoint.hostname.lower().encode()
    if 0 < len(hostname) <= LABEL_MAX:
        return hostname
    return endpoint.address.replace(".", "-").replace(":", "-").encode()


def alias_of(service: Service) -> bytes | None:
    """The name that an ExternalName Service stands for; ``None``: it is no name."""
    try:
        return name_of(service.spec.external_name) if service.spec.external_name else None
    except WireError:
        return None


def _order(host: Host) -> tuple[int, bytes, str]:
    return len(host.packed), host.packed, repr(host)


def _by_family(packed: bytes) -> tuple[int, bytes]:
    return len(packed), packed


def _offered(ports: Iterable[EndpointPort]) -> list[tuple[str, str, int]]:
    """Name, protocol and number; a port without a number has no SRV record."""
    return [(port.name or "", (port.protocol or PROTOCOL_DEFAULT).lower(), port.port) for port in ports if port.port]


def _is_asked(name: str, of: str, port: str | None, protocol: str | None) -> bool:
    return port is None or (name == port and of == protocol)
