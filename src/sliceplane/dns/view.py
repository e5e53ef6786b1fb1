"""A cluster's Services and EndpointSlices as a zone: the records of a name.

A name is resolved through its Service, so there is no table of names to keep: the names below a
Service follow from its hosts and ports, and the names above from the Namespaces.

Rules: the Kubernetes DNS specification 1.1.0, and behaviour of CoreDNS that clients depend on.
Clients may cache a negative answer for 1 s if an object may appear at the name, and for 30 s if no
record can ever exist (the search lists of resolvers cause most of these questions).

Owned by one ``dns.server``.  Never: forwards, or depends on how a question was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.consume.usable import Locality
from sliceplane.dns.cluster_names import ClusterNames, ZoneConfig
from sliceplane.dns.locations import NOWHERE
from sliceplane.dns.pods import dashed_address
from sliceplane.dns.records import RecordSet, SrvSet, encoded
from sliceplane.dns.reverse import reversed_address
from sliceplane.dns.service import HostSubset, NamedService, alias_of, label_of
from sliceplane.dns.wire import (
    AAAA,
    ANY,
    CNAME,
    HINFO,
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
from sliceplane.kit.ip import Family, parse_lenient

SPECIFICATION: Final = b"1.1.0"
#: seconds that a client may cache a negative answer, where a record may appear and where none can
NEGATIVE_TTL_S: Final = 1
NEVER_TTL_S: Final = 30
_REVERSE_ZONES: Final = {b"in-addr": name_of("in-addr.arpa"), b"ip6": name_of("ip6.arpa")}
_FAMILY_OF: Final[dict[int, Family]] = {A: "IPv4", AAAA: "IPv6"}
_SIZE_OF: Final = {A: 4, AAAA: 16}
_HINFO: Final = b"\x07RFC8482\0"


class LookupResult(NamedTuple):
    """The result of a lookup. ``extras``: whole records for the additional section. ``keep_s``:
    seconds that clients cache a negative one. ``is_soa``: the zone's SOA record is the answer.
    ``alias``: the name that its one record leads to. ``why``: an explanation for a person.
    ``narrowed``: the outcome of hints, if there are any.
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


