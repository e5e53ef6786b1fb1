"""How resources are named: type URLs, the key of a Service's port, what gRPC may call it,
collections.

A key is ``NAMESPACE/SERVICE:PORT``; PORT is the port's name, its number if it has none. A gRPC
client names what its user wrote behind ``xds:///``; that is resolved here as far as one can without
knowing the Service.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sliceplane.consume.model import ServiceKey
from sliceplane.kit.containers import remembered

_PREFIX: Final = "type.googleapis.com/"
LISTENER: Final = f"{_PREFIX}envoy.config.listener.v3.Listener"
ROUTES: Final = f"{_PREFIX}envoy.config.route.v3.RouteConfiguration"
CLUSTER: Final = f"{_PREFIX}envoy.config.cluster.v3.Cluster"
ASSIGNMENT: Final = f"{_PREFIX}envoy.config.endpoint.v3.ClusterLoadAssignment"
ENDPOINT: Final = f"{_PREFIX}envoy.config.endpoint.v3.LbEndpoint"
#: in the order in which new resources are sent
TYPES: Final = (CLUSTER, ASSIGNMENT, ENDPOINT, LISTENER, ROUTES)

_COLLECTIONS: Final = "xdstp://sp/envoy.config.endpoint.v3.LbEndpoint/"
#: longer names name nothing; DNS names have 253 octets at most
NAME_MAX: Final = 320
#: each client that comes asks for the same names
KEYS_KEPT: Final = 16_384
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TARGET: Final = re.compile(rf"(?P<host>{_LABEL}(\.{_LABEL})*)\.?(:(?P<port>[A-Za-z0-9-]+))?")
_KEY: Final = re.compile(rf"(?P<namespace>{_LABEL})/(?P<name>{_LABEL}):(?P<port>[a-z0-9-]+)")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class GrpcTarget(NamedTuple):
    """The target that a gRPC client named. ``port`` "": it said none."""

    service: ServiceKey
    port: str


class PortKey(NamedTuple):
    service: ServiceKey
    port: str

    def __str__(self) -> str:
        return f"{self.service.namespace}/{self.service.name}:{self.port}"


@remembered(KEYS_KEPT)
def parse_key(name: str) -> PortKey | None:
    """``None``: no key of ours is spelled like this."""
    match = _KEY.fullmatch(name) if len(name) <= NAME_MAX else None
    return (
        None
        if match is None
        else PortKey(ServiceKey(match["namespace"], match["name"]), match["port"])
    )


def may_be_target(name: str) -> bool:
    """Returns True if *name* is spelled like one that a person gives behind ``xds:///``."""
    return 0 < len(name) <= NAME_MAX and not any(mark in name for mark in "/?%")


def parse_target(name: str, namespace: str, domains: tuple[str, ...]) -> GrpcTarget | None:
    """``SVC.NS``, ``SVC.NS.svc`` or ``SVC.NS.svc.DOMAIN``, ``SVC`` in the client's own *namespace*,
    each with ``:PORT`` or without. ``None``: it can name no Service.
    """
    match = _TARGET.fullmatch(name.lower()) if may_be_target(name) else None
    if match is None:
        return None
    name_in_service, *rest = match["host"].split(".")
    if (
        rest[1:]
        and rest[1:] != ["svc"]
        and ".".join(rest[2:]) not in (domains if rest[1] == "svc" else ())
    ):
        return None
    of = rest[0] if rest else namespace
    return GrpcTarget(ServiceKey(of, name_in_service), match["port"] or "") if of else None


def why_no_target(name: str, namespace: str, domains: tuple[str, ...]) -> str:
    """The reason why ``parse_target`` returns ``None``."""
    match = _TARGET.fullmatch(name.lower()) if may_be_target(name) else None
    if match is None:
        return "it is not spelled like SERVICE.NAMESPACE or SERVICE.NAMESPACE:PORT"
    if "." not in match["host"] and not namespace:
        return "it has no namespace, and neither has the client: write SERVICE.NAMESPACE"
    return (
        "it is neither SERVICE.NAMESPACE nor "
        f"SERVICE.NAMESPACE.svc.{domains[0] if domains else 'DOMAIN'}"
    )


def collection(epoch: str) -> str:
    """The glob of a collection. *epoch* alone tells it from all others, and it is short: each
    member that changes says it again. Envoy escapes other characters than these and then finds
    nothing.
    """
    return f"{_COLLECTIONS}{_UNSAFE.sub('-', epoch)}/*"


def collection_of(name: str) -> str:
    """The glob of the collection that the member *name* is in; "": of none."""
    return f"{name.rpartition('/')[0]}/*" if name.startswith(_COLLECTIONS) else ""
