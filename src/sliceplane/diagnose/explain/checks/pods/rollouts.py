"""Checks of rollouts: probes, hooks, grace periods, and how a Deployment replaces Pods.

Faults of this kind have effects for seconds at each rollout, and never in between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import part, patch, some
from sliceplane.api.meta import IntOrString, Object
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of
from sliceplane.diagnose.explain.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SLICES,
    FullContainer,
    FullPod,
    LifecycleHandler,
    Workload,
)

#: owners that replace Pods one by one, without an operator
_ROLLED: Final = ("ReplicaSet", "StatefulSet", "DaemonSet")
GRACE_DEFAULT_S: Final = 30
_SLEEP = re.compile(r"\bsleep\s+(\d+)\b")
#: makes the load balancer lead to Pods, which register after they are ready
IP_TARGETS: Final = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
INJECT: Final = "elbv2.k8s.aws/pod-readiness-gate-inject"


def reads(case: ServiceCase) -> Iterator[Selection]:
    for owner in sorted({owner for pod in case.live if (owner := _owner(pod, "ReplicaSet"))}):
        yield REPLICA_SETS.named(case.namespace, owner)
        replica_set = case.get(REPLICA_SETS, owner)
        if replica_set is not None and (deployment := _owner(replica_set, "Deployment")):
            yield DEPLOYMENTS.named(case.namespace, deployment)
    if _leads_to_pods(case):
        yield NAMESPACES.named("", case.namespace)


def _owner(item: Object, kind: str) -> str:
    owners = item.metadata.owner_references or ()
    return next((owner.name for owner in owners if owner.controller and owner.kind == kind), "")


def no_readiness_probe(case: ServiceCase) -> Iterable[Finding]:
    """D1"""
    bare = [
        pod for pod in _rolled(case) if not any(_probed(item) for item in pod.spec.containers or ())
    ]
    if bare and not any(pod.spec.readiness_gates for pod in bare):
        pod = bare[0]
        names = [item.name for item in pod.spec.containers or ()]
        yield case.finding(
            "D1",
            f"{part(len(bare), len(case.live), 'Pod', 'is')} ready when the process starts: "
            "no readinessProbe",
            evidence_of(PODS, pod, "spec.containers", f"{some(names)} without readinessProbe"),
            certainty="possible",
            effect="a Pod gets connections before it listens, at each start",
            remedy="add a readinessProbe to the container that listens",
        )


def _probed(container: FullContainer) -> bool:
    return container.readiness_probe is not None


def no_pre_stop_hook(case: ServiceCase) -> Iterable[Finding]:
    """D2"""
    bare = [
        pod
        for pod in _rolled(case)
        if not any(_pre_stop(item) for item in pod.spec.containers or ())
    ]
    if bare:
        pod = bare[0]
        yield case.finding(
            "D2",
            f"{part(len(bare), len(case.live), 'Pod', 'has')} no preStop hook: they end while "
            "nodes still lead to them",
            evidence_of(PODS, pod, "spec.containers", "lifecycle.preStop (not set)"),
            certainty="possible",
            effect="connections are refused for some seconds whenever a Pod goes, unless the "
            "program goes on at SIGTERM",
            remedy="add lifecycle.preStop.sleep of some seconds, below the grace period",
        )


def _pre_stop(container: FullContainer) -> LifecycleHandler | None:
    return container.lifecycle.pre_stop if container.lifecycle is not None else None


def killed_in_the_hook(case: ServiceCase) -> Iterable[Finding]:
    """D3"""
    for pod in _rolled(case):
        grace = pod.spec.termination_grace_period_seconds
        grace = GRACE_DEFAULT_S if grace is None else grace
        for container in pod.spec.containers or ():
            seconds = _hook_seconds(_pre_stop(container))
            if seconds and seconds >= grace:
                yield case.finding(
                    "D3",
                    f"the preStop hook of {container.name} takes {seconds} s of a grace of "
                    f"{grace} s",
                    evidence_of(PODS, pod, "spec.terminationGracePeriodSeconds", str(grace)),
                    effect="the program is killed in the hook, with the requests that it holds",
                    remedy=f"terminationGracePeriodSeconds of {seconds + GRACE_DEFAULT_S} in the "
                    "template",
                )
                return


def _hook_seconds(hook: LifecycleHandler | None) -> int:
    """Returns the seconds that the hook sleeps; 0: unknown."""
    if hook is None:
        return 0
    if hook.sleep is not None:
        return hook.sleep.seconds
    command = " ".join((hook.exec.command or ()) if hook.exec is not None else ())
    match = _SLEEP.search(command)
    return int(match[1]) if match else 0


def gap_between(case: ServiceCase) -> Iterable[Finding]:
    """D4"""
    for deployment in _deployments(case):
        strategy = deployment.spec.strategy
        replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
        if strategy is None or not replicas:
            continue
        name = deployment.metadata.name
        most_away = (
            strategy.rolling_update.max_unavailable if strategy.rolling_update is not None else None
        )
        if strategy.type == "Recreate":
            evidence = evidence_of(DEPLOYMENTS, deployment, "spec.strategy.type", "Recreate")
            what = "ends all Pods before it starts new ones"
        elif _number_away(most_away, replicas) >= replicas:
            evidence = evidence_of(
                DEPLOYMENTS,
                deployment,
                "spec.strategy.rollingUpdate.maxUnavailable",
                str(most_away),
            )
            what = f"may end all {replicas} Pods at once ({most_away})"
        else:
            continue
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        yield case.finding(
            "D4",
            f"Deployment {name} {what}: no Pod is ready in between",
            evidence,
            effect="every connection is refused for the time of a start, at each rollout",
            remedy=patch(case.namespace, "deployment", name, {"spec": {"strategy": rolling}}),
        )


def _number_away(value: IntOrString | None, replicas: int) -> int:
    """Returns maxUnavailable in Pods; a percentage is rounded down, as Deployments do."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        return math.floor(replicas * int(value[:-1]) / 100)
    return value if isinstance(value, int) else 0


