"""ResourceQuota: which names may be limited, and by what amounts (reference B15)."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, while_few
from sliceplane.api.meta import Document
from sliceplane.api.quota import COUNT_PREFIX, COUNTABLE, amount
from sliceplane.kit.names import check_qualified_name

_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_STANDARD: Final = frozenset(
    (
        *(name for name in COUNTABLE if not name.startswith(COUNT_PREFIX)),
        *_COMPUTE,
        *(f"{prefix}.{name}" for prefix in ("requests", "limits") for name in _COMPUTE),
        "requests.storage",
    )
)
_HUGE_PAGES: Final = ("hugepages-", "requests.hugepages-")
_NO_SCOPES: Final = "quotas with scopes are not served: a quota counts all objects of a kind"


def validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    for name, quantity in while_few(errors, spec.get("hard", {}).items()):
        path = f"spec.hard[{name}]"
        errors += _name(path, name)
        value = amount(quantity)
        if value < 0:
            errors.append(invalid_value(path, quantity, "must be greater than or equal to 0"))
        if ("/" in name or name in COUNTABLE) and value % 1:
            errors.append(invalid_value(path, quantity, "must be an integer"))
    # Better to refuse than to count what was not meant.
    errors += [
        forbidden_field(f"spec.{member}", _NO_SCOPES) for member in ("scopes", "scopeSelector") if spec.get(member)
    ]
    return errors


def validate_update(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    return validate(new)


def _name(path: str, name: str) -> list[FieldError]:
    errors = [invalid_value(path, name, problem) for problem in check_qualified_name(name)]
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
        errors.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid_value(path, name, "must be a standard resource for quota"))
    return errors
