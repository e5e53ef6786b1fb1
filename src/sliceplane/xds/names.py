"""Names of resources: type URLs, keys of a Service's port, targets of gRPC, collections.

A key is ``NAMESPACE/SERVICE:PORT``; PORT is the port's name, or its number if it has none. A gRPC
client requests the target that its user wrote after ``xds:///``; this module resolves it as far as
possible without the Service.
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
#: maximum length of a valid name; DNS names have at most 253 octets
NAME_MAX: Final = 320
#: number of cached names, since all clients request the same ones
KEYS_CACHED: Final = 16_384
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TARGET: Final = re.compile(rf"(?P<host>{_LABEL}(\.{_LABEL})*)\.?(:(?P<port>[A-Za-z0-9-]+))?")
_KEY: Final = re.compile(rf"(?P<namespace>{_LABEL})/(?P<name>{_LABEL}):(?P<port>[a-z0-9-]+)")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class GrpcTarget(NamedTuple):
    """The target that a gRPC client requests. ``port`` "": it has none."""

    service: ServiceKey
    port: str


class PortKey(NamedTuple):
    service: ServiceKey
    port: str

    def __str__(self) -> str:
        return f"{self.service.namespace}/{self.service.name}:{self.port}"


@remembered(KEYS_CACHED)
def parse_key(name: str) -> PortKey | None:
    """Parses a key; ``None`` if the name is not one."""
    match = _KEY.fullmatch(name) if len(name) <= NAME_MAX else None
    return (
        None
        if match is None
        else PortKey(ServiceKey(match["namespace"], match["name"]), match["port"])
    )


def may_be_target(name: str) -> bool:
    """Returns True if *name* has the form of a target after ``xds:///``."""
    return 0 < len(name) <= NAME_MAX and not any(mark in name for mark in "/?%")


def parse_target(name: str, namespace: str, domains: tuple[str, ...]) -> GrpcTarget | None:
    """Parses ``SVC.NS``, ``SVC.NS.svc`` or ``SVC.NS.svc.DOMAIN``, or ``SVC`` in the client's own
    *namespace*, each with ``:PORT`` or without. ``None``: no Service can have that name.
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
    """Returns the reason why ``parse_target`` returns ``None``."""
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
    """Returns the glob of a collection. *epoch* alone identifies it, and is short, since each changed
    member is sent with it. Envoy escapes other characters than these, and then matches nothing.
    """
    return f"{_COLLECTIONS}{_UNSAFE.sub('-', epoch)}/*"


def collection_of(name: str) -> str:
    """Returns the glob of the collection of the member *name*; "" if it is in none."""
    return f"{name.rpartition('/')[0]}/*" if name.startswith(_COLLECTIONS) else ""
