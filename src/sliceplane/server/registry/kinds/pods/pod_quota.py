"""The cost of a Pod under a ResourceQuota, the scopes that it is in, and what a quota requires its
author to specify (kubernetes.io, Resource Quotas; ``pkg/quota/v1/evaluator/core/pods.go``).

A Pod that is done costs nothing but ``count/pods``. As upstream: a quota of cpu or memory refuses
Pods that do not say how much they ask for; one of any other amount counts what is said.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Final, NamedTuple

from sliceplane.api.core import (
    Container,
    Pod,
    PodAffinity,
    PodSpec,
    ResourceQuotaSpec,
    ResourceRequirements,
    ScopedResourceSelectorRequirement,
)
from sliceplane.api.meta import Object
from sliceplane.api.quantity import amount, exact
from sliceplane.api.scheme import Pods
from sliceplane.server.registry.validation.resources import Amounts, total_amounts

DONE: Final = ("Failed", "Succeeded")
BEST_EFFORT: Final = "BestEffort"
#: of them the class of a Pod is made, and a quota of them must be spoken of
_VITAL: Final = ("cpu", "memory")
COMPUTE: Final = (*_VITAL, "ephemeral-storage")
REQUESTS: Final = "requests."
LIMITS: Final = "limits."
HUGE_PAGES: Final = "hugepages-"
NAMES: Final = (
    Pods.plural,
    *(prefix + name for prefix in ("", REQUESTS, LIMITS) for name in COMPUTE),
)
#: what a quota with a scope may limit besides counts (``pkg/apis/core/helper/helpers.go``)
SCOPED_NAMES: Final = frozenset(
    (Pods.plural, *(prefix + name for prefix in ("", REQUESTS, LIMITS) for name in _VITAL))
)
SCOPES: Final = (
    "Terminating",
    "NotTerminating",
    BEST_EFFORT,
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
)


class PodTraits(NamedTuple):
    """All that scopes ask of a Pod."""

    has_deadline: bool
    is_best_effort: bool
    priority_class: str
    crosses_namespaces: bool


def traits(pod: Object) -> PodTraits:
    assert isinstance(pod, Pod)
    spec = pod.spec
    affinities = (
        ()
        if spec.affinity is None
        else (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity)
    )
    return PodTraits(
        has_deadline=spec.active_deadline_seconds is not None,
        is_best_effort=qos_class(spec) == BEST_EFFORT,
        priority_class=spec.priority_class_name,
        crosses_namespaces=any(
            _crosses(affinity) for affinity in affinities if affinity is not None
        ),
    )


def _crosses(affinity: PodAffinity) -> bool:
    required = affinity.required_during_scheduling_ignored_during_execution or ()
    preferred = affinity.preferred_during_scheduling_ignored_during_execution or ()
    terms = (*required, *(weighted.pod_affinity_term for weighted in preferred))
    return any(term.namespaces or term.namespace_selector is not None for term in terms)


def is_in_scopes(quota: ResourceQuotaSpec, pod: PodTraits | None) -> bool:
    """Returns True if all scopes of *quota* match an object with these traits; ``None``: no Pod,
    which is in no scope.
    """
    selectors = () if quota.scope_selector is None else quota.scope_selector.match_expressions or ()
    exist = (
        ScopedResourceSelectorRequirement(scope_name=name, operator="Exists")
        for name in quota.scopes or ()
    )
    return all(pod is not None and _scope_matches(scope, pod) for scope in (*exist, *selectors))


def _scope_matches(scope: ScopedResourceSelectorRequirement, pod: PodTraits) -> bool:
    match scope.scope_name:
        case "Terminating":
            return pod.has_deadline
        case "NotTerminating":
            return not pod.has_deadline
        case "BestEffort":
            return pod.is_best_effort
        case "NotBestEffort":
            return not pod.is_best_effort
        case "CrossNamespacePodAffinity":
            return pod.crosses_namespaces
    assert scope.scope_name == "PriorityClass", f"{scope.scope_name} was accepted as a scope"
    has_class = bool(pod.priority_class)
    listed = has_class and pod.priority_class in (scope.values or ())
    return {"Exists": has_class, "DoesNotExist": not has_class, "In": listed, "NotIn": not listed}[
        scope.operator
    ]


def qos_class(spec: PodSpec) -> str:
    """Returns the QoS class: BestEffort asks for no cpu and memory, Guaranteed has limits equal to
    its requests.
    """
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    requirements = (
        [spec.resources]
        if _has_vital_amounts(spec.resources)
        else [container.resources for container in containers]
    )
    if not any(_has_vital_amounts(resources) for resources in requirements):
        return BEST_EFFORT
    guaranteed = all(
        name in limits and amount(limits[name]) == amount(requests.get(name, limits[name]))
        for name in _VITAL
        for limits, requests in (
            (resources.limits or {}, resources.requests or {}) for resources in requirements
        )
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _has_vital_amounts(resources: ResourceRequirements) -> bool:
    amounts = (resources.requests or {}, resources.limits or {})
    return any(
        amount(by_name[name]) > 0 for by_name in amounts for name in _VITAL if name in by_name
    )


def counts(name: str) -> bool:
    """Returns True if a quota's *name* is counted of Pods, though it is none of ``NAMES``: huge
    pages, extended resources.
    """
    return name.startswith((HUGE_PAGES, REQUESTS + HUGE_PAGES)) or (
        name.startswith(REQUESTS) and _is_extended(name.removeprefix(REQUESTS))
    )


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def usage(pod: Object) -> dict[str, Fraction | int]:
    assert isinstance(pod, Pod)
    if pod.status.phase in DONE:
        return {}
    requests = _sum_amounts(pod.spec, "requests")
    limits = _sum_amounts(pod.spec, "limits")
    for name, quantity in (pod.spec.overhead or {}).items():
        requests[name] = requests.get(name, Fraction()) + exact(quantity)
        if name in limits:
            limits[name] += exact(quantity)
    used: dict[str, Fraction | int] = {Pods.plural: 1}
    for name, number in requests.items():
        if number:
            used |= dict.fromkeys(_request_names(name), number)
    used |= {LIMITS + name: limits[name] for name in COMPUTE if limits.get(name)}
    return used


def _sum_amounts(spec: PodSpec, member: str) -> dict[str, Fraction]:
    """Sums up requests or limits: those of the Pod as a whole count before those of its containers
    (KEP-2837).
    """
    if spec.resources == _NOTHING and all(
        container.resources == _NOTHING
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
    ):
        return {}
    containers = [_container_amounts(container, member) for container in spec.containers or ()]
    init = [
        (_container_amounts(container, member), container.restart_policy == "Always")
        for container in spec.init_containers or ()
    ]
    whole: Amounts = getattr(spec.resources, member) or {}
    return {**total_amounts(containers, init), **{name: exact(whole[name]) for name in whole}}


_NOTHING: Final = ResourceRequirements()


def _container_amounts(container: Container, member: str) -> Amounts:
    return getattr(container.resources, member) or {}


def _request_names(name: str) -> tuple[str, ...]:
    """Under which names of a quota a request for *name* is counted."""
    if name in COMPUTE or name.startswith(HUGE_PAGES):
        return (name, REQUESTS + name)
    return (REQUESTS + name,) if _is_extended(name) else ()


def missing(pod: Object, counted: Collection[str]) -> str:
    """Returns what *pod* must specify since a quota counts it; "" if nothing is missing."""
    assert isinstance(pod, Pod)
    silent: dict[str, set[str]] = {}
    whole = _specified_names(pod.spec.resources)
    for name in (prefix + vital for prefix in ("", REQUESTS, LIMITS) for vital in _VITAL):
        if name not in counted or name in whole:
            continue
        for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
            if name not in _specified_names(container.resources):
                silent.setdefault(name, set()).add(container.name)
    if not silent:
        return ""
    return "must specify " + "; ".join(
        f"{name} for: {','.join(sorted(silent[name]))}" for name in sorted(silent)
    )


def _specified_names(resources: ResourceRequirements) -> set[str]:
    requests = resources.requests or {}
    limits = resources.limits or {}
    return {*requests, *(REQUESTS + name for name in requests), *(LIMITS + name for name in limits)}
