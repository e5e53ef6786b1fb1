"""Pods. The Status column is what an operator wants to know first: not the phase, but what keeps
the pod from running, which is read from init containers, then containers, then deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sliceplane.api.meta import Document
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    condition,
    flag,
    mapping,
    name_of,
    number,
    objects,
    since,
    text,
    true_conditions,
)

_COLUMNS: Final = (
    NAME,
    Column("Ready", "Containers that are ready, of all containers that should be."),
    Column("Status", "What the pod is doing, or what keeps it from running."),
    Column("Restarts", "Restarts of the pod's containers, and when the last one was."),
    AGE,
    Column("IP", "First address of the pod.", priority=1),
    Column("Node", "Node that the pod is bound to.", priority=1),
    Column("Nominated Node", "Node where room is being made for the pod.", priority=1),
    Column("Readiness Gates", "Readiness gates that are true, of all.", priority=1),
)


@dataclass(slots=True)
class _Tally:
    """What was seen while walking over the containers."""

    reason: str
    ready: int = 0
    total: int = 0
    restarts: int = 0
    sidecar_restarts: int = 0
    last_restart: str = ""
    last_sidecar_restart: str = ""
    initializing: bool = False
    running: bool = False


def _cells(pod: Document, now: float) -> tuple[Cell, ...]:
    tally = _tally(pod)
    gates = objects(pod, "spec", "readinessGates")
    true = true_conditions(pod) if gates else ()
    true_gates = sum(text(gate, "conditionType") in true for gate in gates)
    ips = objects(pod, "status", "podIPs")
    return (
        name_of(pod),
        f"{tally.ready}/{tally.total}",
        tally.reason,
        _restarts(tally, now),
        age(pod, now),
        (text(ips[0], "ip") if ips else text(pod, "status", "podIP")) or NONE,
        text(pod, "spec", "nodeName") or NONE,
        text(pod, "status", "nominatedNodeName") or NONE,
        f"{true_gates}/{len(gates)}" if gates else NONE,
    )


def _restarts(tally: _Tally, now: float) -> str:
    if tally.restarts and tally.last_restart:
        return f"{tally.restarts} ({since(tally.last_restart, now)} ago)"
    return str(tally.restarts)


def _tally(pod: Document) -> _Tally:
    phase = text(pod, "status", "phase")
    status_reason = text(pod, "status", "reason")
    tally = _Tally(status_reason or phase)
    if condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        tally.reason = "SchedulingGated"
    init_containers = objects(pod, "spec", "initContainers")
    sidecars = {text(c, "name") for c in init_containers if c.get("restartPolicy") == "Always"}
    tally.total = len(objects(pod, "spec", "containers")) + len(sidecars)
    _walk_init_containers(pod, tally, len(init_containers), sidecars)
    if not tally.initializing or condition(pod, "Initialized").get("status") == "True":
        _walk_containers(pod, tally)
    if text(pod, "metadata", "deletionTimestamp"):
        if status_reason == "NodeLost":
            tally.reason = "Unknown"
        elif phase not in ("Succeeded", "Failed"):
            tally.reason = "Terminating"
    return tally


def _walk_init_containers(pod: Document, tally: _Tally, total: int, sidecars: set[str]) -> None:
    """The first init container that is not done says what the pod is at."""
    for index, status in enumerate(objects(pod, "status", "initContainerStatuses")):
        restarts = number(status, "restartCount")
        finished = text(status, "lastState", "terminated", "finishedAt")
        tally.restarts += restarts
        tally.last_restart = max(tally.last_restart, finished)
        is_sidecar = text(status, "name") in sidecars
        if is_sidecar:
            tally.sidecar_restarts += restarts
            tally.last_sidecar_restart = max(tally.last_sidecar_restart, finished)
        terminated = mapping(status, "state", "terminated")
        if "terminated" in mapping(status, "state") and number(terminated, "exitCode") == 0:
            continue
        if is_sidecar and flag(status, "started"):
            tally.ready += flag(status, "ready")
            continue
        waiting = text(status, "state", "waiting", "reason")
        if terminated:
            tally.reason = f"Init:{_ending(terminated)}"
        elif waiting and waiting != "PodInitializing":
            tally.reason = f"Init:{waiting}"
        else:
            tally.reason = f"Init:{index}/{total}"
        tally.initializing = True
        break


def _walk_containers(pod: Document, tally: _Tally) -> None:
    """The first container with a reason gives it: hence the walk from the last to the first."""
    tally.restarts = tally.sidecar_restarts
    tally.last_restart = tally.last_sidecar_restart
    for status in reversed(objects(pod, "status", "containerStatuses")):
        tally.restarts += number(status, "restartCount")
        tally.last_restart = max(
            tally.last_restart, text(status, "lastState", "terminated", "finishedAt")
        )
        waiting = text(status, "state", "waiting", "reason")
        terminated = mapping(status, "state", "terminated")
        if waiting:
            tally.reason = waiting
        elif terminated:
            tally.reason = _ending(terminated)
        elif flag(status, "ready") and "running" in mapping(status, "state"):
            tally.running = True
            tally.ready += 1
    if tally.reason == "Completed" and tally.running:
        tally.reason = "Running" if condition(pod, "Ready").get("status") == "True" else "NotReady"


def _ending(terminated: Document) -> str:
    reason = text(terminated, "reason")
    signal = number(terminated, "signal")
    if reason:
        return reason
    return f"Signal:{signal}" if signal else f"ExitCode:{number(terminated, 'exitCode')}"


def _conditions(pod: Document) -> list[Document]:
    """Pods that are done are marked, so that clients can tell them apart."""
    phase = text(pod, "status", "phase")
    if phase not in ("Succeeded", "Failed"):
        return []
    message = "The pod has completed successfully." if phase == "Succeeded" else "The pod failed."
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


PRINTER: Final = Printer(_COLUMNS, _cells, _conditions)
