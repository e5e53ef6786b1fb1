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
    Ingresses,
    IPAddresses,
    LimitRanges,
    Nodes,
    PersistentVolumes,
    PriorityClasses,
    ReplicaSets,
    Resource,
    ResourceQuotas,
    RoleBindings,
    Roles,
    Secrets,
    ServiceCIDRs,
    Services,
    StatefulSets,
    StorageClasses,
)
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.verbs.answers import validate_create

TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i:1"}]},
}
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
VOLUME = {
    "capacity": {"storage": "1Gi"},
    "accessModes": ["ReadWriteOnce"],
    "hostPath": {"path": "/a"},
}
DUAL = {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}


def made(resource: Resource, members: Any, *, plain: bool = False) -> Any:
    """*plain*: without defaults."""
    document = {
        "metadata": {
            "name": "x",
            "uid": "u",
            **({"namespace": "default"} if resource.namespaced else {}),
        }
    }
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
    "dotted key": (
        ConfigMaps,
        {"data": {"..a": ""}},
        ['data[..a]: Invalid value: "..a": must not start with'],
    ),
    "key of a topology": (
        StorageClasses,
        {
            "provisioner": "a/b",
            "allowedTopologies": [{"matchLabelExpressions": [{"values": ["v"]}]}],
        },
        ["allowedTopologies[0].matchLabelExpressions[0].key: Required value"],
    ),
    "nodes of a volume": (
        PersistentVolumes,
        {"spec": {**VOLUME, "nodeAffinity": {}, "volumeAttributesClassName": "_"}},
        [
            "spec.nodeAffinity.required: Required value",
            "spec.volumeAttributesClassName: Invalid value",
            "spec.csi: ",
        ],
    ),
    "revision": (
        ControllerRevisions,
        {"revision": -1},
        ["data: Required value", "revision: Invalid value: -1"],
    ),
    "rolling update": (
        Deployments,
        {
            "spec": {
                **WORKLOAD,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "x"}},
            }
        },
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
        [
            "spec.selector.matchExpressions[0].operator: Invalid value",
            "spec.selector: Invalid value",
        ],
    ),
    "manager": (
        ConfigMaps,
        {"metadata": {"name": "x", "namespace": "default", "managedFields": [{"manager": "a\n"}]}},
        ["metadata.managedFields[0].manager: Invalid value"],
    ),
    "backend": (
        Ingresses,
        {"spec": {"defaultBackend": {}}},
        ["spec.defaultBackend: Invalid value"],
    ),
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
    "preemption": (
        PriorityClasses,
        {"value": 1, "preemptionPolicy": ""},
        ["preemptionPolicy: Required value"],
    ),
    "aggregation": (
        ClusterRoles,
        {"aggregationRule": {}},
        ["aggregationRule.clusterRoleSelectors: Required value"],
    ),
    "verbs": (
        Roles,
        role(),
        [
            "rules[0].verbs: Required value",
            "rules[0].apiGroups: Required",
            "rules[0].resources: Required",
        ],
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
        [
            "roleRef.apiGroup: Unsupported",
            "roleRef.kind: Unsupported",
            "roleRef.name: Required value",
        ],
    ),
    "role name": (ClusterRoleBindings, bound(name="a/b"), ['roleRef.name: Invalid value: "a/b"']),
    "account": (
        ClusterRoleBindings,
        bound(
            {"kind": "ServiceAccount", "name": "_", "apiGroup": RBAC}, {"kind": "ServiceAccount"}
        ),
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
            scopeSelector={
                "matchExpressions": [
                    scope("BestEffort", "Exists"),
                    scope("NotBestEffort", "Exists"),
                ]
            },
        ),
        ["spec.scopeSelector.matchExpressions: Invalid value: []: conflicting scopes"],
    ),
    "scope": (
        ResourceQuotas,
        quota({"pods": "1"}, scopeSelector={"matchExpressions": [scope("x", "Exists", "a")]}),
        [
            'spec.scopeSelector.matchExpressions.scopeName: Invalid value: "x": unsupported scope',
            (
                'spec.scopeSelector.matchExpressions.scopeName: Invalid value: "x": unsupported '
                "scope "
                "applied"
            ),
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
    "no selector": (
        StatefulSets,
        {"spec": {"template": TEMPLATE}},
        ["spec.selector: Required value", "spec.template.metadata.labels: Invalid value"],
    ),
    "template": (
        ReplicaSets,
        {
            "spec": {
                **WORKLOAD,
                "template": {**TEMPLATE, "metadata": {"labels": {"a": "b", "_": ""}}},
            }
        },
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
    "no affinity": (
        Services,
        service(sessionAffinity=""),
        ["spec.sessionAffinity: Required value"],
    ),
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
        {
            "spec": {
                name: value for name, value in SERVICE.items() if name != "internalTrafficPolicy"
            }
        },
        ["spec.internalTrafficPolicy: Required value"],
    ),
}


def judge(told: list[str], beginnings: list[str]) -> None:
    assert len(told) == len(beginnings), told
    assert all(text.startswith(begins) for text, begins in zip(told, beginnings, strict=True)), told


@pytest.mark.parametrize(("resource", "members", "beginnings"), CREATED.values(), ids=CREATED)
def test_a_bad_object_is_refused(resource: Resource, members: Any, beginnings: list[str]) -> None:
    judge([str(error) for error in validate_create(resource, made(resource, members))], beginnings)


@pytest.mark.parametrize(("resource", "members", "beginnings"), PLAIN.values(), ids=PLAIN)
def test_an_object_without_defaults_is_refused(
    resource: Resource, members: Any, beginnings: list[str]
) -> None:
    judge(
        [str(error) for error in validate_create(resource, made(resource, members, plain=True))],
        beginnings,
    )


# What needs a cluster


@pytest.mark.parametrize(
    ("ranges", "spec", "sentence"),
    [
        (
            ("10.96.0.0/16",),
            {"ipFamilyPolicy": "RequireDualStack"},
            "not configured for dual-stack services",
        ),
        (("10.96.0.0/16",), {"ipFamilies": ["IPv6"]}, "not configured on this cluster"),
        (
            ("10.96.0.0/16", "fd00::/112"),
            {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]},
            "must be RequireDualStack or PreferDualStack when multiple ipFamilies are specified",
        ),
    ],
)
def test_families_are_those_of_the_cluster(
    make_api: Any, ranges: Any, spec: Any, sentence: str
) -> None:
    api = make_api(service_cidrs=ranges)
    with pytest.raises(StatusError, match=sentence):
        api.create(Services, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}], **spec}})


@pytest.mark.parametrize("number", [1, 30_080])
def test_a_node_port_is_free_and_within_its_range(api: Any, number: int) -> None:
    spec = {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_080}]}
    api.create(Services, {"metadata": {"name": "a"}, "spec": spec})
    spec["ports"] = [{"port": 1, "nodePort": number}]
    with pytest.raises(
        StatusError, match=rf"spec.ports\[0\].nodePort: Invalid value: {number}: provided port is"
    ):
        api.create(Services, {"metadata": {"name": "b"}, "spec": spec})
