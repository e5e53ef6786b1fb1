"""EndpointSlice v1beta1 to v1 and back: the rules one by one, and round trips of anything."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import tables

from sliceplane.api import codec
from sliceplane.server.documents import conversion
from sliceplane.server.documents.conversion import (
    ANNOTATIONS_BYTES_MAX,
    Topologies,
    annotation_text,
)

TABLES = tables(__file__)

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
ANNOTATION = conversion.TOPOLOGY_ANNOTATION


def old(*endpoints: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return _slice("v1beta1", endpoints, rest)


def new(*endpoints: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return _slice("v1", endpoints, rest)


def _slice(
    version: str, endpoints: tuple[dict[str, Any], ...], rest: dict[str, Any]
) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "apiVersion": f"discovery.k8s.io/{version}",
        "metadata": {"name": "a"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], **endpoint} for endpoint in endpoints],
        "ports": [],
        **rest,
    }


def annotated(text: str, **others: str) -> dict[str, Any]:
    return {"name": "a", "annotations": {**others, ANNOTATION: text}}


@pytest.mark.parametrize(("before", "after"), TABLES["to_hub"])
def test_to_hub(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert conversion.to_hub(old(before)) == new(after)


@pytest.mark.parametrize(("before", "after"), TABLES["from_hub"])
def test_from_hub(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert conversion.from_hub(new(before)) == old(after)


def test_the_deprecated_address_type_passes_both_ways() -> None:
    assert conversion.to_hub(old({}, addressType="IP")) == new({}, addressType="IP")
    assert conversion.from_hub(new({}, addressType="IP")) == old({}, addressType="IP")


def test_annotation_is_read_under_what_the_field_says() -> None:
    text = f'{{"0":{{"rack":"a","{REGION}":"r"}},"9":{{"rack":"b"}}}}'
    lifted = conversion.lift(
        new({"deprecatedTopology": {"rack": "field"}}, {}, metadata=annotated(text, other="x"))
    )
    wanted = {"name": "a", "annotations": {"other": "x"}}
    assert lifted == new(
        {"deprecatedTopology": {"rack": "field", REGION: "r"}}, {}, metadata=wanted
    )


@pytest.mark.parametrize(
    "text", ["", "no", "[]", '{"x":{}}', '{"-1":{}}', '{"01":{}}', '{"":{}}', '{"0":{"a":1}}']
)
def test_an_annotation_that_is_not_ours_stays_one(text: str) -> None:
    document = new({}, metadata=annotated(text))
    assert conversion.lift(document) == document
    assert conversion.stow(document) == document


def test_stow_writes_the_annotation() -> None:
    stowed = conversion.stow(
        new({}, {"deprecatedTopology": {"b": "2", "a": "1"}}, {"deprecatedTopology": {"a": "3"}})
    )
    assert stowed == new({}, {}, {}, metadata=annotated('{"1":{"a":"1","b":"2"},"2":{"a":"3"}}'))


def test_keys_are_dropped_from_every_endpoint_the_costliest_first_and_standard_ones_last() -> None:
    topologies: Topologies = {
        0: {"short": "1", "long": "x" * 60, REGION: "r", HOST: "h"},
        7: {"short": "2", "long": "y" * 60, HOST: "i"},
    }
    texts = [annotation_text(topologies, room) for room in range(500, -1, -1)]
    seen: list[set[str]] = []
    for text in texts:
        keys = {
            key
            for topology in codec.decode_document(text.encode() or b"{}").values()
            for key in topology
        }
        if not seen or seen[-1] != keys:
            seen.append(keys)
    assert seen == [
        {"short", "long", REGION, HOST},
        {"short", REGION, HOST},
        {REGION, HOST},
        {HOST},
        set(),
    ]


def test_a_full_slice_is_cut_to_what_annotations_may_have() -> None:
    topology = {f"example.com/{number:02d}-{'k' * 40}": "v" * 63 for number in range(14)}
    endpoints = [{"deprecatedTopology": {**topology, HOST: f"n{index}"}} for index in range(1000)]
    stowed = conversion.stow(
        new(*endpoints, metadata={"name": "a", "annotations": {"other": "x" * 1000}})
    )
    annotations = stowed["metadata"]["annotations"]
    total = sum(len(name) + len(text) for name, text in annotations.items())
    assert ANNOTATIONS_BYTES_MAX - 130_000 < total <= ANNOTATIONS_BYTES_MAX
    hosts = [
        endpoint["deprecatedTopology"][HOST] for endpoint in conversion.lift(stowed)["endpoints"]
    ]
    assert hosts == [f"n{index}" for index in range(1000)]


def test_realign_follows_endpoints_that_move() -> None:
    first, second, third = ({"addresses": [f"10.0.0.{n}"]} for n in (1, 2, 3))
    before = new(first, second, metadata=annotated('{"0":{"rack":"a"},"1":{"rack":"b"}}'))
    after = new(
        third, {**second, "conditions": {"ready": False}}, first, metadata=before["metadata"]
    )
    assert conversion.realign(after, before)["metadata"] == annotated(
        '{"1":{"rack":"b"},"2":{"rack":"a"}}'
    )
    gone = new(third, metadata=before["metadata"])
    assert conversion.realign(gone, before)["metadata"] == {"name": "a"}
    chosen = new(third, metadata=annotated('{"0":{"rack":"c"}}'))
    assert conversion.realign(chosen, before) == chosen


labels = st.text("abxyz./-", min_size=1, max_size=6) | st.sampled_from([HOST, REGION])
values = st.text('ab\u00e9"\\', max_size=5)
names = st.sampled_from(["n1", "n2"])


@st.composite
def endpoint_of_any_version(draw: st.DrawFn, *, version: str) -> dict[str, Any]:
    endpoint: dict[str, Any] = {
        "addresses": draw(st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), max_size=2))
    }
    if draw(st.booleans()):
        endpoint["nodeName"] = draw(names)
    member = "topology" if version == "v1beta1" else "deprecatedTopology"
    keys = labels | st.just(ZONE) if version == "v1beta1" else labels
    topology = draw(st.dictionaries(keys, values | names, max_size=4))
    if version == "v1" and draw(st.booleans()):
        endpoint["zone"] = draw(values)
    if "nodeName" in endpoint and topology.get(HOST) in ("", endpoint["nodeName"]):
        # Says nothing that nodeName does not say; both directions leave it out or fill it in.
        del topology[HOST]
    if topology:
        endpoint[member] = topology
    return endpoint


@given(st.lists(endpoint_of_any_version(version="v1"), max_size=5))
def test_v1_survives_v1beta1(endpoints: list[dict[str, Any]]) -> None:
    document = new(*endpoints)
    untouched = copy.deepcopy(document)
    assert conversion.to_hub(conversion.from_hub(document)) == document == untouched


@given(st.lists(endpoint_of_any_version(version="v1beta1"), max_size=5))
def test_v1beta1_survives_v1_but_for_the_node_as_host_name(endpoints: list[dict[str, Any]]) -> None:
    document = old(*endpoints)
    back = conversion.from_hub(conversion.to_hub(document))
    for endpoint in document["endpoints"]:
        if "nodeName" in endpoint:
            endpoint.setdefault("topology", {}).setdefault(HOST, endpoint["nodeName"])
    assert back == document


@given(st.lists(endpoint_of_any_version(version="v1"), max_size=5), st.booleans())
def test_the_annotation_holds_what_the_field_held(
    endpoints: list[dict[str, Any]], others: bool
) -> None:
    metadata = {"name": "a", "annotations": {"other": "x"}} if others else {"name": "a"}
    document = new(*endpoints, metadata=metadata)
    untouched = copy.deepcopy(document)
    stowed = conversion.stow(document)
    assert document == untouched
    assert not any("deprecatedTopology" in endpoint for endpoint in stowed["endpoints"])
    assert conversion.lift(stowed) == document
    assert conversion.stow(stowed) == stowed, "stowing twice is stowing once"


@given(
    st.dictionaries(
        st.integers(0, 1200), st.dictionaries(labels, values, min_size=1, max_size=4), max_size=6
    ),
    st.integers(0, 400),
)
def test_the_annotation_keeps_within_its_room_and_within_what_it_was_given(
    topologies: Topologies, room: int
) -> None:
    text = annotation_text(topologies, room)
    assert len(text.encode()) <= room
    kept = {
        int(index): topology
        for index, topology in codec.decode_document(text.encode() or b"{}").items()
    }
    gone = {key for topology in topologies.values() for key in topology} - {
        key for topology in kept.values() for key in topology
    }
    wanted = {
        index: rest
        for index, topology in topologies.items()
        if (rest := {key: value for key, value in topology.items() if key not in gone})
    }
    assert kept == wanted, "a key is dropped from every endpoint or from none"
