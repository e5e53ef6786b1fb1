"""What is wrong with one Pod, and how bad that is: it depends on whether another Pod serves
meanwhile, and how long it has been so. Pods of a rollout start, and that is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Certainty, Evidence, TooYoung
from sliceplane.api.findings.wording import count, part, since, some
from sliceplane.diagnose.explain.case import PodsCase, pod_name
from sliceplane.diagnose.explain.objects import FullContainerStatus, FullEvent, FullPod

#: a Pod that is younger may just be starting
STARTING_S: Final = 60.0
#: while other Pods serve, so long may one need: a large image, a slow start
SLOW_S: Final = 300.0


class Trouble(NamedTuple):
    """``words`` go after the names of the Pods and a colon; Pods with the same ``key`` are told
    together. ``is_sure``: there is more to it than time that passed; otherwise it is normal for
    ``allowed_s``.
    """

    code: str
    words: str
    age_s: float
    evidence: tuple[Evidence, ...]
    remedy: str
    key: str = ""
    is_sure: bool = False
    allowed_s: float = STARTING_S
    certainty: Certainty = "certain"


class Weight(NamedTuple):
    """How bad a trouble is; ``too_young``: that is not known yet."""

    severity: Severity
    too_young: TooYoung | None = None


def weigh(case: PodsCase, trouble: Trouble) -> Weight | None:
    """``None``: there is nothing to report yet, since other Pods serve."""
    if case.is_served:
        patience = STARTING_S if trouble.is_sure else max(SLOW_S, 2 * trouble.allowed_s)
        return Weight("warning") if trouble.age_s >= patience else None
    if trouble.is_sure or trouble.age_s >= trouble.allowed_s:
        return Weight("error")
    if trouble.age_s >= 2 * STARTING_S:
        return Weight("warning")
    return Weight("note", TooYoung(trouble.age_s, min(trouble.allowed_s, 2 * STARTING_S)))


def names_of(case: PodsCase, pods: list[FullPod]) -> str:
    """``cart-0``, ``cart-0 (1 of 3 Pods)``, ``2 of 3 Pods (cart-0, cart-1)``, ``both Pods
    (...)``
    """
    names = [pod.metadata.name for pod in pods]
    live = sum(not pod.has_ended for pod in case.judged)
    if live <= 1:
        return names[0]
    if len(names) == 1:
        return f"{names[0]} (1 of {live} Pods)"
    several = part(len(names), live, "Pod")
    if len(names) == live:
        several = "both Pods" if live == 2 else f"all {live} Pods"
    return f"{several} ({some(names, 2)})"


def effect_on(case: PodsCase, pods: list[FullPod]) -> str:
    if case.is_served:
        return f"{count(len(pods), 'endpoint')} fewer; the others serve"
    if case.subject.kind == "Pod":
        return "it is no ready endpoint"
    if case.publishes_unready:
        return (
            "no Pod is ready, and connections reach them all the same: publishNotReadyAddresses "
            "is true"
        )
    return "no endpoint is ready: every node refuses connections"


def seen_condition(pod: FullPod, kind: str, value: str) -> Evidence:
    return Evidence(subject=pod_name(pod), field=f"status.conditions[{kind}]", value=value)


def age_of(case: PodsCase, pod: FullPod) -> float:
    return since(pod.status.start_time or pod.metadata.creation_timestamp, case.now) or 0.0


def statuses_of(pod: FullPod) -> Iterator[tuple[FullContainerStatus, bool]]:
    """And whether it is an init container."""
    yield from ((status, True) for status in pod.status.init_container_statuses or ())
    yield from ((status, False) for status in pod.status.container_statuses or ())


def last_event(case: PodsCase, pod: FullPod, *reasons: str) -> FullEvent | None:
    """The last about this very Pod."""
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
