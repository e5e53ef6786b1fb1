"""Describes the state of a Service, a Pod, a Node or a zone in one sentence, beside the findings or instead
of them.

If nothing is wrong, the user still needs to see what was checked: which endpoints, since when, of
which kind of Service.
"""

from __future__ import annotations

from collections import Counter

from sliceplane.api.findings.wording import count, lasting, part, since, some
from sliceplane.diagnose.explain.case import (
    ExplainCase,
    NodeCase,
    PodCase,
    ServiceCase,
    ZoneCase,
)
from sliceplane.diagnose.explain.checks import measured
from sliceplane.diagnose.explain.objects import PODS


def summarize(case: ExplainCase) -> str:
    """Returns the sentence; "": there is none."""
    if isinstance(case, PodCase):
        return _of_pod(case)
    if isinstance(case, NodeCase):
        return _of_node(case)
    if isinstance(case, ZoneCase):
        return measured.describe_zone(case)
    return _of_service(case) if isinstance(case, ServiceCase) else ""


def _of_service(case: ServiceCase) -> str:
    if not case.exists:
        return ""
    spec = case.service.spec
    if spec.type == "ExternalName":
        return (
            f"{case.name} is a name for {spec.external_name}: DNS answers with it, "
            "without a proxy or a Pod"
        )
    description = (
        "headless, DNS gives its endpoints' addresses"
        if case.is_headless
        else f"{spec.type} {spec.cluster_ip}"
    )
    if case.selector:
        pods = _of(
            sum(pod.is_ready and not pod.metadata.is_deleting for pod in case.live),
            len(case.live),
            "Pod",
        )
    else:
        managers = Counter((item.manager or "hand") for item in case.slices)
        pods = f"no selector, {count(len(case.slices), 'slice')}"
        pods += f" kept by {some(sorted(managers))}" if managers else ""
    if not case.slices:
        return f"{case.name} is {description}; {pods}" + (
            "" if pods.endswith("slice") else ", no slice"
        )
    endpoints = _of(len(case.ready), len(case.endpoints), "endpoint")
    within = f" in {count(len(case.slices), 'slice')}" if case.selector else ""
    text = f"{case.name} is {description}; {pods}, {endpoints}{within}"
    return "; ".join(filter(None, (text, measured.describe(case))))


def _of(ready: int, number: int, what: str) -> str:
    """Returns ``3 of 4 Pods ready``."""
    return f"{part(ready, number, what)} ready" if number else f"no {what}"


def _of_node(case: NodeCase) -> str:
    node = case.node
    if node is None:
        return ""
    ready = node.ready_condition
    age = since(ready.last_transition_time, case.now) if ready is not None else None
    state = {"True": "ready", "False": "not ready"}.get(
        ready.status if ready is not None else "", "silent"
    )
    phrase = f"{state} for {lasting(age)}" if age is not None else state
    where = f"in zone {case.zone}" if case.zone else "in no zone"
    pods = [
        pod for pod in case.facts.of(PODS) if pod.spec.node_name == case.name and not pod.has_ended
    ]
    return (
        f"{case.name} is {phrase}, {where}; "
        f"{_of(sum(pod.is_ready for pod in pods), len(pods), 'Pod')}"
    )


def _of_pod(case: PodCase) -> str:
    if not case.exists:
        return ""
    pod = case.pod
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    ready = pod.condition("Ready")
    age = (
        since(ready.last_transition_time, case.now) if ready is not None and pod.is_ready else None
    )
    state = (
        f"ready for {lasting(age)}"
        if age is not None
        else (pod.status.phase or "Pending") + ", not ready"
    )
    if pod.has_ended:
        state = pod.status.phase
    elif pod.metadata.is_deleting:
        state = f"terminating, {state}"
    phrases = [
        f"{service.metadata.name} ({_as_endpoint(case, service.metadata.name)})"
        for service in case.services
    ]
    return f"{case.name}{where} is {state}; " + (
        f"selected by {some(phrases)}" if phrases else "no Service selects it"
    )


def _as_endpoint(case: PodCase, service: str) -> str:
    """Returns the state of the Pod in the slices of the Service."""
    for endpoint_slice in case.facts.slices_of(case.namespace, service):
        for endpoint in endpoint_slice.endpoints or ():
            target = endpoint.target_ref
            if target is None or target.kind != "Pod" or target.name != case.name:
                continue
            conditions = endpoint.conditions
            if conditions.terminating:
                return "terminating" + (", serving" if conditions.serving is not False else "")
            return "ready" if conditions.ready is not False else "not ready"
    return "in no slice"
