"""EndpointSlice: what a request may write of one, what is warned of (KEP-0752).  Rules: ``validation.endpoint_slices``.

``deprecatedTopology`` is the memory of v1beta1: its clients write it, clients of v1 only carry it along.

A field whose feature gate is off is dropped from new objects and from updates, unless the object used it before:
switching a feature off must not break what was written while it was on, and switching it on again must find it
(KEP-4444, rollback).  "Used" is asked of the object as a whole, so a client can still move a field from one endpoint to
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from sliceplane.api import gates as names
from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_MANAGED_BY
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.documents import conversion
from sliceplane.documents.table.columns import (
    AGE,
    NAME,
    UNSET,
    Cell,
    Column,
    Printer,
    age,
    first_few,
    name_of,
    number,
    objects,
    text,
    texts,
)
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.registry.kinds import kind
from sliceplane.registry.types import Target
from sliceplane.registry.validation.addresses import spelling
from sliceplane.registry.validation.endpoint_slices import validate, validate_update

if TYPE_CHECKING:
    from sliceplane.registry.core import Core

FQDN_WARNING: Final = "spec.addressType: FQDN endpoints are deprecated"
#: slices of the built-in controllers repeat what the author of a Service or Endpoints was warned of
_CONTROLLERS: Final = ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")


def _default(document: Document) -> None:
    for port in document.setdefault("ports", []):
        port.setdefault("name", "")
        port.setdefault("protocol", PROTOCOL_DEFAULT)
    for endpoint in document.setdefault("endpoints", []):
        endpoint.setdefault("conditions", {})


def _prepare(core: Core, target: Target, new: Document, old: Document | None = None) -> None:
    """Undo, in place, what *new* says and the request may not; *old* is ``None`` for a new object."""
    _drop_gated(core.config.gates, target, new, old)
    if target.via is None:
        _drop_topology(new, old)
        if old is not None and conversion.TOPOLOGY_ANNOTATION in old["metadata"].get("annotations", {}):
            new.update(conversion.realign(new, old))


def _drop_topology(new: Document, old: Document | None) -> None:
    """``deprecatedTopology`` cannot be written through v1, only carried along with unchanged endpoints.

    A host name in it that the old object had too becomes ``nodeName`` before it goes.
    """
    endpoints = new.get("endpoints", [])
    before = [] if old is None else old.get("endpoints", [])
    if old is not None and endpoints == before:
        return
    if not any("deprecatedTopology" in endpoint for endpoint in endpoints):
        return
    hosts = {endpoint.get("deprecatedTopology", {}).get(LABEL_HOSTNAME) for endpoint in before} - {None}
    for endpoint in endpoints:
        topology = endpoint.pop("deprecatedTopology", None) or {}
        host = topology.get(LABEL_HOSTNAME)
        if host and host in hosts and "nodeName" not in endpoint and not check_dns_subdomain(host):
            endpoint["nodeName"] = host


class _EndpointRule(NamedTuple):
    gate: str
    used: Callable[[Document], bool]
    drop: Callable[[Document], None]


def _drop_members(parent: str, *members: str) -> Callable[[Document], None]:
    def drop(endpoint: Document) -> None:
        for member in members:
            endpoint.get(parent, {}).pop(member, None)

    return drop


def _drop_node_name(endpoint: Document) -> None:
    endpoint.pop("nodeName", None)


def _drop_hints(endpoint: Document) -> None:
    endpoint.pop("hints", None)


def _drop_gated(gates: Gates, target: Target, new: Document, old: Document | None) -> None:
    """In place.  *old* is ``None`` for a new slice."""
    before = [] if old is None else old.get("endpoints", [])
    for rule in _ENDPOINT_RULES:
        if gates.enabled(rule.gate) or any(map(rule.used, before)):
            continue
        for endpoint in new.get("endpoints", []):
            if rule.drop is _drop_node_name and target.via is not None and endpoint.get("nodeName"):
                # In v1beta1 the map says it too, and the conversion to v1 has taken it from there.
                endpoint.setdefault("deprecatedTopology", {}).setdefault(LABEL_HOSTNAME, endpoint["nodeName"])
            rule.drop(endpoint)


def _warnings(document: Document, old: Document | None) -> Iterator[str]:
    kind = document.get("addressType")
    if kind == "FQDN":
        if old is None:
            yield FQDN_WARNING
        return
    if document["metadata"].get("labels", {}).get(LABEL_MANAGED_BY) in _CONTROLLERS:
        return
    for index, endpoint in enumerate(document.get("endpoints", ())):
        for position, address in enumerate(endpoint.get("addresses", ())):
            problem = spelling(address)
            if problem:
                yield f"endpoints[{index}].addresses[{position}]: {problem}"


def _cells(endpoint_slice: Document, now: float) -> tuple[Cell, ...]:
    ports = objects(endpoint_slice, "ports")
    addresses = [
        address for endpoint in objects(endpoint_slice, "endpoints") for address in texts(endpoint, "addresses")
    ]
    return (
        name_of(endpoint_slice),
        text(endpoint_slice, "addressType"),
        first_few(map(_slice_port, ports), UNSET, count=len(ports)),
        first_few(addresses, UNSET, count=len(addresses)),
        age(endpoint_slice, now),
    )


def _slice_port(port: Document) -> str:
    """The number; else the name; "*" only if there is neither.  As upstream: a name of "" is a name."""
    if port.get("port") is not None:
        return str(number(port, "port"))
    return text(port, "name") if port.get("name") is not None else "*"


_ENDPOINT_RULES: Final = (
    _EndpointRule(names.ENDPOINT_SLICE_NODE_NAME, lambda endpoint: "nodeName" in endpoint, _drop_node_name),
    _EndpointRule(
        names.ENDPOINT_SLICE_TERMINATING_CONDITION,
        lambda endpoint: bool(endpoint.get("conditions", {}).keys() & {"serving", "terminating"}),
        _drop_members("conditions", "serving", "terminating"),
    ),
    _EndpointRule(names.TOPOLOGY_AWARE_HINTS, lambda endpoint: "hints" in endpoint, _drop_hints),
    _EndpointRule(
        names.PREFER_SAME_TRAFFIC_DISTRIBUTION,
        lambda endpoint: bool(endpoint.get("hints", {}).get("forNodes")),
        _drop_members("hints", "forNodes"),
    ),
)
ENDPOINT_SLICE: Final = kind.Kind(
    resource=EndpointSlices,
    defaults=_default,
    prepare_create=_prepare,
    prepare_update=_prepare,
    validate=validate,
    validate_update=validate_update,
    warnings=_warnings,
    status=kind.NO_STATUS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=kind.viewed(),
    columns=Printer(
        (
            NAME,
            Column(name="AddressType", description="Family of the slice's addresses: IPv4, IPv6 or FQDN."),
            Column(name="Ports", description="Ports that every endpoint of the slice has."),
            Column(name="Endpoints", description="Addresses of the endpoints, ready or not."),
            AGE,
        ),
        _cells,
    ),
)
