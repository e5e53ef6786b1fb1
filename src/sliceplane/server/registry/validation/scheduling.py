"""Rules of the members of a Pod's spec that a scheduler reads: tolerations, affinity, topology spread, gates.

The messages and the order of complaints are those of Kubernetes (pkg/apis/core/validation/validation.go).  Each step
costs time in proportion to the body: repeated names are found with sets.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

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
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_label_value, check_qualified_name
from sliceplane.server.registry.metadata import check_label_selector, in_go

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_INCLUSION: Final = ("Honor", "Ignore")
_COMPARING: Final = ("Lt", "Gt")
_REQUIRED_TERMS: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_TERMS: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_POSITIVE: Final = "must be greater than zero"
_BOTH: Final = "exists in both matchLabelKeys and labelSelector"


def check_tolerations(path: str, tolerations: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in while_few(errors, enumerate(tolerations)):
        errors += _toleration(f"{path}[{index}]", toleration)
    return errors


def _toleration(path: str, toleration: Document) -> list[FieldError]:
    key: str = toleration.get("key", "")
    operator: str = toleration.get("operator", "")
    effect: str = toleration.get("effect", "")
    errors = _label_name(f"{path}.key", key) if key else []
    if not key and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(f"{path}.effect", effect, detail))
    errors += _toleration_value(path, operator, toleration.get("value", ""))
    if effect and effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


def _toleration_value(path: str, operator: str, value: str) -> list[FieldError]:
    where = f"{path}.operator"
    if operator in ("", "Equal"):
        problems = check_label_value(value)
        return [invalid_value(where, value, ";".join(problems))] if problems else []
    if operator == "Exists":
        return [invalid_value(where, value, "value must be empty when `operator` is 'Exists'")] if value else []
    # The gate TaintTolerationComparisonOperators is off, as upstream's default is.
    known = ("Equal", "Exists", *(_COMPARING if operator in _COMPARING else ()))
    return [not_supported(where, operator, known)]


def check_affinity(path: str, affinity: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    nodes: Document = affinity.get("nodeAffinity", {})
    where = f"{path}.nodeAffinity"
    if _REQUIRED_TERMS in nodes:
        errors += check_node_selector(f"{where}.{_REQUIRED_TERMS}", nodes[_REQUIRED_TERMS])
    for index, term in while_few(errors, enumerate(nodes.get(_PREFERRED_TERMS, ()))):
        at = f"{where}.{_PREFERRED_TERMS}[{index}]"
        errors += _weight(at, term)
        errors += _node_term(f"{at}.preference", term.get("preference", {}), values=False)
    for member in ("podAffinity", "podAntiAffinity"):
        pods: Document = affinity.get(member, {})
        for index, term in while_few(errors, enumerate(pods.get(_REQUIRED_TERMS, ()))):
            errors += _pod_term(f"{path}.{member}.{_REQUIRED_TERMS}[{index}]", term)
        for index, term in while_few(errors, enumerate(pods.get(_PREFERRED_TERMS, ()))):
            at = f"{path}.{member}.{_PREFERRED_TERMS}[{index}]"
            errors += _weight(at, term)
            errors += _pod_term(f"{at}.podAffinityTerm", term.get("podAffinityTerm", {}))
    return errors


def check_node_selector(path: str, selector: Document) -> list[FieldError]:
    terms: list[Document] = selector.get("nodeSelectorTerms", [])
    if not terms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    errors: list[FieldError] = []
    for index, term in while_few(errors, enumerate(terms)):
        errors += _node_term(f"{path}.nodeSelectorTerms[{index}]", term, values=True)
    return errors


def _weight(path: str, term: Document) -> list[FieldError]:
    weight = term.get("weight", 0)
    return [] if 0 < weight <= 100 else [invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]


def _node_term(path: str, term: Document, *, values: bool) -> list[FieldError]:
    """*values*: label values are checked, too."""
    errors: list[FieldError] = []
    for index, requirement in while_few(errors, enumerate(term.get("matchExpressions", ()))):
        errors += _node_requirement(f"{path}.matchExpressions[{index}]", requirement, values=values)
    for index, requirement in while_few(errors, enumerate(term.get("matchFields", ()))):
        errors += _node_field(f"{path}.matchFields[{index}]", requirement)
    return errors


def _node_requirement(path: str, requirement: Document, *, values: bool) -> list[FieldError]:
    operator = requirement.get("operator", "")
    given: list[str] = requirement.get("values", [])
    errors: list[FieldError] = []
    if operator in ("In", "NotIn"):
        if not given:
            errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if given:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden_field(f"{path}.values", detail))
    elif operator in ("Gt", "Lt"):
        if len(given) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    errors += _label_name(f"{path}.key", requirement.get("key", ""))
    for index, value in while_few(errors, enumerate(given if values else ())):
        errors += [invalid_value(f"{path}.values[{index}]", value, problem) for problem in check_label_value(value)]
    return errors


def _node_field(path: str, requirement: Document) -> list[FieldError]:
    operator = requirement.get("operator", "")
    key = requirement.get("key", "")
    given: list[str] = requirement.get("values", [])
    errors: list[FieldError] = []
    if operator not in ("In", "NotIn"):
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(given) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(f"{path}.values", detail))
    if key != "metadata.name":
        return [*errors, invalid_value(f"{path}.key", key, "not a valid field selector key")]
    for index, value in while_few(errors, enumerate(given)):
        errors += [invalid_value(f"{path}.values[{index}]", value, problem) for problem in check_dns_subdomain(value)]
    return errors


def _pod_term(path: str, term: Document) -> list[FieldError]:
    topology = term.get("topologyKey", "")
    errors = check_label_selector(f"{path}.labelSelector", term.get("labelSelector"))
    errors += check_label_selector(f"{path}.namespaceSelector", term.get("namespaceSelector"))
    for name in while_few(errors, term.get("namespaces", ())):
        errors += [invalid_value(f"{path}.namespace", name, problem) for problem in check_dns_label(name)]
    errors += _label_keys(path, term)
    if not topology:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return errors + _label_name(f"{path}.topologyKey", topology)


def _label_keys(path: str, term: Document) -> list[FieldError]:
    """``matchLabelKeys`` and ``mismatchLabelKeys``, which add to the selector when the Pod is created."""
    errors: list[FieldError] = []
    selector = term.get("labelSelector")
    for member in ("matchLabelKeys", "mismatchLabelKeys"):
        keys: list[str] = term.get(member, [])
        if keys and selector is None:
            errors.append(forbidden_field(f"{path}.{member}", "must not be specified when labelSelector is not set"))
            continue
        for index, key in while_few(errors, enumerate(keys)):
            errors += _label_name(f"{path}.{member}[{index}]", key)
    positions = {key: index for index, key in enumerate(term.get("matchLabelKeys", ()))}
    seen = set((selector or {}).get("matchLabels", ()))
    for expression in while_few(errors, (selector or {}).get("matchExpressions", ())):
        key = expression.get("key", "")
        if key in positions and key in seen:
            errors.append(invalid_value(f"{path}[{positions[key]}]", key, _BOTH))
        seen.add(key)
    mismatched = set(term.get("mismatchLabelKeys", ()))
    for index, key in while_few(errors, enumerate(term.get("matchLabelKeys", ()))):
        if key in mismatched:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(invalid_value(f"{path}.matchLabelKeys[{index}]", key, detail))
    return errors


def check_topology_spread(path: str, constraints: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    # Pairs that come again later: a count avoids comparing each constraint with all that follow.
    following = Counter(map(_spread_pair, constraints))
    for index, constraint in while_few(errors, enumerate(constraints)):
        pair = _spread_pair(constraint)
        following[pair] -= 1
        errors += _spread(f"{path}[{index}]", constraint, repeated=following[pair] > 0)
    return errors


def _spread_pair(constraint: Document) -> tuple[Any, Any]:
    return constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")


def _spread(path: str, constraint: Document, *, repeated: bool) -> list[FieldError]:
    skew = constraint.get("maxSkew", 0)
    topology, action = _spread_pair(constraint)
    errors = [] if skew > 0 else [invalid_value(f"{path}.maxSkew", skew, _POSITIVE)]
    if not topology:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    if action not in _ACTIONS:
        errors.append(not_supported(f"{path}.whenUnsatisfiable", action, _ACTIONS))
    if repeated:
        errors.append(duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{topology}, {action}}}"))
    domains = constraint.get("minDomains")
    if domains is not None and domains <= 0:
        errors.append(invalid_value(f"{path}.minDomains", domains, _POSITIVE))
    if domains is not None and action != "DoNotSchedule":
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        errors.append(invalid_value(f"{path}.minDomains", domains, detail))
    for member in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(member)
        if policy is not None and policy not in _INCLUSION:
            errors.append(not_supported(f"{path}.{member}", policy, _INCLUSION))
    errors += _label_keys(path, {name: constraint[name] for name in constraint if name != "mismatchLabelKeys"})
    return errors + check_label_selector(f"{path}.labelSelector", constraint.get("labelSelector"))


def check_gates(path: str, gates: list[Document]) -> list[FieldError]:
    """``schedulingGates`` (KEP-3521)."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, gate in while_few(errors, enumerate(gates)):
        name = gate.get("name", "")
        errors += _label_name(f"{path}[{index}]", name)
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return errors


