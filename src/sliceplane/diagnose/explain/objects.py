"""The members of objects that explanations read, beyond those that every reader decodes
(``api.core``).

Caches of controllers do not decode these: probes, states of containers and templates of workloads
are most of a Pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from sliceplane.api import scheme
from sliceplane.api.core import (
    ContainerPort,
    ContainerStatus,
    Endpoints,
    Lease,
    Namespace,
    Node,
    Pod,
    PodIP,
    PodReadinessGate,
    ResourceQuota,
    Service,
    ServiceCIDR,
)
from sliceplane.api.discovery import ANNOTATION_DRAIN, ANNOTATION_TRIGGER_TIME, EndpointSlice
from sliceplane.api.meta import (
    Condition,
    IntOrString,
    LabelSelector,
    Object,
    ObjectMeta,
    ObjectReference,
    Projection,
)
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Resource
from sliceplane.kit.times import time_or_zero

#: lists of one object each that cost a server less than one of a whole namespace
NAMED_MAX: Final = 8
T_co = TypeVar("T_co", bound=Object, covariant=True)


class ProbedPort(Projection, frozen=True, kw_only=True):
    """The port of an action: ``httpGet``, ``tcpSocket`` or ``grpc``."""

    port: IntOrString | None = None
    path: str = ""


class Probe(Projection, frozen=True, kw_only=True):
    http_get: ProbedPort | None = None
    tcp_socket: ProbedPort | None = None
    grpc: ProbedPort | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    failure_threshold: int = 3

    @property
    def port(self) -> IntOrString | None:
        """The port that is probed; ``None``: the probe runs a command."""
        action = self.http_get or self.tcp_socket or self.grpc
        return None if action is None else action.port


class SleepAction(Projection, frozen=True, kw_only=True):
    seconds: int = 0


class ExecAction(Projection, frozen=True, kw_only=True):
    command: tuple[str, ...] | None = None


class LifecycleHandler(Projection, frozen=True, kw_only=True):
    sleep: SleepAction | None = None
    exec: ExecAction | None = None
    http_get: ProbedPort | None = None


class Lifecycle(Projection, frozen=True, kw_only=True):
    pre_stop: LifecycleHandler | None = None


class EnvVar(Projection, frozen=True, kw_only=True):
    value: str = ""


class FullContainer(Projection, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None


class ContainerWaiting(Projection, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerRunning(Projection, frozen=True, kw_only=True):
    started_at: str | None = None


class ContainerTerminated(Projection, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(Projection, frozen=True, kw_only=True):
    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


class FullContainerStatus(ContainerStatus, frozen=True, kw_only=True):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class FullPodSpec(Projection, frozen=True, kw_only=True):
    node_name: str = ""
    host_network: bool = False
    containers: tuple[FullContainer, ...] | None = None
    init_containers: tuple[FullContainer, ...] | None = None
    node_selector: dict[str, str] | None = None
    readiness_gates: tuple[PodReadinessGate, ...] | None = None
    termination_grace_period_seconds: int | None = None
    dns_policy: str = ""


class FullPodStatus(Projection, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(name="podIPs", default=None)
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[FullContainerStatus, ...] | None = None
    init_container_statuses: tuple[FullContainerStatus, ...] | None = None
    start_time: str | None = None

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(entry.ip for entry in self.pod_ips or ())


class FullPod(Pod, frozen=True, kw_only=True):
    """A Pod with probes and states of containers, and without what no check reads: a query has all
    Pods of a cluster in memory.
    """

    spec: FullPodSpec = FullPodSpec()  # type: ignore[assignment]  # narrower than ``Pod``'s
    status: FullPodStatus = FullPodStatus()  # type: ignore[assignment]

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def is_drained(self) -> bool:
        """Returns True if ``sliceplane drain`` marked the Pod: its endpoints are on purpose neither
        ready nor serving.
        """
        return ANNOTATION_DRAIN in (self.metadata.annotations or {})


class TemplateMeta(Projection, frozen=True, kw_only=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(Projection, frozen=True, kw_only=True):
    metadata: TemplateMeta = TemplateMeta()
    spec: FullPodSpec = FullPodSpec()


class RollingUpdate(Projection, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class RolloutStrategy(Projection, frozen=True, kw_only=True):
    type: str = ""
    rolling_update: RollingUpdate | None = None


class FullWorkloadSpec(Projection, frozen=True, kw_only=True):
    """``selector`` is a map for a ReplicationController and a LabelSelector for the others, and is
    not read here.
    """

    replicas: int | None = None
    template: Template = Template()
    strategy: RolloutStrategy | None = None
    service_name: str = ""


class FullWorkloadStatus(Projection, frozen=True, kw_only=True):
    replicas: int = 0
    desired_number_scheduled: int = 0
    ready_replicas: int = 0
    conditions: tuple[Condition, ...] | None = None


class Workload(Object, frozen=True, kw_only=True):
    """A Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController or Job: creates Pods
    from a template.
    """

    spec: FullWorkloadSpec = FullWorkloadSpec()
    status: FullWorkloadStatus = FullWorkloadStatus()


class EventSeries(Projection, frozen=True, kw_only=True):
    count: int = 0
    last_observed_time: str | None = None


class FullEvent(Object, frozen=True, kw_only=True):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None

    @property
    def times(self) -> int:
        """The number of occurrences."""
        return max(1, self.count, self.series.count if self.series is not None else 0)

    @property
    def last_observed(self) -> str:
        """The time of the last occurrence, RFC 3339; "": unknown."""
        series = self.series.last_observed_time if self.series is not None else None
        return (
            series
            or self.last_timestamp
            or self.event_time
            or self.metadata.creation_timestamp
            or ""
        )


class PolicyPort(Projection, frozen=True, kw_only=True):
    """``port`` None: every port."""

    port: IntOrString | None = None
    end_port: int | None = None
    protocol: str = "TCP"


class IPBlock(Projection, frozen=True, kw_only=True):
    cidr: str = ""
    excluded: tuple[str, ...] | None = msgspec.field(name="except", default=None)


class PolicyPeer(Projection, frozen=True, kw_only=True):
    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class PolicyIngressRule(Projection, frozen=True, kw_only=True):
    """No ``from``: every source; no ``ports``: every port."""

    peers: tuple[PolicyPeer, ...] | None = msgspec.field(name="from", default=None)
    ports: tuple[PolicyPort, ...] | None = None


class PolicyEgressRule(Projection, frozen=True, kw_only=True):
    """No ``to``: every destination; no ``ports``: every port."""

    peers: tuple[PolicyPeer, ...] | None = msgspec.field(name="to", default=None)
    ports: tuple[PolicyPort, ...] | None = None


PolicyRule = PolicyIngressRule | PolicyEgressRule


class PolicySpec(Projection, frozen=True, kw_only=True):
    pod_selector: LabelSelector = LabelSelector()
    ingress: tuple[PolicyIngressRule, ...] | None = None
    egress: tuple[PolicyEgressRule, ...] | None = None
    policy_types: tuple[str, ...] | None = None


class FullNetworkPolicy(Object, frozen=True, kw_only=True):
    spec: PolicySpec = PolicySpec()


class BackendPort(Projection, frozen=True, kw_only=True):
    name: str = ""
    number: int = 0


class ServiceBackend(Projection, frozen=True, kw_only=True):
    name: str = ""
    port: BackendPort = BackendPort()


class IngressBackend(Projection, frozen=True, kw_only=True):
    service: ServiceBackend | None = None


class IngressPath(Projection, frozen=True, kw_only=True):
    path: str = ""
    backend: IngressBackend = IngressBackend()


class IngressPaths(Projection, frozen=True, kw_only=True):
    paths: tuple[IngressPath, ...] | None = None


class IngressRule(Projection, frozen=True, kw_only=True):
    host: str = ""
    http: IngressPaths | None = None


class IngressSpec(Projection, frozen=True, kw_only=True):
    default_backend: IngressBackend | None = None
    rules: tuple[IngressRule, ...] | None = None


class FullIngress(Object, frozen=True, kw_only=True):
    spec: IngressSpec = IngressSpec()

    @property
    def backends(self) -> Iterator[ServiceBackend]:
        """Yields the backends that are Services, with repetitions."""
        paths = [
            path.backend
            for rule in self.spec.rules or ()
            if rule.http
            for path in rule.http.paths or ()
        ]
        for backend in (self.spec.default_backend, *paths):
            if backend is not None and backend.service is not None:
                yield backend.service


class FullConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] | None = None


class OwnedFields(Projection, frozen=True, kw_only=True):
    """The members of ``fieldsV1`` that show if a manager owns addresses."""

    subsets: Projection | None = msgspec.field(name="f:subsets", default=None)
    endpoints: Projection | None = msgspec.field(name="f:endpoints", default=None)


class ManagedFields(Projection, frozen=True, kw_only=True):
    manager: str = ""
    time: str | None = None
    fields: OwnedFields | None = msgspec.field(name="fieldsV1", default=None)

    @property
    def writes_addresses(self) -> bool:
        """Returns True if the manager owns addresses, or if its fields are unknown."""
        fields = self.fields
        return fields is None or fields.subsets is not None or fields.endpoints is not None


class WrittenMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the managers of fields, which ``ObjectMeta`` does not decode."""

    managed_fields: tuple[ManagedFields, ...] | None = None

    @property
    def written_at(self) -> float:
        """Time of the last write in ``managedFields``, in seconds since the epoch; 0: unknown."""
        times = [entry.time for entry in self.managed_fields or () if entry.time]
        return time_or_zero(max(times, default=""))


