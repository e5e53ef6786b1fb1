"""The status documents that an emulated kubelet writes: started, ready, not ready, ended at its deadline.

A Pod is Ready when its containers are and, for each of its readiness gates, the condition of that name is "True";
the program that feeds a gate patches that condition into the Pod's status.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sliceplane.api.core import Container, Pod
from sliceplane.api.meta import Document
from sliceplane.controllers.emulation.pods import pod_condition
from sliceplane.kit.times import format_time


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """What the conditions Ready and ContainersReady have to say; ``reason`` and ``message`` are Ready's."""

    containers: bool
    ready: bool
    reason: str = ""
    message: str = ""

    def is_shown(self, pod: Pod) -> bool:
        ready = pod_condition(pod, "Ready")
        containers = pod_condition(pod, "ContainersReady")
        if ready is None or containers is None or (containers.status == "True") != self.containers:
            return False
        return (ready.status == "True", ready.reason, ready.message) == (self.ready, self.reason, self.message)


def readiness(pod: Pod, *, containers: bool) -> Readiness:
    """*containers*: they are all ready."""
    if not containers:
        names = " ".join(container.name for container in pod.spec.containers or ())
        message = f"containers with unready status: [{names}]"
        return Readiness(containers=False, ready=False, reason="ContainersNotReady", message=message)
    unmet: list[str] = []
    for gate in pod.spec.readiness_gates or ():
        said = pod_condition(pod, gate.condition_type)
        if said is None:
            unmet.append(f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.')
        elif said.status != "True":
            unmet.append(f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {said.status}')
    if unmet:
        return Readiness(containers=True, ready=False, reason="ReadinessGatesNotReady", message=", ".join(unmet))
    return Readiness(containers=True, ready=True)


def _condition(pod: Pod, kind: str, *, true: bool, now: float, reason: str = "", message: str = "") -> Document:
    """The condition, with its transition time kept while its status stays."""
    before = pod_condition(pod, kind)
    status = "True" if true else "False"
    same = before is not None and before.status == status and before.last_transition_time
    condition: Document = {
        "type": kind,
        "status": status,
        "lastTransitionTime": before.last_transition_time if same and before else format_time(now),
    }
    for member, value, old in (
        ("reason", reason, before.reason if before else ""),
        ("message", message, before.message if before else ""),
    ):
        if value or old:
            condition[member] = value or None
    return condition


def _statuses(containers: Iterable[Container], state: Document, *, ready: bool) -> list[Document]:
    return [
        {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": ready,
            "started": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        for container in containers
    ]


def _running(since: str) -> Document:
    return {"running": {"startedAt": since}}


def ready_status(pod: Pod, state: Readiness, now: float) -> Document:
    """The part of a running Pod's status that readiness changes (a strategic merge patch)."""
    why = {"reason": state.reason, "message": state.message}
    of_containers = {} if state.containers else why
    return {
        "conditions": [
            _condition(pod, "Ready", true=state.ready, now=now, **why),
            _condition(pod, "ContainersReady", true=state.containers, now=now, **of_containers),
        ],
        "containerStatuses": _statuses(
            pod.spec.containers or (), _running(pod.status.start_time or format_time(now)), ready=state.containers
        ),
    }


def started_status(pod: Pod, addresses: tuple[str, ...], host: str, state: Readiness, now: float) -> Document:
    """A Pod that has just started on its node."""
    stamp = format_time(now)
    status = ready_status(pod, state, now)
    status["conditions"] += [
        _condition(pod, "PodScheduled", true=True, now=now),
        _condition(pod, "Initialized", true=True, now=now),
    ]
    return {
        **status,
        "phase": "Running",
        "startTime": stamp,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": addresses[0],
        "podIPs": [{"ip": address} for address in addresses],
    }


def debuggers_status(pod: Pod, now: float) -> Document | None:
    """The containers for debugging run, from when they were seen first; ``None``: that is told."""
    told = {status.name for status in pod.status.ephemeral_container_statuses or ()}
    wanted = pod.spec.ephemeral_containers or ()
    if all(container.name in told for container in wanted):
        return None
    # Not ready: they are no part of the workload.
    return {"ephemeralContainerStatuses": _statuses(wanted, _running(format_time(now)), ready=False)}


def overdue_status(pod: Pod, now: float) -> Document:
    """A Pod that was on its node for longer than ``activeDeadlineSeconds``."""
    stamp = format_time(now)
    ended = {"startedAt": pod.status.start_time or stamp, "finishedAt": stamp, "exitCode": 137, "reason": "Error"}
    return {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
        "conditions": [
            _condition(pod, kind, true=False, now=now, reason="PodFailed") for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": _statuses(pod.spec.containers or (), {"running": None, "terminated": ended}, ready=False),
    }
