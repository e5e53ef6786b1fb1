"""core/v1 kinds as readers see them: only the members that controllers and consumers use."""

from __future__ import annotations

import msgspec

from sliceplane.api.meta import (
    Condition,
    IntOrString,
    LabelSelector,
    Object,
    ObjectReference,
    ObservedCondition,
    Projection,
    find_condition,
)


class ServicePort(Projection, frozen=True, kw_only=True):
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    port: int = 0
    target_port: IntOrString | None = None
    node_port: int = 0


class ClientIPConfig(Projection, frozen=True, kw_only=True):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Projection, frozen=True, kw_only=True):
    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(Projection, frozen=True, kw_only=True):
    type: str = "ClusterIP"
    ports: tuple[ServicePort, ...] | None = None
    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] | None = msgspec.field(name="clusterIPs", default=None)
    external_ips: tuple[str, ...] | None = msgspec.field(name="externalIPs", default=None)
    external_name: str = ""
    ip_families: tuple[str, ...] | None = None
    ip_family_policy: str | None = None
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    load_balancer_class: str = ""
    load_balancer_source_ranges: tuple[str, ...] | None = None
    publish_not_ready_addresses: bool = False
    traffic_distribution: str | None = None


class LoadBalancerIngress(Projection, frozen=True, kw_only=True):
    """``ip_mode`` None is VIP: packets come with the address as their destination; Proxy: they do
    not.
    """

    ip: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(Projection, frozen=True, kw_only=True):
    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(Projection, frozen=True, kw_only=True):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: tuple[ObservedCondition, ...] | None = None


class Service(Object, frozen=True, kw_only=True):
    """A Service: what selects its Pods, its ports and addresses, and how its traffic is spread."""

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class ServiceCIDRSpec(Projection, frozen=True, kw_only=True):
    cidrs: tuple[str, ...] | None = None


class ServiceCIDR(Object, frozen=True, kw_only=True):
    """networking.k8s.io/v1: ranges that cluster IPs are taken from."""

    spec: ServiceCIDRSpec = ServiceCIDRSpec()


class EndpointAddress(Projection, frozen=True, kw_only=True):
    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class CoreEndpointPort(Projection, frozen=True, kw_only=True):
    name: str = ""
    port: int = 0
    protocol: str = "TCP"
    app_protocol: str | None = None


class EndpointSubset(Projection, frozen=True, kw_only=True):
    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[CoreEndpointPort, ...] | None = None


class Endpoints(Object, frozen=True, kw_only=True):
    """The classic list of a Service's addresses (core/v1), which EndpointSlices replace."""

    subsets: tuple[EndpointSubset, ...] | None = None


class ContainerPort(Projection, frozen=True, kw_only=True):
    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


#: quantities by name; a small whole number may come as a JSON number
Amounts = dict[str, str | int]


