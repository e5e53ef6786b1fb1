"""What a ReplicaSet wants to know of a Pod: does it count, is it ready, since when, and which one
goes first.

A Pod is *active* unless it is terminating or has ended (phase Succeeded or Failed). It is
*available* when it has been ready for ``minReadySeconds``.

The order of deletion is upstream's published one: without a node, not yet running, not ready, of
lower ``pod-deletion-cost``, on a node with more of its kind, ready for a shorter time, restarted
more often, younger. Ages count on a logarithmic scale, so that of Pods of about one age no one is
always the victim; the uid decides there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sliceplane.api.core import Pod
from sliceplane.api.meta import Condition
from sliceplane.kit.times import parse_time

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_COST_SHAPE_DIGITS_MAX: Final = 10  # of a 32 bit number
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


def pod_condition(pod: Pod, kind: str) -> Condition | None:
    return next((one for one in pod.status.conditions or () if one.type == kind), None)


def is_ready(pod: Pod) -> bool:
    condition = pod_condition(pod, "Ready")
    return condition is not None and condition.status == "True"


def has_ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def is_going(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def is_active(pod: Pod) -> bool:
    return not is_going(pod) and not has_ended(pod)


def is_terminating(pod: Pod) -> bool:
    return is_going(pod) and not has_ended(pod)


def available_at(pod: Pod, min_ready_s: int) -> float | None:
    """From when on the Pod counts as available; ``None`` while it is not ready."""
    condition = pod_condition(pod, "Ready")
    if condition is None or condition.status != "True":
        return None
    if not min_ready_s or not condition.last_transition_time:
        return 0.0
    return parse_time(condition.last_transition_time) + min_ready_s


def deletion_cost(pod: Pod) -> int:
    """What the annotation says; 0 if it is no 32 bit number as Go writes it."""
    text = (pod.metadata.annotations or {}).get(DELETION_COST, "")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _COST_SHAPE_DIGITS_MAX:
        return 0
    if text != "0" and text.startswith("0"):
        return 0
    cost = int(text)
    return cost if -(2**31) <= cost < 2**31 else 0


def deletion_rank(pod: Pod, crowd: Mapping[str, int], now: float) -> tuple[int | str, ...]:
    """Lowest goes first.  *crowd* is how many Pods of the same owner of owners are on each node."""
    restarts = max((one.restart_count for one in pod.status.container_statuses or ()), default=0)
    ready = pod_condition(pod, "Ready") if is_ready(pod) else None
    return (
        int(pod.spec.node_name != ""),
        _PHASES.get(pod.status.phase, 0),
        int(ready is not None),
        deletion_cost(pod),
        -crowd.get(pod.spec.node_name, 0),
        _age(ready.last_transition_time, now) if ready else 0,
        -restarts,
        _age(pod.metadata.creation_timestamp, now),
        pod.metadata.uid,
    )


def _age(since: str | None, now: float) -> int:
    """The whole part of the binary logarithm of an age in nanoseconds; -1: none, or not known."""
    elapsed_s = now - parse_time(since) if since else 0.0
    return int(math.log2(elapsed_s * 1e9)) if elapsed_s > 1e-9 else -1