def _label_name(path: str, name: str) -> list[FieldError]:
    return [invalid_value(path, name, problem) for problem in check_qualified_name(name)]


def check_narrowed(path: str, new: Document, old: Document) -> list[FieldError]:
    """The node affinity of a gated Pod (KEP-3838): terms stay, and only get further requirements."""
    terms: list[Document] = old.get("nodeAffinity", {}).get(_REQUIRED_TERMS, {}).get("nodeSelectorTerms", [])
    now: list[Document] = new.get("nodeAffinity", {}).get(_REQUIRED_TERMS, {}).get("nodeSelectorTerms", [])
    where = f"{path}.nodeAffinity.{_REQUIRED_TERMS}.nodeSelectorTerms"
    if terms and len(terms) != len(now):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid_value(where, [_shown_term(term) for term in now] or None, detail)]
    detail = "only additions are allowed (no mutations or deletions)"
    return [
        invalid_value(f"{where}[{index}]", _shown_term(term), detail)
        for index, (term, had) in enumerate(zip(now, terms, strict=False))
        if not _only_grew(term, had)
    ]


def _only_grew(term: Document, had: Document) -> bool:
    lists = ("matchExpressions", "matchFields")
    if not any(had.get(member) for member in lists):
        return not any(term.get(member) for member in lists)
    return all(term.get(member, [])[: len(had.get(member, []))] == had.get(member, []) for member in lists)


def _shown_term(term: Document) -> Document:
    return {
        f"Match{kind}": [in_go(one, "key", "operator", "values", key="", operator="") for one in term[f"match{kind}"]]
        if f"match{kind}" in term
        else None
        for kind in ("Expressions", "Fields")
    }
