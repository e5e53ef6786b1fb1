"""policy/v1 kinds as readers see them."""

from __future__ import annotations

from sliceplane.api.meta import IntOrString, LabelSelector, Object, ObservedCondition, Projection


class PodDisruptionBudgetSpec(Projection, frozen=True, kw_only=True):
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Projection, frozen=True, kw_only=True):
    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] | None = None
    conditions: tuple[ObservedCondition, ...] | None = None


class PodDisruptionBudget(Object, frozen=True, kw_only=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
