"""PATCH: three forms, and the answers to patches that do not apply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Services

TABLES = tables(__file__)


def body(outcome: Any) -> Any:
    return json.loads(outcome.body)


@pytest.fixture
def with_map(api: Any) -> Any:
    api.create(
        ConfigMaps, {"metadata": {"name": "c", "labels": {"a": "1"}}, "data": {"x": "1", "y": "2"}}
    )
    return api


def test_the_three_forms(with_map: Any) -> None:
    assert body(with_map.patch(ConfigMaps, "c", {"data": {"x": None, "z": "3"}}))["data"] == {
        "y": "2",
        "z": "3",
    }
    operations = [
        {"op": "replace", "path": "/data/y", "value": "9"},
        {"op": "remove", "path": "/data/z"},
    ]
    assert body(with_map.patch(ConfigMaps, "c", operations, "json"))["data"] == {"y": "9"}
    assert body(with_map.patch(ConfigMaps, "c", {"metadata": {"labels": {"b": "2"}}}, "strategic"))[
        "metadata"
    ]["labels"] == {
        "a": "1",
        "b": "2",
    }


def test_strategic_lists_merge_by_key_and_endpoints_are_replaced(api: Any) -> None:
    api.create(
        Services, {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 80}]}}
    )
    ports = body(
        api.patch(Services, "s", {"spec": {"ports": [{"name": "b", "port": 81}]}}, "strategic")
    )["spec"]["ports"]
    assert [port["port"] for port in ports] == [81, 80], "new elements go to the front"
    document = {
        "metadata": {"name": "s"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }
    api.create(EndpointSlices, document)
    patched = body(
        api.patch(EndpointSlices, "s", {"endpoints": [{"addresses": ["10.0.0.2"]}]}, "strategic")
    )
    assert patched["endpoints"] == [{"addresses": ["10.0.0.2"], "conditions": {}}]


def test_an_empty_patch_is_a_no_op(with_map: Any) -> None:
    before = with_map.store.revision
    for kind, patch in (("merge", {}), ("json", []), ("strategic", {})):
        assert with_map.patch(ConfigMaps, "c", patch, kind).revision == 0
    assert with_map.store.revision == before


@pytest.mark.parametrize(("kind", "patch", "code", "message"), TABLES["bad_patches"])
def test_bad_patches(with_map: Any, kind: Any, patch: Any, code: int, message: str | None) -> None:
    error = with_map.fails("patch", ConfigMaps, "c", patch, kind)
    assert error.code == code
    if message is not None:
        assert error.message == message


def test_a_result_that_does_not_decode(with_map: Any) -> None:
    error = with_map.fails("patch", ConfigMaps, "c", {"data": {"x": 5}})
    whole = {**with_map.get(ConfigMaps, "c"), "data": {"x": 5, "y": "2"}}
    shown = json.dumps(json.dumps(whole, separators=(",", ":")))
    assert error.code == 422
    assert error.message == (
        f' "" is invalid: patch: Invalid value: {shown}: json: cannot unmarshal number into Go '
        "struct field "
        "ConfigMap.data of type string"
    )
    assert [cause["field"] for cause in error.details["causes"]] == ["patch"]
    error = with_map.fails("patch", ConfigMaps, "c", {"kind": "Pod"})
    assert (error.code, error.details["causes"][0]["field"]) == (422, "patch")


def test_strict_patches(with_map: Any) -> None:
    error = with_map.fails("patch", ConfigMaps, "c", {"dat": {}}, field_validation="Strict")
    assert error.code == 422
    assert error.message.endswith('strict decoding error: unknown field "dat"')
    outcome = with_map.patch(ConfigMaps, "c", {"dat": {}}, field_validation="Warn")
    assert outcome.warnings == ('unknown field "dat"',)
    assert outcome.revision == 0, "nothing known was changed"
    assert "dat" not in body(outcome)


def test_a_version_in_a_patch_is_a_precondition(with_map: Any) -> None:
    version = with_map.get(ConfigMaps, "c")["metadata"]["resourceVersion"]
    assert (
        with_map.patch(
            ConfigMaps, "c", {"metadata": {"resourceVersion": version}, "data": {"n": "1"}}
        ).code
        == 200
    )
    error = with_map.fails(
        "patch", ConfigMaps, "c", {"metadata": {"resourceVersion": version}, "data": {"n": "2"}}
    )
    assert error.code == 409


def test_a_missing_object(api: Any) -> None:
    error = api.fails("patch", ConfigMaps, "c", {})
    assert (error.code, error.message) == (404, 'configmaps "c" not found')


def test_patches_are_validated(with_map: Any) -> None:
    error = with_map.fails("patch", ConfigMaps, "c", {"metadata": {"labels": {"bad key": "v"}}})
    assert error.code == 422
    assert error.details["causes"][0]["field"] == "metadata.labels"


def test_dry_run(with_map: Any) -> None:
    outcome = with_map.patch(ConfigMaps, "c", {"data": {"n": "1"}}, dry_run=True)
    assert body(outcome)["data"]["n"] == "1"
    assert "n" not in with_map.get(ConfigMaps, "c")["data"]
