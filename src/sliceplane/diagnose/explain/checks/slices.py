"""EndpointSlices of the Service: do they match the Pods, and if not, why not.

Lists are of different moments, and controllers need time: a Pod that became ready a moment ago is
no fault. A difference that lasts ``STALE_AFTER_S`` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Lease
from sliceplane.api.discovery import (
    ANNOTATION_TRIGGER_TIME,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    EndpointSlice,
)
from sliceplane.api.findings.finding import Evidence, Finding, TooYoung
from sliceplane.api.findings.wording import count, lasting, part, since, some
from sliceplane.api.meta import ObservedCondition
from sliceplane.api.quantity import amount
from sliceplane.api.requests import Selection
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    ANNOTATION_STATE,
    CONDITION_AGENT_REMOVAL,
    LABEL_AGENT,
    MANAGED_BY,
)
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, name_of
from sliceplane.diagnose.explain.objects import LEASES, NODES, PODS, QUOTAS, SLICES, FullPod
from sliceplane.slices.removing.guard import REASON_RETAINED

#: a healthy controller has written long before; upstream batches changes for at most a second or so
STALE_AFTER_S: Final = 15.0
#: nodes up to which a request each is cheaper than one list
NODES_BY_NAME_MAX: Final = 20
#: the Service of the API server
API_SERVER: Final = ("default", "kubernetes")
LEADERS: Final = ("kube-controller-manager", "sliceplane-controllers")
QUOTA_NAME: Final = "count/endpointslices.discovery.k8s.io"

#: effect on the endpoints, by condition of a Service
_RETENTION_EFFECTS: Final = {
    REASON_RETAINED: "slices list endpoints whose Pods are missing, or whose Nodes are silent",
    CONDITION_AGENT_REMOVAL: "slices list endpoints whose agents may be gone",
}
#: sentence and remedy by state of an agent's endpoint, if it needs attention
_STATES: Final = {
    "lost": (
        "it fell silent for longer than its Lease lasts",
        (
            "on its machine, see that it runs and reaches the API server: sliceplane agent status "
            "{agent}"
        ),
    ),
    "failing": (
        "its checks fail",
        "on its machine, see what they saw: sliceplane agent status {agent}",
    ),
}
_REFUSED: Final = (
    "start it with another --address, or stop who else has this one, "
    "or allow it: sliceplane agent grant {agent} --service {service} --cidr NETWORK"
)


def reads(case: ServiceCase) -> Iterator[Selection]:
    yield case.slices_selection
    if case.selector:
        yield case.pods_selection()
        yield from node_reads(case)
    if list(_stale(case)):
        yield QUOTAS.in_namespace(case.namespace)
        yield from (LEASES.named("kube-system", name) for name in LEADERS)


def node_reads(case: ServiceCase) -> Iterator[Selection]:
    """Yields the reads of the Nodes of the Service's Pods."""
    names = sorted({pod.spec.node_name for pod in case.live if pod.spec.node_name})
    if len(names) > NODES_BY_NAME_MAX:
        yield NODES.everywhere()
    else:
        yield from (NODES.named("", name) for name in names)


def stale(case: ServiceCase) -> Iterable[Finding]:
    """E1, E2 or E7, by its explanation."""
    behind = list(_stale(case))
    if not behind:
        return
    quota = _used_up(case)
    leader = _lost_leader(case)
    if quota is not None:
        code, (why, evidence) = "E7", quota
        remedy = f"kubectl -n {case.namespace} edit resourcequota {evidence.subject.name}"
    elif leader is not None:
        code, (why, evidence) = "E2", leader
        remedy = f"start {evidence.subject.name}, or see why it lost its Lease: its log"
    else:
        pod, why = behind[0]
        code, evidence = (
            "E1",
            evidence_of(PODS, pod, "status.conditions", _readiness(pod)),
        )
        remedy = "look at the log and the queue of what runs the EndpointSlice controller"
    yield case.finding(
        code,
        why,
        evidence,
        remedy=remedy,
        effect="; ".join(sentence for _, sentence in behind[:2])
        if code != "E1"
        else f"slices of {case.name} are out of date for {count(len(behind), 'Pod')}",
    )