class FullEndpoints(Endpoints, frozen=True, kw_only=True):
    metadata: WrittenMeta = WrittenMeta()

    @property
    def count(self) -> int:
        """The number of addresses as the limit of 1,000 counts them: once in every subset."""
        return sum(
            len(subset.addresses or ()) + len(subset.not_ready_addresses or ())
            for subset in self.subsets or ()
        )


class FullSlice(EndpointSlice, frozen=True, kw_only=True):
    metadata: WrittenMeta = WrittenMeta()

    @property
    def written_at(self) -> float:
        """Time of the last write, else of the change that triggered it, in seconds since the epoch;
        0: unknown.
        """
        trigger = (self.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME, "")
        return self.metadata.written_at or time_or_zero(trigger)


class Readable(Generic[T_co]):
    """A resource as explanations read it, with its projection."""

    def __init__(self, resource: Resource, projection: type[T_co]) -> None:
        self.resource = resource
        self.projection = projection

    def in_namespace(self, namespace: str, label_selector: str = "") -> Selection:
        return Selection(
            self.resource, namespace if self.resource.namespaced else "", label_selector
        )

    def named(self, namespace: str, name: str) -> Selection:
        return Selection(
            self.resource,
            namespace if self.resource.namespaced else "",
            field_selector=f"metadata.name={name}",
        )

    def everywhere(self) -> Selection:
        return Selection(self.resource)

    def each_of(self, namespace: str, names: Iterable[str]) -> tuple[Selection, ...]:
        """Selects *names* one by one if they are few, else the whole namespace in one list."""
        distinct = sorted({name for name in names if name})
        if len(distinct) > NAMED_MAX:
            return (self.in_namespace(namespace),)
        return tuple(self.named(namespace, name) for name in distinct)


