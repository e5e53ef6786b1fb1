"""OpenAPI beside Kubernetes' own: the same types, defaults and enumerations, in our words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.peers.kubernetes import MODULE
from tests.peers.programs import run_go

from sliceplane.api.schema import definition_names
from sliceplane.server.documents import openapi
from sliceplane.server.documents.openapi.fields import rows_of, sections
from sliceplane.server.documents.schema import struct
from tools import make_openapi_fields, make_protobuf_fields

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

#: our one name for free-form JSON, and the one field upstream gives no description
OTHERWISE = {
    ("apps.ControllerRevision", "data", "allOf"),
    ("networking.IngressRule", "http", "allOf"),
}
#: a sentence as short as this says the same in anybody's words
COMMON_WORDS = 3


@pytest.fixture(scope="module")
def kubernetes() -> Path:
    run_go("mod", "download", "k8s.io/kubernetes", folder=MODULE)
    return Path(run_go("list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes", folder=MODULE).strip())


@pytest.fixture(scope="module")
def published(kubernetes: Path) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for path in sorted((kubernetes / "api/openapi-spec/v3").glob("*_openapi.json")):
        schemas |= json.loads(path.read_text())["components"].get("schemas", {})
    return schemas


def test_the_facts_are_those_of_upstream(kubernetes: Path) -> None:
    taken = make_openapi_fields.taken(kubernetes)
    assert taken == make_openapi_fields.FACTS.read_text(), "run tools/make_openapi_fields.py"
    assert taken.count('"enum"') > 60


def test_the_protobuf_facts_are_those_of_upstream(kubernetes: Path) -> None:
    api = Path(run_go("list", "-m", "-f", "{{.Dir}}", "k8s.io/api", folder=MODULE).strip())
    taken = make_protobuf_fields.taken(api.parent, api.name.partition("@")[2])
    assert taken == make_protobuf_fields.FACTS.read_text(), "run tools/make_protobuf_fields.py"


def without_texts_and_enumerations(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: without_texts_and_enumerations(value)
            for key, value in node.items()
            if key != "enum" and not (key == "description" and isinstance(value, str))
        }
    return node


def test_every_field_has_the_type_and_the_markers_of_upstream(published: dict[str, Any]) -> None:
    """Published documents have no enumerations; servers do."""
    ours: dict[str, Any] = {}
    for name in openapi.document_names():
        ours |= json.loads(openapi.document(name) or b"")["components"]["schemas"]
    wrong = []
    for name in definition_names():
        full = struct(name).full_name
        assert sorted(ours[full].get("required", [])) == sorted(
            published[full].get("required", [])
        ), name
        assert ours[full]["properties"].keys() == published[full]["properties"].keys(), name
        for field, entry in ours[full]["properties"].items():
            mine = without_texts_and_enumerations(entry)
            theirs = without_texts_and_enumerations(published[full]["properties"][field])
            members = {
                member for member in (*mine, *theirs) if mine.get(member) != theirs.get(member)
            } - {"$ref"}
            wrong += [
                (name, field, member)
                for member in members
                if (name, field, member) not in OTHERWISE
            ]
    assert wrong == []


def sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.:;])\s+", text):
        if len(sentence.split()) > COMMON_WORDS:
            yield sentence.strip().strip(".").lower()


def test_no_sentence_is_taken_from_upstream(published: dict[str, Any]) -> None:
    theirs = {
        sentence
        for schema in published.values()
        for text in (
            schema.get("description", ""),
            *(p.get("description", "") for p in schema.get("properties", {}).values()),
        )
        for sentence in sentences(text)
    }
    ours = {
        sentence
        for name in sections()
        for row in rows_of(name).values()
        for sentence in sentences(row.text)
    }
    assert len(theirs) > len(ours) > 1000
    assert ours & theirs == set()