def _stale(case: ServiceCase) -> Iterator[tuple[FullPod, str]]:
    """Yields the Pods whose slices have been wrong for longer than a controller needs, with a
    sentence each.
    """
    service = case.service
    if not case.selector or not case.has_read_slices:
        return
    if service.spec.publish_not_ready_addresses or REASON_RETAINED in _retentions(case):
        return
    ready_by_pod: dict[str, bool] = {}
    for _, endpoint in case.endpoints:
        target = endpoint.target_ref
        if target is not None and target.kind == "Pod":
            is_ready = endpoint.conditions.ready is not False
            ready_by_pod[target.name] = ready_by_pod.get(target.name, False) or is_ready
    for pod in case.live:
        ready = pod.condition("Ready")
        age = since(ready.last_transition_time if ready is not None else None, case.now)
        if (
            not pod.status.ips
            or pod.metadata.is_deleting
            or age is None
            or age < STALE_AFTER_S
            or _on_unknown_node(case, pod)
        ):
            continue
        name = pod.metadata.name
        if pod.is_ready and name not in ready_by_pod:
            yield pod, f"{name} is ready for {lasting(age)} and in no slice"
        elif pod.is_ready and not ready_by_pod[name] and not pod.is_drained:
            yield pod, f"{name} is ready for {lasting(age)}, and its slice says that it is not"
        elif not pod.is_ready and ready_by_pod.get(name):
            yield pod, f"{name} is not ready for {lasting(age)}, and its slice says that it is"


def nothing_ready(case: ServiceCase) -> Iterable[Finding]:
    """E18, for a Service without a ready endpoint that no other check explains."""
    if not case.exists or not case.has_endpoints or case.ready or not case.has_read_slices:
        return
    if (case.namespace, case.name) == API_SERVER and not case.selector:
        yield from _api_server_on_loopback(case)
        return
    changes = [case.service.metadata.creation_timestamp]
    changes += [
        ready.last_transition_time
        for pod in case.live
        if (ready := pod.condition("Ready")) is not None
    ]
    changes += [
        (item.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME) for item in case.slices
    ]
    ages = [age for text in changes if (age := since(text, case.now)) is not None]
    age = max(0.0, min(ages, default=STALE_AFTER_S))
    state = (
        part(0, len(case.endpoints), "endpoint") + " ready"
        if case.endpoints
        else "no slice has an endpoint"
    )
    number = sum(pod.is_ready for pod in case.live)
    selected = f"; {part(number, len(case.live), 'Pod', 'is')} ready" if case.live else ""
    item = next(iter(case.slices), None)
    edit = f"set conditions.ready of its endpoints: kubectl -n {case.namespace} edit endpointslice"
    yield case.finding(
        "E18",
        f"{state}{selected}",
        *((evidence_of(SLICES, item, "endpoints", "none ready"),) if item is not None else ()),
        too_young=TooYoung(age, STALE_AFTER_S) if age < STALE_AFTER_S else None,
        effect="its name has no address" if case.is_headless else "every node refuses connections",
        remedy=f"{edit} {item.metadata.name}"
        if item is not None and not case.selector
        else (
            f"kubectl -n {case.namespace} get endpointslices -l {LABEL_SERVICE_NAME}={case.name} "
            "-o yaml"
        ),
    )


def _api_server_on_loopback(case: ServiceCase) -> Iterable[Finding]:
    """E18, about the API server's own Service: it writes no slice while it listens on loopback
    alone, which is no fault until it is queried.
    """
    if case.question.kind != "everything":
        yield case.finding(
            "E18",
            "no slice has an endpoint: the API server listens on loopback alone",
            weight="warning",
            certainty="likely",
            effect="Pods do not reach the API server by this name",
            remedy="start the API server with --bind-address or --advertise-address and an address "
            "that Pods reach",
        )


def differing_in_shadow(case: ServiceCase) -> Iterable[Finding]:
    """E1, E12, E16, as shadow mode reported them, unless the Pods show the same here."""
    findings = case.facts.shadow.get(f"{case.namespace}/{case.name}", ())
    return [finding for finding in findings if finding.code != "E1" or not any(stale(case))]


def _readiness(pod: FullPod) -> str:
    ready = pod.condition("Ready")
    assert ready is not None, "_stale() looked"
    return f"Ready={ready.status} since {ready.last_transition_time}"


def _used_up(case: ServiceCase) -> tuple[str, Evidence] | None:
    for quota in case.of(QUOTAS):
        hard = (quota.status.hard or quota.spec.hard or {}).get(QUOTA_NAME)
        used = (quota.status.used or {}).get(QUOTA_NAME)
        if hard is not None and used is not None and amount(str(used)) >= amount(str(hard)):
            evidence = evidence_of(QUOTAS, quota, f"status.used[{QUOTA_NAME}]", f"{used} of {hard}")
            return (
                (
                    f"quota {quota.metadata.name}: {used} of {hard} slices of namespace "
                    f"{case.namespace} are there"
                ),
                evidence,
            )
    return None


