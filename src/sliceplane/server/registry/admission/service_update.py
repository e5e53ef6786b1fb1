"""An update of a Service: immutable members, changes between one and two IP families (KEP-563), and
the allocated values that an update omits: they are kept, or dropped with the type that needed them.

``kubectl apply`` sends neither clusterIP nor nodePort; a PUT to another type often still has them.
"""

from __future__ import annotations

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.service_rules import EXTERNAL_TYPES, has_health_check_port
from sliceplane.server.registry.validation.services import is_headless, validate_service

_IMMUTABLE_WHEN_SET = "may not change once set"
_FAMILY_POLICY = "spec.ipFamilyPolicy"


def validate_service_update(new: Document, old: Document) -> FieldErrors:
    spec = new["spec"]
    before = old["spec"]
    errors = _addresses(spec, before)
    errors += _families(spec, before)
    if "LoadBalancer" == spec.get("type") == before.get("type"):
        balancer_class = spec.get("loadBalancerClass")
        if balancer_class != before.get("loadBalancerClass"):
            errors.append(
                invalid_value("spec.loadBalancerClass", balancer_class, _IMMUTABLE_WHEN_SET)
            )
    health = spec.get("healthCheckNodePort", 0)
    earlier = before.get("healthCheckNodePort", 0)
    if _has_health_port(spec) and _has_health_port(before) and health != earlier:
        errors.append(forbidden_field("spec.healthCheckNodePort", "field is immutable"))
    return errors + validate_service(new)


def _addresses(spec: Document, before: Document) -> FieldErrors:
    if "ExternalName" in (spec.get("type"), before.get("type")) or (
        is_headless(spec) and is_headless(before)
    ):
        return []
    path = "spec.clusterIPs"
    new: list[str] = spec.get("clusterIPs", [])
    old: list[str] = before.get("clusterIPs", [])
    if len(new) == len(old):
        return [
            invalid_value(f"{path}[{index}]", new, _IMMUTABLE_WHEN_SET)
            for index, pair in enumerate(zip(new, old, strict=True))
            if pair[0] != pair[1]
        ]
    errors: FieldErrors = []
    if len(old) > len(new) and not new:
        errors.append(invalid_value(f"{path}[0]", new, "primary clusterIP can not be unset"))
    if old and new and new[0] != old[0]:
        errors.append(invalid_value(f"{path}[0]", new, _IMMUTABLE_WHEN_SET))
    if len(old) > len(new) == 1:
        errors += _must_be_single(spec, "clusterIP")
    return errors


def _families(spec: Document, before: Document) -> FieldErrors:
    if (
        "ExternalName" in (spec.get("type"), before.get("type"))
        or is_headless(spec)
        or is_headless(before)
    ):
        return []
    path = "spec.ipFamilies[0]"
    new: list[str] = spec.get("ipFamilies", [])
    old: list[str] = before.get("ipFamilies", [])
    if len(new) == len(old):
        # As upstream: reported at the first index, whichever of the two changed.
        return [
            invalid_value(path, new, _IMMUTABLE_WHEN_SET)
            for pair in zip(new, old, strict=True)
            if pair[0] != pair[1]
        ]
    errors: FieldErrors = []
    addresses: list[str] = spec.get("clusterIPs", [])
    if len(old) > len(new) and not addresses:
        errors.append(invalid_value(path, new, "primary ipFamily can not be unset"))
    if old and new and new[0] != old[0]:
        # As upstream: reported with the addresses as the value.
        errors.append(invalid_value(path, addresses, _IMMUTABLE_WHEN_SET))
    if len(old) > len(new) == 1:
        errors += _must_be_single(spec, "ipFamily")
    return errors


def _must_be_single(spec: Document, released: str) -> FieldErrors:
    policy = spec.get("ipFamilyPolicy")
    if policy == "SingleStack":
        return []
    detail = f"must be set to 'SingleStack' when releasing the secondary {released}"
    return [invalid_value(_FAMILY_POLICY, policy, detail)]


