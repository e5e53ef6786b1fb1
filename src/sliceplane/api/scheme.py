"""The table of resources that we serve: names, versions, scope, subresources and per-kind rules
that are data.

What needs code for each kind (defaults, validation, columns ...) is in the kind's module,
``server.registry.kinds``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from sliceplane.api import apps, core, discovery
from sliceplane.api.errors import StatusError
from sliceplane.api.resource import ALL_VERBS, READ_VERBS, Resource
from sliceplane.kit.names import check_dns_label, check_ip_name, check_path_segment

__all__ = ["ALL_VERBS", "READ_VERBS", "Resource"]

_POD_FIELDS = (
    ("spec.nodeName", "spec.nodeName"),
    ("spec.host", "spec.nodeName"),
    ("spec.restartPolicy", "spec.restartPolicy"),
    ("spec.schedulerName", "spec.schedulerName"),
    ("spec.serviceAccountName", "spec.serviceAccountName"),
    ("spec.hostNetwork", "spec.hostNetwork"),
    ("status.phase", "status.phase"),
    ("status.podIP", "status.podIP"),
    ("status.nominatedNodeName", "status.nominatedNodeName"),
)
_REFERENCE_FIELDS = (
    "kind",
    "namespace",
    "name",
    "uid",
    "apiVersion",
    "resourceVersion",
    "fieldPath",
)
_CORE_EVENT_FIELDS = (
    *((f"involvedObject.{name}", f"involvedObject.{name}") for name in _REFERENCE_FIELDS),
    ("reason", "reason"),
    ("reportingComponent", "reportingComponent"),
    ("source", "source.component"),
    ("type", "type"),
)
#: as upstream: also under the bare word
_NAME_FIELD = (("name", "metadata.name"),)

EndpointSlices = Resource(
    group="discovery.k8s.io",
    kind="EndpointSlice",
    projection=discovery.EndpointSlice,
    generation="content",
)
#: long removed upstream; served when asked for (``OPTIONAL_RESOURCES``)
EndpointSlicesV1beta1 = replace(
    EndpointSlices, version="v1beta1", storage=EndpointSlices.key, hub=EndpointSlices
)
Services = Resource(
    kind="Service",
    projection=core.Service,
    short_names=("svc",),
    categories=("all",),
    subresources=("status",),
    check_name=check_dns_label,
    selectable_fields=(("spec.clusterIP", "spec.clusterIP"), ("spec.type", "spec.type")),
    create_on_update=True,
    delete_reply="object",
)
EndpointsObjects = Resource(
    kind="Endpoints",
    plural="endpoints",
    projection=core.Endpoints,
    short_names=("ep",),
    create_on_update=True,
)
Pods = Resource(
    kind="Pod",
    projection=core.Pod,
    short_names=("po",),
    categories=("all",),
    subresources=("binding", "ephemeralcontainers", "eviction", "resize", "status"),
    selectable_fields=_POD_FIELDS,
    generation="spec",
    delete_reply="object",
)
Nodes = Resource(
    kind="Node",
    projection=core.Node,
    namespaced=False,
    short_names=("no",),
    subresources=("status",),
    selectable_fields=(("spec.unschedulable", "spec.unschedulable"),),
)
Namespaces = Resource(
    kind="Namespace",
    projection=core.Namespace,
    namespaced=False,
    short_names=("ns",),
    verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    subresources=("finalize", "status"),
    check_name=check_dns_label,
    selectable_fields=(("status.phase", "status.phase"),),
    delete_reply="object",
)
ConfigMaps = Resource(kind="ConfigMap", short_names=("cm",), projection=core.ConfigMap)
Events = Resource(
    kind="Event",
    projection=core.Event,
    short_names=("ev",),
    selectable_fields=_CORE_EVENT_FIELDS,
    create_on_update=True,
    uncached=True,
)
#: the same Events under other names, see ``server.documents.conversion``; paths of fields are those
#: of the stored form
EventsV1 = Resource(
    group="events.k8s.io",
    kind="Event",
    short_names=("ev",),
    storage="events",
    selectable_fields=(
        *((f"regarding.{name}", f"involvedObject.{name}") for name in _REFERENCE_FIELDS),
        ("reason", "reason"),
        ("reportingController", "reportingComponent"),
        ("type", "type"),
    ),
    create_on_update=True,
    uncached=True,
)
ResourceQuotas = Resource(
    kind="ResourceQuota",
    projection=core.ResourceQuota,
    short_names=("quota",),
    subresources=("status",),
    delete_reply="object",
)
LimitRanges = Resource(kind="LimitRange", short_names=("limits",))
Secrets = Resource(kind="Secret", selectable_fields=(("type", "type"),))
ServiceAccounts = Resource(
    kind="ServiceAccount", short_names=("sa",), subresources=("token",), delete_reply="object"
)
IPAddresses = Resource(
    group="networking.k8s.io",
    kind="IPAddress",
    plural="ipaddresses",
    namespaced=False,
    short_names=("ip",),
    check_name=check_ip_name,
)
ServiceCIDRs = Resource(
    group="networking.k8s.io",
    kind="ServiceCIDR",
    projection=core.ServiceCIDR,
    namespaced=False,
    subresources=("status",),
    # Stable since Kubernetes 1.33 (KEP-1880), and not part of upstream's role for node proxies.
    dispensable=True,
)
Leases = Resource(
    group="coordination.k8s.io",
    kind="Lease",
    projection=core.Lease,
    unconditional_update=False,
    create_on_update=True,
)
Deployments = Resource(
    group="apps",
    kind="Deployment",
    projection=apps.Deployment,
    short_names=("deploy",),
    categories=("all",),
    subresources=("scale", "status"),
    generation="spec",
)
ReplicaSets = Resource(
    group="apps",
    kind="ReplicaSet",
    projection=apps.ReplicaSet,
    short_names=("rs",),
    categories=("all",),
    subresources=("scale", "status"),
    generation="spec",
)
DaemonSets = Resource(
    group="apps",
    kind="DaemonSet",
    projection=apps.DaemonSet,
    short_names=("ds",),
    categories=("all",),
    subresources=("status",),
    generation="spec",
)
StatefulSets = Resource(
    group="apps",
    kind="StatefulSet",
    projection=apps.StatefulSet,
    short_names=("sts",),
    categories=("all",),
    subresources=("scale", "status"),
    check_name=check_dns_label,
    generation="spec",
)
ControllerRevisions = Resource(
    group="apps", kind="ControllerRevision", projection=apps.ControllerRevision
)
ReplicationControllers = Resource(
    kind="ReplicationController",
    projection=apps.ReplicationController,
    short_names=("rc",),
    categories=("all",),
    subresources=("scale", "status"),
    generation="spec",
)
PodTemplates = Resource(kind="PodTemplate", generation="template", delete_reply="object")
PodDisruptionBudgets = Resource(
    group="policy",
    kind="PodDisruptionBudget",
    projection=apps.PodDisruptionBudget,
    check_name=check_path_segment,
    short_names=("pdb",),
    subresources=("status",),
    generation="spec",
    unconditional_update=False,
)
Ingresses = Resource(
    group="networking.k8s.io",
    kind="Ingress",
    plural="ingresses",
    short_names=("ing",),
    subresources=("status",),
    generation="spec",
)
IngressClasses = Resource(
    group="networking.k8s.io",
    kind="IngressClass",
    plural="ingressclasses",
    namespaced=False,
    generation="spec",
)
NetworkPolicies = Resource(
    group="networking.k8s.io",
    kind="NetworkPolicy",
    plural="networkpolicies",
    short_names=("netpol",),
    generation="spec",
)
PriorityClasses = Resource(
    group="scheduling.k8s.io",
    kind="PriorityClass",
    plural="priorityclasses",
    namespaced=False,
    short_names=("pc",),
    generation="spec",
)
RuntimeClasses = Resource(
    group="node.k8s.io",
    kind="RuntimeClass",
    plural="runtimeclasses",
    namespaced=False,
    unconditional_update=False,
    create_on_update=True,
)


def _storage(kind: str, *short_names: str, group: str = "storage.k8s.io", **more: Any) -> Resource:
    """Clusters of older releases lack some of these kinds."""
    row: dict[str, Any] = {
        "namespaced": False,
        "delete_reply": "object",
        "dispensable": True,
        **more,
    }
    return Resource(group=group, kind=kind, short_names=short_names, **row)


PersistentVolumeClaims = _storage(
    "PersistentVolumeClaim",
    "pvc",
    group="",
    projection=core.PersistentVolumeClaim,
    namespaced=True,
    subresources=("status",),
    selectable_fields=_NAME_FIELD,
)
PersistentVolumes = _storage(
    "PersistentVolume", "pv", group="", subresources=("status",), selectable_fields=_NAME_FIELD
)
StorageClasses = _storage("StorageClass", "sc", plural="storageclasses")
VolumeAttributesClasses = _storage("VolumeAttributesClass", "vac", plural="volumeattributesclasses")
VolumeAttachments = _storage(
    "VolumeAttachment", subresources=("status",), unconditional_update=False
)
CSIDrivers = _storage("CSIDriver", unconditional_update=False)
CSINodes = _storage("CSINode", unconditional_update=False)
CSIStorageCapacities = _storage(
    "CSIStorageCapacity",
    plural="csistoragecapacities",
    namespaced=True,
    unconditional_update=False,
    delete_reply="status",
)

RBAC_GROUP = "rbac.authorization.k8s.io"


def _rbac(kind: str, *, namespaced: bool) -> Resource:
    return Resource(
        group=RBAC_GROUP,
        kind=kind,
        namespaced=namespaced,
        check_name=check_path_segment,
        create_on_update=True,
    )


Roles = _rbac("Role", namespaced=True)
RoleBindings = _rbac("RoleBinding", namespaced=True)
ClusterRoles = _rbac("ClusterRole", namespaced=False)
ClusterRoleBindings = _rbac("ClusterRoleBinding", namespaced=False)
#: how requests are served; written by the server alone (``server.registry.bootstrap``)
FlowSchemas = Resource(
    group="flowcontrol.apiserver.k8s.io",
    kind="FlowSchema",
    namespaced=False,
    verbs=READ_VERBS,
    generation="spec",
)
PriorityLevelConfigurations = Resource(
    group="flowcontrol.apiserver.k8s.io",
    kind="PriorityLevelConfiguration",
    namespaced=False,
    verbs=READ_VERBS,
    generation="spec",
)


def _review(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    """A question that is POSTed and answered, and never stored."""
    return Resource(group=group, kind=kind, namespaced=namespaced, verbs=("create",))


SelfSubjectReviews = _review("authentication.k8s.io", "SelfSubjectReview")
SelfSubjectAccessReviews = _review("authorization.k8s.io", "SelfSubjectAccessReview")
SelfSubjectRulesReviews = _review("authorization.k8s.io", "SelfSubjectRulesReview")
TokenReviews = _review("authentication.k8s.io", "TokenReview")
SubjectAccessReviews = _review("authorization.k8s.io", "SubjectAccessReview")
LocalSubjectAccessReviews = _review(
    "authorization.k8s.io", "LocalSubjectAccessReview", namespaced=True
)

#: the older way to ``pods/NAME/binding``: the body names the Pod
Bindings = Resource(kind="Binding", verbs=("create",))


def _listed(
    group: str,
    kind: str,
    *short_names: str,
    version: str = "v1",
    plural: str = "",
    namespaced: bool = False,
    **more: Any,
) -> Resource:
    """A kind that unmodified controllers watch before they start, and that this server does not
    implement.
    """
    return Resource(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        namespaced=namespaced,
        short_names=short_names,
        verbs=READ_VERBS,
        **more,
    )


_RESOURCE_GROUP = "resource.k8s.io"
_ADMISSION_POLICIES = _listed(
    "admissionregistration.k8s.io",
    "ValidatingAdmissionPolicy",
    plural="validatingadmissionpolicies",
)
#: left out of discovery: charts look there whether policies are honoured
UNDISCOVERED: tuple[Resource, ...] = (_ADMISSION_POLICIES,)
#: served as lists that are always empty; a write is refused with the reason
LISTED: tuple[Resource, ...] = (
    _ADMISSION_POLICIES,
    _listed(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "hpa",
        version="v2",
        namespaced=True,
        categories=("all",),
    ),
    _listed("batch", "CronJob", "cj", namespaced=True, categories=("all",)),
    _listed("batch", "Job", namespaced=True, categories=("all",)),
    _listed("certificates.k8s.io", "CertificateSigningRequest", "csr"),
    _listed(_RESOURCE_GROUP, "DeviceClass", plural="deviceclasses"),
    _listed(_RESOURCE_GROUP, "ResourceClaim", namespaced=True),
    _listed(_RESOURCE_GROUP, "ResourceClaimTemplate", namespaced=True),
    _listed(_RESOURCE_GROUP, "ResourceSlice"),
)

#: what is stored
RESOURCES: tuple[Resource, ...] = (
    ConfigMaps,
    EndpointsObjects,
    Events,
    LimitRanges,
    Namespaces,
    Nodes,
    PersistentVolumeClaims,
    PersistentVolumes,
    PodTemplates,
    Pods,
    ReplicationControllers,
    ResourceQuotas,
    Secrets,
    ServiceAccounts,
    Services,
    ControllerRevisions,
    DaemonSets,
    Deployments,
    ReplicaSets,
    StatefulSets,
    Leases,
    EndpointSlices,
    ClusterRoleBindings,
    ClusterRoles,
    RoleBindings,
    Roles,
    EventsV1,
    FlowSchemas,
    PriorityLevelConfigurations,
    IngressClasses,
    Ingresses,
    IPAddresses,
    NetworkPolicies,
    ServiceCIDRs,
    RuntimeClasses,
    PodDisruptionBudgets,
    PriorityClasses,
    CSIDrivers,
    CSINodes,
    CSIStorageCapacities,
    StorageClasses,
    VolumeAttachments,
    VolumeAttributesClasses,
)
#: what is asked: create is their only verb
REVIEWS: tuple[Resource, ...] = (
    SelfSubjectReviews,
    TokenReviews,
    LocalSubjectAccessReviews,
    SelfSubjectAccessReviews,
    SelfSubjectRulesReviews,
    SubjectAccessReviews,
)
#: everything that is never stored
POSTED: tuple[Resource, ...] = (Bindings, *REVIEWS)
#: everything whose fields are known
DESCRIBED: tuple[Resource, ...] = (*RESOURCES, *POSTED)
#: everything that has a path unless something else is asked for
SERVED: tuple[Resource, ...] = (*DESCRIBED, *LISTED)
#: what ``--runtime-config`` can switch on
OPTIONAL_RESOURCES: tuple[Resource, ...] = (EndpointSlicesV1beta1,)

_ALL = (*SERVED, *OPTIONAL_RESOURCES)
#: the resource of a URL, served or not, by group, version and plural
BY_PATH: Final = {(r.group, r.version, r.plural): r for r in _ALL}
_BY_KIND = {(r.api_version, r.kind): r for r in _ALL}
_BY_KEY = {r.schema_key: r for r in _ALL}
# msgspec looks at a type when its first decoder is made, and a thread that makes another meanwhile
# gets half of what there is to know, and crashes the process. So it looks at all of them now, while
# they are imported (5 ms).
for _resource in _ALL:
    msgspec.json.Decoder(_resource.projection)


def by_kind(api_version: str, kind: str) -> Resource | None:
    return _BY_KIND.get((api_version, kind))


#: the resource by its ``schema_key`` (``plural.group``, or ``plural.version.group`` for an older
#: version), or ``None``
by_key: Final = _BY_KEY.get


def by_storage_key(storage_key: str) -> Resource:
    """The resource whose form is the stored one."""
    return _BY_KEY[storage_key]


def stored_form(resource: Resource) -> Resource:
    """The resource in whose form objects of *resource* are stored: itself, unless it is a view of
    another.
    """
    return _BY_KEY[resource.storage] if resource.is_view else resource


#: answers to a list or a watch that mean "you cannot have that here": not allowed, not served
NOT_TO_BE_HAD: Final = (403, 404)


def is_done_without(resource: Resource, error: StatusError) -> bool:
    """Returns True if readers of *resource* (informers, ``trace``, ``proxy render``, the check
    before ``--once``) go on without it after *error*. Its objects are unknown then, which each
    reader handles.
    """
    return resource.dispensable and error.code in NOT_TO_BE_HAD
