"""Faults of one Pod, and their severity, which depends on whether another Pod serves, and on the
age of the fault. A starting Pod of a rollout is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Certainty, Evidence, TooYoung
from sliceplane.api.findings.wording import clipped, count, lasting, part, since, some
from sliceplane.diagnose.explain.case import PodsCase, evidence_of, list_names
from sliceplane.diagnose.explain.checks.pods.workloads import root_of
from sliceplane.diagnose.explain.objects import (
    PODS,
    FullContainer,
    FullContainerStatus,
    FullEvent,
    FullPod,
    Probe,
)

#: seconds in which a Pod may be starting
STARTING_S: Final = 60.0
#: seconds that a Pod may need while others serve: a large image, a slow start
SLOW_S: Final = 300.0


class Trouble(NamedTuple):
    """``sentence`` follows the names of the Pods and a colon; Pods with the same ``key`` are
    reported together. ``is_sure``: there is evidence besides the age; otherwise the state is normal
    for ``allowed_s``.
    """

    code: str
    sentence: str
    age_s: float
    evidence: tuple[Evidence, ...]
    remedy: str
    key: str = ""
    is_sure: bool = False
    allowed_s: float = STARTING_S
    certainty: Certainty = "certain"


class Weight(NamedTuple):
    """The severity of a trouble; ``too_young``: not known yet."""

    severity: Severity
    too_young: TooYoung | None = None


def weigh(case: PodsCase, trouble: Trouble) -> Weight | None:
    """Returns the severity; ``None``: nothing to report yet, since other Pods serve."""
    if case.is_served:
        patience = STARTING_S if trouble.is_sure else max(SLOW_S, 2 * trouble.allowed_s)
        return Weight("warning") if trouble.age_s >= patience else None
    if trouble.is_sure or trouble.age_s >= trouble.allowed_s:
        is_reached = case.is_served_by_unready or case.is_served_by_leaving
        return Weight("warning" if is_reached else "error")
    if trouble.age_s >= 2 * STARTING_S:
        return Weight("warning")
    return Weight("note", TooYoung(trouble.age_s, min(trouble.allowed_s, 2 * STARTING_S)))


def names_of(case: PodsCase, pods: list[FullPod]) -> str:
    """Returns ``cart-0``, ``cart-0 (1 of 3 Pods)``, ``2 of 3 Pods (cart-0, cart-1)`` or ``both Pods
    (...)``.
    """
    names = list_names(pods)
    live = sum(not pod.has_ended for pod in case.judged)
    if live <= 1:
        return names[0]
    if len(names) == 1:
        return f"{names[0]} (1 of {live} Pods)"
    subject = part(len(names), live, "Pod")
    if len(names) == live:
        subject = "both Pods" if live == 2 else f"all {live} Pods"
    return f"{subject} ({some(names, 2)})"


def effect_on(case: PodsCase, pods: list[FullPod]) -> str:
    if case.is_served:
        return f"{count(len(pods), 'endpoint')} fewer; the others serve"
    if case.subject.kind == "Pod":
        return "it is no ready endpoint"
    if case.is_served_by_unready:
        return (
            "no Pod is ready, and connections reach those that run all the same: "
            "publishNotReadyAddresses is true"
        )
    return "no endpoint is ready: every node refuses connections"


def condition_evidence(pod: FullPod, kind: str, value: str) -> Evidence:
    return evidence_of(PODS, pod, f"status.conditions[{kind}]", value)


def age_of(case: PodsCase, pod: FullPod) -> float:
    return since(pod.status.start_time or pod.metadata.creation_timestamp, case.now) or 0.0


def statuses_of(pod: FullPod) -> Iterator[tuple[FullContainerStatus, bool]]:
    """Yields the statuses, and True for an init container."""
    yield from ((status, True) for status in pod.status.init_container_statuses or ())
    yield from ((status, False) for status in pod.status.container_statuses or ())


def last_event(case: PodsCase, pod: FullPod, *reasons: str) -> FullEvent | None:
    """Returns the last Event about exactly this Pod."""
    events = case.facts.events_of(pod.metadata.namespace, "Pod", pod.metadata.name)
    uid = pod.metadata.uid
    return next(
        (
            each
            for each in events
            if each.reason in reasons and each.involved_object.uid in ("", uid)
        ),
        None,
    )


#: seconds from its start after which an unready container must have been ready before
WAS_READY_S: Final = 2.0
#: seconds that it may be unready then if no other Pod serves: one failed probe is no outage
LOST_S: Final = 10.0


def not_ready(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R6"""
    condition = pod.condition("ContainersReady")
    if pod.is_ready or (condition is not None and condition.status == "True"):
        return None
    status = next((each for each in pod.status.container_statuses or () if not each.ready), None)
    container = next(
        (each for each in pod.spec.containers or () if status and each.name == status.name), None
    )
    if status is None or container is None:
        return None
    started = status.state.running.started_at if status.state.running is not None else None
    lost = since(condition.last_transition_time if condition is not None else None, case.now)
    runs = since(started, case.now)
    age = min((each for each in (runs, lost) if each is not None), default=age_of(case, pod))
    was_ready = lost is not None and runs is not None and runs - lost >= WAS_READY_S
    is_started = status.started is not False or container.startup_probe is None
    probe = container.readiness_probe if is_started else container.startup_probe
    why, field, value = _describe_probe(container, probe, "readiness" if is_started else "startup")
    event = last_event(case, pod, "Unhealthy")
    if event is not None:
        why += f"; {count(event.times, 'time')}: {clipped(event.message)}"
    target = f"{root_of(pod).kind.lower()} {root_of(pod).name}"
    namespace = pod.metadata.namespace
    starts_in = max(
        STARTING_S, _patience(container.readiness_probe) + _patience(container.startup_probe)
    )
    return Trouble(
        "R6",
        f"not ready for {lasting(age)}, and was before: {why}"
        if was_ready
        else f"running for {lasting(age)}, not ready: {why}",
        age,
        (evidence_of(PODS, pod, field, value),),
        _mend_probe(pod, namespace, target)
        if "declared" in why
        else f"kubectl -n {namespace} logs {pod.metadata.name} -c {container.name}",
        allowed_s=LOST_S if was_ready else starts_in,
    )


