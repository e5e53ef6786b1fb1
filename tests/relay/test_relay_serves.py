"""A relay in front of our server: what it serves, what it passes on, and who may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.relay.relaying import ADMIN, IN_DEFAULT, SLICES, RelayServer, relaying, tokens
from tests.server.serving import CM, Server, config_map, endpoint_slice, run_plane, watching
from tests.waiting import until

from sliceplane.api.scheme import EndpointSlices
from sliceplane.relay.parts import part_of
from sliceplane.server.io.plane import PlaneConfig

__all__ = ["tokens"]
WITH_TOKEN = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture(scope="module")
def parent(tokens: Path) -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    yield Server(plane)
    end()


@pytest.fixture(scope="module")
def relay(parent: Server) -> Iterator[RelayServer]:
    with relaying(parent) as relay:
        yield relay


def passed(relay: RelayServer) -> int:
    return int(relay.relay.front._passage.passed.value)


def make(parent: Server, name: str, relay: RelayServer) -> str:
    """A slice that the relay has, and its version."""
    reply = parent.request("POST", IN_DEFAULT, endpoint_slice(name))
    version = str(reply.json["metadata"]["resourceVersion"])
    until(lambda: relay.mirror(EndpointSlices).store.revision >= int(version))
    return version


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "application/yaml",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf",
    ],
)
def test_a_list_has_the_parents_bytes(parent: Server, relay: RelayServer, accept: str) -> None:
    version = make(parent, f"list-{abs(hash(accept))}", relay)
    before = passed(relay)
    until(lambda: relay.relay.front.knows_protobuf)
    path = f"{SLICES}?resourceVersion={version}&resourceVersionMatch=Exact"
    ours, theirs = relay.get(path, accept=accept), parent.get(path, accept=accept)
    assert (ours.code, ours.headers["content-type"]) == (200, theirs.headers["content-type"])
    assert ours.body == theirs.body
    assert passed(relay) == before


def test_a_table_has_the_same_rows(parent: Server, relay: RelayServer) -> None:
    version = make(parent, "row", relay)
    path = f"{SLICES}?resourceVersion={version}&resourceVersionMatch=Exact"
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    rows, others = (one.get(path, accept=accept).json["rows"] for one in (relay, parent))
    assert [row["object"] for row in rows] == [row["object"] for row in others]
    assert rows


def test_pages_of_a_list_are_of_one_version(parent: Server, relay: RelayServer) -> None:
    version = max(make(parent, f"page-{number}", relay) for number in range(5))
    first = relay.get(f"{IN_DEFAULT}?limit=2&resourceVersion={version}").json
    make(parent, "page-later", relay)
    token = first["metadata"]["continue"]
    rest = relay.get(f"{IN_DEFAULT}?limit=500&continue={token}").json
    names = [item["metadata"]["name"] for item in first["items"] + rest["items"]]
    assert "page-later" not in names
    assert names == sorted(names)
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_selectors(parent: Server, relay: RelayServer) -> None:
    body = endpoint_slice("selected")
    body["metadata"]["labels"] = {"kubernetes.io/service-name": "web"}
    version = parent.request("POST", IN_DEFAULT, body).json["metadata"]["resourceVersion"]
    for selector in (
        "labelSelector=kubernetes.io/service-name=web",
        "fieldSelector=metadata.name=selected",
    ):
        listed = relay.get(f"{SLICES}?{selector}&resourceVersion={version}").json
        assert [item["metadata"]["name"] for item in listed["items"]] == ["selected"]


def test_a_consistent_list_is_never_old(parent: Server, relay: RelayServer) -> None:
    for number in range(10):
        parent.request("POST", IN_DEFAULT, endpoint_slice(f"fresh-{number}"))
        names = {item["metadata"]["name"] for item in relay.get(IN_DEFAULT).json["items"]}
        assert f"fresh-{number}" in names


def test_a_list_after_the_parent_went_back_is_not_from_memory(
    parent: Server, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is newer than the parent until the watch has told, and is of a history that is gone."""
    make(parent, "before-the-backup", relay)

    async def restored() -> int:
        return 1

    monkeypatch.setattr(part_of(relay.relay.parents, EndpointSlices, ""), "_ask_version", restored)
    before = passed(relay)
    listed = relay.request("GET", IN_DEFAULT, certificate=False, **WITH_TOKEN)
    assert (listed.code, passed(relay)) == (200, before + 1)
    cached = f"{IN_DEFAULT}?resourceVersion=0"
    assert relay.request("GET", cached, certificate=False, **WITH_TOKEN).code == 200
    assert passed(relay) == before + 1


def test_a_resource_without_events_reaches_the_parents_version(
    parent: Server, relay: RelayServer
) -> None:
    """The certificate cannot be passed on, so memory must be current within three seconds."""
    version = int(
        parent.request("POST", CM, config_map("elsewhere")).json["metadata"]["resourceVersion"]
    )
    before = passed(relay)
    listed = relay.get(SLICES)
    assert listed.code == 200
    assert int(listed.json["metadata"]["resourceVersion"]) >= version
    assert passed(relay) == before


