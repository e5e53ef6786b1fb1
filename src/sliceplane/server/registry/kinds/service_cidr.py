"""ServiceCIDR and IPAddress: the ranges of cluster IPs, and who has which address (KEP-1880)."""

from __future__ import annotations

import ipaddress
from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IPAddresses, ServiceCIDRs
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.server.documents import fields
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    mapping,
    name_of,
    text,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import IMMUTABLE

CIDRS_MAX: Final = 2
_NOT_A_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_ONE_OF_EACH: Final = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"


def _default(document: Document) -> None:
    """A spec that always prints."""
    document.setdefault("spec", {})


def _validate_ip_address(document: Document) -> list[FieldError]:
    """The name is the address (the scheme checks it); the parent is its holder."""
    path = "spec.parentRef"
    parent = document.get("spec", {}).get("parentRef")
    if not parent:
        return [required(path)]
    errors = [
        invalid_value(f"{path}.group", parent["group"], problem)
        for problem in (check_dns_subdomain(parent["group"]) if parent.get("group") else ())
    ]
    errors += [required(f"{path}.{member}") for member in ("resource", "name") if not parent.get(member)]
    return errors


def _validate_ip_address_update(new: Document, old: Document) -> list[FieldError]:
    before, after = (document.get("spec", {}).get("parentRef") for document in (old, new))
    if before != after:
        return [invalid_value("spec.parentRef", after, IMMUTABLE)]
    return _validate_ip_address(new)


def _validate_service_cidr(document: Document) -> list[FieldError]:
    path = "spec.cidrs"
    cidrs: list[str] = document.get("spec", {}).get("cidrs", [])
    if not cidrs:
        return [required(path, "at least one CIDR required")]
    if len(cidrs) > CIDRS_MAX:
        return [invalid_value(path, cidrs, f"may only hold up to {CIDRS_MAX} values")]
    errors: list[FieldError] = []
    versions = []
    for index, cidr in enumerate(cidrs):
        problem, version = _cidr(cidr)
        versions.append(version)
        if problem:
            errors.append(invalid_value(f"{path}[{index}]", cidr, problem))
    if not errors and len(set(versions)) < len(versions):
        errors.append(invalid_value(path, cidrs, _ONE_OF_EACH))
    return errors


def _validate_service_cidr_update(new: Document, old: Document) -> list[FieldError]:
    """Ranges stay; a single one may get a second of the other family."""
    path = "spec.cidrs"
    before: list[str] = old.get("spec", {}).get("cidrs", [])
    after: list[str] = new.get("spec", {}).get("cidrs", [])
    if len(after) not in (len(before), len(before) + 1):
        return [invalid_value(path, after, IMMUTABLE)]
    changed = [index for index, cidr in enumerate(before) if after[index] != cidr]
    errors = [invalid_value(f"{path}[{index}]", after[index], IMMUTABLE) for index in changed]
    return errors or _validate_service_cidr(new)


def _cidr(cidr: str) -> tuple[str, int]:
    """Why *cidr* is not a range as it must be written ("" if it is), and its IP version."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return _NOT_A_CIDR, 0
    if "/" not in cidr:
        return _NOT_A_CIDR, 0
    return ("" if str(network) == cidr else f'must be in canonical form ("{network}")'), network.version


def _service_cidr_cells(cidr: Document, now: float) -> tuple[Cell, ...]:
    return name_of(cidr), ",".join(texts(cidr, "spec", "cidrs")), age(cidr, now)


def _ip_address_cells(address: Document, _now: float) -> tuple[Cell, ...]:
    """The parent as RESOURCE.GROUP/NAMESPACE/NAME, without what it has not."""
    parent = mapping(address, "spec", "parentRef")
    resource = ".".join(part for part in (text(parent, "resource"), text(parent, "group")) if part)
    parts = (resource.lower(), text(parent, "namespace"), text(parent, "name"))
    return name_of(address), "/".join(part for part in parts if part) or NONE


SERVICE_CIDR: Final = kind.Kind(
    resource=ServiceCIDRs,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate_service_cidr,
    validate_update=_validate_service_cidr_update,
    warnings=kind.no_warnings,
    status=kind.Status(
        first=kind.empty_status,
        validate=kind.no_update_rules,
        not_written=fields.of_paths([("f:spec",), ("f:metadata",)]),
        kept=(),
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
        (NAME, Column(name="CIDRs", description="Ranges that cluster IPs are taken from."), AGE), _service_cidr_cells
    ),
)
IP_ADDRESS: Final = kind.stored_as_sent(
    resource=IPAddresses,
    defaults=_default,
    validate=_validate_ip_address,
    validate_update=_validate_ip_address_update,
    warnings=kind.no_warnings,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
        (NAME, Column(name="ParentRef", description="The object that holds the address.")), _ip_address_cells
    ),
)
