"""A cluster's Services and EndpointSlices as a zone: changes in, records of a name out.

``apply`` costs what changed. A name is looked up through its Service, so there is no table of names
to keep: what is below a Service follows from its hosts and ports, and what is above from the
Namespaces that there are.

Rules: the Kubernetes DNS specification 1.1.0, and beyond it what clients of CoreDNS lean on.
Negative answers may be kept for 1 s where an object may come to be at the name, and for 30 s where
no record can ever be (the search lists of resolvers make most of those).

Owned by one ``dns.server``.  Never: forwards, or looks at how a question was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Namespace, Node, Pod, Service
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.consume.usable import Locality
from sliceplane.dns.places import NOWHERE, Places
from sliceplane.dns.pods import PodNames, PodsByAddress, dashed_address
from sliceplane.dns.records import RecordSet, SrvSet, encoded
from sliceplane.dns.reverse import Reverse, reversed_address
from sliceplane.dns.service import HostSubset, NamedService, alias_of, label_of
from sliceplane.dns.wire import (
    AAAA,
    ANY,
    CNAME,
    HINFO,
    LABEL_MAX,
    NOERROR,
    NS,
    NXDOMAIN,
    PTR,
    SOA,
    SRV,
    TXT,
    A,
    encode_record,
    labels_of,
    name_of,
)
from sliceplane.kit.ip import Family, Network, parse_lenient
from sliceplane.kit.metrics import Metrics, exponential_buckets
from sliceplane.kit.times import parse_time
from sliceplane.watch.cache import Change

SPECIFICATION: Final = b"1.1.0"
TTL_S: Final = 5
#: how long a client may keep that there is nothing: where there may soon be something, and where
#: there never is
NEGATIVE_TTL_S: Final = 1
NEVER_TTL_S: Final = 30
_REVERSE_ZONES: Final = {b"in-addr": name_of("in-addr.arpa"), b"ip6": name_of("ip6.arpa")}
_FAMILY_OF: Final[dict[int, Family]] = {A: "IPv4", AAAA: "IPv6"}
_SIZE_OF: Final = {A: 4, AAAA: 16}
_HINFO: Final = b"\x07RFC8482\0"
#: as upstream has them for this indicator of sig-scalability
_PROGRAMMING_BUCKETS: Final = exponential_buckets(0.001, 2, 20)


class ZoneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``domains``: names of zones, each with the whole cluster. ``addresses``: of the server, for
    ``ns.dns``. ``namespaces``: all if empty. ``reverse_cidrs``: names of their addresses are ours,
    also where there is none. ``place``: of all clients, where the server is a node's own.
    """

    domains: tuple[str, ...] = ("cluster.local",)
    ttl_s: int = TTL_S
    pods: PodNames = "disabled"
    namespaces: tuple[str, ...] = ()
    reverse_cidrs: tuple[Network, ...] = ()
    addresses: tuple[str, ...] = ()
    zone_answers: bool = True
    client_zones: tuple[tuple[Network, str], ...] = ()
    place: str = ""


class FoundName(NamedTuple):
    """What there is at a name. ``extras``: whole records for the additional section. ``keep_s``: if
    negative. ``is_soa``: the zone's SOA record is the answer. ``alias``: the name that its one
    record leads to. ``why``: for a person. ``narrowed``: what became of hints, where they were
    asked.
    """

    zone: bytes
    rcode: int = NOERROR
    records: RecordSet | SrvSet | None = None
    extras: Iterable[bytes] = ()
    keep_s: int = NEGATIVE_TTL_S
    is_soa: bool = False
    alias: bytes = b""
    service: NamedService | None = None
    why: str = ""
    narrowed: str = ""


