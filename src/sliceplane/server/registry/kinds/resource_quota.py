"""ResourceQuota: which names may be limited, by what amounts and of which objects (kubernetes.io, Resource Quotas)."""

from __future__ import annotations

from functools import cache
from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import ResourceQuotas
from sliceplane.kit.names import check_qualified_name
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, mapping, name_of
from sliceplane.server.registry.kinds import kind, pod_quota
from sliceplane.server.registry.metadata import IMMUTABLE

COUNT_PREFIX: Final = "count/"
_CONFLICTING: Final = (frozenset(("BestEffort", "NotBestEffort")), frozenset(("Terminating", "NotTerminating")))
#: what operators ask of ``values``
_WITH_VALUES: Final = ("In", "NotIn")
_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")
_SELECTING_SCOPE: Final = "PriorityClass"
#: stands for every scope that there is not
_UNKNOWN: Final = ""


def _default(document: Document) -> None:
    """Quantities are texts, also where a client wrote a number."""
    document.setdefault("spec", {})
    for part, member in (("spec", "hard"), ("status", "hard"), ("status", "used")):
        amounts = document.get(part, {}).get(member)
        if amounts:
            document[part][member] = {name: str(amounts[name]) for name in sorted(amounts)}


@cache
def _standard() -> frozenset[str]:
    """Names without a slash that may be limited."""
    from sliceplane.server.registry.kinds import (
        COUNTABLE,  # not before the table of kinds is there, which has this one, too
    )

    return frozenset(name for name in COUNTABLE if not name.startswith(COUNT_PREFIX))


def _is_whole(name: str) -> bool:
    """Whether parts of one cannot be had."""
    return "/" in name or (name in _standard() and name not in pod_quota.NAMES[1:] and name != "requests.storage")


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document.get("spec", {})
    hard: Document = spec.get("hard", {})
    errors = _amount_errors("spec.hard", hard)
    scopes: list[str] = spec.get("scopes", [])
    selectors: list[Document] = spec.get("scopeSelector", {}).get("matchExpressions", [])
    if not scopes and not selectors:
        return errors
    # Each list is looked at once, and its complaints are told once: they show the whole list.
    problems = {scope: _scope_problems(scope, hard) for scope in (*pod_quota.SCOPES, _UNKNOWN)}
    told = dict.fromkeys(problem for scope in dict.fromkeys(map(_known, scopes)) for problem in problems[scope])
    if _conflict(scopes):
        told["conflicting scopes"] = None
    errors += [invalid_value("spec.scopes", scopes, problem) for problem in told]
    where = "spec.scopeSelector.matchExpressions"
    for selector in while_few(errors, selectors):
        scope = selector.get("scopeName", "")
        errors += [invalid_value(f"{where}.scopeName", scope, problem) for problem in problems[_known(scope)]]
        errors += _selector_errors(where, selector)
    if _conflict([selector.get("scopeName", "") for selector in selectors]):
        errors.append(invalid_value(where, scopes, "conflicting scopes"))
    return errors


def _known(scope: str) -> str:
    return scope if scope in pod_quota.SCOPES else _UNKNOWN


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors = _validate(new)
    scopes, before = (document.get("spec", {}).get("scopes", []) for document in (new, old))
    if set(scopes) != set(before):
        errors.append(invalid_value("spec.scopes", scopes, IMMUTABLE))
    return errors


def _validate_status(new: Document, _old: Document) -> list[FieldError]:
    status: Document = new.get("status", {})
    return [error for part in ("hard", "used") for error in _amount_errors(f"status.{part}", status.get(part, {}))]


def _amount_errors(where: str, amounts: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, quantity in while_few(errors, amounts.items()):
        path = f"{where}[{name}]"
        errors += _name_errors(path, name)
        value = amount(quantity)
        if value < 0:
            errors.append(invalid_value(path, quantity, "must be greater than or equal to 0"))
        if _is_whole(name) and value % 1:
            errors.append(invalid_value(path, quantity, "must be an integer"))
    return errors


def _name_errors(path: str, name: str) -> list[FieldError]:
    errors = [invalid_value(path, name, problem) for problem in check_qualified_name(name)]
    if "/" not in name and name not in _standard() and not pod_quota.counts(name):
        errors.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid_value(path, name, "must be a standard resource for quota"))
    return errors


def _scope_problems(scope: str, hard: Document) -> list[str]:
    problems = ["unsupported scope"] if scope == _UNKNOWN else []
    allowed = {_UNKNOWN: frozenset[str](), pod_quota.BEST_EFFORT: frozenset(("pods",))}.get(
        scope, pod_quota.SCOPED_NAMES
    )
    if any(name in _standard() and name not in allowed for name in hard):
        problems.append("unsupported scope applied to resource")
    return problems


def _selector_errors(path: str, selector: Document) -> list[FieldError]:
    scope, operator = selector.get("scopeName", ""), selector.get("operator", "")
    values: list[str] = selector.get("values", [])
    errors: list[FieldError] = []
    if scope in pod_quota.SCOPES and scope != _SELECTING_SCOPE and operator != "Exists":
        every = ", ".join(f"ResourceQuotaScope{name}" for name in pod_quota.SCOPES[:4])
        detail = f"must be 'Exist' when scope is any of {every} or ResourceQuotaScopeCrossNamespacePodAffinity"
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if operator in _WITH_VALUES:
        if not values:
            detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            errors.append(required(f"{path}.values", detail))
    elif operator in _WITHOUT_VALUES:
        if values:
            detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            errors.append(invalid_value(f"{path}.values", values, detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    return errors


def _conflict(scopes: list[str]) -> bool:
    return any(pair <= set(scopes) for pair in _CONFLICTING)


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
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    status=kind.beside_spec(kind.empty_status, _validate_status),
    parts=kind.NO_PARTS,
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
