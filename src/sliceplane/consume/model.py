"""The values of the node's model. All are frozen; strings are shared with the objects they came
from.

A *service port* (one port of one Service, for one IP family) is the unit that a data plane serves;
it is named by ``ServicePortName``. Its endpoints are ``NodeEndpoint`` values, categorised into
those that each traffic policy may use.

Addresses are canonical, which is looked at fast for the spelling that nearly every object has: a
proxy that starts in a large cluster reads hundreds of thousands, the general parser of ``kit.ip``
costs some 4 us each, one regular expression a tenth of that.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from sliceplane.consume.usable import Locality, choose, choose_local, is_still_serving
from sliceplane.kit.ip import Family, family, parse_lenient

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_SPECIAL_IPV4 = r"0\.0\.0\.0$|127\.|169\.254\.|2(?:2[4-9]|3[0-9])\.|255\.255\.255\.255$"
_ORDINARY_IPV4 = re.compile(rf"(?!{_SPECIAL_IPV4}){_OCTET}(?:\.{_OCTET}){{3}}")
#: addresses that mean another host on each host, or none (RFC 6890); no API server lets them into a
#: Service or a slice
_SPECIAL: Final = (
    ("unspecified", "is_unspecified"),
    ("loopback", "is_loopback"),
    ("link-local", "is_link_local"),
    ("multicast", "is_multicast"),
)
_BROADCAST: Final = "255.255.255.255"


def canonical_of(text: str, address_family: Family) -> str | None:
    """*text* spelled canonically if it is an address of the family *address_family*, else ``None``.

    Leading zeros are decimal and an IPv4-mapped IPv6 address is IPv4 (as ``ParseIPSloppy`` of
    k8s.io/utils). A canonical IPv4 text comes back as the same object, so that a model shares it
    with the cache it came from.
    """
    if _CANONICAL_IPV4.fullmatch(text):
        return text if address_family == "IPv4" else None
    address = parse_lenient(text)
    if address is None or family(address) != address_family:
        return None
    return str(address)


def ordinary_of(text: str, address_family: Family) -> str | None:
    """``canonical_of``, but ``None`` for a special address too: a node that led traffic to its own
    loopback would open what listens there to the network (CVE-2020-8558).
    """
    if _ORDINARY_IPV4.fullmatch(text):
        return text if address_family == "IPv4" else None
    ip = canonical_of(text, address_family)
    return None if ip is None or special(ip) else ip


def special(ip: str) -> str:
    """Returns the kind of special address that the canonical *ip* is; "": none."""
    address = ipaddress.ip_address(ip)
    for kind, member in _SPECIAL:
        if getattr(address, member):
            return kind
    return "broadcast" if ip == _BROADCAST else ""


class ServiceKey(NamedTuple):
    """Namespace and name of a Service; orders as the API lists them."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


#: the Service of the API server, whose endpoints the server itself writes
API_SERVICE = ServiceKey("default", "kubernetes")


class ServicePortName(NamedTuple):
    """The key by which endpoints match service ports: the Service, the port's name and its protocol
    (TCP, UDP, SCTP).
    """

    service: ServiceKey
    port: str
    protocol: str

    def __str__(self) -> str:
        """``namespace/name:port``, without the suffix if the port has no name; the protocol is not
        in it.
        """
        return f"{self.service}:{self.port}" if self.port else str(self.service)