def no_target_gate(case: ServiceCase) -> Iterable[Finding]:
    """D5"""
    namespace = case.facts.get(NAMESPACES, "", case.namespace)
    if not _leads_to_pods(case) or namespace is None:
        return
    bare = [pod for pod in _rolled(case) if not pod.spec.readiness_gates]
    if bare:
        labelled = (namespace.metadata.labels or {}).get(INJECT) == "enabled"
        yield case.finding(
            "D5",
            f"{part(len(bare), len(case.live), 'Pod', 'has')} no readiness gate of the load "
            "balancer, which leads to Pods",
            case.field(f"metadata.annotations[{IP_TARGETS}]", "ip"),
            effect="a rollout goes on before the balancer knows the new Pods: 502",
            remedy=f"kubectl -n {case.namespace} rollout restart deployment"
            if labelled
            else f"kubectl label namespace {case.namespace} {INJECT}=enabled",
        )


def _leads_to_pods(case: ServiceCase) -> bool:
    annotations = case.service.metadata.annotations or {}
    return annotations.get(IP_TARGETS) == "ip"


def fallback(case: ServiceCase) -> Iterable[Finding]:
    """D6"""
    serving = [
        endpoint
        for _, endpoint in case.endpoints
        if endpoint.conditions.terminating and endpoint.conditions.serving is not False
    ]
    if serving and not case.ready:
        names = [
            endpoint.target_ref.name for endpoint in serving if endpoint.target_ref is not None
        ]
        yield case.finding(
            "D6",
            f"no endpoint is ready; used instead, in termination: {some(names)}",
            *tuple(
                evidence_of(SLICES, item, "endpoints", "none ready") for item in case.slices[:2]
            ),
            effect="Pods get connections until they end, or say that they are not ready",
            remedy="let the Pods fail their readiness probe in the preStop hook, and start others "
            "before",
        )


def _deployments(case: ServiceCase) -> Iterator[Workload]:
    names: dict[str, None] = {}
    for pod in case.live:
        replica_set = case.get(REPLICA_SETS, _owner(pod, "ReplicaSet"))
        if replica_set is not None and (name := _owner(replica_set, "Deployment")):
            names[name] = None
    for name in names:
        deployment = case.get(DEPLOYMENTS, name)
        if deployment is not None:
            yield deployment


def _rolled(case: ServiceCase) -> list[FullPod]:
    return [pod for pod in case.live if any(_owner(pod, kind) for kind in _ROLLED)]


CHECKS = (
    no_readiness_probe,
    no_pre_stop_hook,
    killed_in_the_hook,
    gap_between,
    no_target_gate,
    fallback,
)
