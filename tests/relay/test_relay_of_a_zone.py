"""A relay of a zone: it reads the slices for its zone and for everyone, and answers for no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.relay.relaying import ADMIN, IN_DEFAULT, SLICES, RelayServer, relaying, tokens
from tests.server.serving import Server, endpoint_slice, run_plane, watching

from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE
from sliceplane.api.scheme import EndpointSlices
from sliceplane.server.io.plane import PlaneConfig

__all__ = ["tokens"]
WITH_TOKEN = {"authorization": f"Bearer {ADMIN}"}
LABELS = {
    "here": {LABEL_FOR_ZONE: "a"},
    "there": {LABEL_FOR_ZONE: "b"},
    "around": {LABEL_FOR_REGION: "r"},
    "everywhere": {},
}
SHARED = f"!{LABEL_FOR_ZONE},!{LABEL_FOR_REGION}"


@pytest.fixture(scope="module")
def parent(tokens: Path) -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    server = Server(plane)
    for name, labels in LABELS.items():
        body = endpoint_slice(name)
        body["metadata"]["labels"] = labels
        assert server.request("POST", IN_DEFAULT, body).code == 201
    yield server
    end()


@pytest.fixture(scope="module")
def relay(parent: Server) -> Iterator[RelayServer]:
    with relaying(parent, zone="a") as relay:
        yield relay


def read(server: Server, query: str) -> list[str]:
    reply = server.request("GET", f"{IN_DEFAULT}?{query}", certificate=False, **WITH_TOKEN)
    assert reply.code == 200
    return [item["metadata"]["name"] for item in reply.json["items"]]


def passed(relay: RelayServer) -> int:
    return int(relay.relay.front._passage.passed.value)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (f"{LABEL_FOR_ZONE}=a", ["here"]),
        (f"x!=y,{LABEL_FOR_ZONE} in (a)", ["here"]),
        (SHARED, ["everywhere"]),
        (f"{LABEL_FOR_REGION}=r", ["around"]),
    ],
)
def test_what_its_nodes_ask_for_is_served(
    parent: Server, relay: RelayServer, selector: str, names: list[str]
) -> None:
    before = passed(relay)
    query = f"labelSelector={quote(selector)}&resourceVersion=0"
    assert [name for name in read(relay, query) if name in LABELS] == names
    assert read(relay, query) == read(parent, query)
    assert passed(relay) == before


@pytest.mark.parametrize("selector", ["", "x!=y", f"{LABEL_FOR_ZONE}=b", LABEL_FOR_ZONE])
def test_what_it_has_not_whole_is_passed_on(
    parent: Server, relay: RelayServer, selector: str
) -> None:
    before = passed(relay)
    query = f"labelSelector={quote(selector)}&resourceVersion=0"
    assert read(relay, query) == read(parent, query)
    assert passed(relay) == before + 1
    refused = relay.get(f"{SLICES}?{query}")
    assert refused.code == 403, "a certificate cannot be passed on"


def test_a_slice_by_name_is_passed_on(relay: RelayServer) -> None:
    for name in ("here", "there"):
        path = f"{IN_DEFAULT}/{name}?resourceVersion=1"
        reply = relay.request("GET", path, certificate=False, **WITH_TOKEN)
        assert reply.json["metadata"]["name"] == name


def test_slices_for_other_zones_are_not_read(relay: RelayServer) -> None:
    kept = [
        record.key.name
        for part, parent in relay.relay.parents.items()
        if part.resource is EndpointSlices
        for record in parent.mirror.store.list(EndpointSlices.storage_key).records
    ]
    assert "there" not in kept
    assert {"here", "around", "everywhere"} <= set(kept)


def test_a_slice_that_moves_to_another_zone_is_deleted_here(
    parent: Server, relay: RelayServer
) -> None:
    body = endpoint_slice("moves")
    body["metadata"]["labels"] = {LABEL_FOR_ZONE: "a"}
    made = parent.request("POST", IN_DEFAULT, body).json
    version = made["metadata"]["resourceVersion"]
    selector = quote(f"{LABEL_FOR_ZONE}=a")
    path = f"{IN_DEFAULT}?watch=true&resourceVersion={version}&labelSelector={selector}"
    media = "application/merge-patch+json"
    with watching(parent, path) as theirs, watching(relay, path) as ours:
        for zone in ("b", "a"):
            change = {"metadata": {"labels": {LABEL_FOR_ZONE: zone}}}
            parent.request("PATCH", f"{IN_DEFAULT}/moves", change, content_type=media)
        for kind in ("DELETED", "ADDED"):
            line = ours.response.readline()
            assert kind.encode() in line
            assert line == theirs.response.readline()
