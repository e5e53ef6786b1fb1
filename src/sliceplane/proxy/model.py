"""The values of the node's model.  All are frozen; strings are shared with the objects they came from.

A *service port* (one port of one Service, for one IP family) is the unit that a data plane serves; it
is named by ``ServicePortName``.  Its endpoints are ``Endpoint`` values, categorised into those that
each traffic policy may use.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from sliceplane.kit.ip import Family


class ServiceKey(NamedTuple):
    """Namespace and name of a Service; orders as the API lists them."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


#: the Service of the API server, whose endpoints the server itself writes
API_SERVICE = ServiceKey("default", "kubernetes")


class ServicePortName(NamedTuple):
    """What endpoints and service ports meet by: the Service, the port's name and its protocol (TCP, UDP, SCTP)."""

    service: ServiceKey
    port: str
    protocol: str

    def __str__(self) -> str:
        """``namespace/name:port``, without the suffix if the port has no name; the protocol is not in it."""
        return f"{self.service}:{self.port}" if self.port else str(self.service)


class ServicePort(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One port of a Service, in one IP family (reference A2).  Addresses are spelled canonically."""

    name: ServicePortName
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    #: addresses of load balancers that deliver packets with this destination (ipMode VIP)
    vips: tuple[str, ...] = ()
    #: who may use the ``vips``, as disjoint networks in canonical form; empty: everybody
    source_ranges: tuple[str, ...] = ()
    #: how long a client keeps its endpoint after its last connection (sessionAffinity ClientIP); 0: it does not
    affinity_timeout_s: int = 0
    internal_local: bool = False
    #: externalTrafficPolicy Local, on a type of Service where it means something
    external_local: bool = False

    @property
    def externally_accessible(self) -> bool:
        return self.node_port != 0 or bool(self.external_ips) or bool(self.vips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Also true where Local inside meets reachable from outside: pods then short-circuit to the cluster's."""
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        return self.internal_local or (self.external_local and self.externally_accessible)


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One ``ip:port`` behind a service port, as this node sees it.  Absent conditions are already read as
    KEP-0752 says: ready and serving are true, terminating is false."""

    ip: str
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    is_local: bool = False
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """Where this node is.  An empty string is "unknown" and matches no hint."""

    node: str = ""
    zone: str = ""
    #: this node's first address of the family
    ip: str = ""


#: what became of the hints of one kind.  ``for others``: every ready endpoint has some, none of them names this place;
#: ``incomplete``: a ready endpoint has none; ``place unknown``: the node has no name, or no zone; ``nobody ready``;
#: ``not needed``: hints of the kind before were honoured
HintOutcome = Literal["honoured", "for others", "incomplete", "place unknown", "nobody ready", "not needed"]


class HintUse(NamedTuple):
    """How hints for nodes and hints for zones were read for one service port."""

    node: HintOutcome
    zone: HintOutcome


class Categories(msgspec.Struct, frozen=True):
    """What each traffic policy may use; see ``categorize``.  Each list keeps the order of the endpoints given."""

    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    #: every endpoint that some policy uses
    reachable: tuple[Endpoint, ...] = ()
    #: some usable endpoint exists somewhere: an empty list then means "drop", not "reject"
    has_any: bool = False
    #: what ``cluster`` was narrowed by; ``None``: nobody asked for it
    hints: HintUse | None = None


class PortState(msgspec.Struct, frozen=True):
    """All that a data plane needs to know of one service port."""

    port: ServicePort
    categories: Categories

    @property
    def inside(self) -> tuple[Endpoint, ...]:
        """Who answers on the cluster IP (``internalTrafficPolicy``)."""
        return self.categories.local if self.port.internal_local else self.categories.cluster

    @property
    def outside(self) -> tuple[Endpoint, ...]:
        """Who answers what comes from outside to external IPs, load balancers' addresses and the node port
        (``externalTrafficPolicy``)."""
        return self.categories.local if self.port.external_local else self.categories.cluster

    @property
    def drops(self) -> bool:
        """Where a policy has nobody: drop, since others may answer elsewhere; if there is nobody at all, reject."""
        return self.categories.has_any


class ServiceChange(msgspec.Struct, frozen=True):
    """The newest state of a Service that may have changed; no ports: it is gone, or nothing for this family."""

    service: ServiceKey
    ports: tuple[PortState, ...]
    #: where a load balancer asks whether this node serves the Service (externalTrafficPolicy Local); 0: nowhere
    health_port: int = 0
    #: distinct addresses of ready endpoints on this node; counted only where there is a ``health_port``
    local_ready: int = 0
    #: no portion of it is left for a later write
    complete: bool = True


__all__ = [
    "API_SERVICE",
    "Categories",
    "Endpoint",
    "Family",
    "HintOutcome",
    "HintUse",
    "PortState",
    "ServiceChange",
    "ServiceKey",
    "ServicePort",
    "ServicePortName",
    "Topology",
]
