"""POST: identity, names, generateName, namespaces, strictness, dryRun."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import (
    ConfigMaps,
    EndpointSlices,
    Leases,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
)

TABLES = tables(__file__)

SLICE = {
    "metadata": {"name": "s"},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.0.0.1"]}],
    "ports": [{}],
}
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]}}


def body(outcome: Any) -> Any:
    return json.loads(outcome.body)


def test_the_server_owns_identity_and_the_body_is_canonical(api: Any) -> None:
    sent = {
        "endpoints": [{"addresses": ["10.0.0.1"], "hostname": None}],
        "addressType": "IPv4",
        "metadata": {
            "labels": {"b": "2", "a": "1"},
            "name": "s",
            "uid": "mine",
            "creationTimestamp": "2001-01-01T00:00:00Z",
            "deletionTimestamp": "2001-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 9,
            "selfLink": "/x",
            "generation": 77,
            "managedFields": [{"manager": "m"}],
            "finalizers": [],
        },
        "ports": None,
    }
    outcome = api.create(EndpointSlices, sent)
    assert outcome.code == 201
    assert outcome.revision == api.store.revision
    stored = body(outcome)
    assert list(stored) == ["kind", "apiVersion", "metadata", "endpoints", "addressType", "ports"]
    uid = stored["metadata"]["uid"]
    assert len(uid) == 36
    assert uid != "mine"
    (entry,) = stored["metadata"].pop("managedFields")
    assert (entry["manager"], entry["operation"]) == ("unknown", "Update")
    assert stored["metadata"] == {
        "name": "s",
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(outcome.revision),
        "generation": 1,
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "labels": {"a": "1", "b": "2"},
    }
    assert list(stored["metadata"]["labels"]) == ["a", "b"]
    assert stored["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {}}]
    assert stored["ports"] == []
    record = api.registry.get(api.ctx, api.target(EndpointSlices, "s"))
    assert (record.uid, record.labels, record.revision) == (
        uid,
        {"a": "1", "b": "2"},
        outcome.revision,
    )


def test_empty_lists_read_back_as_lists(api: Any) -> None:
    stored = body(api.create(EndpointSlices, {"metadata": {"name": "e"}, "addressType": "IPv4"}))
    assert (stored["endpoints"], stored["ports"]) == ([], [])


def test_a_client_generation_is_kept_where_the_kind_has_none(api: Any) -> None:
    assert (
        body(api.create(ConfigMaps, {"metadata": {"name": "c", "generation": 5}}))["metadata"][
            "generation"
        ]
        == 5
    )


def test_generate_name_keeps_the_prefix_and_a_given_name_wins(api: Any) -> None:
    first = body(api.create(ConfigMaps, {"metadata": {"generateName": "web-"}}))["metadata"]
    assert first["generateName"] == "web-"
    assert first["name"].startswith("web-")
    assert len(first["name"]) == 9
    assert set(first["name"][4:]) <= set("bcdfghjklmnpqrstvwxz2456789")
    both = body(api.create(ConfigMaps, {"metadata": {"name": "plain", "generateName": "web-"}}))[
        "metadata"
    ]
    assert both["name"] == "plain"
    long = body(api.create(ConfigMaps, {"metadata": {"generateName": "x" * 80}}))["metadata"][
        "name"
    ]
    assert long[:58] == "x" * 58
    assert len(long) == 63


def test_generate_name_gives_up_after_eight_tries(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def stuck(prefix: str, rng: Any) -> str:
        tries.append(prefix)
        return f"{prefix}same"

    monkeypatch.setattr("sliceplane.server.registry.metadata.generated_name", stuck)
    api.create(ConfigMaps, {"metadata": {"generateName": "a-"}})
    tries.clear()
    error = api.fails("create", ConfigMaps, {"metadata": {"generateName": "a-"}})
    assert len(tries) == 8
    assert (error.code, error.reason, error.retry_after_s) == (409, "AlreadyExists", 1)
    assert error.message == (
        'configmaps "a-same" already exists, the server was not able to generate a unique name '
        "for the object"
    )
    assert error.details == {"name": "a-same", "kind": "configmaps", "retryAfterSeconds": 1}


def test_taken_names(api: Any) -> None:
    api.create(EndpointSlices, {**SLICE, "metadata": {"name": "s", "finalizers": ["x.io/f"]}})
    error = api.fails("create", EndpointSlices, SLICE)
    assert (error.code, error.reason) == (409, "AlreadyExists")
    assert error.message == 'endpointslices.discovery.k8s.io "s" already exists'
    assert error.details == {"name": "s", "group": "discovery.k8s.io", "kind": "endpointslices"}
    api.delete(EndpointSlices, "s")
    error = api.fails("create", EndpointSlices, SLICE)
    assert (
        error.message
        == 'object is being deleted: endpointslices.discovery.k8s.io "s" already exists'
    )


@pytest.mark.parametrize(("resource", "document", "code", "message"), TABLES["refused"])
def test_refused(api: Any, resource: Any, document: Any, code: int, message: str | None) -> None:
    error = api.fails("create", resource, document)
    assert error.code == code
    if message is not None:
        assert error.message == message
    else:
        assert [cause["field"] for cause in error.details["causes"]] == [
            "metadata.generateName",
            "metadata.name",
        ]


def test_a_500_of_this_kind_has_no_reason(api: Any) -> None:
    error = api.fails("create", ConfigMaps, {"metadata": {"name": "c", "resourceVersion": "4"}})
    assert "reason" not in error.status()
    assert (
        api.fails("create", ConfigMaps, {"metadata": {"name": "c", "resourceVersion": "x"}}).code
        == 500
    )
    assert api.create(ConfigMaps, {"metadata": {"name": "c", "resourceVersion": "0"}}).code == 201


def test_missing_and_terminating_namespaces(api: Any) -> None:
    error = api.fails("create", ConfigMaps, {"metadata": {"name": "c"}}, namespace="nope")
    assert (error.code, error.message) == (404, 'namespaces "nope" not found')
    assert error.details == {"name": "nope", "kind": "namespaces"}
    api.create(Namespaces, {"metadata": {"name": "t1"}})
    api.create(ConfigMaps, {"metadata": {"name": "c"}}, namespace="t1")
    api.delete(Namespaces, "t1")
    error = api.fails("create", ConfigMaps, {"metadata": {"name": "c2"}}, namespace="t1")
    assert error.code == 403
    assert error.message == (
        'configmaps "c2" is forbidden: unable to create new content in namespace t1 because it is '
        "being terminated"
    )
    assert error.details["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": "namespace t1 is being terminated",
            "field": "metadata.namespace",
        }
    ]
    assert api.fails("update", Leases, "l", {"metadata": {"name": "l"}}, namespace="t1").code == 403
    assert api.patch(ConfigMaps, "c", {"data": {"still": "works"}}, namespace="t1").code == 200


def test_field_validation(api: Any) -> None:
    document = {"metadata": {"name": "c"}, "dat": {"a": "b"}, "data": {"x": "y"}}
    problems = ('unknown field "dat"', 'duplicate field "metadata.name"')
    error = api.fails("create", ConfigMaps, document, problems=problems, field_validation="Strict")
    assert (error.code, error.reason) == (400, "BadRequest")
    assert error.message == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
        'unknown field "dat", duplicate field "metadata.name"'
    )
    outcome = api.create(ConfigMaps, document, problems=problems, field_validation="Warn")
    assert outcome.warnings == problems
    assert "dat" not in body(outcome), "an unknown member is dropped"
    assert (
        api.create(
            ConfigMaps, {**document, "metadata": {"name": "c2"}}, field_validation="Ignore"
        ).warnings
        == ()
    )


def test_dry_run_stores_nothing(api: Any) -> None:
    before = api.store.revision
    outcome = api.create(EndpointSlices, SLICE, dry_run=True)
    assert (outcome.code, outcome.revision) == (201, 0)
    assert body(outcome)["metadata"]["uid"]
    assert "resourceVersion" not in body(outcome)["metadata"]
    assert (api.store.revision, api.store.staged_revision) == (before, before)
    assert api.names(EndpointSlices) == []


def test_fqdn_slices_earn_a_warning(api: Any) -> None:
    outcome = api.create(EndpointSlices, {"metadata": {"name": "f"}, "addressType": "FQDN"})
    assert outcome.warnings == ("spec.addressType: FQDN endpoints are deprecated",)


def test_status_is_the_servers_at_create(api: Any) -> None:
    pod = body(api.create(Pods, {**POD, "status": {"phase": "Running", "podIP": "10.0.0.1"}}))
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert list(pod)[-1] == "status"
    namespace = body(
        api.create(
            Namespaces, {"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "x"}}}
        )
    )
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}
    assert namespace["status"] == {"phase": "Active"}
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    node = body(api.create(Nodes, {"metadata": {"name": "n1"}, "status": {"phase": "kept"}}))
    assert node["status"]["phase"] == "kept", "a kubelet registers with its status"
    assert node["spec"]["taints"] == [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    ]


@pytest.mark.parametrize(("resources", "expected"), TABLES["quality_of_service"])
def test_quality_of_service(api: Any, resources: Any, expected: str) -> None:
    container = {"name": "c", "image": "i", "resources": resources}
    pod = body(api.create(Pods, {"metadata": {"name": "p"}, "spec": {"containers": [container]}}))
    assert pod["status"]["qosClass"] == expected


def test_a_pod_takes_over_the_zone_of_its_node(api: Any) -> None:
    zone = {
        "topology.kubernetes.io/zone": "z1",
        "topology.kubernetes.io/region": "r1",
        "other": "x",
    }
    api.create(Nodes, {"metadata": {"name": "n1", "labels": zone}})
    spec = {**POD["spec"], "nodeName": "n1"}
    pod = body(api.create(Pods, {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec}))
    assert pod["metadata"]["labels"] == {
        "a": "b",
        "topology.kubernetes.io/region": "r1",
        "topology.kubernetes.io/zone": "z1",
    }
    elsewhere = body(
        api.create(Pods, {"metadata": {"name": "q"}, "spec": {**POD["spec"], "nodeName": "gone"}})
    )
    assert "labels" not in elsewhere["metadata"]


def test_deprecated_topology_cannot_be_written(api: Any) -> None:
    endpoint = {"addresses": ["10.0.0.1"], "deprecatedTopology": {"kubernetes.io/hostname": "n1"}}
    stored = body(api.create(EndpointSlices, {**SLICE, "endpoints": [endpoint]}))
    assert stored["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {}}]


def test_cluster_scope_ignores_a_namespace(api: Any) -> None:
    node = body(api.create(Nodes, {"metadata": {"name": "n1", "namespace": "default"}}))
    assert "namespace" not in node["metadata"]


def test_columns_for_selectors_and_owners(api: Any) -> None:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "r",
        "uid": "u1",
        "controller": True,
    }
    api.create(Pods, {"metadata": {"name": "p", "ownerReferences": [owner]}, "spec": POD["spec"]})
    record = api.registry.get(api.ctx, api.target(Pods, "p"))
    assert record.owners == ("u1",)
    assert record.fields == {
        "spec.restartPolicy": "Always",
        "spec.schedulerName": "default-scheduler",
        "spec.hostNetwork": "false",
        "spec.serviceAccountName": "default",
        "status.phase": "Pending",
    }
    assert api.store.owned_by("u1") == (record,)


def test_the_body_given_is_not_changed(api: Any) -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    document = {
        "metadata": {"name": "r"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    before = json.dumps(document)
    api.create(ReplicaSets, document)
    assert json.dumps(document) == before
