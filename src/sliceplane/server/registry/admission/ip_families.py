"""IP families of a Service: ``ipFamilies`` and ``ipFamilyPolicy`` from the request, the cluster's
families, and the old Service (KEP-563).

Changes the new document; raises one 422 StatusError with every error.
"""

from __future__ import annotations

from sliceplane.api.errors import FieldErrors, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Services
from sliceplane.api.service_rules import NO_CLUSTER_IP
from sliceplane.kit.ip import Family, family, parse_lenient

SINGLE = "SingleStack"
PREFER_DUAL = "PreferDualStack"
REQUIRE_DUAL = "RequireDualStack"
_DUAL = (PREFER_DUAL, REQUIRE_DUAL)
_OTHER: dict[str, Family] = {"IPv4": "IPv6", "IPv6": "IPv4"}


def fill(new: Document, old: Document | None, configured: tuple[Family, ...]) -> None:
    """Sets ``ipFamilies`` and ``ipFamilyPolicy``.  *configured*: the cluster's families, the
    primary first.
    """
    spec = new["spec"]
    if spec["type"] == "ExternalName" or _prefers_dual_as_before(spec, old):
        return
    errors = _contradictions(spec)
    if errors:
        raise _invalid(new, errors)
    _infer_from_addresses(spec)
    families: list[str] = list(spec.get("ipFamilies", ()))
    if spec.get("clusterIP") == NO_CLUSTER_IP and not spec.get("selector"):
        # Endpoints that users write may be of both families, also in a cluster with one.
        policy = spec.setdefault("ipFamilyPolicy", REQUIRE_DUAL)
        families = families or [configured[0]]
        if policy in _DUAL and len(families) == 1:
            families.append(_OTHER[families[0]])
        spec["ipFamilies"] = families
        return
    policy = spec.get("ipFamilyPolicy")
    if policy == REQUIRE_DUAL and len(configured) < 2:
        errors.append(
            invalid_value(
                "spec.ipFamilyPolicy",
                policy,
                "this cluster is not configured for dual-stack services",
            )
        )
    for index, requested in enumerate(families):
        if requested not in configured:
            errors.append(
                invalid_value(
                    f"spec.ipFamilies[{index}]", requested, "not configured on this cluster"
                )
            )
    if errors:
        raise _invalid(new, errors)
    policy = spec.setdefault("ipFamilyPolicy", SINGLE)
    families = families or [configured[0]]
    if policy in _DUAL and len(families) == 1 and len(configured) == 2:
        families.append(_OTHER[families[0]])
    spec["ipFamilies"] = families


def _prefers_dual_as_before(spec: Document, old: Document | None) -> bool:
    """Returns True for a PreferDualStack Service whose update requests no other families: it is not
    upgraded.
    """
    if old is None or spec.get("ipFamilyPolicy") != PREFER_DUAL:
        return False
    before = old["spec"]
    same = ("ipFamilyPolicy", "ipFamilies", "clusterIPs", "type")
    return bool(spec.get("ipFamilies")) and all(
        spec.get(member) == before.get(member) for member in same
    )


def _contradictions(spec: Document) -> FieldErrors:
    """Returns the errors of a policy that does not allow the number of addresses or families."""
    policy = spec.get("ipFamilyPolicy")
    errors = []
    if policy not in _DUAL:
        for member, noun in (("clusterIPs", "clusterIPs"), ("ipFamilies", "ipFamilies")):
            if len(spec.get(member, ())) > 1:
                detail = (
                    f"must be RequireDualStack or PreferDualStack when multiple {noun} are "
                    "specified"
                )
                errors.append(invalid_value("spec.ipFamilyPolicy", policy, detail))
    return errors


def _infer_from_addresses(spec: Document) -> None:
    """Sets the families to those of the requested addresses."""
    families: list[str] = spec.get("ipFamilies", [])
    for index, text in enumerate(spec.get("clusterIPs", ())):
        address = parse_lenient(text)
        if address is not None and index >= len(families):
            families = [*families, family(address)]
    if families:
        spec["ipFamilies"] = families


def _invalid(document: Document, errors: FieldErrors) -> Exception:
    return invalid(Services.kind, Services.group, document["metadata"].get("name", ""), errors)
