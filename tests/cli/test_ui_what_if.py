"""The page's what-if is the command's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.lab.whatif.asked import ask, cart_snapshot

from sliceplane.cli.lab import what_if
from sliceplane.cli.query import ui_what_if
from sliceplane.cli.query.ui_what_if import predict_service
from sliceplane.diagnose.trace.question import Unanswerable
from sliceplane.lab.whatif.document import as_document
from sliceplane.lab.whatif.state import ClusterState, of_snapshot


def state() -> ClusterState:
    return of_snapshot(cart_snapshot().splitlines(keepends=True), "test")


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> tuple[ClusterState, str]:
        return state(), "default"

    monkeypatch.setattr(what_if, "read_cluster", read)


def answered(*settings: str, name: str = "cart") -> dict[str, Any]:
    client: Any = None
    document: dict[str, Any] = asyncio.run(predict_service(client, "default", name, settings))
    return document


@pytest.mark.parametrize(
    "settings", [("zone-lost=zone-a",), ("replicas=40", "traffic-distribution=PreferSameZone")]
)
def test_it_answers_as_the_command_does(settings: tuple[str, ...]) -> None:
    document, known = answered(*settings), ask(state(), *settings)
    assert {name: document[name] for name in as_document(known)} == as_document(known)
    assert document["bad"] == known.is_worse
    assert document["judgement"][-1].startswith("Cost:")
    assert document["sent"][-1][1:] == (known.written.json, known.written.protobuf)
    assert document["sent"] == sorted(document["sent"])


def test_a_curve_has_an_end_and_so_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_what_if, "POINTS_MAX", 3)
    document = answered("rollout=yes")
    assert document["written"]["events"] > 8
    assert len(document["sent"]) <= 4
    assert document["sent"][-1][1] == document["written"]["bytes"]["json"]


@pytest.mark.parametrize(
    ("setting", "name", "sentence"),
    [
        (
            "replicas=501",
            "cart",
            "501 endpoints are more than the 500 that the page works out: the command does",
        ),
        ("replica=3", "cart", "'replica' is nothing that can be set; is replicas meant?"),
        (
            "zone-lost=zone-x",
            "cart",
            "there is no Node in zone zone-x; is zone-a or zone-b or zone-c meant?",
        ),
        ("rollout=yes", "carts", "there is no Service default/carts; is default/cart meant?"),
    ],
)
def test_why_there_is_no_answer(setting: str, name: str, sentence: str) -> None:
    with pytest.raises(Unanswerable) as error:
        answered(setting, name=name)
    assert str(error.value) == sentence


def test_a_large_cluster_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_what_if, "OBJECTS_MAX", 10)
    with pytest.raises(Unanswerable, match="objects are more than the 10 that the page works out"):
        answered("rollout=yes")
