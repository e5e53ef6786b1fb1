"""Node: pod ranges, taints, and what stays once set."""

from __future__ import annotations

import ipaddress

from sliceplane.api.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_label_value, check_qualified_name

TAINT_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    for index, text in while_few(errors, enumerate(spec.get("podCIDRs", ()))):
        if not _is_cidr(text):
            errors.append(invalid_value(f"spec.podCIDRs[{index}]", text, _CIDR))
    seen: set[tuple[str, str]] = set()
    for index, taint in while_few(errors, enumerate(spec.get("taints", ()))):
        path = f"spec.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += [invalid_value(f"{path}.key", key, problem) for problem in check_qualified_name(key)]
        value = taint.get("value", "")
        errors += [invalid_value(f"{path}.value", value, problem) for problem in check_label_value(value)]
        if not effect:
            errors.append(required(f"{path}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(not_supported(f"{path}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(path, taint))
        seen.add((key, effect))
    return errors


def validate_update(new: Document, old: Document) -> list[FieldError]:
    spec, before = new.get("spec", {}), old.get("spec", {})
    errors = validate(new)
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        errors.append(forbidden_field("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid'))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        errors.append(
            forbidden_field("spec.providerID", 'node updates may not change providerID except from "" to valid')
        )
    return errors


def _is_cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text
