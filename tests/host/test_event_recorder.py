"""Notes to Events: correlation by itself, and the recorder against a server that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sliceplane.api.core import Service
from sliceplane.api.errors import StatusError, internal
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Events, Services
from sliceplane.controllers.base import EventNote
from sliceplane.shell.events import PENDING_MAX, SPAM_BURST, Correlator, EventRecorder

NOW = 1_000_000.0


def note(text: str = "it failed", *, name: str = "s", uid: str = "u", namespace: str = "ns") -> EventNote:
    service = Service(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version="7"))
    return EventNote(
        regarding=service,
        regarding_resource=Services,
        type="Warning",
        reason="FailedToUpdateEndpointSlices",
        note=text,
        component="endpoint-slice-controller",
    )


def test_the_same_note_is_one_series() -> None:
    correlator = Correlator()
    first, second = correlator.on_note(note(), NOW), correlator.on_note(note(), NOW + 60)
    assert first is second
    assert first is not None
    assert (first.count, first.document["count"]) == (2, 2)
    assert first.document["firstTimestamp"] == "1970-01-12T13:46:40Z"
    assert first.document["lastTimestamp"] == "1970-01-12T13:47:40Z"


@pytest.mark.parametrize("other", [{"text": "otherwise"}, {"name": "t"}, {"uid": "v"}, {"namespace": "other"}])
def test_another_note_is_another_series_with_another_name(other: dict[str, str]) -> None:
    correlator = Correlator()
    first, second = correlator.on_note(note(), NOW), correlator.on_note(note(**other), NOW)
    assert first is not None
    assert second is not None
    assert first is not second
    assert first.document["metadata"] != second.document["metadata"]


def test_many_different_notes_are_combined() -> None:
    correlator = Correlator()
    series = [correlator.on_note(note(f"error {number}"), NOW) for number in range(15)]
    assert len({id(one) for one in series}) == 11
    assert series[-1] is not None
    assert series[-1].document["message"] == "(combined from similar events): error 14"
    assert series[-1].count == 5
    # After a quiet while notes are single again.
    later = correlator.on_note(note("error 99"), NOW + 3600)
    assert later is not None
    assert later.document["message"] == "error 99"


def test_one_object_cannot_flood() -> None:
    correlator = Correlator()
    taken = [correlator.on_note(note(), NOW + second) is not None for second in range(60)]
    assert taken.count(True) == SPAM_BURST
    assert correlator.on_note(note(name="another"), NOW + 60) is not None
    assert correlator.on_note(note(), NOW + 360) is not None


def test_messages_and_names_are_cut_to_what_servers_accept() -> None:
    series = Correlator().on_note(note("x" * 5000, name="n" * 253), NOW)
    assert series is not None
    assert len(series.document["message"]) == 1024
    assert len(series.document["metadata"]["name"]) <= 253


def test_objects_without_namespace_have_their_events_in_default() -> None:
    series = Correlator().on_note(note(namespace=""), NOW)
    assert series is not None
    assert series.document["metadata"]["namespace"] == "default"
    assert "namespace" not in series.document["involvedObject"]


@pytest.mark.looptime
async def test_a_failing_server_is_tried_again_and_counts_are_not_lost(api: Any, client: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    task = asyncio.create_task(recorder.run())
    api.fail(internal("boom"), "create", times=3)
    recorder.record(note())
    recorder.record(note())
    await asyncio.sleep(35)
    recorder.record(note())
    await asyncio.sleep(1)
    (document,) = (body for _, body in sorted(api._objects.items()))
    assert document["count"] == 3
    status = recorder.status()
    assert (status.pending, status.recorded, status.written, status.dropped) == (0, 3, 2, 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_a_lost_answer_does_not_make_two_events(api: Any, client: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    task = asyncio.create_task(recorder.run())
    client.lose_answers = 1
    recorder.record(note())
    await asyncio.sleep(60)
    assert len(api.objects(Events)) == 1
    assert recorder.status().pending == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_an_event_that_the_server_forgot_is_made_again(api: Any, client: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    task = asyncio.create_task(recorder.run())
    recorder.record(note())
    await asyncio.sleep(1)
    (name,) = api.objects(Events)
    api.remove(Events, *name.split("/"))
    recorder.record(note())
    await asyncio.sleep(1)
    assert [body["count"] for _, body in sorted(api._objects.items())] == [2]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_what_the_server_refuses_is_dropped(api: Any, client: Any, capsys: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    task = asyncio.create_task(recorder.run())
    api.fail(StatusError(403, "Forbidden", "namespace ns is being terminated"), "create")
    recorder.record(note())
    await asyncio.sleep(30)
    assert (recorder.status().dropped, recorder.status().pending) == (1, 0)
    assert "being terminated" in capsys.readouterr().err
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_recording_is_bounded_and_needs_nobody_to_write(api: Any, client: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    for number in range(PENDING_MAX + 100):
        recorder.record(note(name=f"s{number}"))
    assert (recorder.status().pending, recorder.status().dropped) == (PENDING_MAX, 100)
