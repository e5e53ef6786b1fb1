"""What upstream's conformance tests do with every kind ("should support ... API operations"):
create, get, list, watch, patch, update, delete, deletecollection, and the same of ``status``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.scheme import (
    RESOURCES,
    ConfigMaps,
    Deployments,
    EndpointsObjects,
    Ingresses,
    Leases,
    Namespaces,
    PersistentVolumes,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    Resource,
    ResourceQuotas,
    Secrets,
    ServiceAccounts,
    Services,
    StatefulSets,
    VolumeAttachments,
)

TABLES = tables(__file__)

LABELS = {"of": "test"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
WORKLOAD = {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
REGARDING = {"kind": "Pod", "name": "p", "namespace": "default"}
#: what a kind needs besides a name
CONTENT: dict[str, dict[str, Any]] = TABLES["CONTENT"]
#: several objects of a kind that need different contents
_OTHER_RANGES = {"b": ["10.98.0.0/24"], "c": ["10.97.0.0/24"]}
WRITTEN = [resource for resource in RESOURCES if "create" in resource.verbs]


def name_of(resource: Resource, letter: str) -> str:
    return (
        {"a": "192.0.2.1", "b": "192.0.2.2", "c": "192.0.2.3"}[letter]
        if "ipaddresses" in resource.key
        else letter
    )


def made(resource: Resource, letter: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    document = json.loads(json.dumps(CONTENT.get(resource.key, {})))
    if "servicecidrs" in resource.key and letter in _OTHER_RANGES:
        document["spec"]["cidrs"] = _OTHER_RANGES[letter]
    return {"metadata": {"name": name_of(resource, letter), "labels": labels or {}}, **document}


@pytest.mark.parametrize("resource", WRITTEN, ids=lambda resource: resource.key)
def test_the_life_of_an_object(api: Api, resource: Resource) -> None:
    plan = api.watch(resource, label_selector="of=test")
    name = name_of(resource, "a")
    created = json.loads(api.create(resource, made(resource, "a", LABELS)).body)
    assert api.get(resource, name) == created
    assert [record.key.name for record in api.list(resource, label_selector="of=test").records] == [
        name
    ]
    patched = json.loads(api.patch(resource, name, {"metadata": {"labels": {"more": "yes"}}}).body)
    assert patched["metadata"]["labels"].items() >= {**LABELS, "more": "yes"}.items()
    assert int(patched["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    patched["metadata"]["annotations"] = {"updated": "true"}
    updated = json.loads(api.update(resource, name, patched).body)
    assert updated["metadata"]["annotations"] == {"updated": "true"}
    assert api.get(resource, name)["metadata"] == updated["metadata"]
    assert "metadata" in json.loads(api.delete(resource, name, grace_period_s=0).body)
    if resource is not Namespaces:  # which its controller ends
        assert api.fails("get", resource, name).code == 404
        assert api.list(resource, label_selector="of=test").records == ()
    seen = [
        event.type.name
        for event in api.events
        if event.record.key.resource == resource.storage_key
        and event.record.key.name == name
        and (plan.matches is None or plan.matches(event.record))
    ]
    assert seen[:3] == ["ADDED", "MODIFIED", "MODIFIED"]
    assert (seen[-1] == "DELETED") is (resource is not Namespaces)


@pytest.mark.parametrize(
    "resource",
    [each for each in WRITTEN if "deletecollection" in each.verbs],
    ids=lambda resource: resource.key,
)
def test_a_collection_is_deleted_by_label(api: Api, resource: Resource) -> None:
    for letter in "ab":
        api.create(resource, made(resource, letter, LABELS))
    api.create(resource, made(resource, "c", {"of": "others"}))
    api.delete_collection(resource, label_selector="of=test")
    left = [record.key.name for record in api.list(resource).records]
    assert name_of(resource, "c") in left
    assert not {name_of(resource, letter) for letter in "ab"} & set(left)


CONDITION = {
    "type": "StatusUpdate",
    "status": "True",
    "reason": "E2E",
    "message": "Set by a test",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
#: those whose status has conditions of the common form
OTHERWISE = (ResourceQuotas, Ingresses, PersistentVolumes, VolumeAttachments)
TELLING = [each for each in WRITTEN if each.has_status and each not in OTHERWISE]


@pytest.mark.parametrize("resource", TELLING, ids=lambda resource: resource.key)
def test_a_status_is_read_patched_and_updated(api: Api, resource: Resource) -> None:
    name = name_of(resource, "a")
    api.create(resource, made(resource, "a"))
    patch = {
        "metadata": {"annotations": {"patched": "status"}},
        "status": {"conditions": [CONDITION]},
    }
    api.patch(resource, name, patch, subresource="status")
    read = api.get(resource, name, subresource="status")
    assert read == api.get(resource, name)
    assert [condition["type"] for condition in read["status"]["conditions"]] == ["StatusUpdate"]
    assert read["metadata"]["annotations"]["patched"] == "status"
    read["status"]["conditions"][0]["reason"] = "Updated"
    read["spec"] = (
        {**read.get("spec", {}), "nodeName": "no"} if resource is Pods else read.get("spec", {})
    )
    updated = json.loads(api.update(resource, name, read, subresource="status").body)
    assert updated["status"]["conditions"][0]["reason"] == "Updated"
    assert updated.get("spec", {}).get("nodeName") is None, "the status endpoint writes no spec"


def test_the_status_of_a_quota(api: Api) -> None:
    """Hard limits are patched and updated there, and the spec stays."""
    api.create(
        ResourceQuotas,
        {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "500m", "memory": "500Mi"}}},
    )
    for hard in ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2"}):
        api.patch(ResourceQuotas, "q", {"status": {"hard": hard}}, subresource="status")
    read = api.get(ResourceQuotas, "q", subresource="status")
    assert read["status"]["hard"] == {"cpu": "2", "memory": "1Gi"}
    assert read["spec"]["hard"] == {"cpu": "500m", "memory": "500Mi"}


def test_the_status_of_a_volume_and_of_an_attachment(api: Api) -> None:
    """A volume's status is written there alone; an attachment's writes nothing of metadata."""
    for resource, status in (
        (PersistentVolumes, {"phase": "Bound"}),
        (VolumeAttachments, {"attached": True}),
    ):
        api.create(resource, {**made(resource, "a"), "status": status})
        assert api.get(resource, "a")["status"] == (
            {"phase": "Pending"} if "phase" in status else {"attached": False}
        )
        patch = {
            "metadata": {"annotations": {"patched": "status"}},
            "spec": {"nodeName": "other"},
            "status": status,
        }
        api.patch(resource, "a", patch, subresource="status")
        read = api.get(resource, "a", subresource="status")
        assert read["status"] == status
        assert read["spec"].get("nodeName") != "other"
        assert ("annotations" in read["metadata"]) is (resource is PersistentVolumes)


def test_the_status_of_an_ingress_and_of_a_service(api: Api) -> None:
    balancer = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}
    api.create(Ingresses, made(Ingresses, "a"))
    api.patch(Ingresses, "a", {"status": balancer}, subresource="status")
    assert api.get(Ingresses, "a", subresource="status")["status"] == balancer
    api.create(
        Services,
        {"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}},
    )
    api.patch(Services, "s", {"status": balancer}, subresource="status")
    (entry,) = api.get(Services, "s")["status"]["loadBalancer"]["ingress"]
    assert entry["ip"] == "203.0.113.1"


@pytest.mark.parametrize(
    "resource", [Deployments, ReplicaSets, StatefulSets, ReplicationControllers]
)
def test_a_scale_is_read_updated_and_patched(api: Api, resource: Resource) -> None:
    api.create(resource, made(resource, "a"))
    scale = api.get(resource, "a", subresource="scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)
    scale["spec"]["replicas"] = 2
    api.update(resource, "a", scale, subresource="scale")
    api.patch(resource, "a", {"spec": {"replicas": 4}}, subresource="scale")
    assert api.get(resource, "a")["spec"]["replicas"] == 4


@pytest.mark.parametrize("resource", [ConfigMaps, Secrets])
def test_an_empty_key_is_refused(api: Api, resource: Resource) -> None:
    error = api.fails("create", resource, {"metadata": {"name": "a"}, "data": {"": "dmFsdWU="}})
    assert (error.code, error.reason) == (422, "Invalid")


def test_a_finalizer_of_a_namespace_comes_and_goes(api: Api) -> None:
    api.create(Namespaces, {"metadata": {"name": "shop"}})
    whole = api.get(Namespaces, "shop")
    for finalizers in (["kubernetes", "e2e.example.com/fakeFinalizer"], ["kubernetes"]):
        whole["spec"]["finalizers"] = finalizers
        api.update(Namespaces, "shop", whole, subresource="finalize")
        whole = api.get(Namespaces, "shop")
        assert whole["spec"]["finalizers"] == finalizers


def test_an_external_name_becomes_a_node_port(api: Api) -> None:
    name = {"type": "ExternalName", "externalName": "foo.example.com"}
    api.create(Services, {"metadata": {"name": "s"}, "spec": name})
    assert "clusterIP" not in api.get(Services, "s")["spec"]
    api.patch(
        Services, "s", {"spec": {"type": "NodePort", "externalName": None, "ports": [{"port": 80}]}}
    )
    spec = api.get(Services, "s")["spec"]
    assert spec["clusterIP"]
    assert spec["ports"][0]["nodePort"]


def test_endpoints_and_accounts_live_as_the_conformance_tests_have_them(api: Api) -> None:
    """ "should test the lifecycle of an Endpoint", "should run through the lifecycle of a
    ServiceAccount".
    """
    subsets = [
        {
            "addresses": [{"ip": "10.0.0.24"}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        }
    ]
    api.create(EndpointsObjects, {"metadata": {"name": "e", "labels": LABELS}, "subsets": subsets})
    moved = [
        {
            "addresses": [{"ip": "10.0.0.25"}],
            "ports": [{"name": "http-test", "port": 8080, "protocol": "TCP"}],
        }
    ]
    api.patch(EndpointsObjects, "e", {"subsets": moved})
    assert api.get(EndpointsObjects, "e")["subsets"] == moved
    api.delete_collection(EndpointsObjects, label_selector="of=test")
    api.create(ServiceAccounts, {"metadata": {"name": "robot", "labels": LABELS}})
    api.patch(ServiceAccounts, "robot", {"automountServiceAccountToken": False})
    (record,) = api.list(ServiceAccounts, label_selector="of=test").records
    assert json.loads(record.body)["automountServiceAccountToken"] is False
    api.delete_collection(ServiceAccounts, label_selector="of=test")
    assert api.names(EndpointsObjects) == api.names(ServiceAccounts) == []


def test_a_lease_is_renewed_as_the_conformance_test_has_it(api: Api) -> None:
    spec = {
        "holderIdentity": "holder",
        "leaseDurationSeconds": 30,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
    }
    api.create(Leases, {"metadata": {"name": "l"}, "spec": spec})
    lease = api.get(Leases, "l")
    assert lease["spec"] == spec
    lease["spec"] = {**spec, "holderIdentity": "holder2", "leaseTransitions": 1}
    api.update(Leases, "l", lease)
    api.patch(Leases, "l", {"spec": {"leaseDurationSeconds": 60}})
    assert api.get(Leases, "l")["spec"] == {**lease["spec"], "leaseDurationSeconds": 60}