_ADDRESS_MEMBERS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def carry_over(new: Document, old: Document) -> None:
    """Carries over allocated values from the spec *old* to the spec *new*, which is changed.

    Required order: agree on one spelling of the primary address; fill in omitted members; then drop
    the members that the new type cannot have.
    """
    _agree_on_primary(new, old)
    _keep_addresses(new, old)
    _trim_downgrade(new, old)
    _keep_ports(new, old)
    _drop_for_type(new, old)


def _agree_on_primary(new: Document, old: Document) -> None:
    """Makes ``clusterIP`` and ``clusterIPs[0]`` equal; the one that the client changed counts."""
    primary = new.get("clusterIP", "")
    before = old.get("clusterIP", "")
    addresses = new.get("clusterIPs", [])
    addresses_before = old.get("clusterIPs", [])
    if before and not primary and addresses == addresses_before:
        new.pop("clusterIPs", None)
    elif addresses_before and not addresses and primary == before:
        new.pop("clusterIP", None)
    elif primary and (not addresses or (primary != before and addresses == addresses_before)):
        new["clusterIPs"] = [primary]


def _keep_addresses(new: Document, old: Document) -> None:
    if "ExternalName" in (new["type"], old["type"]):
        return
    if not new.get("clusterIP") and not new.get("clusterIPs"):
        for member in ("clusterIP", "clusterIPs"):
            if member in old:
                new[member] = old[member]
    if not new.get("ipFamilyPolicy") and new.get("ipFamilies") in (None, old.get("ipFamilies")):
        for member in ("ipFamilies", "ipFamilyPolicy"):
            if member in old:
                new[member] = old[member]


def _trim_downgrade(new: Document, old: Document) -> None:
    """Removes the second address and family in a change from dual to single stack, unless the
    client changed them.
    """
    if (
        old.get("ipFamilyPolicy") in (None, "SingleStack")
        or new.get("ipFamilyPolicy") != "SingleStack"
    ):
        return
    for member in ("clusterIPs", "ipFamilies"):
        if len(old.get(member, ())) == 2 and new.get(member) == old[member]:
            new[member] = new[member][:1]


def _keep_ports(new: Document, old: Document) -> None:
    if new["type"] in EXTERNAL_TYPES and old["type"] in EXTERNAL_TYPES:
        before = {
            (port.get("protocol"), port.get("port")): port.get("nodePort", 0)
            for port in old.get("ports", ())
        }
        used = {port.get("nodePort") for port in new.get("ports", ())}
        for port in new.get("ports", ()):
            number = before.get((port.get("protocol"), port.get("port")), 0)
            if number and not port.get("nodePort") and number not in used:
                port["nodePort"] = number
    if (
        _has_health_port(new)
        and _has_health_port(old)
        and not new.get("healthCheckNodePort")
        and old.get("healthCheckNodePort")
    ):
        new["healthCheckNodePort"] = old["healthCheckNodePort"]


def _drop_for_type(new: Document, old: Document) -> None:
    """Drops members of the old type that the new one cannot have, if the client did not change
    them.
    """
    if new["type"] == "ExternalName" and old["type"] != "ExternalName":
        if new.get("clusterIPs", []) == old.get("clusterIPs", []):
            for member in _ADDRESS_MEMBERS:
                new.pop(member, None)
        if new.get("internalTrafficPolicy") == old.get("internalTrafficPolicy"):
            new.pop("internalTrafficPolicy", None)
    if new["type"] not in EXTERNAL_TYPES and old["type"] in EXTERNAL_TYPES:
        before = [port.get("nodePort", 0) for port in old.get("ports", ())]
        if [port.get("nodePort", 0) for port in new.get("ports", ())] == before:
            for port in new.get("ports", ()):
                port.pop("nodePort", None)
        if new.get("externalTrafficPolicy") == old.get("externalTrafficPolicy"):
            new.pop("externalTrafficPolicy", None)
    if new["type"] != "LoadBalancer" and old["type"] == "LoadBalancer":
        for member in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if new.get(member) == old.get(member):
                new.pop(member, None)
    if not _has_health_port(new) and new.get("healthCheckNodePort") == old.get(
        "healthCheckNodePort"
    ):
        new.pop("healthCheckNodePort", None)


def _has_health_port(spec: Document) -> bool:
    return has_health_check_port(spec.get("type"), spec.get("externalTrafficPolicy"))
