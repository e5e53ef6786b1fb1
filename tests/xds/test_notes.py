"""What Services are told by Events, each thing once for as long as it is so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.xds.worlds import service

from sliceplane.watch.controller.base import EventNote
from sliceplane.xds.io.notes import SERVICES_MAX, ServiceNotes

CACHE = {
    f"default/{name}": service(name) for name in ("web", *(f"web-{number}" for number in range(10)))
}


class Recorder:
    def __init__(self) -> None:
        self.notes: list[EventNote] = []
        self.of = ServiceNotes(cast("Any", self), cast("Any", SimpleNamespace(cache=CACHE)))

    def record(self, note: EventNote) -> None:
        self.notes.append(note)

    def take(self) -> list[tuple[str, str, str]]:
        taken = [(note.regarding.metadata.name, note.reason, note.note) for note in self.notes]
        self.notes.clear()
        return taken


def test_a_refusal_is_told_of_the_services_that_are_there_and_of_few() -> None:
    recorder = Recorder()
    recorder.of.on_refusal(
        ["default/web", "default/gone", "default/web"], "envoy", "no such policy"
    )
    assert recorder.take() == [
        ("web", "XdsRefused", "envoy refuses an xDS resource of this Service: no such policy")
    ]
    recorder.of.on_refusal(sorted(CACHE), "grpc", "x" * 10_000)
    told = recorder.take()
    assert len(told) == SERVICES_MAX
    assert max(len(text) for _, _, text in told) == 500


def test_a_service_that_is_too_large_is_told_once_until_it_is_so_again() -> None:
    recorder = Recorder()
    for _ in range(2):
        recorder.of.on_too_large({"default/web:http": "default/web"})
    sentence = (
        "default/web:http has more endpoints than fit into one message: the last of each "
        "zone are omitted"
    )
    assert recorder.take() == [("web", "XdsTooLarge", sentence)]
    recorder.of.on_too_large({})
    recorder.of.on_too_large({"default/web:http": "default/web"})
    assert len(recorder.take()) == 1


def test_an_annotation_that_is_not_heeded_is_told_when_it_comes() -> None:
    recorder = Recorder()
    for problems in (["first"], ["first"], ["first", "second"], [], ["first"]):
        recorder.of.on_problems("default/web", problems)
    assert [text for _, reason, text in recorder.take() if reason == "XdsNotHeeded"] == [
        "first",
        "second",
        "first",
    ]
