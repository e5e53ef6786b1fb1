"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.server.documents import patch
from sliceplane.server.documents.patch import (
    apply_json,
    apply_merge,
    check_patched,
    decode_json_patch,
    decode_merge_patch,
)

TABLES = tables(__file__)

GENERIC = "the server rejected our request due to an error in our request"


def document() -> dict[str, Any]:
    return {"metadata": {"name": "a", "labels": {"x": "1"}}, "list": [1, 2, 3]}


@pytest.mark.parametrize(("operation", "expected"), TABLES["operations"])
def test_operations(operation: dict[str, Any], expected: dict[str, str]) -> None:
    before = document()
    result = apply_json(before, [operation])
    assert result["metadata"]["labels"] == expected
    assert before == document()


@pytest.mark.parametrize("operation", TABLES["an_operation_that_fails_is_one_generic_422"])
def test_an_operation_that_fails_is_one_generic_422(operation: Any) -> None:
    before = document()
    with pytest.raises(StatusError) as caught:
        apply_json(before, [{"op": "add", "path": "/list/-", "value": 4}, operation])
    assert caught.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": GENERIC,
        "reason": "Invalid",
        "details": {},
        "code": 422,
    }
    assert before == document()


def test_what_kubectl_sends_when_it_takes_over_from_client_side_apply() -> None:
    before = {
        "metadata": {"name": "a", "managedFields": [{"manager": "x"}], "resourceVersion": "5"}
    }
    operations = [
        {"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "kubectl"}]},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "5"},
    ]
    result = apply_json(before, operations)
    assert result["metadata"]["managedFields"] == [{"manager": "kubectl"}]
    operations[0]["value"].append({"manager": "later"})  # type: ignore[attr-defined]  # a list
    assert result["metadata"]["managedFields"] == [{"manager": "kubectl"}]


def test_limits_of_a_json_patch() -> None:
    operations = [{"op": "test", "path": "/metadata/name", "value": "a"}] * patch.OPERATIONS_MAX
    assert apply_json(document(), operations) == document()
    with pytest.raises(StatusError) as caught:
        apply_json(document(), [*operations, operations[0]])
    assert (caught.value.code, caught.value.message) == (
        413,
        (
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, "
            "got "
            "10001"
        ),
    )


def test_copies_cannot_grow_a_document_without_bound() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/c{n}"} for n in range(64)]
    with pytest.raises(StatusError, match=GENERIC):
        apply_json(document(), doubling)


def test_a_document_cannot_be_made_too_deep_to_be_read() -> None:
    for count in (250, 1200):
        nested = [{"op": "add", "path": "/x" * n, "value": {}} for n in range(1, count)]
        with pytest.raises(StatusError, match=GENERIC):
            apply_json(document(), nested)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            b"{}",
            (
                "error decoding patch: json: cannot unmarshal object into Go value of type "
                "jsonpatch.Patch"
            ),
        ),
        (
            b"[1]",
            (
                "error decoding patch: json: cannot unmarshal number into Go value of type "
                "jsonpatch.Operation"
            ),
        ),
        (b"[", "error decoding patch: unexpected end of JSON input"),
        (b"[" * 10_000, "error decoding patch: exceeded max depth"),
    ],
)
def test_bodies_that_are_no_json_patch(raw: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        decode_json_patch(raw)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_an_empty_json_patch_changes_nothing() -> None:
    assert apply_json(document(), decode_json_patch(b"[]")) == document()


@pytest.mark.parametrize(("raw", "message"), TABLES["bodies_that_are_no_merge_patch"])
def test_bodies_that_are_no_merge_patch(raw: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        decode_merge_patch(raw)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_repeated_members_of_a_merge_patch_are_told() -> None:
    assert decode_merge_patch(b'{"a":1,"a":2}') == ({"a": 2}, ('duplicate field "a"',))


# The examples of RFC 7396, appendix A, whose target and patch are objects.
@pytest.mark.parametrize(("target", "change", "result"), TABLES["merge_patches"])
def test_merge_patches(
    target: dict[str, Any], change: dict[str, Any], result: dict[str, Any]
) -> None:
    assert apply_merge(target, change) == result


JSON = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The merge patch from *old* to *new*, neither of which has nulls."""
    change: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            change[name] = difference(before, value)
        elif name not in old or repr(value) != repr(before):
            change[name] = value
    return change


@given(OBJECTS, OBJECTS)
def test_the_difference_merged_in_gives_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    change = difference(old, new)
    kept = copy.deepcopy((old, change))
    result = apply_merge(old, change)
    assert result == new
    assert (old, change) == kept
    assert apply_merge(result, change) == result


def containers(value: Any) -> set[int]:
    if not isinstance(value, dict | list):
        return set()
    children = value.values() if isinstance(value, dict) else value
    return {id(value)}.union(*map(containers, children))


@given(OBJECTS, OBJECTS)
def test_the_result_shares_nothing_with_what_it_was_made_of(
    old: dict[str, Any], change: dict[str, Any]
) -> None:
    given_parts = containers(old) | containers(change)
    assert not containers(apply_merge(old, change)) & given_parts
    operations = [{"op": "add", "path": "/new", "value": change}]
    assert not containers(apply_json(old, operations)) & given_parts


# What a patch made


def test_a_result_that_does_not_decode_shows_the_object() -> None:
    with pytest.raises(StatusError) as caught:
        check_patched("configmaps", {}, {"data": {"a": 1}})
    detail = "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
    complaint = f'Invalid value: "{{\\"data\\":{{\\"a\\":1}}}}": {detail}'
    assert caught.value.code == 422
    assert caught.value.message == f' "" is invalid: patch: {complaint}'
    assert caught.value.details == {
        "causes": [{"reason": "FieldValueInvalid", "message": complaint, "field": "patch"}]
    }


def test_unknown_members_warn_or_fail() -> None:
    before = {"old": 1}
    patched = {"old": 1, "dat": {}}
    assert check_patched("configmaps", before, patched) == ('unknown field "dat"',)
    assert check_patched("configmaps", before, patched, validation="Ignore") == ()
    assert check_patched("configmaps", before, before, validation="Strict") == ()
    with pytest.raises(StatusError, match='strict decoding error: unknown field "dat"'):
        check_patched("configmaps", before, patched, validation="Strict")
    with pytest.raises(
        StatusError, match=r'Invalid value: "map\[dat:map\[\]\]": strict decoding error'
    ):
        check_patched(
            "configmaps", before, patched, strategic_patch={"dat": {}}, validation="Strict"
        )
    problems = ('duplicate field "data"',)
    assert check_patched("configmaps", before, before, patch_problems=problems) == problems
