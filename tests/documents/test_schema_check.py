"""The schema data and what it says of documents: examples of the wording, and that quick and slow
ways agree.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.schema import SCALARS, _data
from sliceplane.api.scheme import RESOURCES
from sliceplane.server.documents import schema
from sliceplane.server.documents.openapi.fields import rows_of, sections
from sliceplane.server.documents.schema import (
    PROBLEMS_MAX,
    Struct,
    Type,
    check_types,
    drop_nulls,
    lookup,
    struct,
    unknown_fields,
)
from sliceplane.server.documents.schema.check import first_mismatch, unknown_in
from sliceplane.server.documents.schema.fast import accepts
from sliceplane.server.documents.schema.scalars import (
    check_base64,
    check_micro_time,
    check_quantity,
    check_time,
)
from tools import make_openapi_fields, make_protobuf_fields, make_schema

TABLES = tables(__file__)

SLICES = "endpointslices.discovery.k8s.io"


def test_every_definition_parses_and_refers_to_others_that_exist() -> None:
    def walk(kind: Type) -> None:
        if kind.item is not None:
            walk(kind.item)
        elif kind.kind == "struct":
            struct(kind.name)
        else:
            assert kind.kind in SCALARS

    for name in _data().definitions:
        for field in struct(name).fields.values():
            walk(field.type)
            if field.merge_key or field.map_keys:
                element = struct(field.type.element.name)
                assert {*field.map_keys, *filter(None, [field.merge_key])} <= element.fields.keys()


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.key)
def test_every_resource_has_a_schema_and_accepts_the_empty_object(resource: Any) -> None:
    assert lookup(resource.key).go_name == resource.kind
    assert schema.accepts(
        resource.key, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}}
    )


def test_kinds_that_come_later_are_known() -> None:
    for api_version, kind in (
        ("v1", "Secret"),
        ("v1", "ResourceQuota"),
        ("events.k8s.io/v1", "Event"),
        ("networking.k8s.io/v1", "ServiceCIDR"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("meta.k8s.io/v1", "DeleteOptions"),
    ):
        assert schema.lookup_kind(api_version, kind) is not None
    assert schema.lookup_kind("v1", "Nope") is None


def test_lists_as_reference_b2_and_b7_have_them() -> None:
    assert lookup("services").fields["spec"].type.name == "core.ServiceSpec"
    ports = struct("core.ServiceSpec").fields["ports"]
    assert (ports.list_type, ports.map_keys, ports.merge_key) == (
        "map",
        ("port", "protocol"),
        "port",
    )
    assert struct("core.PodSpec").fields["containers"].merge_key == "name"
    assert struct("core.PodSpec").fields["volumes"].strategies == ("merge", "retainKeys")
    assert struct("meta.ObjectMeta").fields["ownerReferences"].merge_key == "uid"
    assert struct("meta.ObjectMeta").fields["finalizers"].strategies == ("merge",)
    assert struct("discovery.EndpointSlice").fields["endpoints"].strategies == ()


def test_unknown_fields_in_the_order_of_the_document() -> None:
    document = {
        "metadata": {
            "foo": 1,
            "labels": {"any": "thing"},
            "ownerReferences": [{"uid": "u"}, {"Uid": "u"}],
        },
        "endpoints": [{"foo": None}, {"addresses": [], "conditions": {"Ready": True}}],
        "spec": {"below": "is not looked at"},
    }
    assert unknown_fields(SLICES, document) == (
        'unknown field "metadata.foo"',
        'unknown field "metadata.ownerReferences[1].Uid"',
        'unknown field "endpoints[0].foo"',
        'unknown field "endpoints[1].conditions.Ready"',
        'unknown field "spec"',
    )


def test_free_form_parts_have_no_unknown_fields() -> None:
    document = {
        "metadata": {"managedFields": [{"fieldsV1": {"f:spec": {"f:x": {"k:{}": {}}}}, "nope": 1}]}
    }
    assert unknown_fields("pods", document) == ('unknown field "metadata.managedFields[0].nope"',)


def test_no_more_than_the_limit_is_reported() -> None:
    document = {f"field{n}": n for n in range(PROBLEMS_MAX + 50)}
    assert len(unknown_fields(SLICES, document)) == PROBLEMS_MAX


@pytest.mark.parametrize(("key", "document", "detail"), TABLES["wrong_json_types"])
def test_wrong_json_types(key: str, document: Any, detail: str) -> None:
    with pytest.raises(StatusError) as caught:
        check_types(key, document)
    kind = lookup(key).go_name
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    assert caught.value.message == (
        f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {detail}'
    )


def test_the_first_wrong_type_is_told_but_a_refused_text_ends_decoding() -> None:
    wrong = {
        "spec": {
            "holderIdentity": 5,
            "leaseDurationSeconds": "x",
            "renewTime": "2026-11-21T10:00:00Z",
        }
    }
    assert str(first_mismatch(lookup("leases.coordination.k8s.io"), wrong)) == (
        'parsing time "2026-11-21T10:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse '
        '"Z" as ".000000"'
    )
    del wrong["spec"]["renewTime"]
    assert "LeaseSpec.spec.holderIdentity" in str(
        first_mismatch(lookup("leases.coordination.k8s.io"), wrong)
    )


def test_ints_and_strings_where_both_may_be() -> None:
    check_types("services", {"spec": {"ports": [{"targetPort": 80}, {"targetPort": "http"}]}})
    limits = {"cpu": 1, "memory": "1.5Gi", "a": "500m", "b": 0.5, "c": "1e3"}
    check_types("pods", {"spec": {"containers": [{"resources": {"limits": limits}}]}})
    with pytest.raises(StatusError, match="quantities must match"):
        check_types("pods", {"spec": {"containers": [{"resources": {"limits": {"cpu": "one"}}}]}})


def test_null_is_always_fine() -> None:
    check_types(
        SLICES,
        {
            "endpoints": None,
            "ports": [None],
            "addressType": None,
            "metadata": {"labels": {"a": None}},
        },
    )


@pytest.mark.parametrize(
    "text", ["2026-11-21T10:00:00Z", "2024-02-29T23:59:59+01:00", "2026-11-21T10:00:00.123Z"]
)
def test_good_times(text: str) -> None:
    assert check_time(text) == ""


@pytest.mark.parametrize(("text", "complaint"), TABLES["bad_times"])
def test_bad_times(text: str, complaint: str) -> None:
    assert check_time(text) == complaint


def test_micro_times_have_six_digits() -> None:
    assert check_micro_time("2026-11-21T10:00:00.000001Z") == ""
    assert check_micro_time("2026-11-21T10:00:00.123Z").endswith(
        'cannot parse ".123Z" as ".000000"'
    )
    assert check_micro_time("2026-11-21T10:00:00.123456789Z").endswith(
        'cannot parse "789Z" as "Z07:00"'
    )


def test_quantities_and_base64() -> None:
    assert [
        text for text in ("1", "+1.5Gi", "-.5", "1e-3", "3E", "2E6", " 1 ") if check_quantity(text)
    ] == []
    assert check_quantity("1Zi").startswith("quantities must match")
    assert check_quantity("1Kii") == "unable to parse quantity's suffix"
    assert check_quantity("1.2.3") == "unable to parse numeric part of quantity"
    assert check_base64("aGVsbG8=\n") == ""
    assert check_base64("aGV*") == "illegal base64 data at input byte 3"


def test_nulls_are_dropped_and_the_rest_is_shared() -> None:
    kept = {"x": 1}
    document = {"a": None, "b": {"c": None, "d": [{"e": None}, None, 1]}, "kept": kept}
    before = copy.deepcopy(document)
    cleaned = drop_nulls(document)
    assert cleaned == {"b": {"d": [{}, None, 1]}, "kept": {"x": 1}}
    assert document == before
    assert cleaned["kept"] is kept
    whole = {"text": "null", "number": 2**70, "more": [{}]}
    assert drop_nulls(whole) is whole


# Documents by their schema, with some parts wrong: what the quick way accepts, the walks must not
# complain of.

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.just([]),
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "any": st.dictionaries(st.text(max_size=2), JUNK, max_size=2),
    "bool": st.booleans(),
    "bytes": st.sampled_from(["", "YQ==", "YWI=", "YWJj", "YW"]),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "intOrString": st.integers(0, 65535) | st.text(max_size=3),
    "microTime": st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
    "quantity": st.sampled_from(["1", "500m", "1.5Gi", "1e3", "-1", ".5", "1E", "x", ""])
    | st.integers(),
    "string": st.text(max_size=3),
    "time": st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
    | st.just("2026-02-30T00:00:00Z"),
}


def values(kind: Type, levels: int) -> st.SearchStrategy[Any]:
    match kind.kind:
        case "struct":
            return st.deferred(lambda: documents(struct(kind.name), levels - 1))
        case "list":
            return st.lists(values(kind.element, levels), max_size=2)
        case "map":
            return st.dictionaries(st.text(max_size=2), values(kind.element, levels), max_size=2)
        case scalar:
            return GOOD[scalar]


def documents(of: Struct, levels: int) -> st.SearchStrategy[Any]:
    if levels == 0:
        return st.just({})
    members = {name: values(field.type, levels) | JUNK for name, field in of.fields.items()}
    good = {name: values(field.type, levels) for name, field in of.fields.items()}
    return st.one_of(
        st.fixed_dictionaries({}, optional=good),
        st.fixed_dictionaries({}, optional=members),
        st.fixed_dictionaries({}, optional={**members, "unknown": JUNK}),
    )


@pytest.mark.parametrize("key", [SLICES, "services", "leases.coordination.k8s.io", "events"])
def test_the_quick_yes_is_never_wrong(key: str) -> None:
    seen = {True: 0, False: 0}

    @effort(150)
    @given(documents(lookup(key), 4))
    def agree(document: dict[str, Any]) -> None:
        quick = accepts(key, document)
        seen[quick] += 1
        clean = first_mismatch(lookup(key), document) is None and not unknown_in(
            lookup(key), document
        )
        assert clean or not quick, document

    agree()
    assert min(seen.values()) > 0, f"the documents were all alike: {seen}"


def test_the_quick_yes_is_said_to_ordinary_documents() -> None:
    """A "no" would be right too, only slow; so it has to be looked for."""
    stamp = "2026-11-21T10:00:00Z"
    metadata = {
        "name": "a",
        "creationTimestamp": stamp,
        "managedFields": [
            {"manager": "m", "time": stamp, "fieldsV1": {"f:a": {"k:{}": {".": {}, "f:b": {}}}}}
        ],
    }
    assert schema.accepts(
        SLICES, {"metadata": metadata, "endpoints": [{"addresses": ["::1"], "conditions": {}}]}
    )
    spec = {"renewTime": "2026-11-29T10:00:00.000000Z", "leaseDurationSeconds": 15}
    assert schema.accepts("leases.coordination.k8s.io", {"metadata": metadata, "spec": spec})
    resources = {"limits": {"cpu": "500m", "memory": "1Gi"}}
    assert schema.accepts(
        "pods", {"metadata": metadata, "spec": {"containers": [{"resources": resources}]}}
    )


def test_deep_free_form_parts_get_no_quick_yes() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"f:a": deep}
    document = {"metadata": {"managedFields": [{"fieldsV1": deep}]}}
    assert not schema.accepts("pods", document)
    assert unknown_fields("pods", document) == ()


def test_the_data_is_that_of_the_kinds_in_the_scheme() -> None:
    assert make_schema.made(_data().kubernetes) == make_schema.OUTPUT.read_text(), (
        "run tools/make_schema.py"
    )


def test_the_protobuf_table_is_made_of_the_facts_in_the_repository() -> None:
    table = make_protobuf_fields.OUTPUT.read_text()
    facts = make_protobuf_fields.FACTS.read_text()
    assert make_protobuf_fields.made(facts, table) == table, "run tools/make_protobuf_fields.py"


def test_the_protobuf_facts_cover_kinds_that_are_not_served() -> None:
    facts = make_protobuf_fields.blocks(make_protobuf_fields.FACTS.read_text())
    assert {
        "k8s.io.api.batch.v1.CronJob",
        "k8s.io.api.certificates.v1.CertificateSigningRequest",
    } <= facts.keys()
    assert "2 spec PodSpec omit" in facts["k8s.io.api.core.v1.Pod"]


def test_the_table_of_openapi_is_made_of_the_facts_in_the_repository() -> None:
    facts = make_openapi_fields.facts_of(make_openapi_fields.FACTS.read_text())
    table = {name: rows_of(name) for name in sections()}
    assert make_openapi_fields.render(facts, table) == make_openapi_fields.OUTPUT.read_text(), (
        "run tools/make_openapi_fields.py"
    )
    assert make_openapi_fields.missing_texts() == []