def warnings_in(namespace: str) -> Selection:
    """Selects the Events that checks read, which are few of all: none reads a Normal one."""
    return Selection(EVENTS.resource, namespace, field_selector="type=Warning")


def events_about(namespace: str, kind: str, name: str) -> Selection:
    fields = f"involvedObject.kind={kind},involvedObject.name={name}"
    return Selection(EVENTS.resource, namespace, field_selector=fields)


def pods_with_address(address: str) -> Selection:
    """Selects the Pods of all namespaces; a field selector has no "or" for several addresses."""
    return Selection(PODS.resource, field_selector=f"status.podIP={address}")


_Jobs = Resource(group="batch", kind="Job")

SERVICES = Readable(scheme.Services, Service)
PODS = Readable(scheme.Pods, FullPod)
SLICES = Readable(scheme.EndpointSlices, FullSlice)
ENDPOINTS = Readable(scheme.EndpointsObjects, FullEndpoints)
NODES = Readable(scheme.Nodes, Node)
NAMESPACES = Readable(scheme.Namespaces, Namespace)
SERVICE_CIDRS = Readable(scheme.ServiceCIDRs, ServiceCIDR)
LEASES = Readable(scheme.Leases, Lease)
QUOTAS = Readable(scheme.ResourceQuotas, ResourceQuota)
EVENTS = Readable(scheme.Events, FullEvent)
CONFIG_MAPS = Readable(scheme.ConfigMaps, FullConfigMap)
DEPLOYMENTS = Readable(scheme.Deployments, Workload)
REPLICA_SETS = Readable(scheme.ReplicaSets, Workload)
STATEFUL_SETS = Readable(scheme.StatefulSets, Workload)
DAEMON_SETS = Readable(scheme.DaemonSets, Workload)
REPLICATION_CONTROLLERS = Readable(scheme.ReplicationControllers, Workload)
JOBS = Readable(_Jobs, Workload)
NETWORK_POLICIES = Readable(scheme.NetworkPolicies, FullNetworkPolicy)
INGRESSES = Readable(scheme.Ingresses, FullIngress)

WORKLOADS = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, REPLICA_SETS, REPLICATION_CONTROLLERS, JOBS)
READABLES: tuple[Readable[Object], ...] = (
    SERVICES,
    PODS,
    SLICES,
    ENDPOINTS,
    NODES,
    NAMESPACES,
    SERVICE_CIDRS,
    LEASES,
    QUOTAS,
    EVENTS,
    CONFIG_MAPS,
    *WORKLOADS,
    NETWORK_POLICIES,
    INGRESSES,
)
