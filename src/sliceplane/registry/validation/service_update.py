"""What may not change about a Service, and how it moves between one and two IP families (KEP-563)."""

from __future__ import annotations

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.service_rules import has_health_check_port
from sliceplane.registry.validation.services import is_headless, validate_service

_ONCE_SET = "may not change once set"
_FAMILY_POLICY = "spec.ipFamilyPolicy"


def validate_service_update(new: Document, old: Document) -> list[FieldError]:
    spec = new["spec"]
    before = old["spec"]
    errors = _addresses(spec, before)
    errors += _families(spec, before)
    if "LoadBalancer" == spec.get("type") == before.get("type"):
        balancer_class = spec.get("loadBalancerClass")
        if balancer_class != before.get("loadBalancerClass"):
            errors.append(invalid_value("spec.loadBalancerClass", balancer_class, _ONCE_SET))
    health = spec.get("healthCheckNodePort", 0)
    earlier = before.get("healthCheckNodePort", 0)
    if _has_health_port(spec) and _has_health_port(before) and health != earlier:
        errors.append(forbidden_field("spec.healthCheckNodePort", "field is immutable"))
    return errors + validate_service(new)


def _addresses(spec: Document, before: Document) -> list[FieldError]:
    if "ExternalName" in (spec.get("type"), before.get("type")) or (is_headless(spec) and is_headless(before)):
        return []
    path = "spec.clusterIPs"
    new: list[str] = spec.get("clusterIPs", [])
    old: list[str] = before.get("clusterIPs", [])
    if len(new) == len(old):
        return [
            invalid_value(f"{path}[{index}]", new, _ONCE_SET)
            for index, pair in enumerate(zip(new, old, strict=True))
            if pair[0] != pair[1]
        ]
    errors: list[FieldError] = []
    if len(old) > len(new) and not new:
        errors.append(invalid_value(f"{path}[0]", new, "primary clusterIP can not be unset"))
    if old and new and new[0] != old[0]:
        errors.append(invalid_value(f"{path}[0]", new, _ONCE_SET))
    if len(old) > len(new) == 1:
        errors += _must_be_single(spec, "clusterIP")
    return errors


def _families(spec: Document, before: Document) -> list[FieldError]:
    if "ExternalName" in (spec.get("type"), before.get("type")) or is_headless(spec) or is_headless(before):
        return []
    path = "spec.ipFamilies[0]"
    new: list[str] = spec.get("ipFamilies", [])
    old: list[str] = before.get("ipFamilies", [])
    if len(new) == len(old):
        # As upstream: told at the first index, whichever of the two changed.
        return [invalid_value(path, new, _ONCE_SET) for pair in zip(new, old, strict=True) if pair[0] != pair[1]]
    errors: list[FieldError] = []
    addresses: list[str] = spec.get("clusterIPs", [])
    if len(old) > len(new) and not addresses:
        errors.append(invalid_value(path, new, "primary ipFamily can not be unset"))
    if old and new and new[0] != old[0]:
        # As upstream: told with the addresses for a value.
        errors.append(invalid_value(path, addresses, _ONCE_SET))
    if len(old) > len(new) == 1:
        errors += _must_be_single(spec, "ipFamily")
    return errors


def _must_be_single(spec: Document, released: str) -> list[FieldError]:
    policy = spec.get("ipFamilyPolicy")
    if policy == "SingleStack":
        return []
    detail = f"must be set to 'SingleStack' when releasing the secondary {released}"
    return [invalid_value(_FAMILY_POLICY, policy, detail)]


def _has_health_port(spec: Document) -> bool:
    return has_health_check_port(spec.get("type"), spec.get("externalTrafficPolicy"))