def _mend_probe(pod: FullPod, namespace: str, target: str) -> str:
    if root_of(pod).kind in ("Pod", "Job"):
        return f"make {target} anew with another port for the probe: it never changes"
    return f"kubectl -n {namespace} edit {target}"


def _describe_probe(
    container: FullContainer, probe: Probe | None, kind: str
) -> tuple[str, str, str]:
    """Returns a clause about the probe, its field, and the value of the field."""
    field = f"spec.containers[{container.name}].{kind}Probe"
    if probe is None:
        return f"container {container.name} has no {kind} probe, and is not ready", field, "(none)"
    if probe.port is None:
        return f"the command of its {kind} probe fails", field, "exec"
    declared = [str(port.container_port) for port in container.ports or ()]
    names = [port.name for port in container.ports or () if port.name]
    ports = names if isinstance(probe.port, str) else declared
    if declared and str(probe.port) not in ports:
        return (
            f"{kind} asks {probe.port}, declared is {', '.join(ports) or 'no name'}",
            field,
            f"port {probe.port}",
        )
    path = probe.http_get.path if probe.http_get is not None else ""
    return f"its {kind} probe ({path or 'port'} on {probe.port}) fails", field, f"port {probe.port}"


def _patience(probe: Probe | None) -> float:
    return (
        0.0
        if probe is None
        else probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
    )


def gate_is_closed(case: PodsCase, pod: FullPod) -> Trouble | None:
    """R7"""
    containers = pod.condition("ContainersReady")
    if pod.is_ready or containers is None or containers.status != "True":
        return None
    age = since(containers.last_transition_time, case.now) or 0.0
    for gate in pod.spec.readiness_gates or ():
        condition = pod.condition(gate.condition_type)
        if condition is not None and condition.status == "True":
            continue
        state = f"is {condition.status}" if condition is not None else "never written"
        why = (
            f" ({clipped(condition.message)})"
            if condition is not None and condition.message
            else ""
        )
        return Trouble(
            "R7",
            f"containers ready for {lasting(age)}, but gate {gate.condition_type} {state}{why}",
            age,
            (
                evidence_of(PODS, pod, "spec.readinessGates", gate.condition_type),
                condition_evidence(
                    pod,
                    gate.condition_type,
                    condition.status if condition is not None else "(none)",
                ),
            ),
            _gate_keeper(gate.condition_type, pod),
            key=gate.condition_type,
        )
    return None


def _gate_keeper(gate: str, pod: FullPod) -> str:
    keeper = (
        "the load balancer's controller"
        if "elbv2" in gate or "neg" in gate or "load-balancer" in gate
        else ""
    )
    delete = f"kubectl -n {pod.metadata.namespace} delete pod {pod.metadata.name}"
    return (
        f"look at the log of {keeper or 'what writes ' + gate}; a Pod made anew is registered "
        f"anew: {delete}"
    )
