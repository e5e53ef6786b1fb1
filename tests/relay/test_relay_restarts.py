"""A relay that was started again: watches resume at versions from before its own list."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.relay.relaying import IN_DEFAULT, SLICES, RelayServer, relaying, tokens
from tests.server.serving import CM, Server, config_map, endpoint_slice, run_plane, watching
from tests.waiting import until

from sliceplane.api.scheme import EndpointSlices
from sliceplane.relay import earlier
from sliceplane.relay.io import parent as following
from sliceplane.server.io.plane import PlaneConfig

__all__ = ["tokens"]
NUMBERS = itertools.count()
FORMS = (
    "application/json",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf;stream=watch",
)
SELECTORS = (
    "",
    "&labelSelector=colour=red",
    "&labelSelector=colour+notin+(red)",
    "&fieldSelector=metadata.name%3Done",
    "&labelSelector=colour=red&fieldSelector=metadata.namespace%3Ddefault",
)


@pytest.fixture(scope="module")
def parent(tokens: Path) -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    yield Server(plane)
    end()


def put(parent: Server, name: str, colour: str) -> int:
    body = endpoint_slice(name)
    body["metadata"]["labels"] = {"colour": colour, "number": str(next(NUMBERS))}
    reply = parent.request("POST", IN_DEFAULT, body)
    if reply.code == 409:
        reply = parent.request("PUT", f"{IN_DEFAULT}/{name}", body)
    assert reply.code in (200, 201), reply.body
    return int(reply.json["metadata"]["resourceVersion"])


def change(parent: Server) -> int:
    """Returns the version before some changes of every kind."""
    before = put(parent, "one", "red")
    put(parent, "two", "blue")
    put(parent, "one", "blue")
    put(parent, "three", "red")
    put(parent, "two", "red")
    parent.request("DELETE", f"{IN_DEFAULT}/three")
    put(parent, "one", "red")
    parent.request("DELETE", f"{IN_DEFAULT}/two")
    return before


def events(server: Server, version: int, selector: str, form: str) -> bytes:
    """Everything that a watch of three seconds brings."""
    path = f"{SLICES}?watch=true&resourceVersion={version}&timeoutSeconds=3{selector}"
    reply = server.request("GET", path, accept=form)
    assert reply.code == 200
    return reply.body


@pytest.mark.parametrize("form", FORMS)
def test_watches_from_before_the_list_have_the_parents_bytes(parent: Server, form: str) -> None:
    before = change(parent)
    with relaying(parent) as relay:
        until(lambda: relay.relay.front.knows_protobuf)
        assert relay.mirror(EndpointSlices).store.compacted > before
        for selector in SELECTORS:
            ours = events(relay, before, selector, form)
            assert ours == events(parent, before, selector, form)
            assert ours
        assert relay.mirror(EndpointSlices).earlier.fetched == len(SELECTORS)
        assert relay.relay.front._passage.passed.value == 0


def test_what_was_fetched_joins_the_stream(parent: Server) -> None:
    before = change(parent)
    with relaying(parent) as relay:
        path = f"{IN_DEFAULT}?watch=true&resourceVersion={before}&allowWatchBookmarks=true"
        with watching(relay, path) as stream:
            kinds = [stream.next() for _ in range(8)]
            assert kinds[-1]["type"] == "BOOKMARK", "what was fetched and the history end with one"
            version = put(parent, "later", "red")
            added = stream.next()
            assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "later")
        versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in kinds]
        assert versions == sorted(versions)
        assert len(set(versions[:-1])) == 7
        assert version > versions[-1]
    parent.request("DELETE", f"{IN_DEFAULT}/later")


def test_many_that_resume_cost_the_parent_few_watches(parent: Server) -> None:
    before = put(parent, "one", "red")
    for number in range(30):
        put(parent, "one", f"c{number}")
    newest = put(parent, "one", "red")
    with relaying(parent) as relay:
        mirror = relay.mirror(EndpointSlices)
        found: list[tuple[int, int]] = []

        def resume(version: int) -> None:
            path = f"{IN_DEFAULT}?watch=true&resourceVersion={version}"
            with watching(relay, path) as stream:
                first = int(stream.next()["object"]["metadata"]["resourceVersion"])
                found.append((version, first))

        threads = [threading.Thread(target=resume, args=(v,)) for v in range(before, newest)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [(version, version + 1) for version in range(before, newest)]
        assert mirror.earlier.fetched <= 3
        # Lists of the parent: the relay's own, and none for its children.
        assert mirror.store.compacted >= newest


def refused(relay: RelayServer, version: int) -> dict[str, Any]:
    path = f"{IN_DEFAULT}?watch=true&resourceVersion={version}"
    return dict(json.loads(relay.request("GET", path).body)["object"])


def test_more_events_than_memory_may_have_are_410(
    parent: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier.Earlier.__init__, "__defaults__", (1_000,))
    before = change(parent)
    with relaying(parent) as relay:
        assert refused(relay, before)["code"] == 410
        assert relay.mirror(EndpointSlices).earlier.failed == 1
        assert refused(relay, before - 1)["code"] == 410
        assert relay.mirror(EndpointSlices).earlier.failed == 1, "older versions are not tried"


def test_a_parent_without_the_version_is_410(parent: Server) -> None:
    before = change(parent)
    put(parent, "one", "blue")
    newest = put(parent, "one", "green")
    with relaying(parent) as relay:
        parent.plane.store.compact(newest)
        assert refused(relay, before)["code"] == 410


def test_a_parent_that_proves_nothing_is_410(
    parent: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bookmark and no later event: events may be missing, so none is sent."""
    monkeypatch.setattr(following, "FETCH_S_MAX", 0.5)
    before = change(parent)
    assert parent.request("POST", CM, config_map("later")).code == 201
    with relaying(parent) as relay:
        assert refused(relay, before)["code"] == 410
