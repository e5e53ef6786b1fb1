"""networking.k8s.io: IPAddress and ServiceCIDR (KEP-1880)."""

from __future__ import annotations

import ipaddress
from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.registry.validation.metadata import IMMUTABLE

CIDRS_MAX: Final = 2
_NOT_A_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_ONE_OF_EACH: Final = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"


def validate_ip_address(document: Document) -> list[FieldError]:
    """The name is the address (the scheme checks it); the parent is whoever holds it."""
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


def validate_ip_address_update(new: Document, old: Document) -> list[FieldError]:
    before, after = (document.get("spec", {}).get("parentRef") for document in (old, new))
    if before != after:
        return [invalid_value("spec.parentRef", after, IMMUTABLE)]
    return validate_ip_address(new)


def validate_service_cidr(document: Document) -> list[FieldError]:
    path = "spec.cidrs"
    cidrs: list[str] = document.get("spec", {}).get("cidrs", [])
    if not cidrs:
        return [required(path, "at least one CIDR required")]
    if len(cidrs) > CIDRS_MAX:
        return [invalid_value(path, cidrs, f"may only hold up to {CIDRS_MAX} values")]
    errors: list[FieldError] = []
    versions = []
    for index, text in enumerate(cidrs):
        problem, version = _cidr(text)
        versions.append(version)
        if problem:
            errors.append(invalid_value(f"{path}[{index}]", text, problem))
    if not errors and len(set(versions)) < len(versions):
        errors.append(invalid_value(path, cidrs, _ONE_OF_EACH))
    return errors


def validate_service_cidr_update(new: Document, old: Document) -> list[FieldError]:
    """Ranges stay; a single one may get a second of the other family."""
    path = "spec.cidrs"
    before: list[str] = old.get("spec", {}).get("cidrs", [])
    after: list[str] = new.get("spec", {}).get("cidrs", [])
    if len(after) not in (len(before), len(before) + 1):
        return [invalid_value(path, after, IMMUTABLE)]
    changed = [index for index, text in enumerate(before) if after[index] != text]
    errors = [invalid_value(f"{path}[{index}]", after[index], IMMUTABLE) for index in changed]
    return errors or validate_service_cidr(new)


def _cidr(text: str) -> tuple[str, int]:
    """Why *text* is not a range as it must be written ("" if it is), and its IP version."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return _NOT_A_CIDR, 0
    if "/" not in text:
        return _NOT_A_CIDR, 0
    return ("" if str(network) == text else f'must be in canonical form ("{network}")'), network.version
