"""EndpointSlice: what a request may write of one, what is warned of (KEP-0752), and every rule, in
the order of ``pkg/apis/discovery/validation/validation.go``; an update that leaves ``endpoints``
alone is not asked about them.

``deprecatedTopology`` is the memory of v1beta1: its clients write it, clients of v1 only carry it
along.

A field whose feature gate is off is dropped from new objects and from updates, unless the object
used it before: switching a feature off must not break what was written while it was on, and
switching it on again must find it (KEP-4444, rollback). "Used" is asked of the object as a whole,
so a client can still move a field from one endpoint to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from sliceplane.api import gates as names
from sliceplane.api.discovery import HINTS_MAX, LABEL_HOSTNAME, LABEL_MANAGED_BY
from sliceplane.api.errors import FieldError, FieldErrors, invalid_value, required, too_many
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.containers import Passed
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_label_value
from sliceplane.server.documents import conversion
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    UNSET,
    Column,
    Printer,
    join_first,
    number,
    objects,
    text,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import validate_labels
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.addresses import (
    APP_PROTOCOL,
    PROTOCOL,
    check_fqdn,
    ip_problem,
    plain_version,
    special_problem,
    spelling,
    version_of,
)
from sliceplane.server.registry.validation.rules import (
    Field,
    Form,
    Rules,
    check_unique,
    each,
    of_form,
    unchanged,
)

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core


FQDN_WARNING: Final = "spec.addressType: FQDN endpoints are deprecated"
#: slices of the built-in controllers repeat what the author of a Service or Endpoints was warned of
_CONTROLLERS: Final = (
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
)


def _default(document: Document) -> None:
    for port in document.setdefault("ports", []):
        port.setdefault("name", "")
        port.setdefault("protocol", PROTOCOL_DEFAULT)
    for endpoint in document.setdefault("endpoints", []):
        endpoint.setdefault("conditions", {})


def _prepare(core: Core, target: Target, new: Document, old: Document | None = None) -> None:
    """Undo, in place, what *new* says and the request may not; *old* is ``None`` for a new
    object.
    """
    _drop_gated(core.config.gates, target, new, old)
    if target.via is None:
        _drop_topology(new, old)
        if old is not None and conversion.TOPOLOGY_ANNOTATION in old["metadata"].get(
            "annotations", {}
        ):
            new.update(conversion.realign(new, old))


def _drop_topology(new: Document, old: Document | None) -> None:
    """``deprecatedTopology`` cannot be written through v1, only carried along with unchanged
    endpoints.

    A host name in it that the old object had too becomes ``nodeName`` before it goes.
    """
    endpoints = new.get("endpoints", [])
    before = [] if old is None else old.get("endpoints", [])
    if old is not None and endpoints == before:
        return
    if not any("deprecatedTopology" in endpoint for endpoint in endpoints):
        return
    hosts = {endpoint.get("deprecatedTopology", {}).get(LABEL_HOSTNAME) for endpoint in before} - {
        None
    }
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
                endpoint.setdefault("deprecatedTopology", {}).setdefault(
                    LABEL_HOSTNAME, endpoint["nodeName"]
                )
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


def _format_ports(endpoint_slice: Document) -> str:
    ports = objects(endpoint_slice, "ports")
    return join_first(map(_slice_port, ports), UNSET, count=len(ports))


def _format_addresses(endpoint_slice: Document) -> str:
    addresses = [
        address
        for endpoint in objects(endpoint_slice, "endpoints")
        for address in texts(endpoint, "addresses")
    ]
    return join_first(addresses, UNSET, count=len(addresses))


def _slice_port(port: Document) -> str:
    """The number; else the name; "*" only if there is neither.  As upstream: a name of "" is a
    name.
    """
    if port.get("port") is not None:
        return str(number(port, "port"))
    return text(port, "name") if port.get("name") is not None else "*"


_ENDPOINT_RULES: Final = (
    _EndpointRule(
        names.ENDPOINT_SLICE_NODE_NAME, lambda endpoint: "nodeName" in endpoint, _drop_node_name
    ),
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


ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
PORTS_MAX = 20000
ENDPOINTS_MAX = 1000
ADDRESSES_MAX = 100
TOPOLOGY_KEYS_MAX = 16
#: members of an endpoint that ``_is_plain`` does not look at
_SELDOM: Final = frozenset({"hostname", "deprecatedTopology", "hints"})
_ZONE_KEY = "topology.kubernetes.io/zone"


def _validate_update(new: Document, old: Document) -> FieldErrors:
    same_type = unchanged("addressType", {"addressType": "", **new}, old)
    errors = _TYPE("", new) + same_type + _ports("ports", new.get("ports", []))
    return errors if new.get("endpoints") == old.get("endpoints") else errors + _endpoints("", new)


_TYPE: Final = Rules(Field("addressType", required=True, choices=ADDRESS_TYPES))
_PORT: Final = Rules(PROTOCOL, APP_PROTOCOL)


def _ports(path: str, ports: list[Document]) -> FieldErrors:
    if len(ports) > PORTS_MAX:
        return [too_many(path, len(ports), PORTS_MAX)]
    names: set[str] = set()

    def port_errors(path: str, port: Document) -> FieldErrors:
        name = port.get("name", "")
        errors = of_form(f"{path}.name", name, check_dns_label) if name else []
        return errors + check_unique(f"{path}.name", name, names) + _PORT(path, port)

    return each(path, ports, port_errors)


def _endpoints(_path: str, document: Document) -> FieldErrors:
    endpoints: list[Document] = document.get("endpoints", [])
    if len(endpoints) > ENDPOINTS_MAX:
        return [too_many("endpoints", len(endpoints), ENDPOINTS_MAX)]
    address_type = document.get("addressType", "")
    are_plain = _PLAIN.have(
        {
            (address_type, endpoint.get("nodeName"), *endpoint.get("addresses", ())[:2])
            for endpoint in endpoints
        }
    )
    if not are_plain:
        return each(
            "endpoints", endpoints, lambda path, endpoint: _endpoint(path, endpoint, address_type)
        )
    return (
        []
        if all(map(_SELDOM.isdisjoint, endpoints))
        else each("endpoints", endpoints, _SELDOM_ROWS)
    )


def _is_plain(endpoint: tuple[str | None, ...]) -> bool:
    """There is nothing to say of a node and a single address, which nearly every endpoint has, in a
    slice of a type.
    """
    address_type, node, *addresses = endpoint
    if len(addresses) != 1 or address_type not in ADDRESS_TYPES:
        return False
    # A server that begins sees every endpoint of a slice for the first time with its first write.
    if plain_version(addresses[0] or "") == _VERSIONS.get(address_type):
        return node is None or not check_dns_subdomain(node)
    return not _endpoint("", {"nodeName": node, "addresses": addresses}, address_type)


_VERSIONS: Final[dict[str | None, int]] = {"IPv4": 4, "IPv6": 6}
_PLAIN: Final = Passed(65536, _is_plain)


def _endpoint(path: str, endpoint: Document, address_type: str) -> FieldErrors:
    errors = _addresses(f"{path}.addresses", endpoint.get("addresses", []), address_type)
    return errors + _NODE(path, endpoint) + _SELDOM_ROWS(path, endpoint)


def _addresses(path: str, addresses: list[str], address_type: str) -> FieldErrors:
    if not addresses:
        return [required(path, "must contain at least 1 address")]
    errors: FieldErrors = []
    if len(addresses) > ADDRESSES_MAX:
        errors.append(too_many(path, len(addresses), ADDRESSES_MAX))
    if address_type == "FQDN":
        return errors + each(path, addresses, check_fqdn)
    if address_type not in ADDRESS_TYPES:
        return errors
    return errors + each(
        path, addresses, lambda where, address: _ip(path, where, address, address_type)
    )


def _ip(path: str, where: str, address: str, address_type: str) -> FieldErrors:
    """As upstream: the wrong family is a complaint about the whole list, everything else about the
    one address.
    """
    problem = ip_problem(address, canonical=address_type == "IPv6")
    if problem:
        return [invalid_value(where, address, problem)]
    if version_of(address) != (4 if address_type == "IPv4" else 6):
        return [invalid_value(path, address, f"must be an {address_type} address")]
    problem = special_problem(address)
    return [invalid_value(where, address, problem)] if problem else []


def _topology(path: str, topology: dict[str, str]) -> FieldErrors:
    errors: FieldErrors = []
    if len(topology) > TOPOLOGY_KEYS_MAX:
        errors.append(too_many(path, len(topology), TOPOLOGY_KEYS_MAX))
    errors += validate_labels(path, topology)
    if _ZONE_KEY in topology:
        message = "Internal error: reserved key was not removed in conversion"
        errors.append(FieldError("InternalError", f"{path}[{_ZONE_KEY}]", message))
    return errors


def _hints(path: str, hints: Document) -> FieldErrors:
    errors: FieldErrors = []
    for member, form in _HINTS.items():
        items: list[Document] = hints.get(member, [])
        if len(items) > HINTS_MAX:
            return [*errors, too_many(f"{path}.{member}", len(items), HINTS_MAX)]
        errors += _hint_names(f"{path}.{member}", items, form)
    return errors


def _hint_names(path: str, items: list[Document], form: Form) -> FieldErrors:
    seen: set[str] = set()

    def hint_errors(where: str, item: Document) -> FieldErrors:
        name = item.get("name", "")
        return check_unique(f"{where}.name", name, seen) or of_form(f"{where}.name", name, form)

    return each(path, items, hint_errors)


_HINTS: Final[dict[str, Form]] = {"forZones": check_label_value, "forNodes": check_dns_subdomain}
_NODE: Final = Rules(Field("nodeName", form=check_dns_subdomain, empty=True))
_SELDOM_ROWS: Final = Rules(
    Field("deprecatedTopology", rows=_topology),
    Field("hostname", form=check_dns_label, empty=True),
    Field("hints", rows=_hints),
)
ENDPOINT_SLICE: Final = kind.Kind(
    resource=EndpointSlices,
    defaults=_default,
    prepare_create=_prepare,
    prepare_update=_prepare,
    rules=Rules(_TYPE, Field("ports", whole=_ports), _endpoints),
    update_rules=_validate_update,
    warnings=_warnings,
    quota=kind.Quota(),
    granted=kind.viewed(),
    columns=Printer(
        (
            NAME,
            Column(
                "AddressType", "Family of the slice's addresses: IPv4, IPv6 or FQDN.", "addressType"
            ),
            Column("Ports", "Ports that every endpoint of the slice has.", _format_ports),
            Column("Endpoints", "Addresses of the endpoints, ready or not.", _format_addresses),
            AGE,
        )
    ),
)
