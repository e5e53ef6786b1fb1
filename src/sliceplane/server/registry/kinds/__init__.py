"""Kinds: one module each, with all that the server knows of one API kind and of no other.

A module exports frozen ``Kind`` records (``kind.Kind`` says what is in one and when each member is
asked): defaults, what the server sets or undoes before a write, validation, warnings, status,
admission, deletion, quota, the columns of ``kubectl get``. What readers need without a server (the
path, the verbs, the projection) is the kind's row in ``api.scheme``; the record names that row. To
add a kind: its row in the scheme, its module here, and a line in the table below.

Rules that several kinds share are in ``pods.pod_spec`` and ``workloads.workload``, and in
``server.registry.validation`` (metadata, addresses, ports). A kind whose module would be over about
300 lines keeps a part of it in a file of its own, which the top of the module names.

**What a ResourceQuota counts**: numbers of objects, under two families of names (kubernetes.io,
Resource Quotas). ``count/PLURAL.GROUP`` counts every object of that kind. A few kinds have other
names besides, some with a rule of their own: ``pods`` counts those that still run,
``services.nodeports`` the ports and not the Services (``Kind.quota``), ``requests.cpu`` what Pods
ask for (``pod_quota``). Admission, which charges, and the controller, which counts, ask here, so
that the two cannot differ.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sliceplane.api.meta import Object
from sliceplane.api.quantity import quantity_of
from sliceplane.api.scheme import LISTED, POSTED, Resource
from sliceplane.server.registry.kinds import (
    config_map,
    event,
    flow_control,
    lease,
    limit_range,
    namespace,
    node,
    rbac,
    resource_quota,
    secret,
    service_account,
    storage,
    volumes,
)
from sliceplane.server.registry.kinds.kind import Granted, Kind, edited
from sliceplane.server.registry.kinds.network import (
    endpoint_slice,
    endpoints,
    ingress,
    ingress_class,
    network_policy,
    service,
    service_cidr,
)
from sliceplane.server.registry.kinds.pods import (
    pod,
    pod_disruption_budget,
    pod_quota,
    pod_template,
    priority_class,
    runtime_class,
)
from sliceplane.server.registry.kinds.workloads import (
    controller_revision,
    daemon_set,
    deployment,
    replica_set,
    replication_controller,
    stateful_set,
)

KINDS: Final[tuple[Kind, ...]] = (
    config_map.CONFIG_MAP,
    endpoints.ENDPOINTS,
    event.EVENT,
    limit_range.LIMIT_RANGE,
    namespace.NAMESPACE,
    node.NODE,
    pod.POD,
    pod_template.POD_TEMPLATE,
    replication_controller.REPLICATION_CONTROLLER,
    resource_quota.RESOURCE_QUOTA,
    secret.SECRET,
    service_account.SERVICE_ACCOUNT,
    service.SERVICE,
    controller_revision.CONTROLLER_REVISION,
    daemon_set.DAEMON_SET,
    deployment.DEPLOYMENT,
    replica_set.REPLICA_SET,
    stateful_set.STATEFUL_SET,
    lease.LEASE,
    endpoint_slice.ENDPOINT_SLICE,
    rbac.CLUSTER_ROLE_BINDING,
    rbac.CLUSTER_ROLE,
    rbac.ROLE_BINDING,
    rbac.ROLE,
    event.EVENT_V1,
    flow_control.FLOW_SCHEMA,
    flow_control.PRIORITY_LEVEL_CONFIGURATION,
    service_cidr.IP_ADDRESS,
    ingress.INGRESS,
    ingress_class.INGRESS_CLASS,
    network_policy.NETWORK_POLICY,
    service_cidr.SERVICE_CIDR,
    pod_disruption_budget.POD_DISRUPTION_BUDGET,
    priority_class.PRIORITY_CLASS,
    runtime_class.RUNTIME_CLASS,
    volumes.PERSISTENT_VOLUME_CLAIM,
    volumes.PERSISTENT_VOLUME,
    storage.CSI_DRIVER,
    storage.CSI_NODE,
    storage.CSI_STORAGE_CAPACITY,
    storage.STORAGE_CLASS,
    storage.VOLUME_ATTACHMENT,
    storage.VOLUME_ATTRIBUTES_CLASS,
    # Lists that are always empty. Roles of a namespace grant writes, as upstream's: a user reads
    # why there are none.
    *(
        Kind(resource=resource, granted=edited() if resource.namespaced else Granted())
        for resource in LISTED
    ),
    # POSTed, done or answered by a function that ``server.registry.registry`` names, and never
    # stored.
    *(Kind(resource=resource) for resource in POSTED),
)
_BY_KEY: Final = {kind.resource.key: kind for kind in KINDS}


def kind_of(resource: Resource) -> Kind:
    """The kind of a resource of the scheme, in whatever version."""
    return _BY_KEY[resource.key]


COUNTED: Final = tuple(kind.resource for kind in KINDS if kind.quota.counted)
#: the kinds with names that have a form and are no words
_BY_FORM: Final = (pod.POD, volumes.PERSISTENT_VOLUME_CLAIM)


def usage(resource: Resource, projection: Object) -> dict[str, Fraction | int]:
    """What one object costs; names without cost are left out.  *projection* is that of its kind."""
    return {
        resource_quota.COUNT_PREFIX + resource.key: 1,
        **kind_of(resource).quota.usage(projection),
    }


def _countable() -> dict[str, str]:
    names: dict[str, str] = {}
    for kind in KINDS:
        if kind.quota.counted:
            names[resource_quota.COUNT_PREFIX + kind.resource.key] = kind.resource.key
            names.update(dict.fromkeys(kind.quota.names, kind.resource.key))
    return names


#: every word that is counted, and the key of the kind that it counts
COUNTABLE: Final = _countable()


def counted_kind(name: str) -> str | None:
    """The key of the kind of which a quota counts *name*; ``None``: not counted."""
    if name in COUNTABLE:
        return COUNTABLE[name]
    return next((kind.resource.key for kind in _BY_FORM if kind.quota.counts(name)), None)


def quota_text(name: str, number: Fraction | int) -> str:
    """How much of *name*, as a quota's status and refusals say it: bytes in powers of 1024."""
    return quantity_of(
        number, binary=name.endswith(("memory", "storage")) or pod_quota.HUGE_PAGES in name
    )
