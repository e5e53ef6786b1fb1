"""What the server fills in where a client said nothing (reference B6, controllers.md 5.1).

Promises: ``apply`` is idempotent, changes only absent (or Go-empty) members, and needs nothing but the
document, so that it can run on every decoded body, patched or new.
Never: allocates, looks at other objects, or drops what was said.
"""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    ClusterRoleBindings,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Events,
    IPAddresses,
    Leases,
    LimitRanges,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    ResourceQuotas,
    RoleBindings,
    Secrets,
    ServiceCIDRs,
    Services,
)
from sliceplane.registry.defaults.discovery import default_endpoint_slice
from sliceplane.registry.defaults.pods import default_pod
from sliceplane.registry.defaults.rbac import default_binding
from sliceplane.registry.defaults.services import default_service
from sliceplane.registry.defaults.small import (
    default_endpoints,
    default_event,
    default_lease,
    default_limit_range,
    default_node,
    default_resource_quota,
    default_secret,
    default_spec,
)
from sliceplane.registry.defaults.workloads import default_deployment, default_replica_set

_DEFAULTS: dict[str, Callable[[Document], None]] = {
    ClusterRoleBindings.key: default_binding,
    Deployments.key: default_deployment,
    EndpointSlices.key: default_endpoint_slice,
    EndpointsObjects.key: default_endpoints,
    Events.key: default_event,
    IPAddresses.key: default_spec,
    Leases.key: default_lease,
    LimitRanges.key: default_limit_range,
    Nodes.key: default_node,
    Pods.key: default_pod,
    ReplicaSets.key: default_replica_set,
    RoleBindings.key: default_binding,
    ResourceQuotas.key: default_resource_quota,
    Secrets.key: default_secret,
    ServiceCIDRs.key: default_spec,
    Services.key: default_service,
}


def apply(resource: Resource, document: Document) -> None:
    """Fill in the defaults of the kind, in place.  The document must have passed its type check."""
    default = _DEFAULTS.get(resource.key)
    if default is not None:
        default(document)
