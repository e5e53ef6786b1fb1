"""ServiceCIDR and IPAddress: the ranges of cluster IPs, and who has which address (KEP-1880)."""

from __future__ import annotations

import ipaddress
from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IPAddresses, ServiceCIDRs
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.server.documents import fields
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    Printer,
    mapping,
    text,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import IMMUTABLE
from sliceplane.server.registry.validation.load_balancers import NOT_A_CIDR
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, needs, unchanged

CIDRS_MAX: Final = 2
_ONE_OF_EACH: Final = (
    "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
)
_PARENT: Final = Rules(Field("group", form=check_dns_subdomain), needs("resource", "name"))
#: the name is the address (the scheme checks it); the parent is its holder
_ADDRESS: Final = Rules(Field("spec.parentRef", required=True, rows=_PARENT))


def _validate_service_cidr(_path: str, document: Document) -> FieldErrors:
    path = "spec.cidrs"
    cidrs: list[str] = document.get("spec", {}).get("cidrs", [])
    if not cidrs:
        return [required(path, "at least one CIDR required")]
    if len(cidrs) > CIDRS_MAX:
        return [invalid_value(path, cidrs, f"may only hold up to {CIDRS_MAX} values")]
    errors: FieldErrors = []
    versions = []
    for index, cidr in enumerate(cidrs):
        problem, version = _cidr(cidr)
        versions.append(version)
        if problem:
            errors.append(invalid_value(f"{path}[{index}]", cidr, problem))
    if not errors and len(set(versions)) < len(versions):
        errors.append(invalid_value(path, cidrs, _ONE_OF_EACH))
    return errors


def _validate_service_cidr_update(new: Document, old: Document) -> FieldErrors:
    """Ranges stay; a single one may get a second of the other family."""
    path = "spec.cidrs"
    before: list[str] = old.get("spec", {}).get("cidrs", [])
    after: list[str] = new.get("spec", {}).get("cidrs", [])
    if len(after) not in (len(before), len(before) + 1):
        return [invalid_value(path, after, IMMUTABLE)]
    changed = [index for index, cidr in enumerate(before) if after[index] != cidr]
    errors = [invalid_value(f"{path}[{index}]", after[index], IMMUTABLE) for index in changed]
    return errors or _validate_service_cidr("", new)


def _cidr(cidr: str) -> tuple[str, int]:
    """Why *cidr* is not a range as it must be written ("" if it is), and its IP version."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return NOT_A_CIDR, 0
    if "/" not in cidr:
        return NOT_A_CIDR, 0
    return (
        "" if str(network) == cidr else f'must be in canonical form ("{network}")'
    ), network.version


def _parent(address: Document) -> str:
    """The parent as RESOURCE.GROUP/NAMESPACE/NAME, without what it has not."""
    parent = mapping(address, "spec", "parentRef")
    resource = ".".join(part for part in (text(parent, "resource"), text(parent, "group")) if part)
    parts = (resource.lower(), text(parent, "namespace"), text(parent, "name"))
    return "/".join(part for part in parts if part) or NONE


SERVICE_CIDR: Final = kind.Kind(
    resource=ServiceCIDRs,
    defaults=Defaults({"+spec": {}}),
    rules=Rules(_validate_service_cidr),
    update_rules=_validate_service_cidr_update,
    status=kind.Status(
        first=kind.empty_status, not_written=fields.of_paths([("f:spec",), ("f:metadata",)])
    ),
    columns=Printer(
        (
            NAME,
            Column(
                "CIDRs",
                "Ranges that cluster IPs are taken from.",
                lambda cidr: ",".join(texts(cidr, "spec", "cidrs")),
            ),
            AGE,
        )
    ),
)
IP_ADDRESS: Final = kind.Kind(
    resource=IPAddresses,
    defaults=Defaults({"+spec": {}}),
    rules=_ADDRESS,
    update_rules=lambda new, old: unchanged("spec.parentRef", new, old) or _ADDRESS("", new),
    columns=Printer((NAME, Column("ParentRef", "The object that holds the address.", _parent))),
)
