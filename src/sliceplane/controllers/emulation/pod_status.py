"""The status documents that an emulated kubelet writes: started, ready, not ready."""

from __future__ import annotations

from sliceplane.api.core import Pod
from sliceplane.api.meta import Document
from sliceplane.kit.times import format_time


def _condition(kind: str, *, true: bool, now: float, reason: str = "") -> Document:
    condition: Document = {
        "type": kind,
        "status": "True" if true else "False",
        "lastTransitionTime": format_time(now),
    }
    if reason:
        condition["reason"] = reason
    return condition


def _containers(pod: Pod, *, ready: bool, started_at: str) -> list[Document]:
    return [
        {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": ready,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": started_at}},
        }
        for container in pod.spec.containers or ()
    ]


def ready_status(pod: Pod, *, ready: bool, now: float) -> Document:
    """The part of a running Pod's status that readiness changes (a strategic merge patch)."""
    reason = "" if ready else "ContainersNotReady"
    return {
        "conditions": [
            _condition("Ready", true=ready, now=now, reason=reason),
            _condition("ContainersReady", true=ready, now=now, reason=reason),
        ],
        "containerStatuses": _containers(pod, ready=ready, started_at=pod.status.start_time or format_time(now)),
    }


def started_status(pod: Pod, addresses: tuple[str, ...], host: str, *, ready: bool, now: float) -> Document:
    """A Pod that has just started on its node."""
    stamp = format_time(now)
    status = ready_status(pod, ready=ready, now=now)
    status["conditions"] += [
        _condition("PodScheduled", true=True, now=now),
        _condition("Initialized", true=True, now=now),
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
