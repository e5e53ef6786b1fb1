"""The recorder against a server that fails; what it writes is decided in
``watch.controller.events``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sliceplane.api.core import Service
from sliceplane.api.errors import StatusError, internal
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EventsV1, Services
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.controller.events import PENDING_MAX
from sliceplane.watch.io.events import EventRecorder


def note(text: str = "it failed", *, name: str = "s") -> EventNote:
    service = Service(metadata=ObjectMeta(name=name, namespace="ns", uid="u", resource_version="7"))
    return EventNote(
        regarding=service,
        regarding_resource=Services,
        type="Warning",
        reason="FailedToUpdateEndpointSlices",
        note=text,
        component="endpoint-slice-controller",
    )


@asynccontextmanager
async def running(client: Any) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, clock=client.clock)
    task = asyncio.create_task(recorder.run())
    yield recorder
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def bodies(api: Any) -> list[Any]:
    return [body for _, body in sorted(api._objects.items())]


@pytest.mark.looptime
async def test_a_failing_server_is_tried_again_and_counts_are_not_lost(
    api: Any, client: Any
) -> None:
    async with running(client) as recorder:
        api.fail(internal("boom"), "create", times=3)
        recorder.record(note())
        recorder.record(note())
        await asyncio.sleep(35)
        recorder.record(note())
        await asyncio.sleep(10)
        (document,) = bodies(api)
        assert document["series"]["count"] == 3
        status = recorder.status()
        assert (status.pending, status.recorded, status.written, status.dropped) == (0, 3, 2, 0)


@pytest.mark.looptime
async def test_a_lost_answer_does_not_make_two_events(api: Any, client: Any) -> None:
    async with running(client) as recorder:
        client.lose_answers = 1
        recorder.record(note())
        await asyncio.sleep(60)
        assert len(api.objects(EventsV1)) == 1
        assert recorder.status().pending == 0


@pytest.mark.looptime
async def test_an_event_that_the_server_forgot_is_made_again(api: Any, client: Any) -> None:
    async with running(client) as recorder:
        recorder.record(note())
        await asyncio.sleep(1)
        (name,) = api.objects(EventsV1)
        api.remove(EventsV1, *name.split("/"))
        recorder.record(note())
        await asyncio.sleep(1)
        assert [body["series"]["count"] for body in bodies(api)] == [2]


@pytest.mark.looptime
async def test_flushing_writes_counts_that_would_have_waited(api: Any, client: Any) -> None:
    async with running(client) as recorder:
        for _ in range(3):
            recorder.record(note())
            await asyncio.sleep(0.1)
        assert bodies(api)[0]["series"]["count"] == 2
        await recorder.flush()
        assert bodies(api)[0]["series"]["count"] == 3


@pytest.mark.looptime
async def test_what_the_server_refuses_is_dropped(api: Any, client: Any, capsys: Any) -> None:
    async with running(client) as recorder:
        api.fail(StatusError(403, "Forbidden", "no rights at all"), "create")
        recorder.record(note())
        await asyncio.sleep(1)
        assert "no rights at all" in capsys.readouterr().err
        ending = {"causes": [{"reason": "NamespaceTerminating"}]}
        api.fail(
            StatusError(403, "Forbidden", "namespace ns is being terminated", ending), "create"
        )
        recorder.record(note("otherwise"))
        await asyncio.sleep(30)
        assert (recorder.status().dropped, recorder.status().pending) == (2, 0)
        assert capsys.readouterr().err == "", "a namespace on its way out is no news"


async def test_recording_is_bounded_and_needs_nobody_to_write(api: Any, client: Any) -> None:
    recorder = EventRecorder(client, clock=client.clock)
    for number in range(PENDING_MAX + 100):
        recorder.record(note(name=f"s{number}"))
    assert (recorder.status().pending, recorder.status().dropped) == (PENDING_MAX, 100)