def test_a_watch_has_the_parents_events(parent: Server, relay: RelayServer) -> None:
    version = make(parent, "watched", relay)
    path = f"{IN_DEFAULT}?watch=true&resourceVersion={version}&allowWatchBookmarks=true"
    with watching(parent, path) as theirs, watching(relay, path) as ours:
        change = {"metadata": {"annotations": {"a": "<b>"}}}
        parent.request(
            "PATCH",
            f"{IN_DEFAULT}/watched",
            change,
            content_type="application/merge-patch+json",
        )
        parent.request("DELETE", f"{IN_DEFAULT}/watched")
        for _ in range(2):
            assert ours.response.readline() == theirs.response.readline()


def test_a_watch_begins_with_the_state(parent: Server, relay: RelayServer) -> None:
    make(parent, "initial", relay)
    path = (
        f"{SLICES}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true"
        "&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name=initial"
    )
    with watching(relay, path) as stream:
        assert stream.next()["object"]["metadata"]["name"] == "initial"
        bookmark = stream.next()
        assert bookmark["type"] == "BOOKMARK"
        annotations = bookmark["object"]["metadata"]["annotations"]
        assert annotations == {"k8s.io/initial-events-end": "true"}


def test_versions_that_are_not_here(parent: Server, relay: RelayServer) -> None:
    newest = int(make(parent, "versions", relay))
    old = relay.get(f"{SLICES}?watch=true&resourceVersion=1&timeoutSeconds=3")
    assert json.loads(old.body.splitlines()[0])["type"] == "ADDED", "the parent remembers it"
    future = relay.get(f"{SLICES}?resourceVersion={newest + 10_000}")
    assert future.code == 504
    bad = relay.get(f"{SLICES}?resourceVersion=x")
    assert bad.code == parent.get(f"{SLICES}?resourceVersion=x").code


def test_everything_else_is_passed_on_with_the_childs_token(
    parent: Server, relay: RelayServer
) -> None:
    made = relay.request("POST", CM, config_map("through"), certificate=False, **WITH_TOKEN)
    assert made.code == 201
    assert relay.request("GET", f"{CM}/through", certificate=False, **WITH_TOKEN).json == made.json
    version = relay.request("GET", "/version", certificate=False, **WITH_TOKEN)
    assert version.body == parent.get("/version").body
    deleted = relay.request("DELETE", f"{CM}/through", certificate=False, **WITH_TOKEN)
    assert deleted.code == 200
    large = config_map("large", text="x" * 900_000)
    assert relay.request("POST", CM, large, certificate=False, **WITH_TOKEN).code == 201
    beyond = b'"' + b"x" * (4 << 20) + b'"'
    assert relay.request("POST", CM, beyond, certificate=False, **WITH_TOKEN).code == 413


def test_the_relays_own_rights_are_nobodys(parent: Server, relay: RelayServer) -> None:
    """The relay is an administrator at the parent; its children are not."""
    for headers in ({}, {"authorization": "Bearer nobody-token"}, {"authorization": "Bearer x"}):
        refused = relay.request("POST", CM, config_map("x"), certificate=False, **headers)
        theirs = parent.request("POST", CM, config_map("x"), certificate=False, **headers)
        assert (refused.code, refused.json["message"]) == (theirs.code, theirs.json["message"])
        assert refused.code in (401, 403)
        for path in (SLICES, f"{SLICES}?resourceVersion=0", f"{SLICES}?watch=true", "/metrics"):
            ours = relay.request("GET", path, certificate=False, **headers)
            other = parent.request("GET", path, certificate=False, **headers)
            assert (ours.code, ours.body) == (other.code, other.body)


def test_a_certificate_is_not_passed_on(relay: RelayServer) -> None:
    refused = relay.request("POST", CM, config_map("x"))
    assert refused.code == 403
    assert "client certificate" in refused.json["message"]


def test_upgrades_are_refused(relay: RelayServer) -> None:
    headers = {**WITH_TOKEN, "Connection": "Upgrade", "upgrade": "SPDY/3.1"}
    path = "/api/v1/namespaces/default/pods/a/exec"
    assert relay.request("GET", path, certificate=False, **headers).code == 501


def test_health_and_metrics(relay: RelayServer) -> None:
    for page in ("/readyz", "/livez", "/healthz"):
        assert relay.request("GET", page, certificate=False).code == 200
    assert "parent-endpointslices ok" in relay.get("/readyz?verbose").body.decode()
    text = relay.get("/metrics").body.decode()
    assert 'sliceplane_relay_watches{resource="endpointslices.discovery.k8s.io"}' in text


def test_a_relay_that_is_its_own_parent_is_refused(relay: RelayServer) -> None:
    reply = relay.request(
        "GET", "/version", certificate=False, via=f"1.1 {relay.relay.name}", **WITH_TOKEN
    )
    assert reply.code == 508
