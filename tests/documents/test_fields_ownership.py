"""Comparing, merging and owning, on the kinds that we serve; laws of apply on random
configurations.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import tables

from sliceplane.server.documents import fields
from sliceplane.server.documents.fields import objects, sets, shape
from sliceplane.server.documents.schema import lookup, struct

TABLES = tables(__file__)

SERVICE = fields.shape_of("services")
NOW = "2026-11-21T10:00:00Z"


def write(manager: str, operation: Any = "Apply", now: str = NOW) -> fields.OwnedWrite:
    who = fields.identity(manager, operation, "v1", "")
    return fields.OwnedWrite(
        owner=who, api_version="v1", now=now, reset=fields.of_paths([("f:status",)])
    )


def shown(found: fields.FieldSet) -> list[str]:
    return [fields.show(path) for path in sets.paths(found)]


# --- what counts as one field ---


@pytest.mark.parametrize(
    ("key", "path", "document", "wanted"), TABLES["the_fields_of_a_configuration"]
)
def test_the_fields_of_a_configuration(
    key: str, path: str, document: Any, wanted: list[str]
) -> None:
    assert shown(fields.set_of(fields.shape_of(key), document)) == wanted, path


def test_a_created_object_as_upstream_records_it() -> None:
    """The entry of a Deployment of ``kubectl create``: "." where something was made, not for Go's
    plain structs.
    """
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [{"name": "c", "image": "i"}],
                    "restartPolicy": "Always",
                    "securityContext": {},
                },
            },
        },
    }
    kind = fields.shape_of("deployments.apps")
    managers = fields.updated(
        {}, fields.compare(kind, {}, document), write("kubectl-create", "Update")
    )
    (entry,) = fields.encode(managers, lambda found, _: found)
    container = {".": {}, "f:image": {}, "f:name": {}, "f:resources": {}}
    assert entry["fieldsV1"] == {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:replicas": {},
            "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {'k:{"name":"c"}': container},
                    "f:restartPolicy": {},
                    "f:securityContext": {},
                },
            },
        },
    }


def test_what_is_said_of_fields_is_said_of_fields_that_there_are() -> None:
    for path in (*sorted(shape._PLAIN), *shape._KEY_DEFAULTS):
        owner, _, name = path.rpartition(".")
        assert name in struct(owner).fields, path


# --- merging lists ---


@pytest.mark.parametrize(("live", "wanted", "merged"), TABLES["the_order_of_a_merged_list"])
def test_the_order_of_a_merged_list(live: str, wanted: str, merged: str) -> None:
    made = objects.merge(
        SERVICE,
        {"metadata": {"finalizers": list(live)}},
        {"metadata": {"finalizers": list(wanted)}},
    )
    assert "".join(made["metadata"]["finalizers"]) == merged


# --- laws ---

_TEXT = st.sampled_from(["a", "b", "c"])
_PORT = st.fixed_dictionaries(
    {"port": st.sampled_from([80, 81, 443])},
    optional={
        "name": _TEXT,
        "protocol": st.sampled_from(["TCP", "UDP"]),
        "targetPort": st.sampled_from([1, "web"]),
    },
)


def _key(port: dict[str, Any]) -> tuple[Any, ...]:
    return port["port"], port.get("protocol", "TCP")


_METADATA = st.fixed_dictionaries(
    {"name": st.just("s")},
    optional={
        "labels": st.dictionaries(_TEXT, _TEXT, max_size=3),
        "finalizers": st.lists(_TEXT, min_size=1, max_size=3, unique=True),
    },
)
_SPEC = st.fixed_dictionaries(
    {},
    optional={
        "type": _TEXT,
        "selector": st.dictionaries(_TEXT, _TEXT, max_size=2),
        "ports": st.lists(_PORT, min_size=1, max_size=3, unique_by=_key),
        "externalIPs": st.lists(_TEXT, min_size=1, max_size=2),
        "sessionAffinityConfig": st.just({"clientIP": {"timeoutSeconds": 5}}),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Service"), "metadata": _METADATA},
    optional={"spec": _SPEC},
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.booleans(), CONFIGS), min_size=1, max_size=5
)


def run(steps: list[tuple[str, bool, Any]]) -> tuple[Any, fields.Managers]:
    """Applies (forced) and updates in turn."""
    live: Any = {}
    managers: fields.Managers = {}
    for manager, applies, config in steps:
        if applies:
            result = fields.applied(SERVICE, live, config, managers, write(manager), force=True)
            live = result.document
            managers = result.managers
        else:
            new = objects.merge(SERVICE, live, config) if live else config
            managers = fields.updated(
                managers, fields.compare(SERVICE, live, new), write(manager, "Update")
            )
            live = new
    return live, managers


@given(STEPS, CONFIGS)
def test_applying_twice_is_applying_once(steps: list[tuple[str, bool, Any]], config: Any) -> None:
    live, managers = run(steps)
    once = fields.applied(SERVICE, live, config, managers, write("one"), force=True)
    kept = copy.deepcopy(once.document)
    twice = fields.applied(
        SERVICE, once.document, config, once.managers, write("one", now="later"), force=False
    )
    assert not twice.changed
    assert twice.document == once.document == kept
    assert twice.managers == once.managers


@given(STEPS)
def test_every_field_of_an_entry_is_in_the_object(steps: list[tuple[str, bool, Any]]) -> None:
    live, managers = run(steps)
    present = objects.with_named_fields(SERVICE, fields.set_of(SERVICE, live))
    present = sets.union(present, fields.compare(SERVICE, {}, live).added)
    for who, entry in managers.items():
        assert not sets.difference(entry.fields, present), (
            who,
            shown(sets.difference(entry.fields, present)),
        )
        assert entry.fields, f"{who} owns nothing and is still there"


@given(CONFIGS)
def test_who_applied_alone_gives_up_all_of_it(config: Any) -> None:
    first = fields.applied(SERVICE, {}, config, {}, write("one"), force=False)
    assert first.document == config
    bare = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    second = fields.applied(
        SERVICE, first.document, bare, first.managers, write("one"), force=False
    )
    rest = sets.difference(fields.set_of(SERVICE, second.document), fields.set_of(SERVICE, bare))
    assert not rest, second.document
    assert not second.managers


@given(CONFIGS, CONFIGS)
def test_conflicts_are_the_shared_fields_with_other_values(mine: Any, theirs: Any) -> None:
    live = fields.applied(SERVICE, {}, theirs, {}, write("them"), force=False)
    change = fields.compare(SERVICE, live.document, objects.merge(SERVICE, live.document, mine))
    owned = sets.difference(
        fields.set_of(SERVICE, theirs), fields.of_paths([("f:metadata", "f:name")])
    )
    contested = sets.intersection(sets.union(change.modified, change.added), owned)
    conflicts: list[str] = []
    try:
        fields.applied(SERVICE, live.document, mine, live.managers, write("me"), force=False)
    except fields.Conflicts as refused:
        conflicts = [fields.show(one.path) for one in refused.conflicts]
    assert conflicts == shown(contested)
    forced = fields.applied(SERVICE, live.document, mine, live.managers, write("me"), force=True)
    theirs_now = forced.managers.get(write("them").owner)
    assert theirs_now is None or not sets.intersection(theirs_now.fields, contested)


@given(CONFIGS, CONFIGS)
def test_a_comparison_says_what_became_of_each_field(old: Any, new: Any) -> None:
    change = fields.compare(SERVICE, old, new)
    back = fields.compare(SERVICE, new, old)
    assert (back.added, back.removed, back.modified) == (
        change.removed,
        change.added,
        change.modified,
    )
    assert fields.compare(SERVICE, new, copy.deepcopy(new)) == fields.FieldsChange({}, {}, {})
    was = fields.set_of(SERVICE, old)
    now = fields.set_of(SERVICE, new)
    # Leaves of the new object are new, changed, or were there.
    leaves = sets.leaves(now)
    # (A spec is always there, as far as comparing goes.)
    was = sets.union(objects.with_named_fields(SERVICE, was), {"f:spec": {}})
    known = sets.union(sets.union(change.added, change.modified), was)
    assert not sets.difference(leaves, known), shown(sets.difference(leaves, known))


def test_older_updaters_become_ancient() -> None:
    live: Any = {"metadata": {"name": "s"}}
    managers: fields.Managers = {}
    for number in range(14):
        new = {
            **live,
            "metadata": {
                **live["metadata"],
                "labels": {**live["metadata"].get("labels", {}), f"l{number:02d}": "x"},
            },
        }
        stamp = f"2026-11-21T10:00:{number:02d}Z"
        managers = fields.updated(
            managers, fields.compare(SERVICE, live, new), write(f"m{number:02d}", "Update", stamp)
        )
        live = new
    entries = fields.encode(managers, lambda found, _: found)
    assert [entry["manager"] for entry in entries] == [
        "ancient-changes",
        *(f"m{n:02d}" for n in range(5, 14)),
    ]
    assert [name for name in entries[0]["fieldsV1"]["f:metadata"]["f:labels"] if name != "."] == [
        f"f:l{n:02d}" for n in range(5)
    ]


@pytest.mark.parametrize(("document", "problem"), TABLES["configurations_that_cannot_be_owned"])
def test_configurations_that_cannot_be_owned(document: Any, problem: str) -> None:
    assert fields.check(lookup("services"), document) == problem


def test_stored_entries_are_read_back_as_written() -> None:
    _, managers = run(
        [
            ("one", True, {"metadata": {"name": "s", "labels": {"a": "b"}}}),
            ("two", False, {"spec": {"type": "a"}}),
        ]
    )
    wire = json.loads(json.dumps(fields.encode(managers, lambda found, _: found)))
    again = fields.decode(wire, lambda found, _: found)
    assert {who: (entry.fields, entry.time) for who, entry in again.items()} == {
        who: (entry.fields, entry.time) for who, entry in managers.items()
    }
    assert fields.encode(again, lambda found, _: found) == wire
    assert fields.received(wire) == [
        {k: v for k, v in entry.items() if k != "fieldsType"} for entry in wire
    ]
