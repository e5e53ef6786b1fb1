"""EndpointSlice v1: every rule, in the order of pkg/apis/discovery/validation/validation.go.

Ratcheting: an update that leaves ``endpoints`` alone is not asked about them.
"""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.discovery import HINTS_MAX
from sliceplane.api.errors import FieldError, duplicate, invalid_value, not_supported, required, too_many, while_few
from sliceplane.api.meta import Document
from sliceplane.kit.containers import remembered
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_label_value, check_qualified_name
from sliceplane.registry.metadata import IMMUTABLE, validate_labels
from sliceplane.registry.validation.addresses import (
    check_fqdn,
    check_protocol,
    ip_problem,
    plain_version,
    special_problem,
    version_of,
)

ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
PORTS_MAX = 20000
ENDPOINTS_MAX = 1000
ADDRESSES_MAX = 100
TOPOLOGY_KEYS_MAX = 16
_VERSIONS = {"IPv4": 4, "IPv6": 6}
_ZONE_KEY = "topology.kubernetes.io/zone"


def validate(document: Document) -> list[FieldError]:
    return [*_address_type(document), *_ports(document), *_endpoints(document)]


def validate_update(new: Document, old: Document) -> list[FieldError]:
    errors = _address_type(new)
    if new.get("addressType") != old.get("addressType"):
        errors.append(invalid_value("addressType", new.get("addressType", ""), IMMUTABLE))
    errors += _ports(new)
    if new.get("endpoints") != old.get("endpoints"):
        errors += _endpoints(new)
    return errors


def _address_type(document: Document) -> list[FieldError]:
    address_type = document.get("addressType", "")
    if not address_type:
        return [required("addressType")]
    return [] if address_type in ADDRESS_TYPES else [not_supported("addressType", address_type, ADDRESS_TYPES)]


def _ports(document: Document) -> list[FieldError]:
    ports: list[Document] = document.get("ports", [])
    if len(ports) > PORTS_MAX:
        return [too_many("ports", len(ports), PORTS_MAX)]
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in while_few(errors, enumerate(ports)):
        path = f"ports[{index}]"
        name = port.get("name", "")
        if name:
            errors += [invalid_value(f"{path}.name", name, problem) for problem in check_dns_label(name)]
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        errors += check_protocol(f"{path}.protocol", port.get("protocol"))
        if port.get("appProtocol") is not None:
            app = port["appProtocol"]
            errors += [invalid_value(f"{path}.appProtocol", app, problem) for problem in check_qualified_name(app)]
    return errors


def _endpoints(document: Document) -> list[FieldError]:
    endpoints: list[Document] = document.get("endpoints", [])
    if len(endpoints) > ENDPOINTS_MAX:
        return [too_many("endpoints", len(endpoints), ENDPOINTS_MAX)]
    errors: list[FieldError] = []
    address_type = document.get("addressType", "")
    for index, endpoint in while_few(errors, enumerate(endpoints)):
        if not _is_plain(endpoint, address_type):
            errors += _endpoint(f"endpoints[{index}]", endpoint, address_type)
    return errors


def _is_plain(endpoint: Document, address_type: str) -> bool:
    """The quick yes, from memory, to one address and a node, which is what nearly every endpoint has."""
    addresses = endpoint.get("addresses", ())
    return (
        len(addresses) == 1
        and plain_version(addresses[0]) == _VERSIONS.get(address_type)
        and ("nodeName" not in endpoint or _is_node_name(endpoint["nodeName"]))
        and "hostname" not in endpoint
        and "deprecatedTopology" not in endpoint
        and "hints" not in endpoint
    )


@remembered(8192)
def _is_node_name(name: str) -> bool:
    return not check_dns_subdomain(name)


def _endpoint(path: str, endpoint: Document, address_type: str) -> list[FieldError]:
    errors = _addresses(f"{path}.addresses", endpoint.get("addresses", []), address_type)
    if endpoint.get("nodeName") is not None:
        node = endpoint["nodeName"]
        errors += [invalid_value(f"{path}.nodeName", node, problem) for problem in check_dns_subdomain(node)]
    topology: dict[str, str] = endpoint.get("deprecatedTopology", {})
    if topology:
        errors += _topology(f"{path}.deprecatedTopology", topology)
    if endpoint.get("hostname") is not None:
        host = endpoint["hostname"]
        errors += [invalid_value(f"{path}.hostname", host, problem) for problem in check_dns_label(host)]
    if "hints" in endpoint:
        errors += _hints(f"{path}.hints", endpoint["hints"])
    return errors


def _addresses(path: str, addresses: list[str], address_type: str) -> list[FieldError]:
    if not addresses:
        return [required(path, "must contain at least 1 address")]
    errors: list[FieldError] = []
    if len(addresses) > ADDRESSES_MAX:
        errors.append(too_many(path, len(addresses), ADDRESSES_MAX))
    for index, address in while_few(errors, enumerate(addresses)):
        where = f"{path}[{index}]"
        if address_type == "FQDN":
            errors += check_fqdn(where, address)
        elif address_type in ("IPv4", "IPv6"):
            errors += _ip(path, where, address, address_type)
    return errors


def _ip(path: str, where: str, address: str, address_type: str) -> list[FieldError]:
    """As upstream: the wrong family is a complaint about the whole list, everything else about the one address."""
    problem = ip_problem(address, canonical=address_type == "IPv6")
    if problem:
        return [invalid_value(where, address, problem)]
    if version_of(address) != (4 if address_type == "IPv4" else 6):
        return [invalid_value(path, address, f"must be an {address_type} address")]
    problem = special_problem(address)
    return [invalid_value(where, address, problem)] if problem else []


def _topology(path: str, topology: dict[str, str]) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(topology) > TOPOLOGY_KEYS_MAX:
        errors.append(too_many(path, len(topology), TOPOLOGY_KEYS_MAX))
    errors += validate_labels(topology, path)
    if _ZONE_KEY in topology:
        message = "Internal error: reserved key was not removed in conversion"
        errors.append(FieldError("InternalError", f"{path}[{_ZONE_KEY}]", message))
    return errors


def _hints(path: str, hints: Document) -> list[FieldError]:
    zones: list[Document] = hints.get("forZones", [])
    nodes: list[Document] = hints.get("forNodes", [])
    if len(zones) > HINTS_MAX:
        return [too_many(f"{path}.forZones", len(zones), HINTS_MAX)]
    errors = _hint_names(f"{path}.forZones", zones, check_label_value)
    if len(nodes) > HINTS_MAX:
        errors.append(too_many(f"{path}.forNodes", len(nodes), HINTS_MAX))
        return errors
    return errors + _hint_names(f"{path}.forNodes", nodes, check_dns_subdomain)


def _hint_names(path: str, items: list[Document], check: Callable[[str], tuple[str, ...]]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        where = f"{path}[{index}].name"
        name = item.get("name", "")
        if name in seen:
            errors.append(duplicate(where, name))
        else:
            seen.add(name)
            errors += [invalid_value(where, name, problem) for problem in check(name)]
    return errors