class ResourceRequirements(Projection, frozen=True, kw_only=True):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Container(Projection, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    ports: tuple[ContainerPort, ...] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class PodReadinessGate(Projection, frozen=True, kw_only=True):
    condition_type: str = ""


class TopologySpreadConstraint(Projection, frozen=True, kw_only=True):
    topology_key: str = ""


class NodeSelectorRequirement(Projection, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(Projection, frozen=True, kw_only=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(Projection, frozen=True, kw_only=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(Projection, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(Projection, frozen=True, kw_only=True):
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Projection, frozen=True, kw_only=True):
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Projection, frozen=True, kw_only=True):
    """Of Pods to Pods, whether they are drawn to each other or kept apart."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: (
        tuple[WeightedPodAffinityTerm, ...] | None
    ) = None


class Affinity(Projection, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Projection, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Projection, frozen=True, kw_only=True):
    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    host_network: bool = False
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    readiness_gates: tuple[PodReadinessGate, ...] | None = None
    termination_grace_period_seconds: int | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    priority_class_name: str = ""
    active_deadline_seconds: int | None = None
    resources: ResourceRequirements = ResourceRequirements()
    overhead: Amounts | None = None


class PodIP(Projection, frozen=True, kw_only=True):
    ip: str = ""


class ContainerStatus(Projection, frozen=True, kw_only=True):
    name: str = ""
    restart_count: int = 0


class PodStatus(Projection, frozen=True, kw_only=True):
    phase: str = ""
    observed_generation: int | None = None
    reason: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(name="podIPs", default=None)
    host_ip: str = msgspec.field(name="hostIP", default="")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    ephemeral_container_statuses: tuple[ContainerStatus, ...] | None = None
    start_time: str | None = None

    @property
    def ips(self) -> tuple[str, ...]:
        """The addresses of the Pod; the API server keeps ``podIP`` equal to the first."""
        return tuple(entry.ip for entry in self.pod_ips or ())


class Pod(Object, frozen=True, kw_only=True):
    """A Pod: where it runs, its addresses and ports, and whether it is ready."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> Condition | None:
        """Returns the condition of the type *kind*."""
        return find_condition(self.status.conditions, kind)

    @property
    def is_ready(self) -> bool:
        """Returns True if the condition Ready of the Pod is True."""
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    @property
    def has_ended(self) -> bool:
        """Returns True if the phase is Succeeded or Failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_active(self) -> bool:
        """Returns True if the Pod counts for its owner: neither ended nor deleted."""
        return not self.metadata.is_deleting and not self.has_ended


class NodeAddress(Projection, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class Taint(Projection, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Projection, frozen=True, kw_only=True):
    pod_cidr: str = msgspec.field(name="podCIDR", default="")
    pod_cidrs: tuple[str, ...] | None = msgspec.field(name="podCIDRs", default=None)
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Projection, frozen=True, kw_only=True):
    allocatable: Amounts | None = None
    conditions: tuple[Condition, ...] | None = None
    addresses: tuple[NodeAddress, ...] | None = None


class Node(Object, frozen=True, kw_only=True):
    """A Node: its Pod networks, addresses, conditions and what can be allocated."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready_condition(self) -> Condition | None:
        """The condition Ready; ``None`` on a Node that no kubelet keeps."""
        return find_condition(self.status.conditions, "Ready")

    @property
    def is_ready(self) -> bool:
        """Returns True if the condition Ready of the Node is True."""
        ready = self.ready_condition
        return ready is not None and ready.status == "True"


class NamespaceSpec(Projection, frozen=True, kw_only=True):
    finalizers: tuple[str, ...] | None = None


class NamespaceStatus(Projection, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[Condition, ...] | None = None


class Namespace(Object, frozen=True, kw_only=True):
    """A Namespace, and whether it terminates."""

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ConfigMapData(Projection, frozen=True, kw_only=True):
    """The one member that is read here; the rest of a ConfigMap stays out of caches."""

    ca_crt: str = msgspec.field(name="ca.crt", default="")


class ConfigMap(Object, frozen=True, kw_only=True):
    """A ConfigMap; of its data only the cluster's certificate authority is decoded."""

    data: ConfigMapData | None = None


class LeaseSpec(Projection, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    """A Lease (coordination.k8s.io/v1): its holder, and when that last renewed it."""

    spec: LeaseSpec = LeaseSpec()


class Event(Object, frozen=True, kw_only=True):
    """An Event of the core API: what happened to an object, how often, and who reports it."""

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0


class ScopedResourceSelectorRequirement(Projection, frozen=True, kw_only=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class ScopeSelector(Projection, frozen=True, kw_only=True):
    match_expressions: tuple[ScopedResourceSelectorRequirement, ...] | None = None


class ResourceQuotaSpec(Projection, frozen=True, kw_only=True):
    hard: Amounts | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Projection, frozen=True, kw_only=True):
    hard: Amounts | None = None
    used: Amounts | None = None


class ResourceQuota(Object, frozen=True, kw_only=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class PersistentVolumeClaimSpec(Projection, frozen=True, kw_only=True):
    storage_class_name: str | None = None
    resources: ResourceRequirements | None = None


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
