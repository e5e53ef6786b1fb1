"""Endpoints, the older form of EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.api.errors import FieldErrors, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointsObjects
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.containers import Passed
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    Printer,
    join_first,
    number,
    objects,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.addresses import (
    APP_PROTOCOL,
    PROTOCOL,
    check_endpoint_ip,
    check_number,
    plain_version,
    spelling,
)
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, each


def _validate_update(new: Document, old: Document) -> FieldErrors:
    """Subsets that did not change are not asked about."""
    return [] if new.get("subsets") == old.get("subsets") else _ROWS("", new)


def _subset(path: str, subset: Document) -> FieldErrors:
    ready = subset.get("addresses", [])
    not_ready = subset.get("notReadyAddresses", [])
    errors: FieldErrors = []
    if not ready and not not_ready:
        errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
    for member, addresses in (("addresses", ready), ("notReadyAddresses", not_ready)):
        if not _FINE.have(
            {
                (address.get("ip"), address.get("hostname"), address.get("nodeName"))
                for address in addresses
            }
        ):
            errors += each(f"{path}.{member}", addresses, _ADDRESS)
    ports: list[Document] = subset.get("ports", [])
    return errors + each(f"{path}.ports", ports, _NAMED_PORT if len(ports) > 1 else _PORT)


_ROWS: Final = Rules(Field("subsets", rows=_subset))


def _ip(path: str, address: Document) -> FieldErrors:
    return check_endpoint_ip(f"{path}.ip", address.get("ip", ""))


_ADDRESS: Final = Rules(
    _ip,
    Field("hostname", form=check_dns_label),
    # As upstream: an empty name is no node.
    Field("nodeName", form=check_dns_subdomain, empty=True),
)


def _is_fine(address: tuple[str | None, str | None, str | None]) -> bool:
    """There is nothing to say of an address, a host name and a node's."""
    ip, hostname, node = address
    return not _ADDRESS("", {"ip": ip or "", "hostname": hostname or "", "nodeName": node})


_FINE: Final = Passed(65536, _is_fine)
_SPELLED: Final[Passed[str]] = Passed(65536, lambda ip: bool(plain_version(ip)))


def _port(path: str, port: Document) -> FieldErrors:
    return check_number(f"{path}.port", port.get("port", 0))


_PORT: Final = Rules(Field("name", form=check_dns_label), _port, PROTOCOL, APP_PROTOCOL)
_NAMED_PORT: Final = Rules(
    Field("name", form=check_dns_label, required=True), _port, PROTOCOL, APP_PROTOCOL
)


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


def _format_endpoints(endpoints: Document) -> str:
    subsets = objects(endpoints, "subsets")
    return (
        join_first(_host_ports(subsets), "", count=sum(map(_pairs, subsets))) if subsets else NONE
    )


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


ENDPOINTS: Final = kind.Kind(
    resource=EndpointsObjects,
    defaults=Defaults({"subsets": [{"ports": [{"protocol": PROTOCOL_DEFAULT}]}]}),
    rules=_ROWS,
    update_rules=_validate_update,
    warnings=_warnings,
    quota=kind.Quota(),
    granted=kind.viewed(),
    columns=Printer(
        (NAME, Column("Endpoints", "Ready addresses with their ports.", _format_endpoints), AGE)
    ),
)
