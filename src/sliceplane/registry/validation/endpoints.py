"""Endpoints, the older form of EndpointSlices (controllers.md section 3, end; reference B13)."""

from __future__ import annotations

from sliceplane.api.errors import FieldError, invalid_value, required, while_few
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.kit.remembered import remembered
from sliceplane.registry.validation.addresses import check_endpoint_ip
from sliceplane.registry.validation.ports import check_number, check_protocol


def validate(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, subset in while_few(errors, enumerate(document.get("subsets", ()))):
        errors += _subset(f"subsets[{index}]", subset)
    return errors


def validate_update(new: Document, old: Document) -> list[FieldError]:
    """Subsets that did not change are not asked about."""
    return [] if new.get("subsets") == old.get("subsets") else validate(new)


def _subset(path: str, subset: Document) -> list[FieldError]:
    ready, not_ready = subset.get("addresses", []), subset.get("notReadyAddresses", [])
    errors: list[FieldError] = []
    if not ready and not not_ready:
        errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
    for member, addresses in (("addresses", ready), ("notReadyAddresses", not_ready)):
        for index, address in while_few(errors, enumerate(addresses)):
            if not _is_fine(address.get("ip", ""), address.get("hostname", ""), address.get("nodeName")):
                errors += _address(f"{path}.{member}[{index}]", address)
    ports: list[Document] = subset.get("ports", [])
    for index, port in while_few(errors, enumerate(ports)):
        errors += _port(f"{path}.ports[{index}]", port, named=len(ports) > 1)
    return errors


@remembered(65536)
def _is_fine(ip: str, hostname: str, node: str | None) -> bool:
    """``_address`` has nothing to say.  Of a thousand addresses one changes, and all come with each write."""
    return not _address("", {"ip": ip, "hostname": hostname, "nodeName": node})


def _address(path: str, address: Document) -> list[FieldError]:
    errors = check_endpoint_ip(f"{path}.ip", address.get("ip", ""))
    host, node = address.get("hostname", ""), address.get("nodeName")
    if host:
        errors += [invalid_value(f"{path}.hostname", host, problem) for problem in check_dns_label(host)]
    if node:
        errors += [invalid_value(f"{path}.nodeName", node, problem) for problem in check_dns_subdomain(node)]
    return errors


def _port(path: str, port: Document, *, named: bool) -> list[FieldError]:
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
