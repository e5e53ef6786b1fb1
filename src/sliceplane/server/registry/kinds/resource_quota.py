"""ResourceQuota: which names may be limited, by what amounts and of which objects (kubernetes.io,
Resource Quotas).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value, required, until_error_limit
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import ResourceQuotas
from sliceplane.kit.names import check_qualified_name
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.pods import pod_quota
from sliceplane.server.registry.validation.rules import IMMUTABLE, NOT_NEGATIVE, Rules, of_form

COUNT_PREFIX: Final = "count/"
_CONFLICTING: Final = (
    frozenset(("BestEffort", "NotBestEffort")),
    frozenset(("Terminating", "NotTerminating")),
)
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
    """Returns True for names that are counted in whole numbers."""
    return "/" in name or (
        name in _standard() and name not in pod_quota.NAMES[1:] and name != "requests.storage"
    )


def _validate(_path: str, document: Document) -> FieldErrors:
    spec: Document = document.get("spec", {})
    hard: Document = spec.get("hard", {})
    errors = _amount_errors("spec.hard", hard)
    scopes: list[str] = spec.get("scopes", [])
    selectors: list[Document] = spec.get("scopeSelector", {}).get("matchExpressions", [])
    if not scopes and not selectors:
        return errors
    # Each list is checked once and each complaint reported once, as it quotes the whole list.
    problems = {scope: _scope_problems(scope, hard) for scope in (*pod_quota.SCOPES, _UNKNOWN)}
    complaints = dict.fromkeys(
        problem
        for scope in dict.fromkeys(map(_scope_or_unknown, scopes))
        for problem in problems[scope]
    )
    if _conflict(scopes):
        complaints["conflicting scopes"] = None
    errors += [invalid_value("spec.scopes", scopes, problem) for problem in complaints]
    where = "spec.scopeSelector.matchExpressions"
    for selector in until_error_limit(errors, selectors):
        scope = selector.get("scopeName", "")
        errors += of_form(
            f"{where}.scopeName", scope, lambda name: problems[_scope_or_unknown(name)]
        )
        errors += _selector_errors(where, selector)
    if _conflict([selector.get("scopeName", "") for selector in selectors]):
        errors.append(invalid_value(where, scopes, "conflicting scopes"))
    return errors


def _scope_or_unknown(scope: str) -> str:
    return scope if scope in pod_quota.SCOPES else _UNKNOWN


def _same_scopes(new: Document, old: Document) -> FieldErrors:
    scopes, before = (document.get("spec", {}).get("scopes", []) for document in (new, old))
    return [] if set(scopes) == set(before) else [invalid_value("spec.scopes", scopes, IMMUTABLE)]


def _validate_status(new: Document, _old: Document) -> FieldErrors:
    status: Document = new.get("status", {})
    return [
        error
        for part in ("hard", "used")
        for error in _amount_errors(f"status.{part}", status.get(part, {}))
    ]


def _amount_errors(where: str, amounts: Document) -> FieldErrors:
    errors: FieldErrors = []
    for name, quantity in until_error_limit(errors, amounts.items()):
        path = f"{where}[{name}]"
        errors += _name_errors(path, name)
        value = amount(quantity)
        if value < 0:
            errors.append(invalid_value(path, quantity, NOT_NEGATIVE))
        if _is_whole(name) and value % 1:
            errors.append(invalid_value(path, quantity, "must be an integer"))
    return errors


def _name_errors(path: str, name: str) -> FieldErrors:
    errors = of_form(path, name, check_qualified_name)
    if "/" not in name and name not in _standard() and not pod_quota.counts(name):
        errors.append(
            invalid_value(path, name, "must be a standard resource type or fully qualified")
        )
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


def _selector_errors(path: str, selector: Document) -> FieldErrors:
    scope, operator = selector.get("scopeName", ""), selector.get("operator", "")
    values: list[str] = selector.get("values", [])
    errors: FieldErrors = []
    if scope in pod_quota.SCOPES and scope != _SELECTING_SCOPE and operator != "Exists":
        every = ", ".join(f"ResourceQuotaScope{name}" for name in pod_quota.SCOPES[:4])
        detail = (
            f"must be 'Exist' when scope is any of {every} or "
            "ResourceQuotaScopeCrossNamespacePodAffinity"
        )
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if operator in _WITH_VALUES:
        if not values:
            detail = (
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            )
            errors.append(required(f"{path}.values", detail))
    elif operator in _WITHOUT_VALUES:
        if values:
            detail = (
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            )
            errors.append(invalid_value(f"{path}.values", values, detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    return errors


def _conflict(scopes: list[str]) -> bool:
    return any(pair <= set(scopes) for pair in _CONFLICTING)


def _amounts(*, limits: bool) -> Callable[[Document], str]:
    def render(quota: Document) -> str:
        used = mapping(quota, "status", "used")
        hard = sorted(mapping(quota, "status", "hard").items())
        return ", ".join(
            f"{name}: {used.get(name, 0)}/{amount}"
            for name, amount in hard
            if name.startswith("limits.") is limits
        )

    return render


RESOURCE_QUOTA: Final = kind.Kind(
    resource=ResourceQuotas,
    defaults=_default,
    rules=Rules(_validate),
    change_rules=_same_scopes,
    status=kind.Status(first=kind.empty_status, validate=_validate_status),
    quota=kind.counted_as(ResourceQuotas.plural),
    granted=kind.viewed("status"),
    columns=Printer(
        (
            NAME,
            Column(
                "Request",
                "Used and allowed amounts of everything but limits.",
                _amounts(limits=False),
            ),
            Column("Limit", "Used and allowed amounts of limits.", _amounts(limits=True)),
            AGE,
        )
    ),
)
