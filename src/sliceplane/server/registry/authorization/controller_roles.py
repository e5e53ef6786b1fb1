"""The roles of controllers, as data (names and purposes as upstream's): each is bound to the
ServiceAccount of its name in ``kube-system``.

Those of controllers that only kube-controller-manager runs are there, too, for a manager that
starts all of them. Of a kind that is only listed (``api.scheme.LISTED``) no role grants more than
reads.
"""

from __future__ import annotations

from typing import Final

from sliceplane.server.registry.authorization.rules import ALL, PolicyRule

READ: Final = ("get", "list", "watch")
_DISCOVERY: Final = "discovery.k8s.io"
_STORAGE: Final = "storage.k8s.io"


def on(groups: str | tuple[str, ...], resources: str | tuple[str, ...], *verbs: str) -> PolicyRule:
    return PolicyRule(
        verbs=verbs,
        groups=(groups,) if isinstance(groups, str) else groups,
        resources=(resources,) if isinstance(resources, str) else resources,
    )


EVENTS: Final = on(("", "events.k8s.io"), "events", "create", "patch", "update")

CONTROLLER_ROLES: Final[dict[str, tuple[PolicyRule, ...]]] = {
    "attachdetach-controller": (
        on("", ("persistentvolumeclaims", "persistentvolumes", "pods"), "list", "watch"),
        on("", "nodes", *READ),
        on("", "nodes/status", "patch", "update"),
        on(_STORAGE, "volumeattachments", "create", "delete", *READ),
        on(_STORAGE, ("csidrivers", "csinodes"), *READ),
        EVENTS,
    ),
    "certificate-controller": (
        on("certificates.k8s.io", "certificatesigningrequests", *READ),
        on("authorization.k8s.io", "subjectaccessreviews", "create"),
        EVENTS,
    ),
    "clusterrole-aggregation-controller": (
        on("rbac.authorization.k8s.io", "clusterroles", "escalate", "patch", "update", *READ),
    ),
    "cronjob-controller": (
        on("batch", ("cronjobs", "jobs"), *READ),
        on("", "pods", "delete", "list", "watch"),
        EVENTS,
    ),
    "daemon-set-controller": (
        on("apps", "daemonsets", *READ),
        on("apps", ("daemonsets/finalizers", "daemonsets/status"), "update"),
        on("", "nodes", "list", "watch"),
        on("", "pods", "create", "delete", "list", "patch", "watch"),
        on("", "pods/binding", "create"),
        on(
            "apps",
            "controllerrevisions",
            "create",
            "delete",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ),
        EVENTS,
    ),
    "deployment-controller": (
        on("apps", "deployments", "get", "list", "update", "watch"),
        on("apps", ("deployments/finalizers", "deployments/status"), "update"),
        on("apps", "replicasets", "create", "delete", "get", "list", "patch", "update", "watch"),
        on("", "pods", "get", "list", "update", "watch"),
        EVENTS,
    ),
    "device-taint-eviction-controller": (
        on("", "pods", "delete", *READ),
        on("", "pods/status", "patch", "update"),
        on("resource.k8s.io", ("deviceclasses", "resourceclaims", "resourceslices"), *READ),
        EVENTS,
    ),
    "disruption-controller": (
        on("apps", ("deployments", "replicasets", "statefulsets"), *READ),
        on("", "replicationcontrollers", *READ),
        on("policy", "poddisruptionbudgets", *READ),
        on("policy", "poddisruptionbudgets/status", "update"),
        on("", "pods/status", "patch", "update"),
        on(ALL, "*/scale", "get"),
        EVENTS,
    ),
    "endpoint-controller": (
        on("", ("pods", "services"), *READ),
        on("", "endpoints", "create", "delete", "get", "list", "update"),
        on("", "endpoints/restricted", "create"),
        EVENTS,
    ),
    "endpointslice-controller": (
        on("", ("nodes", "pods", "services"), *READ),
        on("", "services/finalizers", "update"),
        on(_DISCOVERY, "endpointslices", "create", "delete", "get", "list", "update"),
        on(_DISCOVERY, "endpointslices/restricted", "create"),
        EVENTS,
    ),
    "endpointslicemirroring-controller": (
        on("", ("endpoints", "services"), *READ),
        on("", ("endpoints/finalizers", "services/finalizers"), "update"),
        on(_DISCOVERY, "endpointslices", "create", "delete", "get", "list", "update"),
        on(_DISCOVERY, "endpointslices/restricted", "create"),
        EVENTS,
    ),
    "ephemeral-volume-controller": (
        on("", "pods", *READ),
        on("", "pods/finalizers", "update"),
        on("", "persistentvolumeclaims", "create", *READ),
        EVENTS,
    ),
    "expand-controller": (
        on("", "persistentvolumes", "patch", "update", *READ),
        on("", "persistentvolumeclaims/status", "patch", "update"),
        on("", "persistentvolumeclaims", *READ),
        EVENTS,
    ),
    "generic-garbage-collector": (
        EVENTS,
        on(ALL, ALL, "delete", "get", "list", "patch", "update", "watch"),
    ),
    "horizontal-pod-autoscaler": (
        on("autoscaling", "horizontalpodautoscalers", *READ),
        on(ALL, "*/scale", "get", "update"),
        on("", "pods", "list", "watch"),
        EVENTS,
    ),
    "job-controller": (
        on("batch", "jobs", *READ),
        on("", "pods", "create", "delete", "list", "patch", "watch"),
        EVENTS,
    ),
    "legacy-service-account-token-cleaner": (
        on("", "configmaps", "get"),
        on("", "secrets", "delete", "patch"),
    ),
    "namespace-controller": (
        on("", "namespaces", "delete", "get", "list", "watch"),
        on("", ("namespaces/finalize", "namespaces/status"), "update"),
        on(ALL, ALL, "delete", "deletecollection", "get", "list"),
    ),
    "node-controller": (
        on("", "nodes", "delete", "patch", "update", *READ),
        on("", ("nodes/status", "pods/status"), "patch", "update"),
        on("", "pods", "delete", *READ),
        EVENTS,
    ),
    "persistent-volume-binder": (
        on("", "persistentvolumes", "create", "delete", "update", *READ),
        on("", "persistentvolumeclaims", "update", *READ),
        on("", ("persistentvolumeclaims/status", "persistentvolumes/status"), "update"),
        on("", "pods", "create", "delete", *READ),
        on(_STORAGE, "storageclasses", *READ),
        on("", "nodes", "list", "watch"),
        on("", "events", "watch"),
        EVENTS,
    ),
    "pod-garbage-collector": (
        on("", "pods", "delete", "list", "watch"),
        on("", "nodes", *READ),
        on("", "pods/status", "patch"),
    ),
    "pv-protection-controller": (
        on("", "persistentvolumes", "update", *READ),
        EVENTS,
    ),
    "pvc-protection-controller": (
        on("", "persistentvolumeclaims", "update", *READ),
        on("", "persistentvolumeclaims/status", "update"),
        on("", "pods", *READ),
        EVENTS,
    ),
    "replicaset-controller": (
        on("apps", "replicasets", "get", "list", "update", "watch"),
        on("apps", ("replicasets/finalizers", "replicasets/status"), "update"),
        on("", "pods", "create", "delete", "get", "list", "patch", "watch"),
        EVENTS,
    ),
    "replication-controller": (
        on("", "replicationcontrollers", "get", "list", "update", "watch"),
        on("", ("replicationcontrollers/finalizers", "replicationcontrollers/status"), "update"),
        on("", "pods", "create", "delete", "list", "patch", "watch"),
        EVENTS,
    ),
    "resource-claim-controller": (
        on("", "pods", *READ),
        on("", "pods/finalizers", "update"),
        on("", "pods/status", "patch", "update"),
        on("resource.k8s.io", "resourceclaims", *READ),
        EVENTS,
    ),
    "resourcequota-controller": (
        on(ALL, ALL, "list", "watch"),
        on("", "resourcequotas/status", "update"),
        EVENTS,
    ),
    "root-ca-cert-publisher": (on("", "configmaps", "create", "update"), EVENTS),
    "route-controller": (
        on("", "nodes", "list", "watch"),
        on("", "nodes/status", "patch"),
        EVENTS,
    ),
    "selinux-warning-controller": (
        on("", ("persistentvolumeclaims", "persistentvolumes", "pods"), *READ),
        on(_STORAGE, "csidrivers", *READ),
        EVENTS,
    ),
    "service-account-controller": (on("", "serviceaccounts", "create"), EVENTS),
    "service-cidrs-controller": (
        on("networking.k8s.io", "servicecidrs", "patch", "update", *READ),
        on(
            "networking.k8s.io",
            ("servicecidrs/finalizers", "servicecidrs/status"),
            "patch",
            "update",
        ),
        on("networking.k8s.io", "ipaddresses", *READ),
        EVENTS,
    ),
    "service-controller": (
        on("", "services", *READ),
        on("", "services/status", "patch", "update"),
        on("", "nodes", "list", "watch"),
        EVENTS,
    ),
    "statefulset-controller": (
        on("", "pods", *READ, "create", "delete", "patch", "update"),
        on("apps", "statefulsets", *READ),
        on("apps", ("statefulsets/finalizers", "statefulsets/status"), "update"),
        on(
            "apps",
            "controllerrevisions",
            "create",
            "delete",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ),
        on("", "persistentvolumeclaims", "create", "delete", "update", *READ),
        EVENTS,
    ),
    "ttl-after-finished-controller": (
        on("batch", "jobs", *READ),
        EVENTS,
    ),
    "ttl-controller": (
        on("", "nodes", "list", "patch", "update", "watch"),
        EVENTS,
    ),
    "validatingadmissionpolicy-status-controller": (
        on("admissionregistration.k8s.io", "validatingadmissionpolicies", *READ),
        EVENTS,
    ),
    "volumeattributesclass-protection-controller": (
        on("", ("persistentvolumeclaims", "persistentvolumes"), *READ),
        on(_STORAGE, "volumeattributesclasses", "update", *READ),
        EVENTS,
    ),
}
