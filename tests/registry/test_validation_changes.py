"""Rules of updates that no other quick test breaks: how each complaint begins."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.test_validation_details import (
    DUAL,
    SERVICE,
    TEMPLATE,
    WORKLOAD,
    bound,
    judge,
    made,
    quota,
)

from sliceplane.api.scheme import (
    ClusterRoleBindings,
    ConfigMaps,
    ControllerRevisions,
    DaemonSets,
    EventsV1,
    IngressClasses,
    Ingresses,
    Namespaces,
    Nodes,
    PodDisruptionBudgets,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    Resource,
    ResourceQuotas,
    RoleBindings,
    RuntimeClasses,
    Secrets,
    Services,
    StatefulSets,
)
from sliceplane.server.registry.verbs.answers import validate_update

#: resource, subresource, new members, old members, how the complaints begin
CHANGED: dict[str, tuple[Resource, str, Any, Any, list[str]]] = {
    "owners": (
        ConfigMaps,
        "",
        {
            "metadata": {
                "name": "x",
                "namespace": "default",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}],
            }
        },
        {"metadata": {"name": "x", "namespace": "default"}},
        ["metadata.ownerReferences"] * 4,
    ),
    "finalizers": (
        ConfigMaps,
        "",
        {"metadata": {"name": "x", "namespace": "default", "finalizers": ["_"]}},
        {"metadata": {"name": "x", "namespace": "default"}},
        ["metadata.finalizers[0]: Invalid value"] * 2,
    ),
    "immutable": (
        ConfigMaps,
        "",
        {"data": {"a b": ""}},
        {"immutable": True, "data": {"a b": ""}},
        ["immutable: Forbidden", "data[a b]: Invalid value"],
    ),
    "revision": (
        ControllerRevisions,
        "",
        {"data": {"a": 1}, "revision": -1},
        {"data": {"a": 2}, "revision": 1},
        ["revision: Invalid value: -1", 'data: Invalid value: {"a":1}'],
    ),
    "daemon set": (
        DaemonSets,
        "status",
        {"spec": WORKLOAD, "status": {"numberReady": -1}},
        {"spec": WORKLOAD},
        ["status.numberReady: Invalid value: -1"],
    ),
    "class": (
        IngressClasses,
        "",
        {
            "spec": {
                "controller": "x.y/z",
                "parameters": {"kind": "", "name": "n", "scope": "Cluster"},
            }
        },
        {"spec": {"controller": "x.y/z"}},
        ["spec.parameters.kind: Required value"],
    ),
    "load balancer": (
        Ingresses,
        "status",
        {
            "spec": {},
            "status": {
                "loadBalancer": {
                    "ingress": [{"ip": "x"}, {"hostname": "_"}, {"hostname": "10.0.0.1"}]
                }
            },
        },
        {"spec": {}},
        [
            "status.loadBalancer.ingress[0].ip: Invalid value",
            "status.loadBalancer.ingress[1].hostname: Invalid value",
            "status.loadBalancer.ingress[2].hostname: Invalid value",
        ],
    ),
    "phase": (
        Namespaces,
        "status",
        {
            "metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Active"},
        },
        {"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        ["status.Phase: Invalid value"],
    ),
    "node": (
        Nodes,
        "",
        {"spec": {"providerID": "b", "podCIDRs": ["x"]}},
        {"spec": {"providerID": "a"}},
        ["spec.podCIDRs[0]: Invalid value", "spec.providerID: Forbidden"],
    ),
    "addresses of a Pod": (
        Pods,
        "status",
        {"spec": TEMPLATE["spec"], "status": {"podIPs": [{"ip": "x"}]}},
        {"spec": TEMPLATE["spec"]},
        ["status.podIPs[0]: Invalid value"],
    ),
    "toleration": (
        Pods,
        "",
        {"spec": {**TEMPLATE["spec"], "tolerations": []}},
        {"spec": {**TEMPLATE["spec"], "tolerations": [{"key": "a", "operator": "Exists"}]}},
        ["spec.tolerations: Forbidden"],
    ),
    "image": (
        Pods,
        "",
        {"spec": {"containers": [{"name": "c", "image": " i:1"}]}},
        {"spec": TEMPLATE["spec"]},
        ["spec.containers[0].image: Invalid value"] * 2,
    ),
    "resize on Windows": (
        Pods,
        "resize",
        {"spec": TEMPLATE["spec"]},
        {"spec": {**TEMPLATE["spec"], "os": {"name": "windows"}}},
        ["[]: Forbidden: windows pods cannot be resized"],
    ),
    "resize": (
        Pods,
        "resize",
        {
            "spec": {
                "containers": [
                    {"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "-1"}}}
                ]
            }
        },
        {
            "spec": {
                "containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}}]
            }
        },
        ["spec.containers[0].resources.limits[cpu]: Invalid value"] * 1
        + ["spec.containers[0].resources.requests[cpu]: Invalid value"],
    ),
    "resize of what ends": (
        Pods,
        "resize",
        {"spec": {**TEMPLATE["spec"], "initContainers": [{"name": "i", "image": "i:2"}]}},
        {"spec": {**TEMPLATE["spec"], "initContainers": [{"name": "i", "image": "i:1"}]}},
        ["spec.initContainers[0]: Forbidden"],
    ),
    "resize policy": (
        Pods,
        "resize",
        {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i:1",
                        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                    }
                ]
            }
        },
        {"spec": TEMPLATE["spec"]},
        ["spec.containers[0].resizePolicy: Forbidden"],
    ),
    "disruptions": (
        PodDisruptionBudgets,
        "status",
        {"spec": {}, "status": {"currentHealthy": -1}},
        {"spec": {}},
        ["status.currentHealthy: Invalid value: -1"],
    ),
    "cluster role": (
        ClusterRoleBindings,
        "",
        bound({"kind": "x", "name": "a"}),
        bound(name="other"),
        ["subjects[0].kind: Unsupported value", "roleRef: Invalid value"],
    ),
    "role": (
        RoleBindings,
        "",
        bound(name=""),
        bound(),
        ["roleRef.name: Required value", "roleRef: Invalid value"],
    ),
    "replica set": (
        ReplicaSets,
        "",
        {"spec": {**WORKLOAD, "replicas": -1, "selector": {"matchLabels": {}}}},
        {"spec": WORKLOAD},
        ["spec"] * 3,
    ),
    "available": (
        ReplicationControllers,
        "status",
        {"spec": {}, "status": {"replicas": 1, "readyReplicas": -1, "availableReplicas": 2}},
        {"spec": {}},
        [
            "status.readyReplicas: Invalid value: -1",
            "status.availableReplicas: Invalid value: 2: cannot be greater than status.replicas",
            "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
        ],
    ),
    "quota": (
        ResourceQuotas,
        "",
        quota({"pods": "-1"}),
        quota({"pods": "1"}),
        ["spec.hard[pods]: Invalid value"],
    ),
    "runtime": (
        RuntimeClasses,
        "",
        {"handler": "_"},
        {"handler": "a"},
        ["handler: Invalid value", "handler: Invalid value"],
    ),
    "secret": (
        Secrets,
        "",
        {"data": {"a b": ""}},
        {"immutable": True, "data": {"a b": ""}},
        ["immutable: Forbidden", "data[a b]: Invalid value"],
    ),
    "stateful set": (
        StatefulSets,
        "",
        {"spec": {**WORKLOAD, "replicas": -1}},
        {"spec": WORKLOAD},
        ["spec.replicas: Invalid value: -1"],
    ),
    "ready": (
        StatefulSets,
        "status",
        {"spec": WORKLOAD, "status": {"replicas": -1}},
        {"spec": WORKLOAD},
        ["status.replicas: Invalid value: -1"] + ["status."] * 4,
    ),
    "series": (
        EventsV1,
        "",
        {"series": {"count": 1}},
        {"series": {"count": 5, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}},
        ["series.count: Invalid value", "series.lastObservedTime: Required value"],
    ),
    "no addresses": (
        Services,
        "",
        {"spec": SERVICE | {"clusterIP": "", "clusterIPs": [], "ipFamilies": []}},
        {"spec": SERVICE | {"ipFamilies": ["IPv4"]}},
        [
            "spec.clusterIPs[0]: Invalid value: []: primary clusterIP",
            "spec.ipFamilies[0]: Invalid value: []: primary",
        ],
    ),
    "other addresses": (
        Services,
        "",
        {"spec": SERVICE | DUAL | {"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2", "fd00::1"]}},
        {"spec": SERVICE | {"ipFamilies": ["IPv6"]}},
        ["spec.clusterIPs[0]: Invalid value", "spec.ipFamilies[0]: Invalid value"],
    ),
    "ingress of a balancer": (
        Services,
        "status",
        {
            "spec": {**SERVICE, "type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}, {"hostname": "_"}]}},
        },
        {"spec": {**SERVICE, "type": "LoadBalancer"}},
        [
            "status.loadBalancer.ingress[0].ipMode: Required value",
            "status.loadBalancer.ingress[1].hostname: Invalid value",
        ],
    ),
}


@pytest.mark.parametrize(
    ("resource", "part", "members", "before", "beginnings"), CHANGED.values(), ids=CHANGED
)
def test_a_bad_change_is_refused(
    resource: Resource, part: str, members: Any, before: Any, beginnings: list[str]
) -> None:
    new, old = (made(resource, document, plain=part == "status") for document in (members, before))
    judge([str(error) for error in validate_update(resource, new, old, part)], beginnings)
