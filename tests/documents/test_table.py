"""Table printers against what upstream's own printers print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api import scheme
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource
from sliceplane.kit.times import format_time, parse_time
from sliceplane.server.documents.table import (
    build,
    build_watch_row,
    columns_of,
    parse_include_object,
)
from sliceplane.server.documents.table.columns import PLAIN, Printer, duration
from sliceplane.server.registry.kinds import KINDS, kind_of

SERVICES = kind_of(scheme.Services).columns
NOW = parse_time("2026-11-21T10:00:00Z")
#: what "@NOW" in a document stands for
CREATED = format_time(NOW - 200)
#: columns by kind, [document, cells] of many objects, and [seconds, text]: from upstream 1.36.2
GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "tables.json").read_text().replace("@NOW", CREATED)
)


def resource_of(document: dict[str, Any]) -> Resource:
    """The served resource, or a stand-in for kinds that are printed and not served."""
    resource = scheme.by_kind(document["apiVersion"], document["kind"])
    if resource is not None:
        return resource
    group, _, version = document["apiVersion"].rpartition("/")
    return Resource(
        group=group, version=version, kind=document["kind"], plural=f"{document['kind'].lower()}s"
    )


def printer_of(resource: Resource) -> Printer:
    """The plain one for kinds that are printed and not served."""
    return kind_of(resource).columns if scheme.by_key(resource.key) else PLAIN


def golden_id(row: dict[str, Any]) -> str:
    return f"{row['document']['kind']}-{row['document']['metadata']['name']}"


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=golden_id)
def test_rows_are_upstreams(row: dict[str, Any]) -> None:
    document = row["document"]
    table = build(
        resource_of(document),
        printer_of(resource_of(document)),
        [document],
        NOW,
        include_object="None",
    )
    (built,) = table["rows"]
    assert built["cells"] == row["cells"]
    assert built.get("conditions") == row.get("conditions")


@pytest.mark.parametrize("kind", GOLDEN["columns"])
def test_columns_are_upstreams(kind: str) -> None:
    api_version, _, name = kind.rpartition(" ")
    columns = columns_of(printer_of(resource_of({"apiVersion": api_version, "kind": name})))
    shown = [
        [column["name"], column["type"], column["format"], column["priority"]] for column in columns
    ]
    assert shown == GOLDEN["columns"][kind]
    assert all(column["description"].endswith(".") for column in columns)


def test_every_served_kind_was_compared() -> None:
    assert {f"{resource.api_version} {resource.kind}" for resource in scheme.RESOURCES} <= set(
        GOLDEN["columns"]
    )


@pytest.mark.parametrize(("seconds", "text"), GOLDEN["durations"])
def test_durations_are_upstreams(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def service(name: str, version: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": version, "managedFields": []},
        "spec": {"type": "ClusterIP"},
    }


def test_lists_carry_their_metadata_and_all_columns() -> None:
    list_meta = {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}
    table = build(
        scheme.Services, SERVICES, [service("b", "1"), service("a", "2")], NOW, list_meta=list_meta
    )
    assert list(table) == ["kind", "apiVersion", "metadata", "columnDefinitions", "rows"]
    assert (table["kind"], table["apiVersion"], table["metadata"]) == (
        "Table",
        "meta.k8s.io/v1",
        list_meta,
    )
    assert [row["cells"][0] for row in table["rows"]] == ["b", "a"]
    assert len(table["columnDefinitions"]) == len(table["rows"][0]["cells"]) == 7
    empty = build(scheme.Services, SERVICES, [], NOW, list_meta=list_meta)
    assert empty["rows"] == []
    assert empty["columnDefinitions"] == table["columnDefinitions"]


def test_row_objects_are_what_was_asked_for() -> None:
    document = service("a", "2")
    nothing = build(scheme.Services, SERVICES, [document], NOW, include_object="None")
    assert nothing["rows"][0]["object"] is None
    assert nothing["metadata"] == {"resourceVersion": "2"}
    metadata = build(scheme.Services, SERVICES, [document], NOW, version="v1beta1")["rows"][0][
        "object"
    ]
    assert metadata == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": document["metadata"],
    }
    whole = build(scheme.Services, SERVICES, [document], NOW, include_object="Object")["rows"][0][
        "object"
    ]
    assert whole == {"kind": "Service", "apiVersion": "v1", **document}
    assert "kind" not in document


def test_include_object_parameter() -> None:
    assert parse_include_object("") == "Metadata"
    assert parse_include_object("Object") == "Object"
    with pytest.raises(StatusError) as caught:
        parse_include_object("Foo")
    assert (caught.value.code, caught.value.message) == (
        400,
        (
            'Unable to convert to Table as requested: includeObject: Invalid value: "Foo": '
            "must be 'Metadata', 'Object', 'None', or empty"
        ),
    )


def test_watch_rows_have_columns_only_when_asked() -> None:
    first = build_watch_row(scheme.Services, SERVICES, service("a", "2"), NOW, with_columns=True)
    second = build_watch_row(scheme.Services, SERVICES, service("a", "3"), NOW, with_columns=False)
    assert first["columnDefinitions"] == columns_of(SERVICES)
    assert second["columnDefinitions"] is None
    assert second["metadata"] == {"resourceVersion": "3"}
    bookmark = {"kind": "Service", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}
    row = build_watch_row(scheme.Services, SERVICES, bookmark, NOW, with_columns=False)["rows"][0]
    assert row["cells"][0] == ""
    assert row["object"]["metadata"] == {"resourceVersion": "9"}


def test_kinds_without_a_printer() -> None:
    resource = Resource(group="example.com", version="v1", kind="Thing", plural="things")
    document = {"metadata": {"name": "x", "creationTimestamp": CREATED}}
    assert [column["name"] for column in columns_of(PLAIN)] == ["Name", "Created At"]
    assert build(resource, PLAIN, [document], NOW)["rows"][0]["cells"] == ["x", CREATED]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


def damaged(value: Any, draw: st.DrawFn) -> Any:
    """*value* with some of its parts replaced by anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    if isinstance(value, dict):
        return {name: damaged(member, draw) for name, member in value.items()}
    if isinstance(value, list):
        return [damaged(item, draw) for item in value]
    return value


@given(st.data())
def test_printers_print_whatever_a_document_has(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(GOLDEN["rows"]))["document"]
    document = damaged(original, data.draw)
    if isinstance(document, dict):
        table = build(
            resource_of(original), printer_of(resource_of(original)), [document], NOW, list_meta={}
        )
        assert json.dumps(table)


def test_printers_of_empty_documents() -> None:
    for printer in (kind.columns for kind in KINDS):
        assert len(printer.cells({}, NOW)) == len(printer.columns)
