"""Kinds against Kubernetes 1.36.2: what its own defaults, rules, warnings and printers make of the
same objects.

``data/upstream.json`` has an object a line: as it is sent (and the one that it replaces), and what
the strategies of ``pkg/registry`` and the printers of ``pkg/printers/internalversion`` said of it.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, by_kind
from sliceplane.api.users import User
from sliceplane.kit.times import format_time
from sliceplane.lab.sim.cluster import START
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, Context, Outcome, Target, WriteOptions

ADMIN = User(name="admin", groups=("system:masters",))
ROWS: list[Any] = json.loads((Path(__file__).parent / "data" / "upstream.json").read_text())


def row_id(row: dict[str, Any]) -> str:
    return f"{row['document']['kind']}-{row['document']['metadata']['name']}"


def resource_of(document: Document) -> Resource:
    resource = by_kind(document["apiVersion"], document["kind"])
    assert resource is not None, document["kind"]
    return resource


def written(registry: Registry, row: dict[str, Any]) -> Outcome:
    """The object of *row* as a client's request makes it.  Raises ``StatusError``."""
    document, old = copy.deepcopy(row["document"]), copy.deepcopy(row.get("old"))
    resource = resource_of(document)
    context = Context(now=START, user=ADMIN)
    name = document["metadata"]["name"]
    target = Target(resource=resource, namespace="default" if resource.namespaced else "")
    if old is None:
        return registry.create(context, target, Body(document=document), WriteOptions())
    made = registry.create(context, target, Body(document=old), WriteOptions())
    document["metadata"]["resourceVersion"] = json.loads(made.body)["metadata"]["resourceVersion"]
    named = Target(resource=resource, namespace=target.namespace, name=name)
    return registry.update(context, named, Body(document=document), WriteOptions())


def complaints(registry: Registry, row: dict[str, Any]) -> list[str]:
    if row["document"]["metadata"]["name"].startswith("kept-"):
        # The older object would be refused today, so it cannot be there to be replaced.
        kind, new, old = (
            kind_of(resource_of(row["document"])),
            copy.deepcopy(row["document"]),
            copy.deepcopy(row["old"]),
        )
        for document in (new, old):
            kind.defaults(document)
        return [f"{error.field}: {error.message}" for error in kind.validate_update(new, old)]
    with pytest.raises(StatusError) as raised:
        written(registry, row)
    assert raised.value.reason == "Invalid", raised.value
    causes = (raised.value.details or {})["causes"]
    return [f"{cause['field']}: {cause['message']}" for cause in causes]


@pytest.mark.parametrize("row", [row for row in ROWS if "errors" in row], ids=row_id)
def test_what_upstream_refuses_is_refused_in_its_words(api: Any, row: dict[str, Any]) -> None:
    assert complaints(api.registry, row) == row["errors"]


KEPT = [row for row in ROWS if row["document"]["metadata"]["name"].startswith("kept-")]


@pytest.mark.parametrize("row", [row for row in KEPT if "made" in row], ids=row_id)
def test_what_was_bad_before_may_stay_where_upstream_lets_it(api: Any, row: dict[str, Any]) -> None:
    assert complaints(api.registry, row) == []


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "made" in row and row not in KEPT], ids=row_id
)
def test_what_upstream_takes_is_stored_as_upstream_stores_it(api: Any, row: dict[str, Any]) -> None:
    outcome = written(api.registry, row)
    document = json.loads(outcome.body)
    made = {
        name: value
        for name, value in document.items()
        if name not in ("apiVersion", "kind", "metadata")
    }
    if "labels" in document["metadata"]:
        made["labels"] = document["metadata"]["labels"]
    made["generation"] = document["metadata"].get("generation", 0)
    assert made == row["made"]
    assert list(outcome.warnings) == row.get("warnings", [])


@pytest.mark.parametrize("row", [row for row in ROWS if "cells" in row], ids=row_id)
def test_get_shows_what_upstream_shows(row: dict[str, Any]) -> None:
    document = copy.deepcopy(row["document"])
    kind = kind_of(resource_of(document))
    kind.defaults(document)
    document["metadata"]["creationTimestamp"] = format_time(START - 200)
    assert list(kind.columns.cells(document, START)) == row["cells"]
