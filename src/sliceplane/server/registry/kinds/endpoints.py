"""Endpoints, the older form of EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointsObjects
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.containers import Passed
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    first_few,
    name_of,
    number,
    objects,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.addresses import (
    check_endpoint_ip,
    check_number,
    check_protocol,
    plain_version,
    spelling,
)


def _default(document: Document) -> None:
    for subset in document.get("subsets", ()):
        for port in subset.get("ports", ()):
            port["protocol"] = port.get("protocol") or PROTOCOL_DEFAULT


def _validate(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, subset in while_few(errors, enumerate(document.get("subsets", ()))):
        errors += _subset(f"subsets[{index}]", subset)
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    """Subsets that did not change are not asked about."""
    return [] if new.get("subsets") == old.get("subsets") else _validate(new)


def _subset(path: str, subset: Document) -> list[FieldError]:
    ready = subset.get("addresses", [])
    not_ready = subset.get("notReadyAddresses", [])
    errors: list[FieldError] = []
    if not ready and not not_ready:
        errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
    for member, addresses in (("addresses", ready), ("notReadyAddresses", not_ready)):
        if not _FINE.have(
            {(address.get("ip"), address.get("hostname"), address.get("nodeName")) for address in addresses}
        ):
            for index, address in while_few(errors, enumerate(addresses)):
                errors += _address(f"{path}.{member}[{index}]", address)
    ports: list[Document] = subset.get("ports", [])
    for index, port in while_few(errors, enumerate(ports)):
        errors += _port_errors(f"{path}.ports[{index}]", port, named=len(ports) > 1)
    return errors


def _address(path: str, address: Document) -> list[FieldError]:
    errors = check_endpoint_ip(f"{path}.ip", address.get("ip", ""))
    host = address.get("hostname", "")
    node = address.get("nodeName")
    if host:
        errors += [invalid_value(f"{path}.hostname", host, problem) for problem in check_dns_label(host)]
    if node is not None:  # as upstream: an empty name is no node
        errors += [invalid_value(f"{path}.nodeName", node, problem) for problem in check_dns_subdomain(node)]
    return errors


def _is_fine(address: tuple[str | None, str | None, str | None]) -> bool:
    """There is nothing to say of an address, a host name and a node's."""
    ip, hostname, node = address
    return not _address("", {"ip": ip or "", "hostname": hostname or "", "nodeName": node})


_FINE: Final = Passed(65536, _is_fine)
_SPELLED: Final[Passed[str]] = Passed(65536, lambda ip: bool(plain_version(ip)))


def _port_errors(path: str, port: Document, *, named: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    name = port.get("name", "")
    if name:
        errors += [invalid_value(f"{path}.name", name, problem) for problem in check_dns_label(name)]
    elif named:
        errors.append(required(f"{path}.name"))
    errors += check_number(f"{path}.port", port.get("port", 0))
    errors += check_protocol(f"{path}.protocol", port.get("protocol"))
    if port.get("appProtocol") is not None:
        app = port["appProtocol"]
        errors += [invalid_value(f"{path}.appProtocol", app, problem) for problem in check_qualified_name(app)]
    return errors


def _warnings(document: Document, _old: Document | None) -> Iterator[str]:
    for index, subset in enumerate(document.get("subsets", ())):
        for member in ("addresses", "notReadyAddresses"):
            addresses = subset.get(member, ())
            if _SPELLED.have({address.get("ip", "") for address in addresses}):
                continue
            for position, address in enumerate(addresses):
                problem = spelling(address.get("ip", ""))
                if problem:
                    yield f"subsets[{index}].{member}[{position}].ip: {problem}"


def _cells(endpoints: Document, now: float) -> tuple[Cell, ...]:
    subsets = objects(endpoints, "subsets")
    shown = first_few(_host_ports(subsets), "", count=sum(map(_pairs, subsets))) if subsets else NONE
    return name_of(endpoints), shown, age(endpoints, now)


def _pairs(subset: Document) -> int:
    return len(objects(subset, "addresses")) * max(1, len(objects(subset, "ports")))


def _host_ports(subsets: list[Document]) -> Iterator[str]:
    """Ready addresses times ports, ports outside; addresses alone where a subset has no port."""
    for subset in subsets:
        ips = [text(address, "ip") for address in objects(subset, "addresses")]
        ports = objects(subset, "ports")
        if not ports:
            yield from ips
        for port in ports:
            for ip in ips:
                host = f"[{ip}]" if ":" in ip else ip
                yield f"{host}:{number(port, 'port')}"


ENDPOINTS: Final = kind.stored_as_sent(
    resource=EndpointsObjects,
    defaults=_default,
    validate=_validate,
    validate_update=_validate_update,
    warnings=_warnings,
    quota=kind.COUNTED,
    granted=kind.viewed(),
    columns=Printer((NAME, Column(name="Endpoints", description="Ready addresses with their ports."), AGE), _cells),
)