class DnsView:
    """See the module."""

    def __init__(self, config: ZoneConfig) -> None:
        self.config: Final = config
        self.zones: Final = tuple(name_of(domain).lower() for domain in config.domains)
        self._zone_labels: Final = tuple((zone, labels_of(zone)) for zone in self.zones)
        self.reverse: Final = Reverse(config.reverse_cidrs)
        self.places: Final = Places(config.client_zones, self.reverse.place_of)
        self._services: dict[bytes, NamedService] = {}
        self._pods: Final = PodsByAddress()
        self._namespaces: dict[str, bool] = {}
        self._services_in: dict[str, int] = {}
        #: of the SOA: seconds since the epoch of the last change
        self.serial = 0
        self.metrics = Metrics()
        self._programmed = self.metrics.histograms(
            "coredns_kubernetes_dns_programming_duration_seconds",
            "From the change of a Pod or Service until its name leads there.",
            _PROGRAMMING_BUCKETS,
            "service_kind",
        )
        self.narrowed = self.metrics.counters(
            "sliceplane_dns_zone_answers_total",
            "Answers of headless Services with hints, by what became of these.",
            "outcome",
        )
        self.metrics.computed(
            "gauge", "sliceplane_dns_records", "Names by kind.", self._counts, "kind"
        )

    # -- changes

    def apply(self, changes: Iterable[Change[Object]], now: float) -> set[NamedService]:
        """All of them at once; what they touched."""
        touched: set[NamedService] = set()
        for change in changes:
            self.serial = int(now)
            subject = change.object
            match subject:
                case Service():
                    touched |= self._on_service(subject, present=change.new is not None)
                case EndpointSlice():
                    touched |= self._on_slice(change, now)
                case Pod():
                    self._pods.on_pod(*change.typed(Pod))
                case Namespace():
                    self._namespaces.pop(subject.metadata.name, None)
                    if change.new is not None:
                        self._namespaces[subject.metadata.name] = True
                case Node():
                    self.places.on_node(
                        subject.metadata.name, None if change.new is None else subject
                    )
                case _:
                    raise AssertionError(f"no names come of {change.resource}")
        for named in touched:
            if named.is_empty:
                self._services.pop(named.relative, None)
        return touched

    def _on_service(self, service: Service, *, present: bool) -> set[NamedService]:
        named = self._named(service.metadata.namespace, service.metadata.name)
        if named is None:
            return set()
        self.reverse.on_cluster_addresses(named, present=False)
        was = named.service is not None
        named.on_service(service if present else None)
        self.reverse.on_cluster_addresses(named, present=True)
        count = self._services_in.get(named.namespace, 0) + present - was
        if count:
            self._services_in[named.namespace] = count
        else:
            self._services_in.pop(named.namespace, None)
        return {named}

    def _on_slice(self, change: Change[Object], now: float) -> set[NamedService]:
        old, new = change.typed(EndpointSlice)
        key = change.object.metadata.key
        touched: set[NamedService] = set()
        before = None if old is None else self._service_of(old)
        after = None if new is None else self._service_of(new)
        if before is not None and before is not after:
            self.reverse.on_hosts(before, before.on_slice(key, None))
            touched.add(before)
        if after is not None and new is not None:
            changes = after.on_slice(key, new)
            self.reverse.on_hosts(after, changes)
            touched.add(after)
            if changes and old is not None:
                self._observe(after, new, now)
        return touched

    def _observe(self, named: NamedService, new: EndpointSlice, now: float) -> None:
        triggered = (new.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME, "")
        if triggered and named.kind == "headless" and named.service is not None:
            kind = (
                "headless_with_selector"
                if named.service.spec.selector
                else "headless_without_selector"
            )
            try:
                self._programmed.of(kind).observe(max(0.0, now - parse_time(triggered)))
            except ValueError:
                return

    def _service_of(self, subject: EndpointSlice) -> NamedService | None:
        name = (subject.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
        return self._named(subject.metadata.namespace, name) if name else None

    def _named(self, namespace: str, name: str) -> NamedService | None:
        """``None``: it can have no name of ours."""
        if self.config.namespaces and namespace not in self.config.namespaces:
            return None
        if not (0 < len(name.encode()) <= LABEL_MAX and 0 < len(namespace.encode()) <= LABEL_MAX):
            return None
        made = NamedService(namespace, name)
        return self._services.setdefault(made.relative, made)

    def _counts(self) -> list[tuple[tuple[str], float]]:
        services = [named for named in self._services.values() if named.exists]
        hosts = sum(len(named.hosts) for named in services)
        return [(("host",), hosts), (("service",), len(services))]

    # -- questions

    def service(self, namespace: str, name: str) -> Service | None:
        named = self._services.get(NamedService(namespace, name).relative)
        return None if named is None else named.service

    def has_namespace(self, name: str) -> bool:
        return name in self._namespaces or name in self._services_in

    def zone_of(self, labels: tuple[bytes, ...]) -> bytes | None:
        """The one of ours that a name is in, the longest; labels are lower-cased."""
        held = [zone for zone, of in self._zone_labels if labels[-len(of) :] == of]
        return max(held, key=len, default=None)

    def find(
        self, labels: tuple[bytes, ...], kind: int, place: Locality = NOWHERE
    ) -> FoundName | None:
        """What there is of *kind* at the name of these labels, lower-cased; ``None``: the name is
        not ours.
        """
        zone = self.zone_of(labels)
        if zone is not None:
            return self._in_zone(zone, labels[: len(labels) - len(labels_of(zone))], kind, place)
        if len(labels) > 2 and labels[-1] == b"arpa" and labels[-2] in _REVERSE_ZONES:
            return self._reversed(labels, kind)
        return None

    def _in_zone(
        self, zone: bytes, labels: tuple[bytes, ...], kind: int, place: Locality
    ) -> FoundName:
        match labels:
            case ():
                return self._apex(zone, kind)
            case (b"dns-version",):
                text = bytes((len(SPECIFICATION),)) + SPECIFICATION
                return self._data(zone, kind, {TXT: [text]}, "the version of the specification")
            case (b"ns", b"dns"):
                return self._data(zone, kind, self._own_addresses(), "this server's address")
            case (b"dns",) | (b"svc",) | (b"pod",):
                return FoundName(zone, why="names are below it, and no record at it")
            case (*_, b"svc"):
                return self._below_svc(zone, labels[:-1], kind, place)
            case (*_, b"pod"):
                return self._pod(zone, labels[:-1], kind)
        return FoundName(
            zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="below a zone there are only svc, pod and dns"
        )

    def _apex(self, zone: bytes, kind: int) -> FoundName:
        server = b"\2ns\3dns" + zone
        if kind == SOA:
            return FoundName(zone, is_soa=True, why="the zone itself")
        if kind == NS:
            own = self._own_addresses()
            glue = [
                RecordSet(of, self.config.ttl_s, data, _SIZE_OF[of])
                for of, data in own.items()
                if data
            ]
            extras = tuple(server + record[2:] for records in glue for record in records.records())
            return FoundName(
                zone,
                records=encoded(NS, self.config.ttl_s, [server]),
                extras=extras,
                why="this server",
            )
        return self._data(zone, kind, {}, "the zone itself")

    def _own_addresses(self) -> dict[int, list[bytes]]:
        packed = [
            address.packed
            for text in self.config.addresses
            if (address := parse_lenient(text)) is not None
        ]
        return {of: [item for item in packed if len(item) == size] for of, size in _SIZE_OF.items()}

    def _data(self, zone: bytes, kind: int, data: dict[int, list[bytes]], why: str) -> FoundName:
        """At a name that exists."""
        if kind == ANY:
            return FoundName(
                zone,
                records=encoded(HINFO, self.config.ttl_s, [_HINFO]),
                why="ANY is not answered (RFC 8482)",
            )
        held = data.get(kind)
        if not held:
            return FoundName(zone, why=f"{why}: it exists, and has no record of this type")
        if kind in _SIZE_OF:
            return FoundName(
                zone, records=RecordSet(kind, self.config.ttl_s, held, _SIZE_OF[kind]), why=why
            )
        return FoundName(zone, records=encoded(kind, self.config.ttl_s, held), why=why)

    # -- Services

    def _below_svc(
        self, zone: bytes, labels: tuple[bytes, ...], kind: int, place: Locality
    ) -> FoundName:
        namespace = labels[-1].decode("ascii", "replace")
        if len(labels) == 1:
            if self.has_namespace(namespace):
                return self._data(zone, kind, {}, f"the Namespace {namespace}")
            return FoundName(zone, NXDOMAIN, why=f"there is no Namespace {namespace}")
        above = labels[:-2]
        named = self._services.get(label_of(labels[-2]) + label_of(labels[-1]) + b"\3svc")
        if not _can_be(above):
            return FoundName(
                zone, NXDOMAIN, keep_s=NEVER_TTL_S, service=named, why="no record has such a name"
            )
        of = f"the Service {namespace}/{labels[-2].decode('ascii', 'replace')}"
        if named is None or named.service is None:
            missing = of if self.has_namespace(namespace) else f"the Namespace {namespace}"
            return FoundName(zone, NXDOMAIN, service=named, why=f"{missing} does not exist")
        if not named.exists:
            return FoundName(
                zone,
                NXDOMAIN,
                service=named,
                why=f"{of} is headless and has no endpoint that is ready",
            )
        found = self._of_service(zone, named, above, kind, place=place, of=of)
        if found.narrowed:
            self.narrowed.of(found.narrowed).value += 1
        return found._replace(service=named)

    def _of_service(
        self,
        zone: bytes,
        named: NamedService,
        above: tuple[bytes, ...],
        kind: int,
        *,
        place: Locality,
        of: str,
    ) -> FoundName:
        assert named.service is not None, "looked at before"
        if named.kind == "external":
            alias = alias_of(named.service)
            if above:
                return FoundName(
                    zone, NXDOMAIN, why=f"{of} is of the type ExternalName: nothing is below it"
                )
            if alias is None or kind == ANY:
                return self._data(
                    zone, kind, {}, f"{of}, whose externalName {named.service.spec.external_name!r}"
                )
            return FoundName(
                zone,
                records=encoded(CNAME, self.config.ttl_s, [alias]),
                alias=alias,
                why=f"{of}: its externalName",
            )
        match above:
            case ():
                return self._at_service(zone, named, kind, place, of)
            case (label,) if label.startswith(b"_") and named.has_protocol(
                label[1:].decode("ascii", "replace")
            ):
                return self._data(zone, kind, {}, "names of ports are below it")
            case (b"_zone",) if named.kind == "headless":
                return self._data(zone, kind, {}, "names of zones are below it")
            case (label,):
                return self._host(zone, named, label, kind, of)
            case (port, protocol) if (
                port.startswith(b"_") and protocol.startswith(b"_") and protocol != b"_zone"
            ):
                wanted = (
                    port[1:].decode("ascii", "replace"),
                    protocol[1:].decode("ascii", "replace"),
                )
                if not all(wanted) or not named.srv(*wanted).pairs:
                    return FoundName(
                        zone, NXDOMAIN, why=f"{of} has no {wanted[1]} port {wanted[0]}"
                    )
                return self._srv(zone, named, wanted, kind, of=of, place=place)
            case (*words, b"_zone") if named.kind == "headless":
                return self._of_zone(zone, named, tuple(words), kind, of)
        return FoundName(zone, NXDOMAIN, why=f"{of} exists, and has no such host or port")

    def _at_service(
        self, zone: bytes, named: NamedService, kind: int, place: Locality, of: str
    ) -> FoundName:
        if kind == SRV:
            return self._srv(zone, named, (None, None), kind, of=of, place=place)
        if kind not in _FAMILY_OF:
            return self._data(zone, kind, {}, of)
        family = _FAMILY_OF[kind]
        if named.kind == "cluster":
            return self._data(
                zone, kind, {kind: named.cluster_addresses()[family]}, f"{of}: its cluster IPs"
            )
        if not self.is_narrowed(named) or place == NOWHERE:
            return self._data(
                zone, kind, {kind: named.addresses[family]}, f"{of}: its ready endpoints"
            )
        outcome, subset = named.near(place)
        near = named.addresses[family] if subset is None else subset.addresses(family)
        why = f"{of}: its ready endpoints for a client in {place.zone or '?'} ({outcome})"
        return self._data(zone, kind, {kind: near}, why)._replace(narrowed=outcome)

    def is_narrowed(self, named: NamedService) -> bool:
        """Whether what is found there depends on the client's place."""
        return self.config.zone_answers and named.is_narrowed

    def _host(
        self, zone: bytes, named: NamedService, label: bytes, kind: int, of: str
    ) -> FoundName:
        hosts = named.hosts.get(label)
        if not hosts:
            return FoundName(zone, NXDOMAIN, why=f"{of} has no ready endpoint of this name")
        if kind == SRV:
            return self._srv(zone, named, (None, None), kind, of=of, label=label)
        data = {
            of_kind: list(dict.fromkeys(host.packed for host in hosts if len(host.packed) == size))
            for of_kind, size in _SIZE_OF.items()
        }
        return self._data(zone, kind, data, f"{of}: this endpoint")

    def _srv(
        self,
        zone: bytes,
        named: NamedService,
        port: tuple[str | None, str | None],
        kind: int,
        *,
        of: str,
        place: Locality = NOWHERE,
        label: bytes = b"",
        subset: HostSubset | None = None,
    ) -> FoundName:
        """*port*: its name and protocol. *place*: of a client, whose near endpoints have the better
        priority. The target's name is not compressed (RFC 2782); its addresses come along.
        """
        targets = named.srv(*port, label, subset) if kind == SRV else None
        if targets is None or not targets.pairs:
            return self._data(zone, kind, {}, f"{of}: a port")
        is_narrowed = self.is_narrowed(named) and place != NOWHERE
        near = named.near(place)[1] if is_narrowed else None
        near_total = targets.total if near is None else named.srv(*port, subset=near).total
        ttl_s = self.config.ttl_s
        records = SrvSet(
            targets.pairs,
            named.relative + zone,
            ttl_s,
            near=None if near is None else near.all_labels(),
            totals=(near_total, targets.total - near_total),
        )
        extras = _TargetAddresses(named, zone, records, ttl_s)
        return FoundName(zone, records=records, extras=extras, why=f"{of}: its ports")

    def _of_zone(
        self, zone: bytes, named: NamedService, words: tuple[bytes, ...], kind: int, of: str
    ) -> FoundName:
        """``ZONE.pin._zone.SERVICE``: the endpoints of a zone, by where they are; ``prefer``: all,
        if it has none (coredns/coredns#8388).
        """
        if not words or words[-1] not in (b"pin", b"prefer"):
            return FoundName(zone, NXDOMAIN, why="below _zone there are pin and prefer")
        wanted = b".".join(words[:-1]).decode("ascii", "replace")
        if not wanted:
            return self._data(zone, kind, {}, "names of zones are below it")
        subset = named.in_zone(wanted)
        if subset is None and words[-1] == b"prefer":
            return self._at_service(zone, named, kind, NOWHERE, of)
        if kind == SRV:
            return self._srv(zone, named, (None, None), kind, of=of, subset=subset or HostSubset())
        data = (
            {}
            if subset is None
            else {of_kind: subset.addresses(family) for of_kind, family in _FAMILY_OF.items()}
        )
        return self._data(zone, kind, data, f"{of}: its ready endpoints in the zone {wanted}")

    # -- the rest

    def _pod(self, zone: bytes, labels: tuple[bytes, ...], kind: int) -> FoundName:
        namespace = labels[-1].decode("ascii", "replace")
        mode = self.config.pods
        if mode == "disabled" or len(labels) > 2:
            return FoundName(
                zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="names of Pods are not served (--pods)"
            )
        if not self.has_namespace(namespace):
            return FoundName(zone, NXDOMAIN, why=f"there is no Namespace {namespace}")
        if len(labels) == 1:
            return self._data(zone, kind, {}, f"the Namespace {namespace}")
        address = dashed_address(labels[0])
        if address is None:
            return FoundName(zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="no address with dashes")
        if mode == "verified" and not self._pods.has(namespace, address.packed):
            return FoundName(
                zone, NXDOMAIN, why=f"no Pod of the Namespace {namespace} has this address"
            )
        of_kind = A if address.version == 4 else AAAA
        return self._data(zone, kind, {of_kind: [address.packed]}, "the address that it names")

    def _reversed(self, labels: tuple[bytes, ...], kind: int) -> FoundName | None:
        zone = _REVERSE_ZONES[labels[-2]]
        packed = reversed_address(labels)
        if packed is None:
            return None
        names = self.reverse.names(packed)
        if names:
            return self._data(
                zone,
                kind,
                {PTR: [name + self.zones[0] for name in names]},
                "the best names of this address",
            )
        return self.unknown_address(labels) if self.reverse.is_ours(packed) else None

    def is_own(self, name: bytes) -> bool:
        """The cluster, and no other server, says what is at this lower-cased name."""
        labels = labels_of(name)
        if self.zone_of(labels) is not None:
            return True
        packed = reversed_address(labels) if labels[-1:] == (b"arpa",) and len(labels) > 2 else None
        return packed is not None and (
            self.reverse.is_ours(packed) or bool(self.reverse.names(packed))
        )

    def unknown_address(self, labels: tuple[bytes, ...]) -> FoundName | None:
        """What is said of a reversed name that leads nowhere; ``None``: these labels are none."""
        if len(labels) < 2 or labels[-1] != b"arpa" or labels[-2] not in _REVERSE_ZONES:
            return None
        zone = _REVERSE_ZONES[labels[-2]]
        return FoundName(zone, NXDOMAIN, why="no Service and no ready endpoint has this address")


class _TargetAddresses:
    """The addresses of the targets of SRV records, as whole records; each is built when it is
    read.
    """

    def __init__(self, named: NamedService, zone: bytes, records: SrvSet, ttl_s: int) -> None:
        self._named = named
        self._suffix = named.relative + zone
        self._records = records
        self._ttl_s = ttl_s

    def __iter__(self) -> Iterator[bytes]:
        for label in dict.fromkeys(self._records.labels()):
            owner = (label_of(label) if label else b"") + self._suffix
            before = b""
            for packed in self._addresses(label):
                if packed == before:  # hosts are in the order of their addresses
                    continue
                before = packed
                yield encode_record(owner, A if len(packed) == 4 else AAAA, self._ttl_s, packed)

    def _addresses(self, label: bytes) -> Iterable[bytes]:
        if label:
            return (host.packed for host in self._named.hosts.get(label, ()))
        return (item for items in self._named.cluster_addresses().values() for item in items)


def _can_be(above: tuple[bytes, ...]) -> bool:
    """Whether a Service may come to have a name with these labels before its own."""
    if len(above) <= 1:
        return True
    if above[-1] == b"_zone":
        return True
    return len(above) == 2 and all(label.startswith(b"_") for label in above)
