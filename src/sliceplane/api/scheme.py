"""The table of resources that we serve: names, versions, scope, subresources and per-kind rules that are data.

What needs code for each kind (defaults, validation, columns ...) is in the kind's module, ``registry.kinds``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from sliceplane.api import apps, core, discovery, policy
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_ip_name, check_path_segment

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_VERBS = ("get", "list", "watch")

GenerationRule = Literal["none", "spec", "template", "content"]
DeleteReply = Literal["status", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One served resource (a plural in one group and version)."""

    group: str = ""
    version: str = "v1"
    kind: str
    #: the kind in lower case with an s, if not said
    plural: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    #: what readers see of an object
    projection: type[Object] = Object
    #: names of rows of ``api.requests``; only these are routed
    subresources: tuple[str, ...] = ()
    #: resources that are two views of one stored object share this (core and events.k8s.io Events)
    storage: str = ""
    #: the version whose form is stored, if it is another; ``documents.conversion`` goes to it and back
    hub: Resource | None = None
    check_name: Callable[[str], tuple[str, ...]] = check_dns_subdomain
    #: field selector names beyond metadata.name and metadata.namespace, mapped to a JSON path
    #: ``a.b.c`` in the document; a missing value selects as ""
    selectable_fields: tuple[tuple[str, str], ...] = ()
    #: "content": +1 when anything outside metadata, or a label, changes; else the member that counts
    generation: GenerationRule = "none"
    unconditional_update: bool = True
    #: a cluster may lack it, or keep it from a reader, and readers go on without it (``is_done_without``)
    dispensable: bool = False
    create_on_update: bool = False
    delete_reply: DeleteReply = "status"
    #: as upstream: served straight from storage, which a client can tell by limits and errors
    uncached: bool = False

    # Asked for many times in every request, so they are put together once.
    singular: str = field(init=False, compare=False)
    api_version: str = field(init=False, compare=False)
    #: ``plural.group`` (core: the plural alone); the storage prefix and the name in messages
    key: str = field(init=False, compare=False)
    #: what the fields of this version are found by: ``key``, with the version in it where that is not the hub
    schema_key: str = field(init=False, compare=False)
    storage_key: str = field(init=False, compare=False)
    #: objects of another resource under other names, see ``documents.conversion``; an older version is none
    is_view: bool = field(init=False, compare=False)
    has_status: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        plural = self.plural or f"{self.kind.lower()}s"
        key = f"{plural}.{self.group}" if self.group else plural
        made = {
            "plural": plural,
            "singular": self.kind.lower(),
            "api_version": f"{self.group}/{self.version}" if self.group else self.version,
            "key": key,
            "schema_key": key if self.hub is None else f"{plural}.{self.version}.{self.group}",
            "storage_key": self.storage or key,
            "is_view": bool(self.storage) and self.storage != key,
            "has_status": "status" in self.subresources,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def path_prefix(self) -> str:
        """``/api/v1`` or ``/apis/GROUP/VERSION``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = [self.path_prefix]
        if namespace and self.namespaced:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part)
        return "/".join(parts)


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
_REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_CORE_EVENT_FIELDS = (
    *((f"involvedObject.{name}", f"involvedObject.{name}") for name in _REFERENCE_FIELDS),
    ("reason", "reason"),
    ("reportingComponent", "reportingComponent"),
    ("source", "source.component"),
    ("type", "type"),
)

EndpointSlices = Resource(
    group="discovery.k8s.io", kind="EndpointSlice", projection=discovery.EndpointSlice, generation="content"
)
#: long removed upstream; served when asked for (``OPTIONAL_RESOURCES``)
EndpointSlicesV1beta1 = replace(EndpointSlices, version="v1beta1", storage=EndpointSlices.key, hub=EndpointSlices)
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
    kind="Endpoints", plural="endpoints", projection=core.Endpoints, short_names=("ep",), create_on_update=True
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
#: the same Events under other names, see ``documents.conversion``; paths of fields are those of the stored form
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
ServiceAccounts = Resource(kind="ServiceAccount", short_names=("sa",), subresources=("token",), delete_reply="object")
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
    group="coordination.k8s.io", kind="Lease", projection=core.Lease, unconditional_update=False, create_on_update=True
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
ControllerRevisions = Resource(group="apps", kind="ControllerRevision", projection=apps.ControllerRevision)
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
    projection=policy.PodDisruptionBudget,
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
    group="networking.k8s.io", kind="IngressClass", plural="ingressclasses", namespaced=False, generation="spec"
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

RBAC_GROUP = "rbac.authorization.k8s.io"


def _rbac(kind: str, *, namespaced: bool) -> Resource:
    return Resource(
        group=RBAC_GROUP, kind=kind, namespaced=namespaced, check_name=check_path_segment, create_on_update=True
    )


Roles = _rbac("Role", namespaced=True)
RoleBindings = _rbac("RoleBinding", namespaced=True)
ClusterRoles = _rbac("ClusterRole", namespaced=False)
ClusterRoleBindings = _rbac("ClusterRoleBinding", namespaced=False)
#: how requests are served; written by the server alone (``registry.bootstrap``)
FlowSchemas = Resource(
    group="flowcontrol.apiserver.k8s.io", kind="FlowSchema", namespaced=False, verbs=READ_VERBS, generation="spec"
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
LocalSubjectAccessReviews = _review("authorization.k8s.io", "LocalSubjectAccessReview", namespaced=True)

#: the older way to ``pods/NAME/binding``: the body names the Pod
Bindings = Resource(kind="Binding", verbs=("create",))

#: what is stored
RESOURCES: tuple[Resource, ...] = (
    ConfigMaps,
    EndpointsObjects,
    Events,
    LimitRanges,
    Namespaces,
    Nodes,
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
#: everything that has a path unless something else is asked for
SERVED: tuple[Resource, ...] = (*RESOURCES, *POSTED)
#: what ``--runtime-config`` can switch on
OPTIONAL_RESOURCES: tuple[Resource, ...] = (EndpointSlicesV1beta1,)

_ALL = (*SERVED, *OPTIONAL_RESOURCES)
#: the resource of a URL, served or not, by group, version and plural
BY_PATH: Final = {(r.group, r.version, r.plural): r for r in _ALL}
_BY_KIND = {(r.api_version, r.kind): r for r in _ALL}
_BY_KEY = {r.schema_key: r for r in _ALL}
# msgspec looks at a type when its first decoder is made, and a thread that makes another meanwhile gets half of what
# there is to know, and crashes the process.  So it looks at all of them now, while they are imported (5 ms).
for _resource in _ALL:
    msgspec.json.Decoder(_resource.projection)


def by_kind(api_version: str, kind: str) -> Resource | None:
    return _BY_KIND.get((api_version, kind))


#: the resource by its ``schema_key`` (``plural.group``, or ``plural.version.group`` for an older version), or ``None``
by_key: Final = _BY_KEY.get


def by_storage_key(storage_key: str) -> Resource:
    """The resource whose form is the stored one."""
    return _BY_KEY[storage_key]


def stored_form(resource: Resource) -> Resource:
    """The resource in whose form objects of *resource* are stored: itself, unless it is a view of another."""
    return _BY_KEY[resource.storage] if resource.is_view else resource


#: answers to a list or a watch that mean "you cannot have that here": not allowed, not served
NOT_TO_BE_HAD: Final = (403, 404)


def is_done_without(resource: Resource, error: StatusError) -> bool:
    """Whether readers of *resource* (informers, ``trace``, ``proxy render``, the look before ``--once``) go on without
    it after *error*.  What its objects would have said is not known then, which each reader has an answer for."""
    return resource.dispensable and error.code in NOT_TO_BE_HAD