def _lost_leader(case: ServiceCase) -> tuple[str, Evidence] | None:
    """Returns sentence and evidence; ``None`` if there is a leader, or no Lease: not every control
    plane has one.
    """
    leases = [
        lease for lease in case.facts.of(LEASES, "kube-system") if lease.metadata.name in LEADERS
    ]
    ages = [(age, lease) for lease in leases if (age := _silent_for(lease, case.now)) is not None]
    if not ages or len(ages) < len(leases):
        return None
    age, lease = min(ages, key=lambda pair: pair[0])
    holder = lease.spec.holder_identity or "(none)"
    sentence = f"no leader of {lease.metadata.name} for {lasting(age)}; the last was {holder}"
    return sentence, evidence_of(LEASES, lease, "spec.renewTime", lease.spec.renew_time or "(none)")


def _silent_for(lease: Lease, now: float) -> float | None:
    """Returns the seconds since the Lease expired; ``None``: it has a holder."""
    age = since(lease.spec.renew_time, now)
    duration = lease.spec.lease_duration_seconds or 0
    if age is None or not lease.spec.holder_identity:
        return age or 0.0
    return age - duration if age > duration + STALE_AFTER_S else None


def retained(case: ServiceCase) -> Iterable[Finding]:
    """E14"""
    for kind, condition in _retentions(case).items():
        field = f"status.conditions[{kind}]"
        yield case.finding(
            "E14",
            condition.message,
            case.field(field, condition.status),
            effect=_RETENTION_EFFECTS[kind],
            remedy=f"sliceplane guard release {case.name} -n {case.namespace}",
        )


def _retentions(case: ServiceCase) -> dict[str, ObservedCondition]:
    """Returns the conditions about retained endpoints, by type."""
    conditions = case.service.status.conditions or ()
    return {
        condition.type: condition
        for condition in conditions
        if condition.type in _RETENTION_EFFECTS and condition.status == "True"
    }


def of_agents(case: ServiceCase) -> Iterable[Finding]:
    """E17: one for each agent."""
    reported: set[str] = set()
    for endpoint_slice in case.slices:
        meta = endpoint_slice.metadata
        labels, annotations = meta.labels or {}, meta.annotations or {}
        agent = labels.get(LABEL_AGENT, "")
        refused = annotations.get(ANNOTATION_REFUSED, "")
        state = annotations.get(ANNOTATION_STATE, "")
        if (
            labels.get(LABEL_MANAGED_BY) != MANAGED_BY
            or agent in reported
            or not (refused or state in _STATES)
        ):
            continue
        reported.add(agent)
        annotation = ANNOTATION_REFUSED if refused else ANNOTATION_STATE
        why, remedy = (refused, _REFUSED) if refused else _STATES[state]
        yield case.finding(
            "E17",
            f"agent {agent}: {why}",
            evidence_of(
                SLICES, endpoint_slice, f"metadata.annotations[{annotation}]", refused or state
            ),
            effect=f"no node sends to {some(_authorities(endpoint_slice)) or 'it'} for {case.name}",
            remedy=remedy.format(agent=agent, service=case.name),
        )


def _authorities(endpoint_slice: EndpointSlice) -> list[str]:
    """Returns addresses with their ports: other processes at an address, and other Services, are
    not concerned.
    """
    addresses = [
        address for endpoint in endpoint_slice.endpoints or () for address in endpoint.addresses
    ]
    numbers = [port.port for port in endpoint_slice.ports or () if port.port is not None]
    return [
        f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
        for address in addresses
        for number in numbers
    ]


def unknown_node(case: ServiceCase) -> Iterable[Finding]:
    """E11"""
    for pod in case.live:
        if _on_unknown_node(case, pod):
            node = pod.spec.node_name
            yield case.finding(
                "E11",
                f"{pod.metadata.name} is on {node}, and there is no such Node",
                evidence_of(PODS, pod, "spec.nodeName", node),
                subject=name_of(PODS, pod),
                effect="its endpoint is left out, or has no zone; no kubelet runs it any more",
                remedy=f"kubectl -n {case.namespace} delete pod {pod.metadata.name}",
            )


def _on_unknown_node(case: ServiceCase, pod: FullPod) -> bool:
    node = pod.spec.node_name
    return (
        bool(node)
        and case.was_read(NODES.named("", node))
        and case.facts.get(NODES, "", node) is None
    )


CHECKS = (stale, differing_in_shadow, retained, of_agents, unknown_node)
