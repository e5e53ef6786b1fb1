"""Defaults per kind, and that applying them again changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import (
    RESOURCES,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Events,
    Leases,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)
from sliceplane.server.documents import schema
from sliceplane.server.registry.kinds import kind_of

TABLES = tables(__file__)


def filled(resource: Resource, document: Any) -> Any:
    result = copy.deepcopy(document)
    kind_of(resource).defaults(result)
    again = copy.deepcopy(result)
    kind_of(resource).defaults(again)
    assert again == result, "defaults are idempotent"
    assert schema.accepts(resource.key, result), schema.unknown_fields(resource.key, result)
    return result


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.key)
def test_an_empty_object_can_be_defaulted(resource: Resource) -> None:
    filled(resource, {"metadata": {"name": "x"}})


def test_endpoint_slice() -> None:
    sent = {
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 80}, {"name": "a", "protocol": "UDP"}],
    }
    assert filled(EndpointSlices, sent) == {
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {}}],
        "ports": [{"port": 80, "name": "", "protocol": "TCP"}, {"name": "a", "protocol": "UDP"}],
    }
    assert filled(EndpointSlices, {}) == {"ports": [], "endpoints": []}


@pytest.mark.parametrize(("image", "policy"), TABLES["pull_policy"])
def test_pull_policy(image: str, policy: str) -> None:
    pod = filled(Pods, {"spec": {"containers": [{"name": "c", "image": image}]}})
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_pod() -> None:
    container = {
        "name": "c",
        "image": "i:1",
        "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Mi"}},
        "readinessProbe": {"httpGet": {"port": 80}},
        "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
    }
    volumes = [
        {"name": "a"},
        {"name": "b", "configMap": {"name": "m"}},
        {"name": "h", "hostPath": {"path": "/"}},
    ]
    spec = filled(
        Pods, {"spec": {"serviceAccount": "sa", "containers": [container], "volumes": volumes}}
    )["spec"]
    assert {name: spec[name] for name in spec if name not in ("containers", "volumes")} == {
        "serviceAccount": "sa",
        "serviceAccountName": "sa",
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "enableServiceLinks": True,
    }
    (shown,) = spec["containers"]
    assert shown["terminationMessagePath"] == "/dev/termination-log"
    assert shown["terminationMessagePolicy"] == "File"
    assert shown["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert shown["resources"]["requests"] == {"cpu": "1", "memory": "1Mi"}
    assert shown["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert shown["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert shown["lifecycle"]["preStop"]["httpGet"]["scheme"] == "HTTP"
    assert spec["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "m", "defaultMode": 420}},
        {"name": "h", "hostPath": {"path": "/", "type": ""}},
    ]


def test_pod_on_the_host_network_takes_host_ports() -> None:
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 80}]}
    pod = filled(Pods, {"spec": {"hostNetwork": True, "containers": [container]}})
    assert pod["spec"]["containers"][0]["ports"][0]["hostPort"] == 80


def test_pod_addresses_agree() -> None:
    assert filled(Pods, {"status": {"podIP": "10.0.0.1"}})["status"]["podIPs"] == [
        {"ip": "10.0.0.1"}
    ]
    assert (
        filled(Pods, {"status": {"podIPs": [{"ip": "10.0.0.1"}]}})["status"]["podIP"] == "10.0.0.1"
    )
    changed = filled(Pods, {"status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]}})
    assert changed["status"]["podIPs"] == [{"ip": "10.0.0.2"}]


def test_deployment() -> None:
    spec = filled(
        Deployments, {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}
    )["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert filled(Deployments, {"spec": {"strategy": {"type": "Recreate"}}})["spec"][
        "strategy"
    ] == {"type": "Recreate"}
    assert filled(Deployments, {"spec": {"replicas": 0}})["spec"]["replicas"] == 0
    assert filled(ReplicaSets, {})["spec"]["replicas"] == 1


@pytest.mark.parametrize(("sent", "expected"), TABLES["service"])
def test_service(sent: Any, expected: Any) -> None:
    assert filled(Services, {"spec": sent})["spec"] == expected


def test_service_ports() -> None:
    ports = filled(
        Services,
        {"spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "targetPort": "dns"}]}},
    )
    assert ports["spec"]["ports"] == [
        {"port": 80, "protocol": "TCP", "targetPort": 80},
        {"port": 53, "protocol": "UDP", "targetPort": "dns"},
    ]


def test_small_kinds() -> None:
    subsets = filled(EndpointsObjects, {"subsets": [{"ports": [{"port": 1}]}]})["subsets"]
    assert subsets == [{"ports": [{"port": 1, "protocol": "TCP"}]}]
    event = filled(Events, {})
    assert (event["source"], event["reportingComponent"], event["reportingInstance"]) == (
        {},
        "",
        "",
    )
    assert filled(Leases, {}) == {"spec": {}}
    assert filled(Nodes, {})["status"]["nodeInfo"]["kubeletVersion"] == ""
