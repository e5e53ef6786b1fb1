"""PodDisruptionBudgets -> how many of their Pods may be evicted now (kubernetes.io, Specifying a
Disruption Budget; pkg/controller/disruption/disruption.go).

Of the Pods that a budget selects, those that are ready and not going are *healthy*.
``minAvailable`` as a number says how many must be; a percentage, and ``maxUnavailable``, are of the
Pods that their controllers want, so all of those must be known. Where they are not the budget
allows nothing, and its condition says why.

``server.registry.verbs.eviction`` notes in ``disruptedPods`` whom it let go. Such a Pod counts as
gone until the cache shows that it is; one that is still there after two minutes, since nobody ended
it, counts again.

A change of a Pod costs a look at the budgets of its namespace; a budget is counted anew at its
turn, over the Pods that it selects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from sliceplane.api.apps import (
    Deployment,
    PodDisruptionBudget,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from sliceplane.api.core import Pod
from sliceplane.api.meta import Document, Object, find_condition
from sliceplane.api.scheme import (
    Deployments,
    PodDisruptionBudgets,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    StatefulSets,
)
from sliceplane.api.selectors import LabelRequirements, from_label_selector
from sliceplane.emulation.deployments.rollout import resolve
from sliceplane.emulation.templates import controller_uid
from sliceplane.kit.times import format_time, parse_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Selection,
    Write,
    object_patch,
)
from sliceplane.watch.controller.keyed import KeyedController

#: how long an eviction that was allowed counts although its Pod does not go
DELETION_TIMEOUT_S: Final = 120.0
_ALLOWED: Final = "DisruptionAllowed"
_SCALED: Final = (Deployments, ReplicaSets, StatefulSets, ReplicationControllers)
Scaled = Deployment | ReplicaSet | StatefulSet | ReplicationController


class _Unknown(Exception):
    """The desired number of Pods cannot be found out; the text gives the reason."""


class DisruptionController(KeyedController):
    """Keys are ``namespace/name`` of budgets."""

    def __init__(self) -> None:
        watched = (PodDisruptionBudgets, Pods, *_SCALED)
        super().__init__(
            ControllerInfo(
                "disruption-emulation",
                tuple(map(Selection, watched)),
                queue="disruption",
                component="controllermanager",
            )
        )
        self._budgets: dict[str, tuple[PodDisruptionBudget, LabelRequirements]] = {}
        #: namespace -> keys of its budgets, and its Pods by key
        self._here: dict[str, set[str]] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        #: budget -> the Pods that it selects, by key
        self._selected: dict[str, dict[str, Pod]] = {}
        #: what has a number of Pods, by uid
        self._scaled: dict[str, Scaled] = {}

    # -- what is there

    def on_change(self, change: Change[Object], now: float) -> None:
        namespace = change.object.metadata.namespace
        key = change.object.metadata.key
        if change.resource == PodDisruptionBudgets.key:
            self._expectations.observe(change)
            self._on_budget(key, namespace, change.new)
            self.enqueue(key, now)
        elif change.resource == Pods.key:
            pods = self._pods.setdefault(namespace, {})
            pods.pop(key, None)
            if isinstance(change.new, Pod):
                pods[key] = change.new
            elif not pods:
                del self._pods[namespace]
            for concerned in sorted(self._here.get(namespace, ())):
                selected = self._selected[concerned]
                was_selected = selected.pop(key, None) is not None
                if isinstance(change.new, Pod) and self._budgets[concerned][1].matches(
                    change.new.metadata.labels
                ):
                    selected[key] = change.new
                if was_selected or key in selected:
                    self.enqueue(concerned, now)
        else:
            self._on_scaled(change, namespace, now)

    def _on_budget(self, key: str, namespace: str, new: Object | None) -> None:
        keys = self._here.setdefault(namespace, set())
        if isinstance(new, PodDisruptionBudget):
            before = self._budgets.get(key)
            if before is None or before[0].spec.selector != new.spec.selector:
                selector = from_label_selector(new.spec.selector)
                pods = self._pods.get(namespace, {})
                self._selected[key] = {
                    at: pod for at, pod in pods.items() if selector.matches(pod.metadata.labels)
                }
            else:
                selector = before[1]
            self._budgets[key] = new, selector
            keys.add(key)
            return
        self._budgets.pop(key, None)
        self._selected.pop(key, None)
        self._expectations.forget(key)
        keys.discard(key)
        if not keys:
            del self._here[namespace]

    def _on_scaled(self, change: Change[Object], namespace: str, now: float) -> None:
        old, new = change.old, change.new
        if old is not None:
            self._scaled.pop(old.metadata.uid, None)
        if isinstance(new, Scaled):
            self._scaled[new.metadata.uid] = new
            if isinstance(old, Scaled) and _facts(old) == _facts(new):
                return
        for key in sorted(self._here.get(namespace, ())):
            self.enqueue(key, now)

    # -- what follows

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key not in self._budgets or self.waits_for_cache(key, now):
            return ()
        budget, _ = self._budgets[key]
        pods = [pod for _, pod in sorted(self._selected[key].items())]
        disrupted = self._disrupted(key, budget, pods, now)
        notes: list[tuple[Literal["Normal", "Warning"], str, str]] = []
        if not pods:
            notes.append(("Normal", "NoPods", "No matching pods found"))
        try:
            expected, desired = self._expected(budget, pods)
        except _Unknown as unknown:
            notes.append(
                (
                    "Warning",
                    "CalculateExpectedPodCountFailed",
                    f"Failed to calculate the number of expected pods: {unknown}",
                )
            )
            status = {
                "disruptionsAllowed": 0,
                "conditions": [_condition(budget, "SyncFailed", now, message=str(unknown))],
            }
            return self._status_write(budget, status, notes)
        healthy = sum(
            pod.is_ready and not pod.metadata.is_deleting and pod.metadata.name not in disrupted
            for pod in pods
        )
        allowed = max(healthy - desired, 0) if expected > 0 else 0
        status = {
            "observedGeneration": budget.metadata.generation,
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptedPods": disrupted,
            "conditions": [
                _condition(budget, "SufficientPods" if allowed else "InsufficientPods", now)
            ],
        }
        return self._status_write(budget, status, notes)

    def _disrupted(
        self, key: str, budget: PodDisruptionBudget, pods: list[Pod], now: float
    ) -> dict[str, str]:
        """Returns the Pods whose eviction was allowed a short while ago and that are not being
        deleted yet, as far as the cache shows.
        """
        present = {pod.metadata.name for pod in pods if not pod.metadata.is_deleting}
        kept = {}
        for name, since in sorted((budget.status.disrupted_pods or {}).items()):
            until = parse_time(since) + DELETION_TIMEOUT_S
            if name in present and now < until:
                kept[name] = since
                self.enqueue_after(key, until - now, now)
        return kept

    def _expected(self, budget: PodDisruptionBudget, pods: list[Pod]) -> tuple[int, int]:
        """Returns the expected number of Pods, and of healthy ones. Raises ``_Unknown``."""
        spec = budget.spec
        if spec.max_unavailable is not None:
            expected = self._desired_replicas(pods)
            unavailable = resolve(spec.max_unavailable, "0", expected, up=True)
            return expected, max(expected - unavailable, 0)
        if isinstance(spec.min_available, str):
            expected = self._desired_replicas(pods)
            return expected, resolve(spec.min_available, "0", expected, up=True)
        return len(pods), spec.min_available or 0

    def _desired_replicas(self, pods: Iterable[Pod]) -> int:
        """Sums the replicas of the controllers of *pods*, each counted once; Pods without a
        controller are not counted. Raises ``_Unknown``.
        """
        desired_by_owner: dict[str, int] = {}
        for pod in pods:
            uid = controller_uid(pod)
            if uid:
                owner = self._scaled.get(uid)
                if owner is None:
                    raise _Unknown(_without_scale(pod))
                # A Deployment counts once, not each of its sets.
                above = self._scaled.get(controller_uid(owner, Deployments))
                owner = owner if above is None else above
                desired_by_owner[owner.metadata.uid] = owner.spec.desired_replicas
        return sum(desired_by_owner.values())

    def _status_write(
        self,
        budget: PodDisruptionBudget,
        status: Document,
        notes: list[tuple[Literal["Normal", "Warning"], str, str]],
    ) -> tuple[Write, ...]:
        change = _difference(budget, status)
        if not change:
            return ()
        for kind, reason, text in notes:
            self.report(PodDisruptionBudgets, budget, kind, reason, text)
        # With the version: an eviction may have charged the budget since.
        version = {"resourceVersion": budget.metadata.resource_version}
        patch = {"metadata": version, "status": change}
        return (object_patch(PodDisruptionBudgets, budget.metadata, patch, "status"),)

    def finished(self, done: Done, now: float) -> None:
        self._expectations.expect(done, now)

    def check(self) -> None:
        super().check()
        assert {key for keys in self._here.values() for key in keys} == set(self._budgets)
        assert all(self._here.values()), "a namespace without budgets is kept"
        assert self._selected.keys() == self._budgets.keys()
        for key, (budget, selector) in self._budgets.items():
            pods = self._pods.get(budget.metadata.namespace, {})
            matching = {
                at: pod for at, pod in pods.items() if selector.matches(pod.metadata.labels)
            }
            assert self._selected[key] == matching, f"{key} counts other Pods than it selects"
        assert all(self._pods.values()), "a namespace without Pods is kept"


def _facts(item: Scaled) -> tuple[Any, ...]:
    return item.metadata.uid, item.spec.replicas, controller_uid(item)


def _without_scale(pod: Pod) -> str:
    owner = pod.metadata.controller
    if owner is not None and owner.kind == "DaemonSet":
        return "daemonsets.apps does not implement the scale subresource"
    return f'found no controllers for pod "{pod.metadata.name}"'


def _condition(
    budget: PodDisruptionBudget, reason: str, now: float, *, message: str = ""
) -> Document:
    """Returns the condition, with the time at which it took its status."""
    failed = reason == "SyncFailed"
    status = "True" if reason == "SufficientPods" else "False"
    before = find_condition(budget.status.conditions, _ALLOWED)
    moment = before.last_transition_time if before is not None and before.status == status else None
    return {
        "type": _ALLOWED,
        "status": status,
        "observedGeneration": budget.status.observed_generation
        if failed
        else budget.metadata.generation,
        "lastTransitionTime": moment or format_time(now),
        "reason": reason,
        "message": message,
    }


def _difference(budget: PodDisruptionBudget, status: Document) -> Document:
    """Returns the members of *status* that differ, as a merge patch."""
    now = budget.status
    current = {
        "observedGeneration": now.observed_generation,
        "disruptionsAllowed": now.disruptions_allowed,
        "currentHealthy": now.current_healthy,
        "desiredHealthy": now.desired_healthy,
        "expectedPods": now.expected_pods,
        "disruptedPods": now.disrupted_pods or {},
    }
    change = {
        member: value
        for member, value in status.items()
        if member in current and current[member] != value
    }
    if "disruptedPods" in change:
        change["disruptedPods"] = {
            **dict.fromkeys(now.disrupted_pods or {}),
            **change["disruptedPods"],
        }
    (condition,) = status["conditions"]
    others = [one for one in now.conditions or () if one.type != _ALLOWED]
    before = find_condition(now.conditions, _ALLOWED)
    current_condition = (
        None
        if before is None
        else (before.status, before.reason, before.message, before.observed_generation or 0)
    )
    if current_condition != (
        condition["status"],
        condition["reason"],
        condition["message"],
        condition["observedGeneration"],
    ):
        change["conditions"] = [*others, condition]
    return change
