"""PUT: concurrency, immutables, generation, no-ops, status, finalize, the last finalizer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Leases,
    Namespaces,
    Nodes,
    Pods,
    Services,
)
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.types import Target
from sliceplane.server.store.types import EventType

POD = {
    "metadata": {"name": "p"},
    "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "nginx:1.27"}]},
}
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
DEPLOYMENT = {
    "metadata": {"name": "d"},
    "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE},
}


def body(outcome: Any) -> Any:
    return json.loads(outcome.body)


def slice_document(*addresses: str, **metadata: Any) -> Any:
    return {
        "metadata": {"name": "s", **metadata},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


def test_an_update_moves_the_version_and_keeps_identity(api: Any) -> None:
    first = body(api.create(EndpointSlices, slice_document("10.0.0.1")))
    api.now += 60
    outcome = api.update(EndpointSlices, "s", slice_document("10.0.0.2"))
    second = body(outcome)
    assert outcome.code == 200
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    for member in ("uid", "creationTimestamp"):
        assert second["metadata"][member] == first["metadata"][member]
    assert second["metadata"]["generation"] == 2


def test_a_no_op_writes_nothing(api: Any) -> None:
    first = api.create(EndpointSlices, slice_document("10.0.0.1", labels={"a": "b"}))
    api.events.clear()
    for document in (
        slice_document("10.0.0.1", labels={"a": "b"}),
        slice_document(
            "10.0.0.1", labels={"a": "b"}, finalizers=[], annotations=None, managedFields=None
        ),
        {**slice_document("10.0.0.1", labels={"a": "b"}), "ports": []},
        json.loads(first.body),
    ):
        outcome = api.update(EndpointSlices, "s", document, field_manager="someone else")
        assert outcome.body == first.body
        assert outcome.revision == 0
    assert api.events == []


def test_a_no_op_on_something_not_yet_durable_waits_for_it(api: Any) -> None:
    api.commits = False
    first = api.create(ConfigMaps, {"metadata": {"name": "c"}})
    again = api.update(ConfigMaps, "c", {"metadata": {"name": "c"}})
    assert again.revision == first.revision


def test_concurrency(api: Any) -> None:
    first = body(api.create(ConfigMaps, {"metadata": {"name": "c"}, "data": {"a": "1"}}))
    api.update(ConfigMaps, "c", {**first, "data": {"a": "2"}})
    error = api.fails("update", ConfigMaps, "c", first)
    assert (error.code, error.reason) == (409, "Conflict")
    assert error.message == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; please '
        "apply your changes to "
        "the latest version and try again"
    )
    assert error.details == {"name": "c", "kind": "configmaps"}
    for version in (None, "", "0"):
        assert (
            api.update(
                ConfigMaps, "c", {"metadata": {"name": "c", "resourceVersion": version}}
            ).code
            == 200
        )
    error = api.fails(
        "update", ConfigMaps, "c", {"metadata": {"name": "c", "resourceVersion": "abc"}}
    )
    assert error.code == 500
    assert "reason" not in error.status()


def test_a_lease_needs_a_version(api: Any) -> None:
    created = api.update(Leases, "l1", {"metadata": {"name": "l1", "resourceVersion": "77"}})
    assert created.code == 201, "create on update ignores the version"
    error = api.fails("update", Leases, "l1", {"metadata": {"name": "l1"}})
    assert error.code == 422
    assert error.message == (
        'leases.coordination.k8s.io "l1" is invalid: metadata.resourceVersion: Invalid value: 0: '
        "must be specified for "
        "an update"
    )
    assert error.details["kind"] == "leases"
    assert api.patch(Leases, "l1", {"spec": {"leaseTransitions": 1}}).code == 200


def test_uid_is_a_precondition(api: Any) -> None:
    uid = body(api.create(ConfigMaps, {"metadata": {"name": "c"}}))["metadata"]["uid"]
    error = api.fails("update", ConfigMaps, "c", {"metadata": {"name": "c", "uid": "X"}})
    assert error.code == 409
    assert error.message == (
        'Operation cannot be fulfilled on configmaps "c": StorageError: invalid object, Code: 4, '
        "Key: "
        "/registry/configmaps/default/c, ResourceVersion: 0, AdditionalErrorMsg: Precondition "
        "failed: UID in "
        f"precondition: X, UID in object meta: {uid}"
    )
    error = api.fails("update", EndpointsObjects, "e", {"metadata": {"name": "e", "uid": "X"}})
    assert error.code == 409
    error = api.fails("patch", ConfigMaps, "c", {"metadata": {"uid": "1"}})
    assert error.code == 422
    assert (
        error.message
        == 'ConfigMap "c" is invalid: metadata.uid: Invalid value: "1": field is immutable'
    )
    assert len(error.details["causes"]) == 2, "the cause is listed twice, the text once"


def test_missing_objects(api: Any) -> None:
    error = api.fails("update", EndpointSlices, "s", slice_document("10.0.0.1"))
    assert (error.code, error.message) == (404, 'endpointslices.discovery.k8s.io "s" not found')
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    assert api.update(Services, "s", service).code == 201
    assert (
        api.fails(
            "update", Services, "t", {**service, "metadata": {"name": "t"}}, subresource="status"
        ).code
        == 404
    )


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"name": "c2"}, "the name of the object (c2) does not match the name on the URL (c1)"),
        ({}, "the name of the object (c1 based on URL) was undeterminable: name must be provided"),
        (
            {"name": "c1", "namespace": "x"},
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ],
)
def test_the_body_must_fit_the_url(api: Any, metadata: Any, message: str) -> None:
    api.create(ConfigMaps, {"metadata": {"name": "c1"}})
    error = api.fails("update", ConfigMaps, "c1", {"metadata": metadata})
    assert (error.code, error.message) == (400, message)


def test_server_owned_times_are_kept_or_refused(api: Any) -> None:
    api.create(ConfigMaps, {"metadata": {"name": "c"}})
    error = api.fails(
        "update",
        ConfigMaps,
        "c",
        {"metadata": {"name": "c", "creationTimestamp": "2001-01-01T00:00:00Z"}},
    )
    assert error.message == (
        'ConfigMap "c" is invalid: metadata.creationTimestamp: Invalid value: '
        '"2001-01-01T00:00:00Z": field '
        "is immutable"
    )
    error = api.fails(
        "update",
        ConfigMaps,
        "c",
        {"metadata": {"name": "c", "deletionTimestamp": "2001-01-01T00:00:00Z"}},
    )
    assert error.details["causes"][0]["field"] == "metadata.deletionTimestamp"


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"annotations": {"x": "y"}}, 0),
        ({"finalizers": ["x.io/f"]}, 0),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "a", "uid": "u"}]},
            0,
        ),
        ({"labels": {"x": "y"}}, 1),
    ],
)
def test_generation_of_a_slice(api: Any, change: Any, step: int) -> None:
    api.create(EndpointSlices, slice_document("10.0.0.1"))
    after = body(api.update(EndpointSlices, "s", slice_document("10.0.0.1", **change)))
    assert after["metadata"]["generation"] == 1 + step


def test_generation_of_a_deployment_follows_its_spec(api: Any) -> None:
    api.create(Deployments, DEPLOYMENT)
    after = body(api.patch(Deployments, "d", {"spec": {"replicas": 3}}))
    assert after["metadata"]["generation"] == 2
    after = body(
        api.patch(Deployments, "d", {"status": {"observedGeneration": 2}}, subresource="status")
    )
    assert after["metadata"]["generation"] == 2
    assert after["status"] == {"observedGeneration": 2}
    assert (
        body(api.patch(Deployments, "d", {"metadata": {"labels": {"x": "y"}}}))["metadata"][
            "generation"
        ]
        == 2
    )


def test_status_and_main_leave_each_other_alone(api: Any) -> None:
    api.create(Pods, POD)
    changed = body(api.patch(Pods, "p", {"status": {"phase": "Running"}}))
    assert changed["status"]["phase"] == "Pending"
    patch = {
        "status": {"phase": "Running", "podIP": "10.1.0.5"},
        "spec": {"nodeName": "elsewhere"},
        "metadata": {
            "labels": {"l": "1"},
            "annotations": {"a": "1"},
            "ownerReferences": [{"uid": "x"}],
        },
    }
    changed = body(api.patch(Pods, "p", patch, subresource="status"))
    assert changed["status"]["podIPs"] == [{"ip": "10.1.0.5"}]
    assert changed["spec"]["nodeName"] == "n"
    assert changed["metadata"]["labels"] == {"l": "1"}
    assert changed["metadata"]["annotations"] == {"a": "1"}
    assert "ownerReferences" not in changed["metadata"]
    assert changed["metadata"]["generation"] == 1


def test_status_of_a_deployment_leaves_labels(api: Any) -> None:
    api.create(Deployments, DEPLOYMENT)
    changed = body(
        api.patch(
            Deployments,
            "d",
            {"metadata": {"labels": {"x": "y"}}, "status": {"replicas": 2}},
            subresource="status",
        )
    )
    assert "labels" not in changed["metadata"]
    assert changed["status"] == {"replicas": 2}


def test_status_rules(api: Any) -> None:
    api.create(Services, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    patch = {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    error = api.fails("patch", Services, "s", patch, subresource="status")
    assert error.message == (
        'Service "s" is invalid: status.loadBalancer.ingress: Forbidden: may only be used when '
        "`spec.type` is "
        "'LoadBalancer'"
    )
    error = api.fails(
        "patch", Namespaces, "default", {"status": {"phase": "Terminating"}}, subresource="status"
    )
    assert error.message == (
        'Namespace "default" is invalid: status.Phase: Invalid value: "Terminating": may only be '
        "'Active' if "
        "`deletionTimestamp` is empty"
    )


def test_a_service_loses_no_status_and_no_address_by_a_bare_put(api: Any) -> None:
    first = body(
        api.create(
            Services,
            {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "type": "LoadBalancer"}},
        )
    )
    api.patch(
        Services,
        "s",
        {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
        subresource="status",
    )
    second = body(
        api.update(
            Services,
            "s",
            {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "type": "LoadBalancer"}},
        )
    )
    assert second["spec"] == first["spec"]
    assert second["status"]["loadBalancer"]["ingress"]


def test_finalizers_while_terminating(api: Any) -> None:
    api.create(ConfigMaps, {"metadata": {"name": "c", "finalizers": ["x.io/f"]}})
    api.delete(ConfigMaps, "c")
    error = api.fails(
        "update", ConfigMaps, "c", {"metadata": {"name": "c", "finalizers": ["x.io/f", "y.io/f"]}}
    )
    assert error.code == 422
    assert error.message == (
        'ConfigMap "c" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added '
        "if the object is "
        'being deleted, found new finalizers []string{"y.io/f"}'
    )
    assert len(error.details["causes"]) == 2


def test_taking_the_last_finalizer_removes_the_object(api: Any) -> None:
    api.create(ConfigMaps, {"metadata": {"name": "c", "finalizers": ["x.io/f", "x.io/g"]}})
    marked = body(api.delete(ConfigMaps, "c"))
    one_left = body(api.patch(ConfigMaps, "c", {"metadata": {"finalizers": ["x.io/g"]}}))
    assert one_left["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    api.events.clear()
    outcome = api.patch(ConfigMaps, "c", {"metadata": {"finalizers": None}})
    assert (outcome.code, outcome.revision) == (200, api.store.revision)
    shown = body(outcome)
    assert "finalizers" not in shown["metadata"]
    assert shown["metadata"]["resourceVersion"] == one_left["metadata"]["resourceVersion"]
    (event,) = api.events
    assert event.type is EventType.DELETED
    last = json.loads(event.record.body)
    assert last["metadata"]["finalizers"] == ["x.io/g"]
    assert last["metadata"]["resourceVersion"] == str(event.revision)
    assert api.fails("get", ConfigMaps, "c").code == 404


def test_namespace_label_and_finalizers_are_the_servers(api: Any) -> None:
    api.create(Namespaces, {"metadata": {"name": "n"}})
    changed = body(
        api.update(
            Namespaces,
            "n",
            {
                "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "x", "a": "b"}},
                "spec": {},
            },
        )
    )
    assert changed["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "n"}
    assert changed["spec"] == {"finalizers": ["kubernetes"]}
    assert changed["status"] == {"phase": "Active"}


def test_dry_run_updates_nothing(api: Any) -> None:
    first = api.create(ConfigMaps, {"metadata": {"name": "c"}})
    outcome = api.update(
        ConfigMaps, "c", {"metadata": {"name": "c"}, "data": {"a": "b"}}, dry_run=True
    )
    assert body(outcome)["data"] == {"a": "b"}
    assert outcome.revision == 0
    assert api.registry.get(api.ctx, api.target(ConfigMaps, "c")).body == first.body


def test_deprecated_topology_becomes_a_node_name(api: Any) -> None:
    """Only an object from before could have it; ours cannot be made with it, so it is put there by
    hand.
    """
    api.create(EndpointSlices, slice_document("10.0.0.1"))
    old = api.get(EndpointSlices, "s")
    old["endpoints"][0]["deprecatedTopology"] = {"kubernetes.io/hostname": "n1"}
    kept = {**old, "endpoints": [dict(old["endpoints"][0])]}
    kind_of(EndpointSlices).prepare_update(
        api.registry._core, Target(resource=EndpointSlices), kept, old
    )
    assert "deprecatedTopology" in kept["endpoints"][0], "unchanged endpoints carry it along"
    new = {
        **old,
        "endpoints": [
            {**old["endpoints"][0], "addresses": ["10.0.0.2"]},
            {"addresses": ["10.0.0.3"]},
        ],
    }
    kind_of(EndpointSlices).prepare_update(
        api.registry._core, Target(resource=EndpointSlices), new, old
    )
    assert new["endpoints"] == [
        {"addresses": ["10.0.0.2"], "conditions": {}, "nodeName": "n1"},
        {"addresses": ["10.0.0.3"]},
    ]


def test_pod_spec_stays(api: Any) -> None:
    api.create(Pods, POD)
    assert (
        body(
            api.patch(
                Pods,
                "p",
                {"spec": {"containers": [{"name": "c", "image": "nginx:1.28"}]}},
                "strategic",
            )
        )["metadata"]["generation"]
        == 2
    )
    error = api.fails("patch", Pods, "p", {"spec": {"hostname": "h"}})
    assert error.details["causes"][0]["field"] == "spec"
    assert error.message.startswith(
        'Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than'
    )
    extra = {"spec": {"containers": [{"name": "d", "image": "i"}]}}
    error = api.fails("patch", Pods, "p", extra, "strategic")
    assert error.message.endswith(
        "spec.containers: Forbidden: pod updates may not add or remove containers"
    )


def test_node_cordon(api: Any) -> None:
    api.create(Nodes, {"metadata": {"name": "n"}})
    api.patch(Nodes, "n", {"spec": {"unschedulable": True}}, "strategic")
    assert api.names(Nodes, field_selector="spec.unschedulable=true") == ["n"]
    api.patch(Nodes, "n", {"spec": {"unschedulable": None}}, "strategic")
    assert api.names(Nodes, field_selector="spec.unschedulable=false") == ["n"]
