"""Notes to Events and series: what is one, when it is written, and what cannot be flooded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.effort import machine

from sliceplane.api.codec import decode_document
from sliceplane.api.core import Node, Service
from sliceplane.api.meta import Document, Object, ObjectMeta
from sliceplane.api.scheme import EventsV1, Nodes, Services
from sliceplane.server.documents.conversion import to_stored
from sliceplane.server.registry.verbs.answers import validate_create
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.controller.events import (
    FINISHED_AFTER_S,
    PENDING_MAX,
    REMEMBERED_MAX,
    RETRY_PERIOD_S,
    SERIES_BACKOFF,
    SIMILAR_MAX,
    SPAM_BURST,
    TRIES_MAX,
    EventCorrelator,
    EventWrite,
    Outcome,
    cut,
)

NOW = 1_000_000.0


def note(
    text: str = "it failed",
    *,
    name: str = "s",
    uid: str = "u",
    namespace: str = "ns",
    version: str = "7",
    reason: str = "FailedToUpdateEndpointSlices",
    **over: Any,
) -> EventNote:
    service = Service(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version)
    )
    members = {"component": "endpoint-slice-controller", "type": "Warning", **over}
    return EventNote(
        regarding=service, regarding_resource=Services, reason=reason, note=text, **members
    )


@pytest.fixture
def correlator() -> EventCorrelator:
    return EventCorrelator("host")


def write_all(
    correlator: EventCorrelator, now: float, outcome: Outcome = "written"
) -> list[tuple[str, Document]]:
    """Everything that is due, as (verb, body)."""
    found = []
    while (write := correlator.take_write(now)) is not None:
        correlator.on_outcome(outcome, now)
        correlator.check()
        found.append((write.verb, decode_document(write.body)))
    return found


def test_a_new_note_is_written_at_once_and_is_what_the_api_wants(
    correlator: EventCorrelator,
) -> None:
    correlator.on_note(note(), NOW)
    ((verb, document),) = write_all(correlator, NOW)
    assert verb == "create"
    assert document == {
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"name": "s.38d7ea4c68000", "namespace": "ns"},
        "eventTime": "1970-01-12T13:46:40.000000Z",
        "reportingController": "endpoint-slice-controller",
        "reportingInstance": "endpoint-slice-controller-host",
        "action": "Reconcile",
        "reason": "FailedToUpdateEndpointSlices",
        "regarding": {
            "kind": "Service",
            "namespace": "ns",
            "name": "s",
            "uid": "u",
            "apiVersion": "v1",
            "resourceVersion": "7",
        },
        "note": "it failed",
        "type": "Warning",
    }
    assert validate_create(EventsV1, to_stored(EventsV1, document)) == []
    assert correlator.idle
    assert correlator.next_deadline() is None


def test_the_same_note_again_is_a_series_written_ever_more_seldom(
    correlator: EventCorrelator,
) -> None:
    writes = []
    for second in range(3600):
        correlator.on_note(note(version=str(second)), NOW + second)
        writes += [(second, verb, body) for verb, body in write_all(correlator, NOW + second)]
    assert [verb for _, verb, _ in writes] == ["create", *["patch"] * (len(writes) - 1)]
    assert [second for second, _, _ in writes][:6] == [0, 1, 6, 16, 36, 76]
    assert max(b - a for (a, _, _), (b, _, _) in pairwise(writes)) == SERIES_BACKOFF.cap_s
    assert len(writes) < 20
    assert writes[1][2] == {
        "series": {"count": 2, "lastObservedTime": "1970-01-12T13:46:41.000000Z"}
    }
    # the last of them are told when their pause is over
    due = correlator.next_deadline()
    assert due is not None
    ((_, last),) = write_all(correlator, due)
    assert last["series"] == {"count": 3600, "lastObservedTime": "1970-01-12T14:46:39.000000Z"}
    assert correlator.status().suppressed == 0


def test_a_series_that_rested_is_over(correlator: EventCorrelator) -> None:
    names = []
    for moment in (0.0, FINISHED_AFTER_S, 2 * FINISHED_AFTER_S + 1):
        correlator.on_note(note(), NOW + moment)
        names += [
            body["metadata"]["name"]
            for verb, body in write_all(correlator, NOW + moment)
            if verb == "create"
        ]
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"text": "otherwise"},
        {"name": "t"},
        {"uid": "v"},
        {"namespace": "other"},
        {"reason": "Other"},
        {"type": "Normal"},
        {"action": "Listen"},
        {"component": "other"},
        {"related": Object(metadata=ObjectMeta(name="n", uid="n")), "related_resource": Nodes},
    ],
)
def test_another_note_is_another_event_with_another_name(
    correlator: EventCorrelator, other: dict[str, Any]
) -> None:
    correlator.on_note(note(), NOW)
    correlator.on_note(note(**other), NOW)
    (_, first), (_, second) = write_all(correlator, NOW)
    assert first["metadata"] != second["metadata"]
    assert second.get("related", {}).get("kind") == ("Node" if "related" in other else None)


def test_many_different_notes_are_combined(correlator: EventCorrelator) -> None:
    for number in range(15):
        correlator.on_note(note(f"error {number}"), NOW)
    written = [body for _, body in write_all(correlator, NOW)]
    assert len(written) == SIMILAR_MAX + 1
    assert written[-1]["note"] == "(combined from similar events): error 10"
    assert written[-1]["series"]["count"] == 5
    correlator.on_note(note("error 99"), NOW + 3600)
    assert [body["note"] for _, body in write_all(correlator, NOW + 3600)] == ["error 99"]


def test_one_object_cannot_flood(correlator: EventCorrelator) -> None:
    for number in range(60):
        correlator.on_note(note(reason=f"R{number}"), NOW)
    correlator.on_note(note(name="another"), NOW)
    assert len(write_all(correlator, NOW)) == SPAM_BURST + 1
    assert correlator.status().suppressed == 60 - SPAM_BURST
    correlator.on_note(note(reason="R100"), NOW + 301)
    assert len(write_all(correlator, NOW + 301)) == 1


@pytest.mark.parametrize("letter", ["x", "ä", "€", "🐍"])
def test_texts_are_cut_to_the_bytes_that_servers_accept(
    correlator: EventCorrelator, letter: str
) -> None:
    correlator.on_note(
        note(letter * 5000, name="n" * 253, reason="R" * 200, component="c" * 60), NOW
    )
    ((_, document),) = write_all(correlator, NOW)
    assert len(document["metadata"]["name"]) <= 253
    assert 1020 < len(document["note"].encode()) <= 1024
    assert validate_create(EventsV1, to_stored(EventsV1, document)) == []
    assert cut("€€", 5) == "€"


def test_objects_without_namespace_have_their_events_in_default(
    correlator: EventCorrelator,
) -> None:
    node = EventNote(
        regarding=Node(metadata=ObjectMeta(name="n")),
        regarding_resource=Nodes,
        type="Normal",
        reason="R",
        note="",
        component="c",
    )
    correlator.on_note(node, NOW)
    ((_, document),) = write_all(correlator, NOW)
    assert document["metadata"]["namespace"] == "default"
    assert "namespace" not in document["regarding"]


def test_a_series_that_the_server_forgot_is_made_again_with_its_count(
    correlator: EventCorrelator,
) -> None:
    correlator.on_note(note(), NOW)
    write_all(correlator, NOW)
    correlator.on_note(note(), NOW + 1)
    patch = correlator.take_write(NOW + 1)
    assert patch is not None
    correlator.on_outcome("missing", NOW + 1)
    ((verb, document),) = write_all(correlator, NOW + 1)
    assert (verb, document["series"]["count"], document["metadata"]["name"]) == (
        "create",
        2,
        patch.name,
    )


def test_a_lost_answer_does_not_make_two_events(correlator: EventCorrelator) -> None:
    correlator.on_note(note(), NOW)
    assert write_all(correlator, NOW, "later")[0][0] == "create"
    correlator.on_note(note(), NOW + 1)
    assert correlator.take_write(NOW + RETRY_PERIOD_S - 1) is None, (
        "a server in trouble is given time"
    )
    write = correlator.take_write(NOW + RETRY_PERIOD_S)
    assert write is not None
    assert write.verb == "create"
    correlator.on_outcome("exists", NOW + RETRY_PERIOD_S)
    ((verb, body),) = write_all(correlator, NOW + RETRY_PERIOD_S)
    assert (verb, body["series"]["count"]) == ("patch", 2)


def test_tries_end(correlator: EventCorrelator) -> None:
    correlator.on_note(note(), NOW)
    now, tries = NOW, 0
    while (due := correlator.next_deadline()) is not None:
        now = due
        tries += len(write_all(correlator, now, "later"))
    assert tries == TRIES_MAX
    assert correlator.status().dropped == 1


def test_everything_is_bounded(correlator: EventCorrelator) -> None:
    for number in range(REMEMBERED_MAX + 10):
        correlator.on_note(note(name=f"s{number}"), NOW + number)
        if number % 100 == 0:
            correlator.check()
    assert correlator.status().pending == PENDING_MAX
    assert correlator.status().dropped == REMEMBERED_MAX + 10 - PENDING_MAX
    assert len(write_all(correlator, NOW + 1e6)) == PENDING_MAX


def test_before_the_end_everything_is_due(correlator: EventCorrelator) -> None:
    for second in range(3):
        correlator.on_note(note(), NOW + second)
        write_all(correlator, NOW + second)
    assert not correlator.idle
    correlator.hurry(NOW + 2)
    ((_, body),) = write_all(correlator, NOW + 2)
    assert body["series"]["count"] == 3
    assert correlator.idle


class AgainstServer(RuleBasedStateMachine):
    """A server that fails, forgets and loses answers.  When all is calm, no note is missing and
    none counts twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.correlator = EventCorrelator("host")
        self.now = NOW
        self.server: dict[str, Document] = {}
        self.forgotten: set[str] = set()
        self.noted = 0

    @rule(name=st.sampled_from("ab"), text=st.sampled_from("xyz"), again=st.integers(1, 3))
    def takes_note(self, name: str, text: str, again: int) -> None:
        for _ in range(again):
            self.correlator.on_note(note(text, name=name), self.now)
            self.noted += 1

    @rule(seconds=st.sampled_from((0.01, 1.0, 60.0, 400.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(fate=st.sampled_from(("well", "well", "not done", "answer lost", "refused")))
    def writes(self, fate: str) -> None:
        write = self.correlator.take_write(self.now)
        if write is not None:
            self.perform(write, fate)

    @precondition(lambda self: self.server)
    @rule(which=st.integers(0, 9))
    def server_forgets(self, which: int) -> None:
        name = sorted(self.server)[which % len(self.server)]
        del self.server[name]
        self.forgotten.add(name)

    def perform(self, write: EventWrite, fate: str) -> None:
        outcome: Outcome = "later"
        if fate == "refused":
            outcome = "refused"
            self.forgotten.add(write.name)
        elif fate != "not done":
            outcome = "written"
            body = decode_document(write.body)
            if write.verb == "create" and write.name in self.server:
                outcome = "exists"
            elif write.verb == "create":
                self.server[write.name] = body
            elif write.name not in self.server:
                outcome = "missing"
            else:
                assert body["series"]["count"] >= self.counts(write.name), "a count goes back"
                self.server[write.name].update(body)
        self.correlator.on_outcome("later" if fate == "answer lost" else outcome, self.now)

    def counts(self, name: str) -> int:
        count: int = self.server[name].get("series", {}).get("count", 1)
        return count

    @invariant()
    def is_sound(self) -> None:
        self.correlator.check()

    def teardown(self) -> None:
        while (due := self.correlator.next_deadline()) is not None:
            self.now = max(self.now, due)
            write = self.correlator.take_write(self.now)
            assert write is not None, f"nothing at the deadline {due}"
            self.perform(write, "well")
        assert self.correlator.idle
        told = sum(self.counts(name) for name in self.server)
        status = self.correlator.status()
        assert told <= self.noted - status.suppressed
        if not self.forgotten and not status.dropped:
            assert told == self.noted - status.suppressed


TestAgainstServer = AgainstServer.TestCase
TestAgainstServer.settings = machine(80)
