"""``shardSelector`` on lists and watches, with the gate and without it (KEP-5866)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.serving import Server, Stream, run_plane

from sliceplane.api.gates import SHARDED_LIST_AND_WATCH, Gates
from sliceplane.server.documents import protobuf
from sliceplane.server.io.plane import PlaneConfig

SHARDS = [
    "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
    "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
]
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAMES = {f"c-{number:02d}" for number in range(24)}


@pytest.fixture(scope="module")
def sharded() -> Iterator[Server]:
    gates = Gates.parse(f"{SHARDED_LIST_AND_WATCH}=true")
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, gates=gates))
    server = Server(plane)
    for name in sorted(NAMES):
        assert server.request("POST", CONFIG_MAPS, {"metadata": {"name": name}}).code == 201
    yield server
    end()


def path(shard: str, **more: str) -> str:
    return f"{CONFIG_MAPS}?{urllib.parse.urlencode({'shardSelector': shard, **more})}"


def names(listed: Any) -> set[str]:
    return {item["metadata"]["name"] for item in listed["items"]}


def test_shards_divide_the_collection_and_say_which_they_are(sharded: Server) -> None:
    halves = [sharded.get(path(shard)).json for shard in SHARDS]
    assert names(halves[0]) | names(halves[1]) == NAMES
    assert not names(halves[0]) & names(halves[1])
    assert all(names(half) for half in halves)
    assert [half["metadata"]["shardInfo"]["selector"] for half in halves] == SHARDS
    whole = sharded.get(path(" || ".join(SHARDS))).json
    assert names(whole) == NAMES
    assert "shardInfo" not in sharded.get(CONFIG_MAPS).json["metadata"]


def test_shards_have_pages_and_other_selectors(sharded: Server) -> None:
    found, token = set(), ""
    while True:
        page = sharded.get(
            path(SHARDS[0], limit="3", **({"continue": token} if token else {}))
        ).json
        assert len(page["items"]) <= 3
        assert page["metadata"]["shardInfo"]["selector"] == SHARDS[0]
        found |= names(page)
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == names(sharded.get(path(SHARDS[0])).json)
    one = min(found)
    assert names(sharded.get(path(SHARDS[0], fieldSelector=f"metadata.name={one}")).json) == {one}
    assert names(sharded.get(path(SHARDS[1], fieldSelector=f"metadata.name={one}")).json) == set()


def test_every_form_of_a_list_tells_its_shard(sharded: Server) -> None:
    answer = sharded.get(path(SHARDS[1]), Accept="application/vnd.kubernetes.protobuf")
    assert protobuf.decode(answer.body)["metadata"]["shardInfo"] == {"selector": SHARDS[1]}
    table = sharded.get(path(SHARDS[1]), Accept="application/json;as=Table;v=v1;g=meta.k8s.io").json
    assert table["metadata"]["shardInfo"] == {"selector": SHARDS[1]}


def test_watches_tell_their_shard_alone(sharded: Server) -> None:
    mine = [names(sharded.get(path(shard)).json) for shard in SHARDS]
    streams = [Stream(sharded, path(shard, watch="true")) for shard in SHARDS]
    try:
        for stream, wanted in zip(streams, mine, strict=True):
            assert {stream.next()["object"]["metadata"]["name"] for _ in wanted} == wanted
        for number, wanted in enumerate(mine):
            name = min(wanted)
            change = {"data": {"turn": str(number)}}
            sharded.request(
                "PATCH",
                f"{CONFIG_MAPS}/{name}",
                change,
                Content_Type="application/merge-patch+json",
            )
            event = streams[number].next()
            assert (event["type"], event["object"]["metadata"]["name"]) == ("MODIFIED", name)
    finally:
        for stream in streams:
            stream.close()


def test_a_selector_that_cannot_be_is_a_400(sharded: Server) -> None:
    for query in ({}, {"watch": "true"}):
        answer = sharded.get(path("shardRange(object.spec.nodeName, '0x0', '0x1')", **query))
        assert answer.code == 400
        assert answer.json["reason"] == "BadRequest"
        assert "unsupported field path" in answer.json["message"]


def test_without_the_gate_it_is_ignored(server: Server) -> None:
    listed = server.get(
        f"/api/v1/namespaces?{urllib.parse.urlencode({'shardSelector': 'nonsense'})}"
    )
    assert listed.code == 200
    assert "shardInfo" not in listed.json["metadata"]
