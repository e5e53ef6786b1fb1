"""The page's model: sums, rows and activity are what the slices say, whatever happened before."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.diagnose.drift.test_relay_tree import HEALTHY, NOW, lease, served
from tests.effort import effort

from sliceplane.api.discovery import EndpointConditions, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectMeta
from sliceplane.diagnose.drift.relays import relay_tree
from sliceplane.diagnose.page.model import BUCKET_S, BUCKETS, ClusterModel, state_of
from sliceplane.diagnose.page.views import Answered, Views
from sliceplane.watch.cache import Change

SERVICES = ("web", "api", "")
RELAY = lease(
    replace(HEALTHY, **served(0.4, 12), nodes=960),
    replace(HEALTHY, name="eu-1", below="eu", zone="zone-a", heard=NOW - 300, is_late=True),
)


def piece(name: str, service: str, *states: str) -> EndpointSlice:
    """An EndpointSlice with an endpoint for each of *states*."""
    conditions = {
        "ready": EndpointConditions(ready=True),
        "not ready": EndpointConditions(ready=False),
        "terminating": EndpointConditions(ready=False, serving=True, terminating=True),
        "stopped": EndpointConditions(ready=False, serving=False, terminating=True),
    }
    endpoints = tuple(
        SliceEndpoint(addresses=(f"{name}-{at}",), conditions=conditions[state], zone="z1")
        for at, state in enumerate(states)
    )
    labels = {"kubernetes.io/service-name": service} if service else None
    return EndpointSlice(
        metadata=ObjectMeta(name=name, namespace="n", labels=labels), endpoints=endpoints
    )


states = st.lists(st.sampled_from(["ready", "not ready", "terminating", "stopped"]), max_size=4)


@effort(60)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.tuples(st.sampled_from(SERVICES), states))
    )
)
def test_sums_are_those_of_the_slices(
    history: list[tuple[str, tuple[str, list[str]] | None]],
) -> None:
    model = ClusterModel()
    held: dict[str, EndpointSlice] = {}
    for name, wanted in history:
        new = None if wanted is None else piece(name, wanted[0], *wanted[1])
        if new is None and name not in held:
            continue
        model.on_slices([Change("slices", held.pop(name, None), new)], 100.0, is_news=True)
        if new is not None:
            held[name] = new
        for service in ("n/web", "n/api"):
            of_service = [
                item
                for item in held.values()
                if (item.metadata.labels or {}).get("kubernetes.io/service-name") == service[2:]
            ]
            counted = Counter(
                state_of(endpoint) for item in of_service for endpoint in item.endpoints or ()
            )
            assert +Counter(model.sums(service).states) == +counted
            assert model.slices(service) == sorted(of_service, key=lambda item: item.metadata.name)
        model.check()


def test_rows_are_made_once_for_a_version_of_a_slice() -> None:
    model, item = ClusterModel(), piece("a", "web", "ready")
    model.on_slices([Change("slices", None, item)], 0.0, is_news=False)
    assert model.rows(item) is model.rows(item)
    model.on_slices(
        [Change("slices", item, other := piece("a", "web", "not ready"))], 0.0, is_news=True
    )
    assert [row[2] for row in model.rows(other)] == ["not ready"]


def test_changes_close_together_are_one_line_of_activity() -> None:
    model = ClusterModel()
    first, second, third = (
        piece("a", "web", "ready"),
        piece("a", "web", "ready", "ready"),
        piece("a", "web", "not ready"),
    )
    model.on_slices([Change("slices", None, first)], 10.0, is_news=False)
    assert not model.activity
    model.on_slices([Change("slices", first, second)], 100.0, is_news=True)
    model.on_slices([Change("slices", second, third)], 103.0, is_news=True)
    assert [(entry.at, entry.until, entry.name, entry.what) for entry in model.activity] == [
        (100.0, 103.0, "n/web", (("ready", -1), ("not ready", 1)))
    ]
    model.on_slices([Change("slices", third, first)], 200.0, is_news=True)
    assert [entry.at for entry in model.activity] == [200.0, 100.0]
    assert model.changes("n/web", 200.0)[-1] == 1
    assert sum(model.changes("n/web", 100.0 + BUCKET_S * (BUCKETS - 1))) == 3
    assert model.changes("n/web", 10_000.0) == ()


def test_a_view_without_an_answer_says_so_and_one_with_a_problem_names_it() -> None:
    model = ClusterModel()
    views = Views(model, "shop")
    assert views.now(None, None, None, ()).parts["lint"] is None
    view = views.now(Answered(5.0, None, "the server refuses: no"), None, None, ())
    assert view.parts["lint"] == {"at": 5.0, "answer": None, "problem": "the server refuses: no"}
    assert view.command == "sliceplane status -n shop"
    drift = Answered(
        1.0,
        {
            "nodes": [
                {
                    "node": "n1",
                    "state": "behind",
                    "revision": 7,
                    "objectsBehind": 2,
                    "secondsBehind": 9.4,
                    "secondsSinceReport": 1.0,
                    "cache": "equal",
                    "kernel": "not looked at",
                },
            ],
            "relays": [row.as_document() for row in relay_tree([RELAY], NOW)],
            "findings": [],
            "notLookedAt": [],
        },
    )
    relays = views.nodes(drift).tables["relays"]
    assert relays.rows == [
        ("eu", "ready", 1, 0.4, 12, 960, "https://10.0.0.1:6443", "", 8.0),
        ("eu-1", "stopped", 2, 0.0, 0, 0, "eu", "zone-a", 300.0),
    ]
    counted = views.now(None, drift, None, ()).parts["freshness"]["relays"]
    assert counted == {"ready": 1, "stopped": 1}
    table = views.nodes(drift).tables["nodes"]
    assert table.rows == [
        ("n1", "behind", "", "no Node", 7, 1.0, "2 objects, 9 s", "equal", "not looked at")
    ]