class DnsView(ClusterNames):
    """See the module."""

    def __init__(self, config: ZoneConfig) -> None:
        super().__init__(config)
        self.narrowed = self.metrics.counters(
            "sliceplane_dns_zone_answers_total",
            "Answers of headless Services with hints, by what became of these.",
            "outcome",
        )

    def zone_of(self, labels: tuple[bytes, ...]) -> bytes | None:
        """Returns our longest zone that has the name of these labels, lower-cased."""
        matching = [zone for zone, of in self._zone_labels if labels[-len(of) :] == of]
        return max(matching, key=len, default=None)

    def find(
        self, labels: tuple[bytes, ...], kind: int, locality: Locality = NOWHERE
    ) -> LookupResult | None:
        """Looks up *kind* at the name of these labels, lower-cased; ``None``: the name is not
        ours.
        """
        zone = self.zone_of(labels)
        if zone is not None:
            return self._in_zone(zone, labels[: len(labels) - len(labels_of(zone))], kind, locality)
        if len(labels) > 2 and labels[-1] == b"arpa" and labels[-2] in _REVERSE_ZONES:
            return self._reversed(labels, kind)
        return None

    def _in_zone(
        self, zone: bytes, labels: tuple[bytes, ...], kind: int, locality: Locality
    ) -> LookupResult:
        match labels:
            case ():
                return self._apex(zone, kind)
            case (b"dns-version",):
                text = bytes((len(SPECIFICATION),)) + SPECIFICATION
                return self._data(zone, kind, {TXT: [text]}, "the version of the specification")
            case (b"ns", b"dns"):
                return self._data(zone, kind, self._own_addresses(), "this server's address")
            case (b"dns",) | (b"svc",) | (b"pod",):
                return LookupResult(zone, why="names are below it, and no record at it")
            case (*_, b"svc"):
                return self._below_svc(zone, labels[:-1], kind, locality)
            case (*_, b"pod"):
                return self._pod(zone, labels[:-1], kind)
        return LookupResult(
            zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="below a zone there are only svc, pod and dns"
        )

    def _apex(self, zone: bytes, kind: int) -> LookupResult:
        server = b"\2ns\3dns" + zone
        if kind == SOA:
            return LookupResult(zone, is_soa=True, why="the zone itself")
        if kind == NS:
            own = self._own_addresses()
            glue = [
                RecordSet(of, self.config.ttl_s, data, _SIZE_OF[of])
                for of, data in own.items()
                if data
            ]
            extras = tuple(server + record[2:] for records in glue for record in records.records())
            return LookupResult(
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

    def _data(self, zone: bytes, kind: int, data: dict[int, list[bytes]], why: str) -> LookupResult:
        """Returns the records of *kind* at a name that exists."""
        if kind == ANY:
            return LookupResult(
                zone,
                records=encoded(HINFO, self.config.ttl_s, [_HINFO]),
                why="ANY is not answered (RFC 8482)",
            )
        contents = data.get(kind)
        if not contents:
            return LookupResult(zone, why=f"{why}: it exists, and has no record of this type")
        if kind in _SIZE_OF:
            return LookupResult(
                zone, records=RecordSet(kind, self.config.ttl_s, contents, _SIZE_OF[kind]), why=why
            )
        return LookupResult(zone, records=encoded(kind, self.config.ttl_s, contents), why=why)

    # -- Services

    def _below_svc(
        self, zone: bytes, labels: tuple[bytes, ...], kind: int, locality: Locality
    ) -> LookupResult:
        namespace = labels[-1].decode("ascii", "replace")
        if len(labels) == 1:
            if self.has_namespace(namespace):
                return self._data(zone, kind, {}, f"the Namespace {namespace}")
            return LookupResult(zone, NXDOMAIN, why=f"there is no Namespace {namespace}")
        above = labels[:-2]
        named = self._services.get(label_of(labels[-2]) + label_of(labels[-1]) + b"\3svc")
        if not _can_be(above):
            return LookupResult(
                zone, NXDOMAIN, keep_s=NEVER_TTL_S, service=named, why="no record has such a name"
            )
        of = f"the Service {namespace}/{labels[-2].decode('ascii', 'replace')}"
        if named is None or named.service is None:
            missing = of if self.has_namespace(namespace) else f"the Namespace {namespace}"
            return LookupResult(zone, NXDOMAIN, service=named, why=f"{missing} does not exist")
        if not named.exists:
            return LookupResult(
                zone,
                NXDOMAIN,
                service=named,
                why=f"{of} is headless and has no endpoint that is ready",
            )
        result = self._of_service(zone, named, above, kind, locality=locality, of=of)
        if result.narrowed:
            self.narrowed.of(result.narrowed).value += 1
        return result._replace(service=named)

    def _of_service(
        self,
        zone: bytes,
        named: NamedService,
        above: tuple[bytes, ...],
        kind: int,
        *,
        locality: Locality,
        of: str,
    ) -> LookupResult:
        if named.kind == "external":
            return self._external(zone, named, above, kind, of)
        match above:
            case ():
                return self._at_service(zone, named, kind, locality, of)
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
                port_key = (
                    port[1:].decode("ascii", "replace"),
                    protocol[1:].decode("ascii", "replace"),
                )
                if not all(port_key) or not named.srv(*port_key).pairs:
                    return LookupResult(
                        zone, NXDOMAIN, why=f"{of} has no {port_key[1]} port {port_key[0]}"
                    )
                return self._srv(zone, named, port_key, kind, of=of, locality=locality)
            case (*inner, b"_zone") if named.kind == "headless":
                return self._of_zone(zone, named, tuple(inner), kind, of)
        return LookupResult(zone, NXDOMAIN, why=f"{of} exists, and has no such host or port")

    def _external(
        self, zone: bytes, named: NamedService, above: tuple[bytes, ...], kind: int, of: str
    ) -> LookupResult:
        assert named.service is not None, "its kind is known"
        alias = alias_of(named.service)
        if above:
            return LookupResult(
                zone, NXDOMAIN, why=f"{of} is of the type ExternalName: nothing is below it"
            )
        if alias is None or kind == ANY:
            return self._data(
                zone, kind, {}, f"{of}, whose externalName {named.service.spec.external_name!r}"
            )
        return LookupResult(
            zone,
            records=encoded(CNAME, self.config.ttl_s, [alias]),
            alias=alias,
            why=f"{of}: its externalName",
        )

    def _at_service(
        self, zone: bytes, named: NamedService, kind: int, locality: Locality, of: str
    ) -> LookupResult:
        if kind == SRV:
            return self._srv(zone, named, (None, None), kind, of=of, locality=locality)
        if kind not in _FAMILY_OF:
            return self._data(zone, kind, {}, of)
        family = _FAMILY_OF[kind]
        if named.kind == "cluster":
            return self._data(
                zone, kind, {kind: named.cluster_addresses()[family]}, f"{of}: its cluster IPs"
            )
        if not self.is_narrowed(named) or locality == NOWHERE:
            return self._data(
                zone, kind, {kind: named.addresses[family]}, f"{of}: its ready endpoints"
            )
        outcome, subset = named.near(locality)
        near = named.addresses[family] if subset is None else subset.addresses(family)
        why = f"{of}: its ready endpoints for a client in {locality.zone or '?'} ({outcome})"
        return self._data(zone, kind, {kind: near}, why)._replace(narrowed=outcome)

    def is_narrowed(self, named: NamedService) -> bool:
        """Returns True if the answer depends on the client's location."""
        return self.config.zone_answers and named.is_narrowed

    def _host(
        self, zone: bytes, named: NamedService, label: bytes, kind: int, of: str
    ) -> LookupResult:
        hosts = named.hosts.get(label)
        if not hosts:
            return LookupResult(zone, NXDOMAIN, why=f"{of} has no ready endpoint of this name")
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
        locality: Locality = NOWHERE,
        label: bytes = b"",
        subset: HostSubset | None = None,
    ) -> LookupResult:
        """*port*: its name and protocol. *locality*: the client's location; near endpoints have the
        better priority. The target's name is not compressed (RFC 2782); its addresses are extras.
        """
        targets = named.srv(*port, label, subset) if kind == SRV else None
        if targets is None or not targets.pairs:
            return self._data(zone, kind, {}, f"{of}: a port")
        is_narrowed = self.is_narrowed(named) and locality != NOWHERE
        near = named.near(locality)[1] if is_narrowed else None
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
        return LookupResult(zone, records=records, extras=extras, why=f"{of}: its ports")

    def _of_zone(
        self, zone: bytes, named: NamedService, inner: tuple[bytes, ...], kind: int, of: str
    ) -> LookupResult:
        """``ZONE.pin._zone.SERVICE``: the endpoints that are in a zone; ``prefer``: all, if it has
        none (coredns/coredns#8388).
        """
        if not inner or inner[-1] not in (b"pin", b"prefer"):
            return LookupResult(zone, NXDOMAIN, why="below _zone there are pin and prefer")
        zone_name = b".".join(inner[:-1]).decode("ascii", "replace")
        if not zone_name:
            return self._data(zone, kind, {}, "names of zones are below it")
        subset = named.in_zone(zone_name)
        if subset is None and inner[-1] == b"prefer":
            return self._at_service(zone, named, kind, NOWHERE, of)
        if kind == SRV:
            return self._srv(zone, named, (None, None), kind, of=of, subset=subset or HostSubset())
        data = (
            {}
            if subset is None
            else {of_kind: subset.addresses(family) for of_kind, family in _FAMILY_OF.items()}
        )
        return self._data(zone, kind, data, f"{of}: its ready endpoints in the zone {zone_name}")

    # -- the rest

    def _pod(self, zone: bytes, labels: tuple[bytes, ...], kind: int) -> LookupResult:
        namespace = labels[-1].decode("ascii", "replace")
        mode = self.config.pods
        if mode == "disabled" or len(labels) > 2:
            return LookupResult(
                zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="names of Pods are not served (--pods)"
            )
        if not self.has_namespace(namespace):
            return LookupResult(zone, NXDOMAIN, why=f"there is no Namespace {namespace}")
        if len(labels) == 1:
            return self._data(zone, kind, {}, f"the Namespace {namespace}")
        address = dashed_address(labels[0])
        if address is None:
            return LookupResult(zone, NXDOMAIN, keep_s=NEVER_TTL_S, why="no address with dashes")
        if mode == "verified" and not self._pods.has(namespace, address.packed):
            return LookupResult(
                zone, NXDOMAIN, why=f"no Pod of the Namespace {namespace} has this address"
            )
        of_kind = A if address.version == 4 else AAAA
        return self._data(zone, kind, {of_kind: [address.packed]}, "the address that it names")

    def _reversed(self, labels: tuple[bytes, ...], kind: int) -> LookupResult | None:
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
        """Returns True if the cluster, and no other server, owns this lower-cased name."""
        labels = labels_of(name)
        if self.zone_of(labels) is not None:
            return True
        packed = reversed_address(labels) if labels[-1:] == (b"arpa",) and len(labels) > 2 else None
        return packed is not None and (
            self.reverse.is_ours(packed) or bool(self.reverse.names(packed))
        )

    def unknown_address(self, labels: tuple[bytes, ...]) -> LookupResult | None:
        """Returns the answer for a reversed name without an address; ``None``: these labels are
        none.
        """
        if len(labels) < 2 or labels[-1] != b"arpa" or labels[-2] not in _REVERSE_ZONES:
            return None
        zone = _REVERSE_ZONES[labels[-2]]
        return LookupResult(zone, NXDOMAIN, why="no Service and no ready endpoint has this address")


class _TargetAddresses:
    """Addresses of the targets of SRV records, as whole records; each is built when it is read."""

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
    """Returns True if a Service may get a name with these labels before its own."""
    if len(above) <= 1:
        return True
    if above[-1] == b"_zone":
        return True
    return len(above) == 2 and all(label.startswith(b"_") for label in above)
