"""The protobuf codec against upstream's own bytes, and against bytes that nobody should send."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.frames import FrameReader

from sliceplane.api import scheme
from sliceplane.api.errors import StatusError
from sliceplane.server.documents.protobuf import (
    MAGIC,
    assemble_list,
    decode,
    encode,
    encode_item,
    encode_watch_event,
    supports,
)
from sliceplane.server.documents.protobuf.decoder import decoder
from sliceplane.server.documents.protobuf.encoder import encoder
from sliceplane.server.documents.protobuf.schema import message_names

#: document: what went in; protobuf: what k8s.io/api 0.36.2 made of it; decoded: what it then reads
#: as JSON
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "protobuf.json").read_text()
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def golden_id(case: dict[str, Any]) -> str:
    return f"{case['document']['kind']}-{len(case['protobuf'])}"


@pytest.mark.parametrize("case", GOLDEN, ids=golden_id)
def test_encodes_the_very_bytes_that_upstream_does(case: dict[str, Any]) -> None:
    expected = base64.b64decode(case["protobuf"])
    assert encode(case["document"]) == expected
    assert encode(without_nulls(case["document"])) == expected


@pytest.mark.parametrize("case", GOLDEN, ids=golden_id)
def test_decodes_to_the_json_that_upstream_reads(case: dict[str, Any]) -> None:
    raw = base64.b64decode(case["protobuf"])
    expected = without_nulls(case["decoded"])
    if expected["kind"].endswith("List") and not expected["kind"].startswith("API"):
        expected.setdefault("items", expected.get("items", []))
    decoded = decode(raw)
    assert decoded == expected
    assert encode(decoded) == raw


def test_a_field_that_1_37_gave_up_is_kept_for_clients_of_1_36() -> None:
    """Number 3 of NodeAllocatableResourceClaimStatus (generated.proto of k8s.io/api 0.36): a map of
    quantities.
    """
    status = {"resourceClaimName": "gpu", "containers": ["c"], "resources": {"cpu": "1"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "status": {"nodeAllocatableResourceClaimStatuses": [status]},
    }
    raw = encode(pod)
    assert b"\x1a\x0a\x0a\x03cpu\x12\x03\x0a\x011" in raw
    assert decode(raw)["status"]["nodeAllocatableResourceClaimStatuses"] == [status]


def test_every_message_compiles_and_an_empty_one_round_trips() -> None:
    for name in message_names():
        if "pkg.runtime" in name:
            continue
        zero = encoder(name).zero
        document: dict[str, Any] = {}
        decoder(name).read(document, zero, 0, len(zero))
        assert document == decoder(name).zero()
        assert encoder(name).encode(document) == zero


@pytest.mark.parametrize(
    "resource", [*scheme.RESOURCES, *scheme.LISTED], ids=lambda resource: resource.key
)
def test_every_served_kind_has_a_protobuf_form(resource: scheme.Resource) -> None:
    assert supports(resource.api_version, resource.kind)
    assert supports(resource.api_version, resource.list_kind)
    assert supports(resource.api_version, "Status")


def test_what_has_no_protobuf_form() -> None:
    assert not supports("meta.k8s.io/v1", "Table")
    assert not supports("v1", "ContainerPort")
    assert not supports("v2", "ConfigMap")
    assert not supports("example.com/v1", "Pod")


def test_lists_are_made_of_items_encoded_once() -> None:
    items = [{"kind": "Service", "apiVersion": "v1", "metadata": {"name": name}} for name in "ab"]
    metadata = {"resourceVersion": "7"}
    whole = encode(
        {"apiVersion": "v1", "kind": "ServiceList", "metadata": metadata, "items": items}
    )
    encoded = [encode_item("v1", "Service", item) for item in items]
    assert assemble_list("v1", "ServiceList", metadata, encoded) == whole
    assert [item["metadata"]["name"] for item in decode(whole)["items"]] == ["a", "b"]
    assert "kind" not in decode(whole)["items"][0]
    assert decode(assemble_list("v1", "ServiceList", metadata, []))["items"] == []


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"kind": "ConfigMap", "data": {"a": 1}}, "data: want a string, found 1"),
        ({"kind": "ConfigMap", "binaryData": {"a": "?"}}, "binaryData: want base64"),
        (
            {"kind": "Service", "spec": {"ports": [{"port": 1 << 31}]}},
            "spec.ports.port: want an int32",
        ),
        (
            {"kind": "Service", "spec": {"ports": [{"port": True}]}},
            "spec.ports.port: want an int32",
        ),
        ({"kind": "Service", "spec": []}, "spec: want an object"),
        (
            {"kind": "Pod", "spec": {"volumes": [{"hostPath": 1}]}},
            "spec.volumes.hostPath: want an object",
        ),
        (
            {"kind": "Pod", "metadata": {"creationTimestamp": "2026-01-01"}},
            "metadata.creationTimestamp: want",
        ),
        ({"kind": "Pod", "metadata": {"finalizers": "x"}}, "metadata.finalizers: want a list"),
        ({"kind": "Pod", "metadata": {"name": "\ud800"}}, "surrogates"),
        ({"kind": "Nope"}, "no protobuf form"),
    ],
)
def test_documents_of_wrong_types_are_our_fault(document: dict[str, Any], where: str) -> None:
    with pytest.raises(StatusError) as caught:
        encode({"apiVersion": "v1", **document})
    assert caught.value.code == 500
    assert where in caught.value.message


def enveloped(api_version: str, kind: str, body: bytes) -> bytes:
    type_meta = b"\x0a" + bytes((len(api_version),)) + api_version.encode()
    type_meta += b"\x12" + bytes((len(kind),)) + kind.encode()
    return (
        MAGIC
        + b"\x0a"
        + bytes((len(type_meta),))
        + type_meta
        + b"\x12"
        + bytes((len(body),))
        + body
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            b"",
            "the object provided is unrecognized (must be of type ConfigMap): empty data (<empty>)",
        ),
        (
            b'{"kind":"ConfigMap","apiVersion":"v1"}',
            (
                "the object provided is unrecognized (must be of type ConfigMap): provided data "
                "does not appear to be "
                "a protobuf message, expected prefix [107 56 115 0] "
                '({"kind":"ConfigMap","apiVersio ...)'
            ),
        ),
        (
            b"k8s\x00",
            (
                "the object provided is unrecognized (must be of type ConfigMap): empty body "
                "(6b387300)"
            ),
        ),
        (
            enveloped("v2", "ConfigMap", b""),
            (
                'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" '
                "is registered for "
                'version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30"'
            ),
        ),
        (
            enveloped("v1", "ConfigMap", b"\x0a\x05ab"),
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: unexpected EOF',
        ),
    ],
)
def test_malformed_bodies_are_told_as_upstream_tells_them(raw: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        decode(raw, api_version="v1", kind="ConfigMap")
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    assert caught.value.message == message


@pytest.mark.parametrize(
    "body",
    [
        b"\x12\x01",  # cut off inside a length
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # negative length
        b"\x12" + b"\x80" * 11,  # varint without end
        b"\x10\x01",  # data as a varint
        b"\x00\x01",  # field 0
        b"\x0c",  # a group ends that never started
        b"\x9b\x06" * 50,  # groups that never end
        b"\x9f\x06",  # wire type 7
        b"\x12\x03\x0a\x01\xff",  # a key that is not UTF-8
        b"\x0a\x04\x42\x02\x08\x80",  # creationTimestamp cut off
        b"\x0a\x0d\x42\x0b\x08" + b"\xff" * 9 + b"\x00",  # a time that no calendar has
    ],
)
def test_malformed_messages_are_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        decode(enveloped("v1", "ConfigMap", body))
    assert caught.value.code == 400


def test_unknown_fields_are_skipped_and_repeated_ones_merge() -> None:
    unknown = (
        b"\x98\x06\x05\x99\x06"
        + b"x" * 8
        + b"\x9a\x06\x01x"
        + b"\x9b\x06\x08\x01\x9c\x06"
        + b"\x9d\x06"
        + b"x" * 4
    )
    twice = (
        b"\x0a\x03\x0a\x01a"
        + unknown
        + b"\x0a\x03\x1a\x01n"
        + b"\x12\x06\x0a\x01k\x12\x01v"
        + b"\x12\x03\x0a\x01e"
    )
    assert decode(enveloped("v1", "ConfigMap", twice)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "n"},
        "data": {"k": "v", "e": ""},
    }


def test_the_type_may_be_left_out_where_the_caller_knows_it() -> None:
    raw = MAGIC + b"\x12\x05\x0a\x03\x0a\x01a"
    assert decode(raw, api_version="v1", kind="ConfigMap")["metadata"] == {"name": "a"}
    with pytest.raises(StatusError):
        decode(raw)


@given(
    st.sampled_from(GOLDEN),
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 255), st.sampled_from("rid")),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_bytes_decode_or_are_refused_with_400(
    case: dict[str, Any], edits: list[tuple[int, int, str]]
) -> None:
    raw = bytearray(base64.b64decode(case["protobuf"]))
    for position, byte, how in edits:
        position = 4 + position % (len(raw) - 4)
        if how == "r":
            raw[position] = byte
        elif how == "i":
            raw.insert(position, byte)
        elif len(raw) > 5:
            del raw[position]
    try:
        document = decode(bytes(raw))
    except StatusError as error:
        assert error.code == 400  # noqa: PT017 - most mutations are still good messages
    else:
        assert decode(encode(document)) == document


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused_with_400(body: bytes) -> None:
    for raw in (body, MAGIC + body, enveloped("v1", "Pod", body)):
        try:
            decode(raw, api_version="v1", kind="Pod")
        except StatusError as error:
            assert error.code == 400  # noqa: PT017 - random bytes may be a good message


JSON_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)


@given(
    st.dictionaries(JSON_TEXT, JSON_TEXT, max_size=4),
    JSON_TEXT,
    st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_round_trip(data: dict[str, str], text: str, number: int) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "x", "annotations": data} if data else {"name": "x"},
        "spec": {
            "externalName": "e" + text,
            "ports": [{"port": number, "targetPort": number or text, "protocol": "TCP"}],
        },
        "status": {"loadBalancer": {}},
    }
    assert decode(encode(document)) == document


EVENTS = [
    ("ADDED", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a" * 300}}),
    (
        "BOOKMARK",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"resourceVersion": "9"},
            "addressType": "",
        },
    ),
    (
        "ERROR",
        {"apiVersion": "v1", "kind": "Status", "metadata": {}, "code": 410, "reason": "Expired"},
    ),
]


@given(st.lists(st.integers(1, 700), max_size=6))
def test_frames_survive_any_chunking(cuts: list[int]) -> None:
    stream = b"".join(encode_watch_event(event, encode(document)) for event, document in EVENTS)
    reader = FrameReader()
    reviews: list[tuple[str, dict[str, Any]]] = []
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, stop in itertools.pairwise(bounds):
        reviews.extend(reader.feed(stream[start:stop]))
    assert reviews == EVENTS
    assert reader.pending_bytes == 0


def test_frame_layout() -> None:
    envelope = encode(EVENTS[2][1])
    frame = encode_watch_event("ERROR", envelope)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:11] == b"\x0a\x05ERROR"
    assert frame.endswith(envelope)
    assert envelope.startswith(b"k8s\x00")
