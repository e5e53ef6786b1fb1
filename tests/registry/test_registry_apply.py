"""Server-side apply through the registry, with the Status that clients get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.effort import effort
from tests.registry.applied import apply, config_map, owners, refused, slice_document
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ConfigMaps,
    EndpointSlices,
    Pods,
    RoleBindings,
    Roles,
    Services,
)
from sliceplane.api.users import User
from sliceplane.server.documents.fields import sets

TABLES = tables(__file__)


def test_apply_creates_what_is_missing(api: Any) -> None:
    raw = json.dumps(config_map({"a": "1"})).encode()
    outcome = api.patch(ConfigMaps, "c", raw, "apply", field_manager="one")
    assert outcome.code == 201
    (entry,) = json.loads(outcome.body)["metadata"]["managedFields"]
    assert entry == {
        "manager": "one",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": "2027-01-15T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}},
    }
    assert list(entry) == ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1"]


def test_apply_of_the_same_writes_nothing(api: Any) -> None:
    first = apply(api, ConfigMaps, config_map({"a": "1"}))
    api.now += 60
    assert apply(api, ConfigMaps, config_map({"a": "1"})) == first
    assert [event.type.value for event in api.events] == ["ADDED"]


def test_fields_that_nobody_wants_any_more_go(api: Any) -> None:
    apply(api, ConfigMaps, config_map({"a": "1", "b": "2", "c": "3"}, labels={"x": "y"}))
    apply(api, ConfigMaps, config_map({"b": "2"}), "two")
    made = apply(api, ConfigMaps, config_map({"a": "1"}))
    assert made["data"] == {"a": "1", "b": "2"}
    assert "labels" not in made["metadata"]
    assert owners(made) == {
        ("one", "Apply", ""): {"f:data": {"f:a": {}}},
        ("two", "Apply", ""): {"f:data": {"f:b": {}}},
    }


def test_a_conflict_names_manager_and_field(api: Any) -> None:
    api.create(EndpointSlices, slice_document("10.0.0.1"), field_manager="ctrl")
    error = refused(
        api,
        EndpointSlices,
        "s",
        {**slice_document("10.0.0.2"), "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    )
    assert error.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": (
            'Apply failed with 1 conflict: conflict with "ctrl" using discovery.k8s.io/v1: '
            ".endpoints"
        ),
        "reason": "Conflict",
        "details": {
            "causes": [
                {
                    "reason": "FieldManagerConflict",
                    "message": 'conflict with "ctrl" using discovery.k8s.io/v1',
                    "field": ".endpoints",
                }
            ]
        },
        "code": 409,
    }


def test_several_conflicts_are_told_by_manager(api: Any) -> None:
    apply(api, ConfigMaps, config_map({"a": "1", "b": "1"}), "zoe")
    api.patch(ConfigMaps, "c", {"data": {"c": "1"}}, field_manager="kubectl-edit")
    error = refused(api, ConfigMaps, "c", config_map({"a": "2", "b": "2", "c": "2"}))
    assert error.message == (
        'Apply failed with 3 conflicts: conflicts with "kubectl-edit" using v1:\n- .data.c\n'
        'conflicts with "zoe":\n- .data.a\n- .data.b'
    )
    assert [cause["field"] for cause in error.details["causes"]] == [
        ".data.c",
        ".data.a",
        ".data.b",
    ]


def test_force_takes_over_and_equal_values_are_shared(api: Any) -> None:
    apply(api, ConfigMaps, config_map({"a": "1", "b": "1"}), "other")
    shared = apply(api, ConfigMaps, config_map({"a": "1"}))
    assert owners(shared)["other", "Apply", ""] == {"f:data": {"f:a": {}, "f:b": {}}}
    taken = apply(api, ConfigMaps, config_map({"a": "2"}), force=True)
    assert taken["data"] == {"a": "2", "b": "1"}
    assert owners(taken) == {
        ("one", "Apply", ""): {"f:data": {"f:a": {}}},
        ("other", "Apply", ""): {"f:data": {"f:b": {}}},
    }


def test_a_first_apply_that_changes_nothing_has_no_time(api: Any) -> None:
    api.create(ConfigMaps, config_map({"a": "1"}), field_manager="maker")
    made = apply(api, ConfigMaps, config_map({"a": "1"}))
    assert [(e["manager"], "time" in e) for e in made["metadata"]["managedFields"]] == [
        ("one", False),
        ("maker", True),
    ]


@pytest.mark.parametrize(("document", "code", "message"), TABLES["bad_configurations"])
def test_bad_configurations(api: Any, document: Any, code: int, message: str | None) -> None:
    api.create(ConfigMaps, config_map({}))
    error = refused(api, ConfigMaps, "c", document)
    assert error.code == code
    assert message is None or error.message == message
    assert message is not None or error.message.startswith(
        "error decoding YAML: error converting YAML to JSON: yaml: line "
    )


def test_of_a_missing_object(api: Any) -> None:
    nameless = {"apiVersion": "v1", "kind": "ConfigMap"}
    assert refused(api, ConfigMaps, "c", nameless).message == (
        "the name of the object (c based on URL) was undeterminable: name must be provided"
    )
    assert refused(api, ConfigMaps, "c", config_map({}, uid="u")).message == (
        'Operation cannot be fulfilled on configmaps "c": uid mismatch: the provided object '
        "specified uid u, "
        "and no existing object was found"
    )
    assert (
        refused(api, Pods, "p", {"apiVersion": "v1", "kind": "Pod"}, subresource="status").code
        == 404
    )
    assert apply(api, ConfigMaps, config_map({"a": "1"}, resourceVersion="77"))["data"] == {
        "a": "1"
    }


def test_the_name_may_be_left_out_of_an_existing_object(api: Any) -> None:
    api.create(ConfigMaps, config_map({}))
    made = apply(
        api, ConfigMaps, {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}}, name="c"
    )
    assert made["data"] == {"a": "1"}


def test_duplicate_keys_of_a_list_are_refused(api: Any) -> None:
    ports = [{"port": 80, "name": "a"}, {"port": 80, "name": "b", "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "w"},
        "spec": {"ports": ports},
    }
    error = refused(api, Services, "w", service)
    assert (error.code, error.reason) == (500, "")
    assert error.message == (
        "failed to create typed patch object (/w; /v1, Kind=Service): "
        '.spec.ports: duplicate entries for key [port=80,protocol="TCP"]'
    )


def test_only_the_first_yaml_document_counts_and_repeated_members_are_told(api: Any) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: one\n  a: two\n---\nkind: Nonsense\n"
    warned = api.patch(ConfigMaps, "c", text, "apply", field_manager="one")
    assert json.loads(warned.body)["data"] == {"a": "two"}
    assert warned.warnings == ('line 6: key "a" already set in map',)
    error = refused(api, ConfigMaps, "c", text, field_validation="Strict")
    assert error.code == 400
    assert error.message == (
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n"
        '  line 6: key "a" already set in map'
    )
    assert (
        api.patch(
            ConfigMaps, "c", text, "apply", field_manager="one", field_validation="Ignore"
        ).warnings
        == ()
    )


def test_creating_needs_the_right_to_create(api: Any) -> None:
    role = {
        "metadata": {"name": "p"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}],
    }
    api.create(Roles, role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "p"}
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    api.create(
        RoleBindings, {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]}
    )
    root = type(api).ctx
    try:
        type(api).ctx = property(
            lambda self: type(root.fget(self))(now=self.now, user=User(name="ann"))
        )
        error = refused(api, ConfigMaps, "c", config_map({}))
    finally:
        type(api).ctx = root
    assert error.code == 403
    assert 'User "ann" cannot create resource "configmaps"' in error.message


def test_dry_run_shows_and_keeps_nothing(api: Any) -> None:
    shown = apply(api, ConfigMaps, config_map({"a": "1"}), dry_run=True)
    assert owners(shown)
    assert "resourceVersion" not in shown["metadata"]
    assert api.names(ConfigMaps) == []
    apply(api, ConfigMaps, config_map({"a": "1"}))
    assert apply(api, ConfigMaps, config_map({"a": "2"}), dry_run=True)["data"] == {"a": "2"}
    assert api.get(ConfigMaps, "c")["data"] == {"a": "1"}


def test_a_list_of_keyed_elements_is_shared_element_by_element(api: Any) -> None:
    def service(*ports: Any) -> Any:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "w"},
            "spec": {"ports": list(ports)},
        }

    http, dns = (
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    )
    apply(api, Services, service(http), "one")
    made = apply(api, Services, service(dns), "two")
    assert [port["name"] for port in made["spec"]["ports"]] == ["http", "dns"]
    made = apply(
        api, Services, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "w"}}, "two"
    )
    assert [port["name"] for port in made["spec"]["ports"]] == ["http"]
    assert list(owners(made)) == [("one", "Apply", "")]


# --- any input ---

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "a", "v1", "x.io/y", "2026-01-01T00:00:00Z"])
)
_NAMES = st.sampled_from(
    [
        "name",
        "labels",
        "annotations",
        "finalizers",
        "ports",
        "port",
        "protocol",
        "selector",
        "data",
        "f:a",
        "k:{}",
        ".",
    ]
)
_JUNK = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)
_ENTRIES = _JUNK | st.lists(
    st.fixed_dictionaries(
        {
            "operation": st.sampled_from(["Apply", "Update", "x"]),
            "apiVersion": st.sampled_from(["v1", "v9", "a/b/c"]),
        },
        optional={
            "manager": _SCALARS,
            "fieldsType": st.just("FieldsV1"),
            "fieldsV1": _JUNK,
            "time": _SCALARS,
        },
    ),
    max_size=3,
)


@effort(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=_JUNK, spec=_JUNK, other=_JUNK, entries=_ENTRIES)
def test_any_configuration_is_refused_or_stored(
    make_api: Any, head: Any, spec: Any, other: Any, entries: Any
) -> None:
    api = make_api()
    api.create(
        Services,
        {"metadata": {"name": "w"}, "spec": {"ports": [{"port": 80}]}},
        field_manager="maker",
    )
    head = {**head, "name": "w"} if isinstance(head, dict) else head
    config = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": head,
        "spec": spec,
        "status": other,
    }
    stored = api.get(Services, "w")
    updated = {
        **stored,
        "metadata": {**stored["metadata"], "managedFields": entries, "labels": {"new": "one"}},
    }
    # A writer may store an entry that owns nothing, and it is kept.
    told = entries if isinstance(entries, list) else []
    empty = any(isinstance(entry, dict) and not entry.get("fieldsV1") for entry in told)
    for call in (
        lambda: api.patch(
            Services, "w", json.dumps(config).encode(), "apply", field_manager="one", force=True
        ),
        lambda: api.update(Services, "w", updated, field_manager="two"),
        lambda: api.patch(
            Services, "w", {"metadata": {"labels": {"next": "two"}}}, field_manager="three"
        ),
        lambda: api.patch(Services, "w", json.dumps(config).encode(), "apply", field_manager="one"),
    ):
        problem: StatusError | None = None
        body: Any = {"metadata": {}}
        try:
            body = json.loads(call().body)
        except StatusError as error:
            problem = error
        if problem is not None:
            assert problem.code in (400, 409, 422, 500), problem
            assert problem.code != 500 or problem.message.startswith(
                "failed to create typed patch object"
            ), problem
        for entry in body["metadata"].get("managedFields", []):
            assert entry["fieldsV1"] or empty, "an entry owns nothing"
            assert sets.ordered(sets.from_wire(entry["fieldsV1"])) == entry["fieldsV1"]
    api.registry.check()
