"""managedFields after writes of every kind, and over versions of one resource."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.applied import (
    LAST_APPLIED,
    apply,
    config_map,
    deployment,
    owners,
    refused,
    slice_document,
)

from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointSlices,
    EndpointSlicesV1beta1,
    Events,
    EventsV1,
    Namespaces,
    Services,
)


def test_every_way_of_writing_is_recorded(api: Any) -> None:
    api.create(ConfigMaps, config_map({"a": "1", "b": "1", "c": "1"}), field_manager="creator")
    api.patch(ConfigMaps, "c", {"data": {"a": "2"}}, field_manager="merger")
    api.patch(
        ConfigMaps,
        "c",
        [{"op": "replace", "path": "/data/b", "value": "2"}],
        "json",
        field_manager="jason",
    )
    api.patch(
        ConfigMaps,
        "c",
        {"metadata": {"labels": {"x": "y"}}},
        "strategic",
        field_manager="strategist",
    )
    made = api.get(ConfigMaps, "c")
    assert owners(made) == {
        ("creator", "Update", ""): {"f:data": {".": {}, "f:c": {}}},
        ("jason", "Update", ""): {"f:data": {"f:b": {}}},
        ("merger", "Update", ""): {"f:data": {"f:a": {}}},
        ("strategist", "Update", ""): {"f:metadata": {"f:labels": {".": {}, "f:x": {}}}},
    }
    made["data"] = {"c": "9"}
    updated = json.loads(api.update(ConfigMaps, "c", made, field_manager="putter").body)
    assert owners(updated) == {
        ("creator", "Update", ""): {"f:data": {}},
        ("putter", "Update", ""): {"f:data": {"f:c": {}}},
        ("strategist", "Update", ""): {"f:metadata": {"f:labels": {".": {}, "f:x": {}}}},
    }


def test_a_no_op_under_another_name_writes_nothing(api: Any) -> None:
    first = api.create(ConfigMaps, config_map({"a": "1"}), field_manager="one")
    api.now += 100
    assert (
        api.update(ConfigMaps, "c", config_map({"a": "1"}), field_manager="two").body == first.body
    )
    assert api.patch(ConfigMaps, "c", {"data": {"a": "1"}}, field_manager="two").body == first.body


def test_what_the_server_undoes_is_no_write(api: Any) -> None:
    service = {"metadata": {"name": "w"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    first = api.create(Services, service, field_manager="one")
    made = json.loads(first.body)
    del made["spec"]["clusterIP"], made["spec"]["clusterIPs"]
    made["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    assert api.update(Services, "w", made, field_manager="two").body == first.body


def test_time_moves_only_when_something_was_written(api: Any) -> None:
    api.create(ConfigMaps, config_map({"a": "1"}), field_manager="one")
    api.now += 100
    api.patch(ConfigMaps, "c", {"data": {"b": "1"}}, field_manager="two")
    times = {e["manager"]: e["time"] for e in api.get(ConfigMaps, "c")["metadata"]["managedFields"]}
    assert times == {"one": "2027-01-15T08:00:00Z", "two": "2027-01-15T08:01:40Z"}
    api.now += 100
    api.patch(ConfigMaps, "c", {"data": {"a": "5"}}, field_manager="one")
    times = {e["manager"]: e["time"] for e in api.get(ConfigMaps, "c")["metadata"]["managedFields"]}
    assert times == {"one": "2027-01-15T08:03:20Z", "two": "2027-01-15T08:01:40Z"}


def test_status_and_spec_are_owned_through_their_own_endpoints(api: Any) -> None:
    made = json.loads(
        api.create(
            Deployments, {**deployment(replicas=2), "status": {"replicas": 9}}, field_manager="user"
        ).body
    )
    assert "f:status" not in owners(made)["user", "Update", ""]
    api.patch(
        Deployments,
        "d",
        {"spec": {"replicas": 7}, "metadata": {"labels": {"x": "y"}}, "status": {"replicas": 2}},
        subresource="status",
        field_manager="ctrl",
    )
    assert owners(api.get(Deployments, "d"))["ctrl", "Update", "status"] == {
        "f:status": {"f:replicas": {}}
    }
    applied = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "status": {"readyReplicas": 1},
        "spec": {"replicas": 3},
    }
    made = apply(api, Deployments, applied, "agent", name="d", subresource="status")
    assert owners(made)["agent", "Apply", "status"] == {"f:status": {"f:readyReplicas": {}}}
    assert made["spec"]["replicas"] == 2
    applied["status"] = {"replicas": 5}
    error = refused(api, Deployments, "d", applied, "agent", subresource="status")
    assert error.message == (
        'Apply failed with 1 conflict: conflict with "ctrl" with subresource "status" using '
        "apps/v1: .status.replicas"
    )


def test_scale_is_owned_through_scale(api: Any) -> None:
    apply(api, Deployments, deployment(replicas=2), "user")
    scale = api.get(Deployments, "d", subresource="scale")
    scale["spec"]["replicas"] = 5
    api.update(Deployments, "d", scale, subresource="scale", field_manager="autoscaler")
    made = api.get(Deployments, "d")
    assert owners(made)["autoscaler", "Update", "scale"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owners(made)["user", "Apply", ""]["f:spec"]
    entry = next(e for e in made["metadata"]["managedFields"] if e["manager"] == "autoscaler")
    assert entry["apiVersion"] == "apps/v1"
    error = refused(api, Deployments, "d", deployment(replicas=2), "user")
    assert error.message == (
        'Apply failed with 1 conflict: conflict with "autoscaler" with subresource "scale" using '
        "apps/v1: "
        ".spec.replicas"
    )
    wanted = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "d"},
        "spec": {"replicas": 3},
    }
    error = refused(api, Deployments, "d", wanted, "third", subresource="scale")
    assert error.message == (
        'Apply failed with 1 conflict: conflict with "autoscaler" with subresource "scale" using '
        "autoscaling/v1: "
        ".spec.replicas"
    )
    assert (
        apply(api, Deployments, wanted, "third", subresource="scale", force=True)["spec"][
            "replicas"
        ]
        == 3
    )
    assert owners(api.get(Deployments, "d"))["third", "Apply", "scale"] == {
        "f:spec": {"f:replicas": {}}
    }


def test_what_the_server_adds_belongs_to_nobody(api: Any) -> None:
    service = {"metadata": {"name": "w"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    made = json.loads(api.create(Services, service, field_manager="user").body)
    assert made["spec"]["clusterIP"]
    spec = owners(made)["user", "Update", ""]["f:spec"]
    assert "f:clusterIP" not in spec
    assert "f:clusterIPs" not in spec
    assert spec["f:selector"] == {}
    assert spec["f:ports"]['k:{"port":80,"protocol":"TCP"}'] == {
        ".": {},
        "f:port": {},
        "f:protocol": {},
        "f:targetPort": {},
    }
    namespace = json.loads(
        api.create(Namespaces, {"metadata": {"name": "n"}}, namespace="", field_manager="user").body
    )
    assert owners(namespace)["user", "Update", ""] == {
        "f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}
    }


@pytest.mark.parametrize("sent", [[], [{}]])
def test_tracking_can_be_switched_off_until_the_next_apply(api: Any, sent: Any) -> None:
    api.create(ConfigMaps, config_map({"a": "1"}), field_manager="one")
    made = api.get(ConfigMaps, "c")
    made["metadata"]["managedFields"] = sent
    assert (
        "managedFields"
        not in json.loads(api.update(ConfigMaps, "c", made, field_manager="two").body)["metadata"]
    )
    made = json.loads(api.patch(ConfigMaps, "c", {"data": {"b": "1"}}, field_manager="two").body)
    assert "managedFields" not in made["metadata"]
    assert owners(apply(api, ConfigMaps, config_map({"c": "1"}))) == {
        ("before-first-apply", "Update", ""): {"f:data": {".": {}, "f:a": {}, "f:b": {}}},
        ("one", "Apply", ""): {"f:data": {"f:c": {}}},
    }


def test_entries_of_a_client_count_when_they_can_be_read(api: Any) -> None:
    api.create(ConfigMaps, config_map({"a": "1"}), field_manager="one")
    stored = api.get(ConfigMaps, "c")["metadata"]["managedFields"]
    for nonsense in ([{"manager": "x", "operation": "Update"}], [{"operation": "Steal"}], None):
        made = config_map({"a": "1"}, managedFields=nonsense)
        assert (
            json.loads(api.update(ConfigMaps, "c", made).body)["metadata"]["managedFields"]
            == stored
        )
    given = {**stored[0], "manager": "heir"}
    made = json.loads(
        api.update(ConfigMaps, "c", config_map({"a": "1"}, managedFields=[given])).body
    )
    assert owners(made) == {("heir", "Update", ""): {"f:data": {".": {}, "f:a": {}}}}
    patch = [{"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "next"}]
    made = json.loads(api.patch(ConfigMaps, "c", patch, "json").body)
    assert list(owners(made)) == [("next", "Update", "")]


@pytest.mark.parametrize(
    ("member", "value", "problem"),
    [
        ("manager", "m" * 129, "manager: Too long: may not be more than 128 bytes"),
        (
            "manager",
            "a\nb",
            'manager: Invalid value: "a\\nb": invalid character U+000A (at position 1)',
        ),
        ("subresource", "s" * 257, "subresource: Too long: may not be more than 256 bytes"),
    ],
)
def test_entries_of_a_client_with_impossible_names(
    api: Any, member: str, value: str, problem: str
) -> None:
    api.create(ConfigMaps, config_map({"a": "1"}), field_manager="one")
    made = api.get(ConfigMaps, "c")
    made["metadata"]["managedFields"][0][member] = value
    error = api.fails("update", ConfigMaps, "c", made)
    assert error.message == f'ConfigMap "c" is invalid: metadata.managedFields[0].{problem}'


def test_kubectl_takes_over_what_it_applied_from_the_clients_side(api: Any) -> None:
    document = config_map({"a": "1", "b": "1"})
    document["metadata"]["annotations"] = {
        LAST_APPLIED: json.dumps(config_map({"a": "1", "b": "1"}))
    }
    api.create(ConfigMaps, document, field_manager="kubectl-client-side-apply")
    error = refused(api, ConfigMaps, "c", config_map({"a": "2"}), "flux")
    assert error.message == (
        'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: .data.a'
    )
    made = apply(api, ConfigMaps, config_map({"a": "2"}), "kubectl")
    assert made["data"] == {"a": "2", "b": "1"}
    assert made["metadata"]["annotations"][LAST_APPLIED] == (
        '{"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap","metadata":{"name":"c"}}\n'
    )
    # What somebody changed since is not kubectl's to take.
    api.patch(ConfigMaps, "c", {"data": {"a": "edited"}}, field_manager="kubectl-edit")
    error = refused(api, ConfigMaps, "c", config_map({"a": "3"}), "kubectl")
    assert (
        error.message
        == 'Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: .data.a'
    )


# --- versions ---


def test_entries_keep_the_version_they_were_made_with(api: Any) -> None:
    old = slice_document("10.0.0.1", version="v1beta1")
    old["endpoints"][0]["topology"] = {"topology.kubernetes.io/zone": "z"}
    made = apply(api, EndpointSlicesV1beta1, old)
    assert made["apiVersion"] == "discovery.k8s.io/v1beta1"
    (entry,) = made["metadata"]["managedFields"]
    assert entry["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert apply(api, EndpointSlicesV1beta1, old) == made
    hub = api.get(EndpointSlices, "s")
    assert hub["endpoints"][0]["zone"] == "z"
    assert hub["metadata"]["managedFields"] == [entry]
    error = refused(api, EndpointSlices, "s", slice_document("10.0.0.2"), "two")
    assert (
        error.message
        == 'Apply failed with 2 conflicts: conflicts with "one":\n- .endpoints\n- .ports'
    )
    # The same applier keeps its entry when it moves to another version.
    moved = apply(api, EndpointSlices, slice_document("10.0.0.3"))
    (entry,) = moved["metadata"]["managedFields"]
    assert entry["apiVersion"] == "discovery.k8s.io/v1"


def test_the_two_forms_of_an_event_name_fields_in_their_own_words(api: Any) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "message": "hello",
        "reason": "R",
        "type": "Normal",
        "source": {"component": "c"},
    }
    api.create(Events, event, field_manager="maker")
    config = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "note": "bye",
    }
    error = refused(api, EventsV1, "e", config)
    assert error.message == 'Apply failed with 1 conflict: conflict with "maker" using v1: .message'
    # The same value is shared, each under the name of its owner's version.
    apply(api, EventsV1, {**config, "note": "hello"})
    found = owners(api.get(Events, "e"))
    assert found["one", "Apply", ""] == {"f:note": {}}
    assert found["maker", "Update", ""]["f:message"] == {}
    assert owners(api.get(EventsV1, "e")) == found
