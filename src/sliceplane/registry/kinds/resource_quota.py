"""ResourceQuota: which names may be limited and by what amounts, and what is used (kubernetes.io, Resource Quotas)."""

from __future__ import annotations

from functools import cache
from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, while_few
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import ResourceQuotas
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, mapping, name_of
from sliceplane.kit.names import check_qualified_name
from sliceplane.registry.kinds import kind

COUNT_PREFIX: Final = "count/"
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES: Final = ("hugepages-", "requests.hugepages-")
_NO_SCOPES: Final = "quotas with scopes are not served: a quota counts all objects of a kind"


def _default(document: Document) -> None:
    """Quantities are texts, also where a client wrote a number."""
    document.setdefault("spec", {})
    for part, member in (("spec", "hard"), ("status", "hard"), ("status", "used")):
        amounts = document.get(part, {}).get(member)
        if amounts:
            document[part][member] = {name: str(amounts[name]) for name in sorted(amounts)}


@cache
def _countable() -> frozenset[str]:
    from sliceplane.registry.kinds import COUNTABLE  # not before the table of kinds is there, which has this one, too

    return frozenset(COUNTABLE)


@cache
def _standard() -> frozenset[str]:
    older = (name for name in _countable() if not name.startswith(COUNT_PREFIX))
    amounts = (f"{prefix}.{name}" for prefix in ("requests", "limits") for name in _COMPUTE)
    return frozenset((*older, *_COMPUTE, *amounts, "requests.storage"))


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    errors: list[FieldError] = []
    for name, quantity in while_few(errors, spec.get("hard", {}).items()):
        path = f"spec.hard[{name}]"
        errors += _name_errors(path, name)
        value = amount(quantity)
        if value < 0:
            errors.append(invalid_value(path, quantity, "must be greater than or equal to 0"))
        if ("/" in name or name in _countable()) and value % 1:
            errors.append(invalid_value(path, quantity, "must be an integer"))
    # Better to refuse than to count what was not meant.
    errors += [
        forbidden_field(f"spec.{member}", _NO_SCOPES) for member in ("scopes", "scopeSelector") if spec.get(member)
    ]
    return errors


def _name_errors(path: str, name: str) -> list[FieldError]:
    errors = [invalid_value(path, name, problem) for problem in check_qualified_name(name)]
    if "/" not in name and name not in _standard() and not name.startswith(_HUGE_PAGES):
        errors.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid_value(path, name, "must be a standard resource for quota"))
    return errors


def _cells(quota: Document, now: float) -> tuple[Cell, ...]:
    used = mapping(quota, "status", "used")
    requests: list[str] = []
    limits: list[str] = []
    for resource, hard in sorted(mapping(quota, "status", "hard").items()):
        shown = f"{resource}: {used.get(resource, 0)}/{hard}"
        (limits if resource.startswith("limits.") else requests).append(shown)
    return name_of(quota), ", ".join(requests), ", ".join(limits), age(quota, now)


RESOURCE_QUOTA: Final = kind.Kind(
    resource=ResourceQuotas,
    defaults=_default,
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=kind.as_new(_validate),
    warnings=kind.no_warnings,
    status=kind.EMPTY_STATUS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.counted_as(ResourceQuotas.plural),
    granted=kind.viewed("status"),
    columns=Printer(
        (
            NAME,
            Column(name="Request", description="Used and allowed amounts of everything but limits."),
            Column(name="Limit", description="Used and allowed amounts of limits."),
            AGE,
        ),
        _cells,
    ),
)
