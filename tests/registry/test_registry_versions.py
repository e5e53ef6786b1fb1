"""EndpointSlices through v1beta1: the same objects, seen and written in the old form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, EndpointSlicesV1beta1
from sliceplane.server.registry.documents import make_record

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ANNOTATION = "endpointslice.kubernetes.io/v1beta1-topology"


def body(*endpoints: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a"},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [f"10.0.0.{index}"], **each} for index, each in enumerate(endpoints, 1)
        ],
        **rest,
    }


def told(document: Any) -> list[dict[str, Any]]:
    """The endpoints without what every one has."""
    return [
        {name: value for name, value in endpoint.items() if name not in ("addresses", "conditions")}
        for endpoint in document["endpoints"]
    ]


def test_created_in_the_old_form_and_read_in_both(api: Any) -> None:
    topology = {HOST: "n1", ZONE: "z", "rack": "r"}
    outcome = api.create(EndpointSlicesV1beta1, body({"topology": topology, "nodeName": "n1"}, {}))
    created = json.loads(outcome.body)
    assert created["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert told(created) == [{"nodeName": "n1", "topology": topology}, {}]
    assert api.get(EndpointSlicesV1beta1, "a") == created
    stored = api.get(EndpointSlices, "a")
    assert stored["apiVersion"] == "discovery.k8s.io/v1"
    assert told(stored) == [
        {"nodeName": "n1", "zone": "z", "deprecatedTopology": {"rack": "r"}},
        {},
    ]
    [record] = api.list(EndpointSlicesV1beta1).records
    assert json.loads(record.body) == created


def test_members_of_the_other_version_are_unknown(api: Any) -> None:
    outcome = api.create(
        EndpointSlicesV1beta1, body({"zone": "z", "deprecatedTopology": {"a": "b"}})
    )
    assert told(json.loads(outcome.body)) == [{}]
    outcome = api.create(EndpointSlices, body({"topology": {"a": "b"}}, metadata={"name": "b"}))
    assert told(json.loads(outcome.body)) == [{}]
    wrong = {**body({}), "apiVersion": "discovery.k8s.io/v1"}
    assert api.fails("create", EndpointSlicesV1beta1, wrong).message == (
        "the API version in the data (discovery.k8s.io/v1) does not match the expected API version "
        "(discovery.k8s.io/v1beta1)"
    )


def test_validation_names_the_fields_of_the_hub(api: Any) -> None:
    error = api.fails("create", EndpointSlicesV1beta1, body({"topology": {"bad key": "x"}}))
    assert error.code == 422
    assert "endpoints[0].deprecatedTopology" in error.message


@pytest.mark.parametrize("storage", ["field", "annotation"])
def test_what_an_old_client_read_it_can_write_back_without_a_write(
    make_api: Any, storage: str
) -> None:
    api = make_api(topology_storage=storage)
    api.create(
        EndpointSlicesV1beta1,
        body({"topology": {"rack": "r"}, "nodeName": "n"}, {"topology": {ZONE: "z"}}),
    )
    read = api.get(EndpointSlicesV1beta1, "a")
    assert api.update(EndpointSlicesV1beta1, "a", read).revision == 0
    assert api.get(EndpointSlicesV1beta1, "a") == read
    api.patch(EndpointSlicesV1beta1, "a", {"metadata": {"annotations": {"x": "y"}}})
    after = api.get(EndpointSlicesV1beta1, "a")
    assert after["endpoints"] == read["endpoints"]
    assert after["metadata"]["generation"] == 1
    assert after["metadata"]["annotations"] == {"x": "y"}, (
        "the topology's annotation is not shown to v1beta1"
    )


@pytest.mark.parametrize("kind", ["json", "merge", "strategic"])
def test_patches_apply_to_the_old_form(api: Any, kind: Any) -> None:
    api.create(EndpointSlicesV1beta1, body({"topology": {"rack": "r"}}))
    changed = [{"addresses": ["10.0.0.9"], "topology": {"rack": "s", ZONE: "z"}}]
    patch = (
        [{"op": "replace", "path": "/endpoints", "value": changed}]
        if kind == "json"
        else {"endpoints": changed}
    )
    outcome = api.patch(EndpointSlicesV1beta1, "a", patch, kind)
    assert told(json.loads(outcome.body)) == [{"topology": {"rack": "s", ZONE: "z"}}]
    assert told(api.get(EndpointSlices, "a")) == [
        {"zone": "z", "deprecatedTopology": {"rack": "s"}}
    ]


def test_a_strict_patch_complains_of_the_new_members(api: Any) -> None:
    api.create(EndpointSlicesV1beta1, body({}))
    patch = {"endpoints": [{"addresses": ["10.0.0.9"], "zone": "z"}]}
    error = api.fails("patch", EndpointSlicesV1beta1, "a", patch, field_validation="Strict")
    assert 'unknown field "endpoints[0].zone"' in error.message


def test_the_annotation_is_written_when_configured_and_follows_the_endpoints(make_api: Any) -> None:
    api = make_api(topology_storage="annotation")
    api.create(
        EndpointSlicesV1beta1,
        body({"topology": {"rack": "r", ZONE: "z"}}, {"topology": {"rack": "s"}}),
    )
    stored = api.get(EndpointSlices, "a")
    assert stored["metadata"]["annotations"] == {ANNOTATION: '{"0":{"rack":"r"},"1":{"rack":"s"}}'}
    assert told(stored) == [{"zone": "z"}, {}]
    stored["endpoints"] = [{"addresses": ["10.0.0.7"]}, *reversed(stored["endpoints"])]
    api.update(EndpointSlices, "a", stored)
    assert told(api.get(EndpointSlicesV1beta1, "a")) == [
        {},
        {"topology": {"rack": "s"}},
        {"topology": {"rack": "r", ZONE: "z"}},
    ]


def test_the_annotation_is_read_when_the_field_is_written(make_api: Any) -> None:
    api = make_api(topology_storage="field")
    api.create(
        EndpointSlices,
        body({}, metadata={"name": "a", "annotations": {ANNOTATION: '{"0":{"rack":"r"}}'}}),
    )
    read = api.get(EndpointSlicesV1beta1, "a")
    assert told(read) == [{"topology": {"rack": "r"}}]
    assert "annotations" not in read["metadata"]
    # The next write through v1beta1 moves it into the field; that is no change of the content.
    api.update(EndpointSlicesV1beta1, "a", read)
    stored = api.get(EndpointSlices, "a")
    assert (told(stored), stored["metadata"]["generation"]) == (
        [{"deprecatedTopology": {"rack": "r"}}],
        1,
    )


def test_the_address_type_ip_is_readable_and_refused_in_new_slices(api: Any) -> None:
    for resource in (EndpointSlices, EndpointSlicesV1beta1):
        error = api.fails("create", resource, body({}, addressType="IP"))
        assert 'addressType: Unsupported value: "IP"' in error.message
    old = {**body({"deprecatedTopology": {HOST: "n1"}}, addressType="IP"), "ports": []}
    old["metadata"] |= {"namespace": "default", "uid": "u"}
    document = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", **old}
    record = make_record(EndpointSlices, document, api.store.staged_revision + 1)
    api.store.stage_put(record.key, lambda _: record)
    api.commit()
    assert api.get(EndpointSlices, "a")["addressType"] == "IP"
    read = api.get(EndpointSlicesV1beta1, "a")
    assert (read["addressType"], told(read)) == ("IP", [{"topology": {HOST: "n1"}}])
    assert api.fails("update", EndpointSlicesV1beta1, "a", read).code == 422
    assert api.delete(EndpointSlicesV1beta1, "a").code == 200


def test_deleting_answers_in_the_old_form(api: Any) -> None:
    api.create(
        EndpointSlicesV1beta1,
        body({"topology": {ZONE: "z"}}, metadata={"name": "a", "finalizers": ["x.y/z"]}),
    )
    marked = json.loads(api.delete(EndpointSlicesV1beta1, "a").body)
    assert (marked["apiVersion"], told(marked)) == (
        "discovery.k8s.io/v1beta1",
        [{"topology": {ZONE: "z"}}],
    )
    listed = json.loads(api.delete_collection(EndpointSlicesV1beta1).body)
    assert listed["apiVersion"] == "discovery.k8s.io/v1beta1"
    assert told(listed["items"][0]) == [{"topology": {ZONE: "z"}}]
    unfinalized = api.patch(EndpointSlicesV1beta1, "a", {"metadata": {"finalizers": None}})
    assert json.loads(unfinalized.body)["apiVersion"] == "discovery.k8s.io/v1beta1"
    api.create(EndpointSlicesV1beta1, body({}))
    assert json.loads(api.delete(EndpointSlicesV1beta1, "a").body)["kind"] == "Status"


def test_dry_runs_show_and_store_nothing(api: Any) -> None:
    outcome = api.create(EndpointSlicesV1beta1, body({"topology": {ZONE: "z"}}), dry_run=True)
    assert told(json.loads(outcome.body)) == [{"topology": {ZONE: "z"}}]
    assert api.names(EndpointSlicesV1beta1) == []


def test_the_stored_bytes_are_the_hubs(api: Any) -> None:
    api.create(EndpointSlicesV1beta1, body({"topology": {ZONE: "z"}}))
    [record] = api.list(EndpointSlices).records
    assert record.body == encode(json.loads(record.body))
    assert record.body.startswith(b'{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",')
