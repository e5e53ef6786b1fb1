"""Kinds of apps/v1 and policy/v1 as readers see them.

The pod template is kept whole (as a raw document), since a controller that makes Pods from it must
copy fields that we know nothing of.
"""

from __future__ import annotations

from sliceplane.api.meta import (
    Condition,
    Document,
    IntOrString,
    LabelSelector,
    Object,
    ObservedCondition,
    Projection,
)


class RollingUpdateDeployment(Projection, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Projection, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdateDeployment | None = None


class ScaledSpec(Projection, frozen=True, kw_only=True):
    """The part of a spec that ``kubectl scale`` changes."""

    replicas: int | None = None

    @property
    def desired_replicas(self) -> int:
        return 1 if self.replicas is None else self.replicas


class DeploymentSpec(ScaledSpec, frozen=True, kw_only=True):
    selector: LabelSelector = LabelSelector()
    template: Document = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(Projection, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int = 0
    conditions: tuple[Condition, ...] | None = None


class Deployment(Object, frozen=True, kw_only=True):
    """A Deployment: replicas desired and observed, and its rollout."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(ScaledSpec, frozen=True, kw_only=True):
    selector: LabelSelector = LabelSelector()
    template: Document = {}
    min_ready_seconds: int = 0


class ReplicaSetStatus(Projection, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[Condition, ...] | None = None


class ReplicaSet(Object, frozen=True, kw_only=True):
    """A ReplicaSet: replicas desired and observed."""

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ReplicationControllerSpec(ScaledSpec, frozen=True, kw_only=True):
    selector: dict[str, str] | None = None
    template: Document = {}
    min_ready_seconds: int = 0


class ReplicationController(Object, frozen=True, kw_only=True):
    """core/v1: what a ReplicaSet is, selecting by labels alone."""

    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class DaemonSetStrategy(Projection, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdateDeployment | None = None


class DaemonSetSpec(Projection, frozen=True, kw_only=True):
    selector: LabelSelector = LabelSelector()
    template: Document = {}
    update_strategy: DaemonSetStrategy = DaemonSetStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Projection, frozen=True, kw_only=True):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0


class DaemonSet(Object, frozen=True, kw_only=True):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object, frozen=True, kw_only=True):
    """A former template. ``data`` is a patch that restores it."""

    data: Document | None = None
    revision: int = 0


class StatefulSetPartition(Projection, frozen=True, kw_only=True):
    partition: int = 0


class StatefulSetStrategy(Projection, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: StatefulSetPartition | None = None


class StatefulSetOrdinals(Projection, frozen=True, kw_only=True):
    start: int = 0


class StatefulSetSpec(ScaledSpec, frozen=True, kw_only=True):
    selector: LabelSelector = LabelSelector()
    template: Document = {}
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: StatefulSetStrategy = StatefulSetStrategy()
    min_ready_seconds: int = 0
    ordinals: StatefulSetOrdinals = StatefulSetOrdinals()
    volume_claim_templates: tuple[Object, ...] | None = None
    revision_history_limit: int | None = None


class StatefulSetStatus(Projection, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None


class StatefulSet(Object, frozen=True, kw_only=True):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


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
