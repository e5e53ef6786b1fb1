"""Decides which nodes a Pod may be on: its node selector, the required part of its node affinity,
taints and tolerations.

As the page "Assigning Pods to Nodes" of kubernetes.io has it: terms of an affinity are
alternatives, the requirements of a term must all hold, and a term without any selects nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.core import (
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    Taint,
    Toleration,
)
from sliceplane.kit.integers import NotAnInteger, parse_int64

NODE_NAME_FIELD: Final = "metadata.name"
UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def is_selected(spec: PodSpec, node: Node) -> bool:
    """Node selector and required node affinity want *node*, or do not mind it."""
    labels = node.metadata.labels or {}
    if not (spec.node_selector or {}).items() <= labels.items():
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = (
        affinity.required_during_scheduling_ignored_during_execution
        if affinity is not None
        else None
    )
    return required is None or any(
        _matches(term, node) for term in required.node_selector_terms or ()
    )


def _matches(term: NodeSelectorTerm, node: Node) -> bool:
    labels = node.metadata.labels or {}
    fields = {NODE_NAME_FIELD: node.metadata.name}
    expressions = term.match_expressions or ()
    field_requirements = term.match_fields or ()
    return bool(expressions or field_requirements) and (
        all(_is_met(requirement, labels) for requirement in expressions)
        and all(_is_met(requirement, fields) for requirement in field_requirements)
    )


def _is_met(requirement: NodeSelectorRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            try:
                number = parse_int64(value)
                bound = parse_int64(values[0])
            except NotAnInteger:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound
    return False


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.operator == "Exists" or toleration.value == taint.value)
        for toleration in tolerations
    )


def eviction_delay_s(tolerations: Iterable[Toleration], taint: Taint) -> float | None:
    """Seconds for which a Pod stays on a node after it got *taint*, whose effect is NoExecute;
    ``None``: for ever.
    """
    used = [toleration for toleration in tolerations if tolerates((toleration,), taint)]
    bounds = [
        toleration.toleration_seconds
        for toleration in used
        if toleration.toleration_seconds is not None
    ]
    if not used:
        return 0.0
    return max(min(bounds), 0) if bounds else None


def repels(node: Node, tolerations: Iterable[Toleration], effects: tuple[str, ...]) -> bool:
    """A taint of *effects* that is not tolerated."""
    tolerated = tuple(tolerations)
    return any(
        taint.effect in effects and not tolerates(tolerated, taint)
        for taint in node.spec.taints or ()
    )


def target_node(spec: PodSpec) -> str:
    """The node that the Pod is on, or the one that its affinity names alone; "" if there is no such
    node.
    """
    if spec.node_name:
        return spec.node_name
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = (
        affinity.required_during_scheduling_ignored_during_execution
        if affinity is not None
        else None
    )
    for term in (required.node_selector_terms or ()) if required is not None else ():
        for requirement in term.match_fields or ():
            if (
                requirement.key == NODE_NAME_FIELD
                and requirement.operator == "In"
                and len(requirement.values or ()) == 1
            ):
                return (requirement.values or ("",))[0]
    return ""
