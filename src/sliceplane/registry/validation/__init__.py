"""What an object must be to be stored, in the words that Kubernetes uses (reference B13, controllers.md 5.2).

Promises: a list of field errors in a fixed order; nothing changed; an unchanged part that passed once is not
held against an update (ratcheting) where upstream does so too.
Never: looks at other objects (that is admission) or at types (decoding has seen to those).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sliceplane.api.errors import FieldError, invalid
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    ClusterRoleBindings,
    ClusterRoles,
    ConfigMaps,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Events,
    EventsV1,
    IPAddresses,
    Leases,
    LimitRanges,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    ResourceQuotas,
    RoleBindings,
    Roles,
    Secrets,
    ServiceAccounts,
    ServiceCIDRs,
    Services,
    stored_form,
)
from sliceplane.registry.validation import (
    config_maps,
    endpoint_slices,
    endpoints,
    events,
    limit_ranges,
    load_balancers,
    metadata,
    networking,
    nodes,
    pods,
    quotas,
    rbac,
    secrets,
    small,
    workloads,
)
from sliceplane.registry.validation.service_update import validate_service_update
from sliceplane.registry.validation.services import validate_service


class _Create(Protocol):
    def __call__(self, document: Document, /) -> list[FieldError]: ...


class _Update(Protocol):
    def __call__(self, new: Document, old: Document, /) -> list[FieldError]: ...


class _Rules(NamedTuple):
    create: _Create
    update: _Update


_RULES: dict[str, _Rules] = {
    ClusterRoleBindings.key: _Rules(rbac.validate_cluster_role_binding, rbac.validate_cluster_role_binding_update),
    ClusterRoles.key: _Rules(rbac.validate_cluster_role, rbac.validate_cluster_role_update),
    ConfigMaps.key: _Rules(config_maps.validate, config_maps.validate_update),
    Deployments.key: _Rules(workloads.validate_deployment, workloads.validate_deployment_update),
    EndpointSlices.key: _Rules(endpoint_slices.validate, endpoint_slices.validate_update),
    EndpointsObjects.key: _Rules(endpoints.validate, endpoints.validate_update),
    Events.key: _Rules(events.validate_event, events.validate_event_update),
    EventsV1.key: _Rules(events.validate_v1_event, events.validate_v1_event_update),
    IPAddresses.key: _Rules(networking.validate_ip_address, networking.validate_ip_address_update),
    Leases.key: _Rules(small.validate_lease, small.validate_lease_update),
    LimitRanges.key: _Rules(limit_ranges.validate, limit_ranges.validate_update),
    Namespaces.key: _Rules(small.validate_namespace, small.validate_namespace_update),
    Nodes.key: _Rules(nodes.validate, nodes.validate_update),
    Pods.key: _Rules(pods.validate, pods.validate_update),
    ReplicaSets.key: _Rules(workloads.validate_replica_set, workloads.validate_replica_set_update),
    RoleBindings.key: _Rules(rbac.validate_role_binding, rbac.validate_role_binding_update),
    Roles.key: _Rules(rbac.validate_role, rbac.validate_role_update),
    ResourceQuotas.key: _Rules(quotas.validate, quotas.validate_update),
    Secrets.key: _Rules(secrets.validate, secrets.validate_update),
    ServiceAccounts.key: _Rules(lambda _document: [], lambda _new, _old: []),
    ServiceCIDRs.key: _Rules(networking.validate_service_cidr, networking.validate_service_cidr_update),
    Services.key: _Rules(validate_service, validate_service_update),
}
_STATUS_RULES: dict[str, _Update] = {
    Namespaces.key: small.validate_namespace_status,
    Pods.key: pods.validate_status,
    Services.key: load_balancers.validate_service_status,
}


def validate_create(resource: Resource, document: Document) -> list[FieldError]:
    """Complaints about a new object: metadata first, then the kind's own rules."""
    return [*metadata.validate(resource, document["metadata"]), *_RULES[resource.key].create(document)]


def validate_update(resource: Resource, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
    """Complaints about *new* as the successor of *old*; on ``status`` the status rules alone."""
    common = metadata.validate_update(resource, new["metadata"], old["metadata"])
    if subresource == "status":
        rules = _STATUS_RULES.get(resource.key)
    else:
        rules = _RULES[resource.key].update
    return [*common, *(rules(new, old) if rules else ())]


def refuse(resource: Resource, head: Document, errors: list[FieldError]) -> None:
    """Raises the 422 StatusError of *errors*, if there are any."""
    if errors:
        # A view is checked and complained of in its stored form.
        resource = stored_form(resource)
        raise invalid(resource.kind, resource.group, head.get("name", ""), errors)
