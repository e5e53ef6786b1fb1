"""The status documents that an emulated kubelet writes: started, ready, not ready, ended at its
deadline.

A Pod is Ready when its containers are and, for each of its readiness gates, the condition of that
name is "True"; the program that feeds a gate patches that condition into the Pod's status.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sliceplane.api.core import Container, Pod
from sliceplane.api.images import is_image, is_nowhere
from sliceplane.api.meta import Document
from sliceplane.kit.times import format_time


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the conditions Ready and ContainersReady; ``reason`` and ``message`` are
    Ready's.
    """

    containers: bool
    ready: bool
    reason: str = ""
    message: str = ""

    def is_reported_by(self, pod: Pod) -> bool:
        ready = pod.condition("Ready")
        containers = pod.condition("ContainersReady")
        if ready is None or containers is None or (containers.status == "True") != self.containers:
            return False
        if pod.status.observed_generation != pod.metadata.generation:
            return False
        return (ready.status == "True", ready.reason, ready.message) == (
            self.ready,
            self.reason,
            self.message,
        )


def readiness(pod: Pod, *, containers: bool) -> Readiness:
    """*containers*: they are all ready."""
    if not containers:
        names = " ".join(container.name for container in pod.spec.containers or ())
        message = f"containers with unready status: [{names}]"
        return Readiness(
            containers=False, ready=False, reason="ContainersNotReady", message=message
        )
    unmet: list[str] = []
    for gate in pod.spec.readiness_gates or ():
        condition = pod.condition(gate.condition_type)
        if condition is None:
            unmet.append(
                f'corresponding condition of pod readiness gate "{gate.condition_type}" does not '
                "exist."
            )
        elif condition.status != "True":
            unmet.append(
                f'the status of pod readiness gate "{gate.condition_type}" is not "True", but '
                f"{condition.status}"
            )
    if unmet:
        return Readiness(
            containers=True, ready=False, reason="ReadinessGatesNotReady", message=", ".join(unmet)
        )
    return Readiness(containers=True, ready=True)


def _condition(
    pod: Pod, kind: str, *, true: bool, now: float, reason: str = "", message: str = ""
) -> Document:
    """The condition, with its transition time kept while its status stays."""
    before = pod.condition(kind)
    status = "True" if true else "False"
    same = before is not None and before.status == status and before.last_transition_time
    condition: Document = {
        "type": kind,
        "status": status,
        "lastTransitionTime": before.last_transition_time if same and before else format_time(now),
        **_observed(pod),
    }
    for member, value, old in (
        ("reason", reason, before.reason if before else ""),
        ("message", message, before.message if before else ""),
    ):
        if value or old:
            condition[member] = value or None
    return condition


def _observed(pod: Pod) -> Document:
    """The generation of the Pod that the kubelet has observed (KEP-5067)."""
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}


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
    return {"running": {"startedAt": since}, "waiting": None}


def ready_status(pod: Pod, state: Readiness, now: float) -> Document:
    """The part of a running Pod's status that readiness changes (a strategic merge patch)."""
    why = {"reason": state.reason, "message": state.message}
    of_containers = {} if state.containers else why
    return {
        **_observed(pod),
        "conditions": [
            _condition(pod, "Ready", true=state.ready, now=now, **why),
            _condition(pod, "ContainersReady", true=state.containers, now=now, **of_containers),
        ],
        "containerStatuses": _statuses(
            pod.spec.containers or (),
            _running(pod.status.start_time or format_time(now)),
            ready=state.containers,
        ),
    }


def started_status(
    pod: Pod, addresses: tuple[str, ...], hosts: tuple[str, ...], state: Readiness, now: float
) -> Document:
    """A Pod that has just started on its node."""
    return {
        **_placed(ready_status(pod, state, now), pod, addresses, hosts, now),
        "phase": "Running",
    }


def waiting_status(
    pod: Pod, addresses: tuple[str, ...], hosts: tuple[str, ...], now: float
) -> Document | None:
    """The status of a Pod whose image cannot be pulled; ``None`` if the Pod has it already."""
    state = readiness(pod, containers=False)
    if pod.status.pod_ips and state.is_reported_by(pod):
        return None
    status = ready_status(pod, state, now)
    for container_status, container in zip(
        status["containerStatuses"], pod.spec.containers or (), strict=True
    ):
        # Null removes the earlier state.
        fault = image_fault(container.image) or {"reason": "ContainerCreating"}
        container_status |= {"state": {"waiting": fault, "running": None}, "started": False}
    return {**_placed(status, pod, addresses, hosts, now), "phase": "Pending"}


def image_fault(image: str) -> dict[str, str] | None:
    """The reason and the message of a container that waits for an image which cannot be pulled."""
    if not is_image(image):
        why = f'couldn\'t parse image name "{image}": invalid reference format'
        return {
            "reason": "InvalidImageName",
            "message": f'Failed to apply default image tag "{image}": {why}',
        }
    if is_nowhere(image):
        return {
            "reason": "ImagePullBackOff",
            "message": f'Back-off pulling image "{image}": ErrImagePull: no such host',
        }
    return None


def _placed(
    status: Document, pod: Pod, addresses: tuple[str, ...], hosts: tuple[str, ...], now: float
) -> Document:
    """Returns *status* with the members that a Pod has once it is bound to its node."""
    conditions = [
        _condition(pod, kind, true=True, now=now) for kind in ("PodScheduled", "Initialized")
    ]
    return {
        **status,
        "conditions": [*status["conditions"], *conditions],
        "startTime": pod.status.start_time or format_time(now),
        "hostIP": hosts[0],
        "hostIPs": [{"ip": host} for host in hosts],
        "podIP": addresses[0],
        "podIPs": [{"ip": address} for address in addresses],
    }


def debuggers_status(pod: Pod, now: float) -> Document | None:
    """Reports ephemeral containers as running since now; ``None`` if the status has them already."""
    container_status = {status.name for status in pod.status.ephemeral_container_statuses or ()}
    containers = pod.spec.ephemeral_containers or ()
    if all(container.name in container_status for container in containers):
        return None
    # Not ready: they are no part of the workload.
    return {
        "ephemeralContainerStatuses": _statuses(containers, _running(format_time(now)), ready=False)
    }


def overdue_status(pod: Pod, now: float) -> Document:
    """A Pod that was on its node for longer than ``activeDeadlineSeconds``."""
    stamp = format_time(now)
    ended = {
        "startedAt": pod.status.start_time or stamp,
        "finishedAt": stamp,
        "exitCode": 137,
        "reason": "Error",
    }
    return {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
        "conditions": [
            _condition(pod, kind, true=False, now=now, reason="PodFailed")
            for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": _statuses(
            pod.spec.containers or (), {"running": None, "terminated": ended}, ready=False
        ),
    }
