"""LimitRange: what may be said about a type, and that minimum, defaults and maximum do not
contradict each other.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import LimitRanges
from sliceplane.kit.names import check_qualified_name
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.rules import Rules, check_unique, each, of_form

_LIMIT_MEMBERS = ("default", "defaultRequest", "max", "maxLimitRequestRatio", "min")
TYPES: Final = ("Container", "PersistentVolumeClaim", "Pod")
_COMPUTE: Final = frozenset(("cpu", "memory", "ephemeral-storage", "storage"))
_HUGE_PAGES: Final = "hugepages-"
_NO_DEFAULT: Final = "may not be specified when `type` is 'Pod'"
_OVER_LIMIT: Final = "default request value {0} is greater than default limit value {1}"
#: (member at fault, smaller, larger, what is said)
_ORDER: Final = (
    ("min", "min", "max", "min value {0} is greater than max value {1}"),
    (
        "defaultRequest",
        "min",
        "defaultRequest",
        "min value {0} is greater than default request value {1}",
    ),
    (
        "defaultRequest",
        "defaultRequest",
        "max",
        "default request value {0} is greater than max value {1}",
    ),
    ("defaultRequest", "defaultRequest", "default", _OVER_LIMIT),
    ("default", "min", "default", "min value {0} is greater than default value {1}"),
    ("default", "default", "max", "default value {0} is greater than max value {1}"),
)
_MEMBERS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _default(document: Document) -> None:
    """Containers: what is not said about a default follows from the maximum, the default limit and
    the minimum.
    """
    for item in document.setdefault("spec", {}).setdefault("limits", []):
        for member in _LIMIT_MEMBERS:
            if item.get(member):
                item[member] = {name: str(item[member][name]) for name in sorted(item[member])}
        if item.get("type") != "Container":
            continue
        limit = {**item.get("max", {}), **item.get("default", {})}
        request = {**item.get("min", {}), **limit, **item.get("defaultRequest", {})}
        for member, amounts in (("default", limit), ("defaultRequest", request)):
            if amounts:
                item[member] = dict(sorted(amounts.items()))


def _validate(_path: str, document: Document) -> FieldErrors:
    seen: set[str] = set()

    def item_errors(path: str, item: Document) -> FieldErrors:
        kind = item.get("type", "")
        errors = _named(f"{path}.type", kind, "limit", is_standard=kind in TYPES)
        return errors + check_unique(f"{path}.type", kind, seen, "") + _item(path, kind, item)

    return each("spec.limits", document.get("spec", {}).get("limits", ()), item_errors)


def _named(path: str, name: str, noun: str, *, is_standard: bool) -> FieldErrors:
    """Checks that *name* is a standard one or has a domain."""
    errors = of_form(path, name, check_qualified_name)
    if errors or "/" in name or is_standard:
        return errors
    return [invalid_value(path, name, f"must be a standard {noun} type or fully qualified")]


def _item(path: str, kind: str, item: Document) -> FieldErrors:
    errors: FieldErrors = []
    names: dict[str, None] = {}
    for member in _MEMBERS:
        if kind == "Pod" and member in ("default", "defaultRequest"):
            if item.get(member):
                errors.append(forbidden_field(f"{path}.{member}", _NO_DEFAULT))
            continue
        for name in until_error_limit(errors, item.get(member, {})):
            is_standard = name in _COMPUTE or name.startswith(_HUGE_PAGES)
            errors += _named(f"{path}.{member}[{name}]", name, "resource", is_standard=is_standard)
            names[name] = None
    if kind == "PersistentVolumeClaim" and not any(
        "storage" in item.get(member, {}) for member in ("min", "max")
    ):
        detail = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(f"{path}.limits", detail))
    for name in until_error_limit(errors, sorted(names)):
        errors += _amounts(path, item, name)
    return errors


def _amounts(path: str, item: Document, name: str) -> FieldErrors:
    quantities = {member: item[member][name] for member in _MEMBERS if name in item.get(member, {})}
    errors = [
        invalid_value(
            f"{path}.{at}[{name}]", quantities[at], text.format(quantities[low], quantities[high])
        )
        for at, low, high, text in _ORDER
        if low in quantities
        and high in quantities
        and amount(quantities[low]) > amount(quantities[high])
    ]
    ratio = quantities.get("maxLimitRequestRatio")
    if ratio is None:
        return errors
    where = f"{path}.maxLimitRequestRatio[{name}]"
    if amount(ratio) < 1:
        errors.append(invalid_value(where, ratio, f"ratio {ratio} is less than 1"))
    low = amount(quantities.get("min", 0))
    high = amount(quantities.get("max", 0))
    if low > 0 and high > 0 and amount(ratio) > high / low:
        detail = f"ratio {ratio} is greater than max/min = {float(high / low):f}"
        errors.append(invalid_value(where, ratio, detail))
    return errors


LIMIT_RANGE: Final = kind.Kind(
    resource=LimitRanges, defaults=_default, rules=Rules(_validate), quota=kind.Quota()
)