class ServedPort(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One port of a Service, in one IP family.  Addresses are spelled canonically."""

    name: ServicePortName
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    #: addresses of load balancers that deliver packets with this destination (ipMode VIP)
    vips: tuple[str, ...] = ()
    #: who may use the ``vips``, as disjoint networks in canonical form; empty: everybody
    source_ranges: tuple[str, ...] = ()
    #: how long a client keeps its endpoint after its last connection (sessionAffinity ClientIP); 0:
    #: it does not
    affinity_timeout_s: int = 0
    internal_local: bool = False
    #: externalTrafficPolicy Local, on a type of Service where it means something
    external_local: bool = False

    @property
    def externally_accessible(self) -> bool:
        return self.node_port != 0 or bool(self.external_ips) or bool(self.vips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Also true where Local inside meets reachable from outside: pods then short-circuit to the
        cluster's.
        """
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        return self.internal_local or (self.external_local and self.externally_accessible)


class NodeEndpoint(msgspec.Struct, frozen=True, gc=False):
    """One ``ip:port`` behind a service port, as this node sees it. Absent conditions are already
    read as KEP-0752 says: ready and serving are true, terminating is false.
    """

    ip: str
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    is_local: bool = False
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()


class Categories(msgspec.Struct, frozen=True):
    """The endpoints that each traffic policy may use, in the order of the argument."""

    cluster: tuple[NodeEndpoint, ...] = ()
    local: tuple[NodeEndpoint, ...] = ()
    #: every endpoint that some policy uses
    reachable: tuple[NodeEndpoint, ...] = ()
    #: some usable endpoint exists somewhere: an empty list then means "drop", not "reject"
    has_any: bool = False


_NO_ENDPOINTS = Categories()


def categorize(
    endpoints: Sequence[NodeEndpoint], port: ServedPort, location: Locality
) -> Categories:
    """The endpoints that each policy of *port* may use on the node at *location*
    (``consume.usable`` has the rule).

    The policies fall back to terminating endpoints independently of each other: Local may use
    terminating Pods of this node while Cluster uses ready ones elsewhere.
    """
    if not endpoints:
        return _NO_ENDPOINTS
    cluster: tuple[NodeEndpoint, ...] = ()
    narrowed = False
    if port.uses_cluster_endpoints:
        choice = choose(endpoints, location)
        cluster = choice.endpoints
        narrowed = choice.narrowed
    if not port.uses_local_endpoints:
        return Categories(cluster=cluster, reachable=cluster, has_any=bool(cluster))
    local = choose_local(endpoints, location).endpoints
    has_any = bool(cluster) or any(
        endpoint.ready or is_still_serving(endpoint) for endpoint in endpoints
    )
    if not port.uses_cluster_endpoints:
        reachable = local
    elif not narrowed and local and local[0].ready:
        reachable = cluster  # it holds every ready endpoint, the local ones among them
    else:
        used = {id(endpoint) for endpoint in (*cluster, *local)}
        reachable = tuple([endpoint for endpoint in endpoints if id(endpoint) in used])
    return Categories(cluster=cluster, local=local, reachable=reachable, has_any=has_any)


def first_of(categories: Categories, most: int) -> Categories:
    """At most *most* of those that each policy may use; those of this node, which another node may
    not have, first.
    """
    if len(categories.reachable) <= most:
        return categories
    local = categories.local[:most]
    here = [endpoint for endpoint in categories.cluster if endpoint.is_local][:most]
    elsewhere = [endpoint for endpoint in categories.cluster if not endpoint.is_local][
        : most - len(here)
    ]
    kept = {id(endpoint) for endpoint in (*here, *elsewhere)}
    cluster = tuple([endpoint for endpoint in categories.cluster if id(endpoint) in kept])
    kept.update(map(id, local))
    reachable = tuple([endpoint for endpoint in categories.reachable if id(endpoint) in kept])
    return Categories(cluster, local, reachable, categories.has_any)


class PortState(msgspec.Struct, frozen=True):
    """All that a data plane needs to know of one service port."""

    port: ServedPort
    categories: Categories

    @property
    def inside(self) -> tuple[NodeEndpoint, ...]:
        """The endpoints that answer on the cluster IP (``internalTrafficPolicy``)."""
        return self.categories.local if self.port.internal_local else self.categories.cluster

    @property
    def outside(self) -> tuple[NodeEndpoint, ...]:
        """The endpoints that answer traffic from outside to external IPs, load balancers' addresses
        and the node port (``externalTrafficPolicy``).
        """
        return self.categories.local if self.port.external_local else self.categories.cluster

    @property
    def drops(self) -> bool:
        """Where a policy leaves no endpoint: drop, since others may answer elsewhere; if there is
        none at all, reject.
        """
        return self.categories.has_any


class ServiceChange(msgspec.Struct, frozen=True):
    """The newest state of a Service that may have changed; no ports: it is gone, or nothing for
    this family.
    """

    service: ServiceKey
    ports: tuple[PortState, ...]
    #: where a load balancer asks whether this node serves the Service (externalTrafficPolicy
    #: Local); 0: nowhere
    health_port: int = 0
    #: distinct addresses of ready endpoints on this node; counted only where there is a
    #: ``health_port``
    local_ready: int = 0
    #: no portion of it is left for a later write
    complete: bool = True
