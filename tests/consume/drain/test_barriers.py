"""What a look at the drain barriers tells, from lists alone; in a browser: ``tests/ui``."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.discovery import ANNOTATION_DRAIN
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import ListPage, Selection
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, Resource
from sliceplane.consume.io import barriers
from sliceplane.consume.io.barriers import BarrierBook


class Lists:
    """A server of lists.  A member of ``refused`` may not be listed."""

    def __init__(self) -> None:
        self._versions = count(10)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.refused: set[str] = set()
        self.now = 1000.0

    def put(
        self, resource: Resource, name: str, *, namespace: str = "shop", **members: Any
    ) -> None:
        meta = {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "resourceVersion": str(next(self._versions)),
        }
        self.objects[resource.key, name] = {
            **members,
            "metadata": {**meta, **members.get("metadata", {})},
        }

    def pod(self, name: str, *, leaves: bool = True, uid: str = "") -> None:
        annotations = {ANNOTATION_DRAIN: "true"} if leaves else {}
        self.put(
            Pods,
            name,
            metadata={"annotations": annotations, "uid": uid or name},
            spec={"nodeName": "n-1", "containers": []},
            status={"podIP": "10.0.0.1"},
        )

    async def list(self, selection: Selection, **_: Any) -> ListPage:
        key = selection.resource.key
        if key in self.refused:
            raise StatusError(403, "Forbidden", f"may not list {key}")
        bodies = tuple(
            encode(item) for (kind, _), item in sorted(self.objects.items()) if kind == key
        )
        return ListPage(bodies, str(next(self._versions)))

    async def look(self, book: BarrierBook) -> dict[str, Any]:
        client: Any = self
        self.now += 1
        return await book.refresh(client, lambda: self.now)


@pytest.fixture
def lists() -> Lists:
    made = Lists()
    made.put(
        Nodes, "n-1", namespace="", status={"conditions": [{"type": "Ready", "status": "True"}]}
    )
    return made


async def test_a_pod_that_leaves_and_then_vanishes(
    lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barriers, "ENDED_MAX", 1)
    book = BarrierBook()
    lists.pod("web", leaves=False)
    assert await lists.look(book) == {"going": [], "more": 0, "ended": [], "notLookedAt": []}
    lists.pod("web")
    (row,) = (await lists.look(book))["going"]
    assert (row["pod"], row["node"], row["state"], row["since"]) == (
        "shop/web",
        "n-1",
        "cannot know",
        lists.now,
    )
    assert row["waitingFor"] == ["n-1 (it never reported)"]
    since = lists.now
    assert (await lists.look(book))["going"][0]["since"] == since
    lists.pod("web", uid="another")
    assert (await lists.look(book))["going"][0]["since"] == lists.now, (
        "another Pod of that name begins anew"
    )
    del lists.objects[Pods.key, "web"]
    lists.pod("api")
    told = await lists.look(book)
    assert [row["pod"] for row in told["going"]] == ["shop/api"]
    assert [(row["pod"], row["until"]) for row in told["ended"]] == [("shop/web", lists.now)]
    lists.pod("api", leaves=False)
    assert [row["pod"] for row in (await lists.look(book))["ended"]] == ["shop/api"], (
        "so many are remembered"
    )
    lists.pod("api")
    assert (await lists.look(book))["ended"] == [], "who leaves again has not ended"


async def test_what_may_not_be_read_is_said(lists: Lists) -> None:
    lists.refused = {Leases.key, Nodes.key}
    lists.pod("web")
    told = await lists.look(BarrierBook())
    assert told["notLookedAt"] == ["may not list nodes", "may not list leases.coordination.k8s.io"]
    blind = "every node (no right to list and watch leases in kube-node-lease)"
    assert told["going"][0]["waitingFor"][-1] == blind
    lists.refused = {EndpointSlices.key}
    with pytest.raises(StatusError):
        await lists.look(BarrierBook())
