"""Rules of the members of a Pod's spec that a scheduler reads: tolerations, affinity, topology
spread, gates.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go). Each step costs time in proportion to the body: repeated
names are found with sets.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sliceplane.api.errors import (
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import (
    check_dns_label,
    check_dns_subdomain,
    check_label_value,
    check_qualified_name,
)
from sliceplane.server.registry.metadata import (
    check_label_selector,
    check_requirement,
    check_requirement_and_values,
    in_go,
)
from sliceplane.server.registry.validation.rules import (
    Field,
    Rules,
    among,
    check_unique,
    each,
    each_of_form,
    of_form,
)

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_INCLUSION: Final = ("Honor", "Ignore")
_COMPARING: Final = ("Lt", "Gt")
_REQUIRED_TERMS: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_TERMS: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_POSITIVE: Final = "must be greater than zero"
_BOTH: Final = "exists in both matchLabelKeys and labelSelector"


def check_tolerations(path: str, tolerations: list[Document]) -> FieldErrors:
    return each(path, tolerations, _toleration)


def _toleration(path: str, toleration: Document) -> FieldErrors:
    key: str = toleration.get("key", "")
    operator: str = toleration.get("operator", "")
    effect: str = toleration.get("effect", "")
    errors = of_form(f"{path}.key", key, check_qualified_name) if key else []
    if not key and operator != "Exists":
        detail = (
            'operator must be Exists when `key` is empty, which means "match all values and all '
            'keys"'
        )
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(f"{path}.effect", effect, detail))
    errors += _toleration_value(path, operator, toleration.get("value", ""))
    return errors + among(f"{path}.effect", effect, EFFECTS) if effect else errors


def _toleration_value(path: str, operator: str, value: str) -> FieldErrors:
    where = f"{path}.operator"
    if operator in ("", "Equal"):
        problems = check_label_value(value)
        return [invalid_value(where, value, ";".join(problems))] if problems else []
    if operator == "Exists":
        return (
            [invalid_value(where, value, "value must be empty when `operator` is 'Exists'")]
            if value
            else []
        )
    # The gate TaintTolerationComparisonOperators is off, as upstream's default is.
    operators = ("Equal", "Exists", *(_COMPARING if operator in _COMPARING else ()))
    return [not_supported(where, operator, operators)]


def _weight(path: str, term: Document) -> FieldErrors:
    weight = term.get("weight", 0)
    return (
        []
        if 0 < weight <= 100
        else [invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]
    )


def _node_requirement(path: str, requirement: Document) -> FieldErrors:
    return check_requirement(path, requirement, of_node=True)


def _values_too(path: str, requirement: Document) -> FieldErrors:
    return check_requirement_and_values(path, requirement, of_node=True)


def _node_field(path: str, requirement: Document) -> FieldErrors:
    operator = requirement.get("operator", "")
    key = requirement.get("key", "")
    values: list[str] = requirement.get("values", [])
    errors: FieldErrors = []
    if operator not in ("In", "NotIn"):
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(f"{path}.values", detail))
    if key != "metadata.name":
        return [*errors, invalid_value(f"{path}.key", key, "not a valid field selector key")]
    return errors + each_of_form(f"{path}.values", values, check_dns_subdomain)


def _namespaces(path: str, term: Document) -> FieldErrors:
    """As upstream: the member is named as if it were one."""
    errors: FieldErrors = []
    for name in until_error_limit(errors, term.get("namespaces", ())):
        errors += of_form(f"{path}.namespace", name, check_dns_label)
    return errors


def _label_keys(path: str, term: Document) -> FieldErrors:
    """``matchLabelKeys`` and ``mismatchLabelKeys``, which add to the selector when the Pod is
    created.
    """
    errors: FieldErrors = []
    selector = term.get("labelSelector")
    for member in ("matchLabelKeys", "mismatchLabelKeys"):
        keys: list[str] = term.get(member, [])
        if keys and selector is None:
            errors.append(
                forbidden_field(
                    f"{path}.{member}", "must not be specified when labelSelector is not set"
                )
            )
            continue
        errors += each_of_form(f"{path}.{member}", keys, check_qualified_name)
    positions = {key: index for index, key in enumerate(term.get("matchLabelKeys", ()))}
    seen = set((selector or {}).get("matchLabels", ()))
    for expression in until_error_limit(errors, (selector or {}).get("matchExpressions", ())):
        key = expression.get("key", "")
        if key in positions and key in seen:
            errors.append(invalid_value(f"{path}[{positions[key]}]", key, _BOTH))
        seen.add(key)
    mismatched = set(term.get("mismatchLabelKeys", ()))
    for index, key in until_error_limit(errors, enumerate(term.get("matchLabelKeys", ()))):
        if key in mismatched:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(invalid_value(f"{path}.matchLabelKeys[{index}]", key, detail))
    return errors


_TERM_WITHOUT_VALUES: Final = Rules(
    Field("matchExpressions", rows=_node_requirement), Field("matchFields", rows=_node_field)
)
check_node_selector: Final = Rules(
    Field(
        "nodeSelectorTerms",
        required="must have at least one node selector term",
        rows=Rules(
            Field("matchExpressions", rows=_values_too), Field("matchFields", rows=_node_field)
        ),
    )
)
_TOPOLOGY_KEY: Final = "can not be empty"
_POD_TERM: Final = Rules(
    Field("labelSelector", rows=check_label_selector),
    Field("namespaceSelector", rows=check_label_selector),
    _namespaces,
    _label_keys,
    Field("topologyKey", required=_TOPOLOGY_KEY),
    Field("topologyKey", form=check_qualified_name, always=True),
)
_PODS: Final = Rules(
    Field(_REQUIRED_TERMS, rows=_POD_TERM),
    Field(
        _PREFERRED_TERMS,
        rows=Rules(
            _weight,
            lambda path, term: _POD_TERM(
                f"{path}.podAffinityTerm", term.get("podAffinityTerm", {})
            ),
        ),
    ),
)
check_affinity: Final = Rules(
    Field(
        "nodeAffinity",
        rows=Rules(
            Field(_REQUIRED_TERMS, rows=check_node_selector),
            Field(
                _PREFERRED_TERMS,
                rows=Rules(_weight, Field("preference", rows=_TERM_WITHOUT_VALUES)),
            ),
        ),
    ),
    Field("podAffinity", rows=_PODS),
    Field("podAntiAffinity", rows=_PODS),
)


def check_topology_spread(path: str, constraints: list[Document]) -> FieldErrors:
    # Pairs that come again later: a count avoids comparing each constraint with all that follow.
    following = Counter(map(_spread_pair, constraints))

    def constraint_errors(where: str, constraint: Document) -> FieldErrors:
        pair = _spread_pair(constraint)
        following[pair] -= 1
        return _spread(where, constraint, repeated=following[pair] > 0)

    return each(path, constraints, constraint_errors)


def _spread_pair(constraint: Document) -> tuple[Any, Any]:
    return constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")


def _spread(path: str, constraint: Document, *, repeated: bool) -> FieldErrors:
    skew = constraint.get("maxSkew", 0)
    topology, action = _spread_pair(constraint)
    errors = [] if skew > 0 else [invalid_value(f"{path}.maxSkew", skew, _POSITIVE)]
    if not topology:
        errors.append(required(f"{path}.topologyKey", _TOPOLOGY_KEY))
    errors += among(f"{path}.whenUnsatisfiable", action, _ACTIONS)
    if repeated:
        errors.append(
            duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{topology}, {action}}}")
        )
    errors += _MIN_DOMAINS(path, constraint)
    if action != "DoNotSchedule" and constraint.get("minDomains") is not None:
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        errors.append(invalid_value(f"{path}.minDomains", constraint["minDomains"], detail))
    return errors + _SPREAD(path, constraint)


_MIN_DOMAINS: Final = Rules(Field("minDomains", minimum=1, detail=_POSITIVE))
_SPREAD: Final = Rules(
    Field("nodeAffinityPolicy", choices=_INCLUSION),
    Field("nodeTaintsPolicy", choices=_INCLUSION),
    lambda path, constraint: _label_keys(
        path, {name: constraint[name] for name in constraint if name != "mismatchLabelKeys"}
    ),
    Field("labelSelector", rows=check_label_selector),
)


def check_gates(path: str, gates: list[Document]) -> FieldErrors:
    """``schedulingGates`` (KEP-3521)."""
    seen: set[str] = set()

    def gate_errors(where: str, gate: Document) -> FieldErrors:
        name = gate.get("name", "")
        return of_form(where, name, check_qualified_name) + check_unique(where, name, seen)

    return each(path, gates, gate_errors)


def check_narrowed(path: str, new: Document, old: Document) -> FieldErrors:
    """The node affinity of a gated Pod (KEP-3838): terms stay, and only get further
    requirements.
    """
    terms: list[Document] = (
        old.get("nodeAffinity", {}).get(_REQUIRED_TERMS, {}).get("nodeSelectorTerms", [])
    )
    now: list[Document] = (
        new.get("nodeAffinity", {}).get(_REQUIRED_TERMS, {}).get("nodeSelectorTerms", [])
    )
    where = f"{path}.nodeAffinity.{_REQUIRED_TERMS}.nodeSelectorTerms"
    if terms and len(terms) != len(now):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid_value(where, [_render_term(term) for term in now] or None, detail)]
    detail = "only additions are allowed (no mutations or deletions)"
    return [
        invalid_value(f"{where}[{index}]", _render_term(term), detail)
        for index, (term, had) in enumerate(zip(now, terms, strict=False))
        if not _only_grew(term, had)
    ]


def _only_grew(term: Document, had: Document) -> bool:
    lists = ("matchExpressions", "matchFields")
    if not any(had.get(member) for member in lists):
        return not any(term.get(member) for member in lists)
    return all(
        term.get(member, [])[: len(had.get(member, []))] == had.get(member, []) for member in lists
    )


def _render_term(term: Document) -> Document:
    return {
        f"Match{kind}": [
            in_go(one, "key", "operator", "values", key="", operator="")
            for one in term[f"match{kind}"]
        ]
        if f"match{kind}" in term
        else None
        for kind in ("Expressions", "Fields")
    }
