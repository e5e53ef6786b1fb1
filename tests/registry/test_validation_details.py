"""Rules of kinds and of metadata that no other quick test breaks: how each complaint begins."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ClusterRoleBindings,
    ClusterRoles,
    ConfigMaps,
    ControllerRevisions,
    DaemonSets,
    Deployments,
    EndpointsObjects,
    EventsV1,
    IngressClasses,
    Ingresses,
    IPAddresses,
    LimitRanges,
    Namespaces,
    Nodes,
    PodDisruptionBudgets,
    Pods,
    PriorityClasses,
    ReplicaSets,
    ReplicationControllers,
    Resource,
    ResourceQuotas,
    RoleBindings,
    Roles,
    RuntimeClasses,
    Secrets,
    ServiceCIDRs,
    Services,
    StatefulSets,
)
from sliceplane.registry.answers import validate_create, validate_update
from sliceplane.registry.kinds import kind_of

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
RBAC = "rbac.authorization.k8s.io"
ROLE = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "r"}
PORT = {"port": 80, "targetPort": 80, "protocol": "TCP"}
SERVICE = {
    "type": "ClusterIP",
    "ports": [PORT],
    "sessionAffinity": "None",
    "internalTrafficPolicy": "Cluster",
    "clusterIP": "10.0.0.1",
    "clusterIPs": ["10.0.0.1"],
}
DUAL = {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}


def made(resource: Resource, members: Any, *, plain: bool = False) -> Any:
    """*plain*: without defaults."""
    document = {"metadata": {"name": "x", "uid": "u", **({"namespace": "default"} if resource.namespaced else {})}}
    document |= copy.deepcopy(members)
    if not plain:
        kind_of(resource).defaults(document)
    return document


def service(**members: Any) -> Any:
    return {"spec": SERVICE | members}


def quota(hard: Any, **members: Any) -> Any:
    return {"spec": {"hard": hard, **members}}


def scope(name: str, operator: str, *values: str) -> Any:
    return {"scopeName": name, "operator": operator, "values": list(values)}


def role(**rule: Any) -> Any:
    return {"rules": [rule]}


def bound(*subjects: Any, **members: Any) -> Any:
    return {"roleRef": ROLE | members, "subjects": list(subjects)}


def selecting(**members: Any) -> Any:
    return {"aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [members]}]}}


#: resource, members, how the complaints begin
CREATED: dict[str, tuple[Resource, Any, list[str]]] = {
    "key of both": (
        ConfigMaps,
        {"data": {"a": ""}, "binaryData": {"a": ""}},
        ['data[a]: Duplicate value: "a"'],
    ),
    "binary key": (ConfigMaps, {"binaryData": {"a b": ""}}, ["binaryData[a b]: Invalid value"]),
    "long key": (ConfigMaps, {"data": {"a" * 254: ""}}, [f"data[{'a' * 254}]: Invalid value"]),
    "dotted key": (ConfigMaps, {"data": {"..a": ""}}, ['data[..a]: Invalid value: "..a": must not start with']),
    "revision": (ControllerRevisions, {"revision": -1}, ["data: Required value", "revision: Invalid value: -1"]),
    "rolling update": (
        Deployments,
        {"spec": {**WORKLOAD, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "x"}}}},
        ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value"],
    ),
    "endpoints": (
        EndpointsObjects,
        {
            "subsets": [
                {
                    "addresses": [{"ip": "10.0.0.1", "hostname": "_"}],
                    "ports": [{"port": 1, "name": "_", "protocol": "TCP", "appProtocol": "_"}],
                }
            ]
        },
        [
            "subsets[0].addresses[0].hostname: Invalid value",
            "subsets[0].ports[0].name: Invalid value",
            "subsets[0].ports[0].appProtocol: Invalid value",
        ],
    ),
    "reporter": (
        EventsV1,
        {"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal"},
        [
            "reportingController: Required value",
            "reportingController: Invalid value",
            "reportingController: Invalid value",
            "reportingInstance",
            "action",
            "reason",
        ],
    ),
    "selector of Pods": (
        Deployments,
        {"spec": {**WORKLOAD, "selector": {"matchExpressions": [{"key": "a", "operator": "x"}]}}},
        ["spec.selector: Invalid value"],
    ),
    "manager": (
        ConfigMaps,
        {"metadata": {"name": "x", "namespace": "default", "managedFields": [{"manager": "a\n"}]}},
        ["metadata.managedFields[0].manager: Invalid value"],
    ),
    "backend": (Ingresses, {"spec": {"defaultBackend": {}}}, ["spec.defaultBackend: Invalid value"]),
    "limit": (
        LimitRanges,
        {"spec": {"limits": [{"type": "_", "max": {"_": "1"}}]}},
        ["spec.limits[0].type: Invalid value", "spec.limits[0].max[_]: Invalid value"],
    ),
    "taints": (
        Nodes,
        {"spec": {"taints": [{"key": "_", "value": "_", "effect": "NoSchedule"}] * 2}},
        [
            "spec.taints[0].key: Invalid value",
            "spec.taints[0].value: Invalid value",
            "spec.taints[1].key: Invalid value",
            "spec.taints[1].value: Invalid value",
            "spec.taints[1]: Duplicate value",
        ],
    ),
    "preemption": (PriorityClasses, {"value": 1, "preemptionPolicy": ""}, ["preemptionPolicy: Required value"]),
    "aggregation": (
        ClusterRoles,
        {"aggregationRule": {}},
        ["aggregationRule.clusterRoleSelectors: Required value"],
    ),
    "verbs": (
        Roles,
        role(),
        ["rules[0].verbs: Required value", "rules[0].apiGroups: Required", "rules[0].resources: Required"],
    ),
    "URLs": (
        Roles,
        role(verbs=["get"], nonResourceURLs=["/"], resources=["pods"]),
        [
            'rules[0].nonResourceURLs: Invalid value: ["/"]: namespaced rules',
            'rules[0].nonResourceURLs: Invalid value: ["/"]: rules cannot',
        ],
    ),
    "no values": (
        ClusterRoles,
        selecting(key="a", operator="In"),
        ["aggregationRule.clusterRoleSelectors[0].matchExpressions[0].values: Required value"],
    ),
    "values": (
        ClusterRoles,
        selecting(key="a", operator="Exists", values=["b"]),
        ["aggregationRule.clusterRoleSelectors[0].matchExpressions[0].values: Forbidden"],
    ),
    "operator": (
        ClusterRoles,
        selecting(key="_", operator="x", values=["_"]),
        [
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: Invalid value",
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].key: Invalid value",
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].values[0]: Invalid value",
        ],
    ),
    "role": (
        RoleBindings,
        {"roleRef": {"apiGroup": "x", "kind": "x", "name": ""}},
        ["roleRef.apiGroup: Unsupported", "roleRef.kind: Unsupported", "roleRef.name: Required value"],
    ),
    "role name": (ClusterRoleBindings, bound(name="a/b"), ['roleRef.name: Invalid value: "a/b"']),
    "account": (
        ClusterRoleBindings,
        bound({"kind": "ServiceAccount", "name": "_", "apiGroup": RBAC}, {"kind": "ServiceAccount"}),
        [
            "subjects[0].name: Invalid value",
            "subjects[0].apiGroup: Unsupported value",
            "subjects[0].namespace: Required value",
            "subjects[1].name: Required value",
            "subjects[1].namespace: Required value",
        ],
    ),
    "subjects": (
        RoleBindings,
        bound({"kind": "User", "name": "a", "apiGroup": "x"}, {"kind": "x", "name": "a"}),
        ["subjects[0].apiGroup: Unsupported value", "subjects[1].kind: Unsupported value"],
    ),
    "conflicting scopes": (
        ResourceQuotas,
        quota(
            {"pods": "1"},
            scopeSelector={"matchExpressions": [scope("BestEffort", "Exists"), scope("NotBestEffort", "Exists")]},
        ),
        ["spec.scopeSelector.matchExpressions: Invalid value: []: conflicting scopes"],
    ),
    "scope": (
        ResourceQuotas,
        quota({"pods": "1"}, scopeSelector={"matchExpressions": [scope("x", "Exists", "a")]}),
        [
            'spec.scopeSelector.matchExpressions.scopeName: Invalid value: "x": unsupported scope',
            'spec.scopeSelector.matchExpressions.scopeName: Invalid value: "x": unsupported scope applied',
            'spec.scopeSelector.matchExpressions.values: Invalid value: ["a"]',
        ],
    ),
    "quota": (ResourceQuotas, quota({"a b/c": "1"}), ["spec.hard[a b/c]: Invalid value"]),
    "docker": (Secrets, {"type": "kubernetes.io/dockercfg"}, ["data[.dockercfg]: Required value"]),
    "parent": (
        IPAddresses,
        {"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"group": "_", "x": ""}}},
        [
            "spec.parentRef.group: Invalid value",
            "spec.parentRef.resource: Required value",
            "spec.parentRef.name: Required value",
        ],
    ),
    "CIDRs": (
        ServiceCIDRs,
        {"spec": {"cidrs": ["10.0.0.0/24"] * 3}},
        ["spec.cidrs: Invalid value"],
    ),
    "no selector": (StatefulSets, {"spec": {"template": TEMPLATE}}, ["spec.selector: Required value"]),
    "template": (
        ReplicaSets,
        {"spec": {**WORKLOAD, "template": {**TEMPLATE, "metadata": {"labels": {"a": "b", "_": ""}}}}},
        ["spec.template.labels: Invalid value"],
    ),
    "selector": (
        DaemonSets,
        {"spec": {**WORKLOAD, "selector": {"matchExpressions": [{"key": "a", "operator": "x"}]}}},
        ["spec.selector"],
    ),
    "balancer class": (
        Services,
        service(
            type="LoadBalancer",
            loadBalancerClass="_",
            allocateLoadBalancerNodePorts=True,
            externalTrafficPolicy="Cluster",
        ),
        ["spec.loadBalancerClass: Invalid value"],
    ),
    "service selector": (Services, service(selector={"_": "a"}), ["spec.selector: Invalid value"]),
    "external name": (
        Services,
        {"spec": {"type": "ExternalName", "externalName": "_", "sessionAffinity": "None"}},
        ["spec.externalName: Invalid value"],
    ),
    "port": (
        Services,
        service(ports=[{**PORT, "name": "_", "appProtocol": "_"}]),
        ["spec.ports[0].name: Invalid value", "spec.ports[0].appProtocol: Invalid value"],
    ),
    "health port": (
        Services,
        service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=70000),
        ["spec.healthCheckNodePort: Invalid value: 70000"],
    ),
}
#: what defaults never leave out
PLAIN: dict[str, tuple[Resource, Any, list[str]]] = {
    "no affinity": (Services, service(sessionAffinity=""), ["spec.sessionAffinity: Required value"]),
    "no affinity config": (
        Services,
        service(sessionAffinity="ClientIP"),
        ["spec.sessionAffinityConfig: Required value"],
    ),
    "affinity config": (
        Services,
        service(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 1}}),
        ["spec.sessionAffinityConfig: Forbidden"],
    ),
    "no type": (
        Services,
        {"spec": {name: value for name, value in SERVICE.items() if name != "type"}},
        ["spec.type: Required value"],
    ),
    "no policy": (
        Services,
        service(type="NodePort"),
        ["spec.externalTrafficPolicy: Required value"],
    ),
    "no internal policy": (
        Services,
        {"spec": {name: value for name, value in SERVICE.items() if name != "internalTrafficPolicy"}},
        ["spec.internalTrafficPolicy: Required value"],
    ),
}
#: resource, subresource, new members, old members, how the complaints begin
CHANGED: dict[str, tuple[Resource, str, Any, Any, list[str]]] = {
    "owners": (
        ConfigMaps,
        "",
        {"metadata": {"name": "x", "namespace": "default", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]}},
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
        {"spec": {"controller": "x.y/z", "parameters": {"kind": "", "name": "n", "scope": "Cluster"}}},
        {"spec": {"controller": "x.y/z"}},
        ["spec.parameters.kind: Required value"],
    ),
    "load balancer": (
        Ingresses,
        "status",
        {
            "spec": {},
            "status": {"loadBalancer": {"ingress": [{"ip": "x"}, {"hostname": "_"}, {"hostname": "10.0.0.1"}]}},
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
        {"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Active"}},
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
        ["spec.containers[0].image: Invalid value"],
    ),
    "resize on Windows": (
        Pods,
        "resize",
        {"spec": TEMPLATE["spec"]},
        {"spec": {**TEMPLATE["spec"], "os": {"name": "windows"}}},
        [": Forbidden: windows pods cannot be resized"],
    ),
    "resize": (
        Pods,
        "resize",
        {"spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "-1"}}}]}},
        {"spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}}]}},
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
    "role": (RoleBindings, "", bound(name=""), bound(), ["roleRef.name: Required value", "roleRef: Invalid value"]),
    "replica set": (
        ReplicaSets,
        "",
        {"spec": {**WORKLOAD, "replicas": -1, "selector": {"matchLabels": {}}}},
        {"spec": WORKLOAD},
        ["spec"] * 2,
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
        ["spec.clusterIPs[0]: Invalid value: []: primary clusterIP", "spec.ipFamilies[0]: Invalid value: []: primary"],
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
        {"spec": {**SERVICE, "type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}, {"hostname": "_"}]}}},
        {"spec": {**SERVICE, "type": "LoadBalancer"}},
        [
            "status.loadBalancer.ingress[0].ipMode: Required value",
            "status.loadBalancer.ingress[1].hostname: Invalid value",
        ],
    ),
}  # fmt: skip


def judge(told: list[str], beginnings: list[str]) -> None:
    assert len(told) == len(beginnings), told
    assert all(text.startswith(begins) for text, begins in zip(told, beginnings, strict=True)), told


@pytest.mark.parametrize(("resource", "members", "beginnings"), CREATED.values(), ids=CREATED)
def test_a_bad_object_is_refused(resource: Resource, members: Any, beginnings: list[str]) -> None:
    judge([str(error) for error in validate_create(resource, made(resource, members))], beginnings)


@pytest.mark.parametrize(("resource", "members", "beginnings"), PLAIN.values(), ids=PLAIN)
def test_an_object_without_defaults_is_refused(resource: Resource, members: Any, beginnings: list[str]) -> None:
    judge([str(error) for error in validate_create(resource, made(resource, members, plain=True))], beginnings)


@pytest.mark.parametrize(("resource", "part", "members", "before", "beginnings"), CHANGED.values(), ids=CHANGED)
def test_a_bad_change_is_refused(
    resource: Resource, part: str, members: Any, before: Any, beginnings: list[str]
) -> None:
    new, old = (made(resource, document, plain=part == "status") for document in (members, before))
    judge([str(error) for error in validate_update(resource, new, old, part)], beginnings)


# What needs a cluster


@pytest.mark.parametrize(
    ("ranges", "spec", "sentence"),
    [
        (("10.96.0.0/16",), {"ipFamilyPolicy": "RequireDualStack"}, "not configured for dual-stack services"),
        (("10.96.0.0/16",), {"ipFamilies": ["IPv6"]}, "not configured on this cluster"),
        (
            ("10.96.0.0/16", "fd00::/112"),
            {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]},
            "must be RequireDualStack or PreferDualStack when multiple ipFamilies are specified",
        ),
    ],
)
def test_families_are_those_of_the_cluster(make_api: Any, ranges: Any, spec: Any, sentence: str) -> None:
    api = make_api(service_cidrs=ranges)
    with pytest.raises(StatusError, match=sentence):
        api.create(Services, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}], **spec}})
