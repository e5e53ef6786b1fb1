"""One Service's part of the zone: its addresses, its hosts and its ports, kept by differences.

``consume.balancing.merge`` says which entry of an address counts where slices disagree, so that
names and node proxies do not; one merge for each family and set of ports, since an endpoint may be
offered with several. Only ready endpoints have names (Kubernetes DNS specification 1.1.0, sections
2.3 and 2.4); terminating ones leave at once, also where a proxy would still use them.

A changed slice costs O(that slice). Indexes of hosts by port, zone and hint are built by the first
question that needs one and dropped by the next change; a question looks up what is there and keeps
nothing of its own. Owned by ``dns.view``.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointPort, EndpointSlice
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.consume.balancing.merge import EndpointMerge, PortChoice
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.usable import Locality
from sliceplane.dns.wire import LABEL_MAX, WireError, name_of
from sliceplane.kit.ip import FAMILIES, Family, parse_lenient

ServiceNamesKind = Literal["cluster", "headless", "external", "absent"]
_ANY_PORT: Final = PortChoice(0)
#: of a Service's hints for a place: what became of them, as the metric has it
NearOutcome = Literal["node", "zone", "all"]


class PortSet:
    """The ports that slices of a Service offer together; one object for all slices with the
    same.
    """

    def __init__(self, offers: Iterable[tuple[str, str, int]]) -> None:
        """*offers*: name, protocol in lower case, and number."""
        numbers: dict[tuple[str, str], dict[int, None]] = {}
        every: dict[int, None] = {}
        for name, protocol, number in offers:
            numbers.setdefault((name, protocol), {})[number] = None
            every[number] = None
        self._numbers = {key: tuple(ports) for key, ports in numbers.items()}
        self._every = tuple(every)
        #: with an SRV record below each
        self.protocols = frozenset(protocol for name, protocol in numbers if name)

    def __repr__(self) -> str:
        return f"PortSet({self._numbers})"

    def numbers(self, port: str | None, protocol: str | None) -> tuple[int, ...]:
        """*port* ``None``: all of them, as CoreDNS answers where labels for a port lack."""
        if port is None or protocol is None:
            return self._every
        return self._numbers.get((port, protocol), ())


class Host(NamedTuple):
    """A ready endpoint and the ports that its slice offers."""

    packed: bytes
    ports: PortSet
    endpoint: Endpoint


class HostChange(NamedTuple):
    label: bytes
    host: Host
    present: bool


class SrvTargets(NamedTuple):
    """``pairs`` of labels of hosts, in order, and the numbers of their ports; ``total``: how many
    ports all their endpoints have together.
    """

    pairs: Sequence[tuple[Sequence[bytes], Sequence[int]]]
    total: int


class HostSubset:
    """Hosts of a Service that have something in common: labels by the ports that they offer, and
    addresses, all of these in order.
    """

    def __init__(self) -> None:
        self.count = 0
        self.labels: Final[dict[PortSet, list[bytes]]] = {}
        self.counts: Final[dict[PortSet, int]] = {}
        self._packed: set[bytes] = set()
        self._addresses: dict[Family, list[bytes]] | None = None
        self._all_labels: frozenset[bytes] | None = None

    def add(self, label: bytes, host: Host) -> None:
        """Adds a host; labels must come in order."""
        self.count += 1
        self.counts[host.ports] = self.counts.get(host.ports, 0) + 1
        labels = self.labels.setdefault(host.ports, [])
        if not labels or labels[-1] != label:
            labels.append(label)
        self._packed.add(host.packed)

    def all_labels(self) -> frozenset[bytes]:
        if self._all_labels is None:
            self._all_labels = frozenset(
                label for labels in self.labels.values() for label in labels
            )
        return self._all_labels

    def addresses(self, family: Family) -> list[bytes]:
        if self._addresses is None:
            octets = {"IPv4": 4, "IPv6": 16}
            self._addresses = {
                kind: sorted(packed for packed in self._packed if len(packed) == octets[kind])
                for kind in FAMILIES
            }
        return self._addresses[family]


class _Hints(NamedTuple):
    """Hosts by the places that their hints name; empty where a ready endpoint has no hint of the
    kind.
    """

    by_node: dict[str, HostSubset]
    by_zone: dict[str, HostSubset]


class NamedService:
    """See the module."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace: Final = namespace
        self.name: Final = name
        #: the labels of its name up to the zone
        self.relative: Final = label_of(name.encode()) + label_of(namespace.encode()) + b"\3svc"
        self.service: Service | None = None
        self._merges: dict[tuple[Family, tuple[EndpointPort, ...]], EndpointMerge] = {}
        self._port_sets: dict[tuple[EndpointPort, ...], PortSet] = {}
        self._merge_of: dict[str, tuple[Family, tuple[EndpointPort, ...]]] = {}
        #: by lower-cased first label
        self.hosts: dict[bytes, tuple[Host, ...]] = {}
        #: of ready endpoints, each once, in order
        self.addresses: Final[dict[Family, list[bytes]]] = {family: [] for family in FAMILIES}
        self._entries: dict[bytes, int] = {}
        self._host_count = 0
        #: ready endpoints with hints
        self._hinted = 0
        self._own_ports: PortSet | None = None
        self._whole: HostSubset | None = None
        self._by_zone: dict[str, HostSubset] | None = None
        self._hints: _Hints | None = None
        #: names under which ``dns.kept`` keeps results of it, with their bytes of memory
        self.kept: Final[dict[bytes, int]] = {}

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
        """Returns True if there are records at the Service's name or below it.

        A headless Service without ready endpoints has none: the specification (2.4.1) prefers
        NXDOMAIN.
        """
        return self.kind in ("cluster", "external") or (
            self.kind == "headless" and bool(self.hosts)
        )

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

    # -- changes

    def on_service(self, service: Service | None) -> None:
        self.service = service
        self._forget()

    def _forget(self) -> None:
        self._own_ports = None
        self._whole = None
        self._by_zone = None
        self._hints = None

    def on_slice(self, key: str, new: EndpointSlice | None) -> list[HostChange]:
        """The slice *key* is now *new* (``None``: gone, or another Service's)."""
        family = next(
            (kind for kind in FAMILIES if new is not None and kind == new.address_type), None
        )
        group = None if new is None or family is None else (family, tuple(new.ports or ()))
        before = self._merge_of.get(key)
        changes: list[HostChange] = []
        if before is not None and before != group:
            del self._merge_of[key]
            changes += self._merged(before, key, None)
            if before not in self._merge_of.values():
                del self._merges[before]
                if not any(ports == before[1] for _, ports in self._merges):
                    del self._port_sets[before[1]]
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
        port_set = self._port_sets.get(ports)
        if port_set is None:
            port_set = self._port_sets[ports] = PortSet(_offered(ports))
        merge.on_slice(key, new)
        changes = []
        for identity, before in merge.take_touched().items():
            after = merge.visible.get(identity)
            for endpoint, present in ((before, False), (after, True)):
                if endpoint is not None and endpoint.ready:
                    packed = ipaddress.ip_address(endpoint.address).packed
                    changes.append(
                        HostChange(host_label(endpoint), Host(packed, port_set, endpoint), present)
                    )
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
        self._host_count += 1 if change.present else -1
        hinted = bool(change.host.endpoint.zone_hints or change.host.endpoint.node_hints)
        if change.present:
            updated = [*hosts] if hosts else [change.host]
            if hosts:
                insort(updated, change.host, key=_order)
            self.hosts[change.label] = tuple(updated)
            self._hinted += hinted
        else:
            remaining = list(hosts)
            remaining.remove(change.host)
            if remaining:
                self.hosts[change.label] = tuple(remaining)
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

    # -- queries

    @property
    def is_narrowed(self) -> bool:
        """Returns True if answers depend on the client's location.

        They do not if the Service publishes addresses that are not ready, since its members resolve
        each other (kubernetes.io, "StatefulSet", stable network IDs).
        """
        if self.kind != "headless" or not self._hinted or self.service is None:
            return False
        return not self.service.spec.publish_not_ready_addresses

    def near(self, locality: Locality) -> tuple[NearOutcome, HostSubset | None]:
        """Returns the hosts that hints name for clients at *locality*; ``None``: all of them.

        The rule is that of ``consume.usable.choose``, over an index by location: clients are at
        thousands of locations, and one that forges its address chooses among them.
        """
        if self._hints is None:
            ready = [host.endpoint for hosts in self.hosts.values() for host in hosts]
            self._hints = _Hints(
                self._subsets(lambda endpoint: endpoint.node_hints)
                if all(of.node_hints for of in ready)
                else {},
                self._subsets(lambda endpoint: endpoint.zone_hints)
                if all(of.zone_hints for of in ready)
                else {},
            )
        outcome: NearOutcome = "node"
        subset = self._hints.by_node.get(locality.node) if locality.node else None
        if subset is None:
            outcome = "zone"
            subset = self._hints.by_zone.get(locality.zone) if locality.zone else None
        if subset is None or subset.count == self._host_count:
            return "all", None
        return outcome, subset

    def in_zone(self, zone: str) -> HostSubset | None:
        """By where they are, whatever hints say."""
        if self._by_zone is None:
            self._by_zone = self._subsets(lambda endpoint: (endpoint.zone.lower(),))
        return self._by_zone.get(zone)

    def _subsets(self, keys_of: Callable[[Endpoint], Iterable[str]]) -> dict[str, HostSubset]:
        subsets: dict[str, HostSubset] = {}
        for label in sorted(self.hosts):
            for host in self.hosts[label]:
                for key in keys_of(host.endpoint):
                    subset = subsets.get(key)
                    if subset is None:
                        subset = subsets[key] = HostSubset()
                    subset.add(label, host)
        return subsets

    def has_protocol(self, protocol: str) -> bool:
        """A named port has this protocol, in lower case."""
        sets = [self._ports_of_service()] if self.kind == "cluster" else self._port_sets.values()
        return any(protocol in ports.protocols for ports in sets)

    def srv(
        self,
        port: str | None,
        protocol: str | None,
        label: bytes = b"",
        subset: HostSubset | None = None,
    ) -> SrvTargets:
        """Resolves a port for ``SrvSet``; there are no pairs if no host has it. *label*: of this
        host alone; *subset*: of these hosts alone.
        """
        labels_of: dict[PortSet, Sequence[bytes]]
        if label:
            hosts = self.hosts.get(label, ())
            labels_of = {host.ports: (label,) for host in hosts}
            counts = {ports: sum(host.ports is ports for host in hosts) for ports in labels_of}
        elif self.kind == "cluster":
            addresses = sum(map(len, self.cluster_addresses().values()))
            counts = {self._ports_of_service(): addresses}
            labels_of = {ports: (b"",) for ports in counts if addresses}
        else:
            if not any(ports.numbers(port, protocol) for ports in self._port_sets.values()):
                return SrvTargets((), 0)
            chosen = self._whole_subset() if subset is None else subset
            labels_of, counts = {**chosen.labels}, chosen.counts
        matching = [
            (ports, numbers) for ports in labels_of if (numbers := ports.numbers(port, protocol))
        ]
        count = sum(counts[ports] * len(numbers) for ports, numbers in matching)
        return SrvTargets([(labels_of[ports], numbers) for ports, numbers in matching], count)

    def _whole_subset(self) -> HostSubset:
        if self._whole is None:
            self._whole = self._subsets(lambda _: ("",)).get("") or HostSubset()
        return self._whole

    def _ports_of_service(self) -> PortSet:
        if self._own_ports is None:
            of_service = () if self.service is None else self.service.spec.ports or ()
            self._own_ports = PortSet(
                (port.name, port.protocol.lower(), port.port) for port in of_service
            )
        return self._own_ports

    def check(self) -> None:
        """Asserts that all state agrees with the merges.  O(endpoints)."""
        visible = [
            (host_label(endpoint), endpoint)
            for merge in self._merges.values()
            for endpoint in merge.visible.values()
            if endpoint.ready
        ]
        kept = [(label, host.endpoint) for label, hosts in self.hosts.items() for host in hosts]
        assert sorted(map(repr, visible)) == sorted(map(repr, kept)), (
            f"merges show {visible}, hosts are {kept}"
        )
        packed = sorted(
            {ipaddress.ip_address(endpoint.address).packed for _, endpoint in visible},
            key=_by_family,
        )
        assert [*self.addresses["IPv4"], *self.addresses["IPv6"]] == packed, (
            "addresses are not those of the hosts"
        )
        for merge in self._merges.values():
            merge.check()


def label_of(octets: bytes) -> bytes:
    """A label in wire form.  Raises ``WireError``."""
    if not 0 < len(octets) <= LABEL_MAX:
        raise WireError(f"{octets!r} is no label")
    return bytes((len(octets),)) + octets


def host_label(endpoint: Endpoint) -> bytes:
    """Its hostname; else its address, dashes for dots and colons, as kube-dns and CoreDNS
    make it.
    """
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
    return [
        (port.name or "", (port.protocol or PROTOCOL_DEFAULT).lower(), port.port)
        for port in ports
        if port.port
    ]
