"""A second controller of the same kind is noticed by its writes; a person, and a hand-over, are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices
from sliceplane.controllers.other_writers import (
    EDITS_MIN,
    PERIOD_S,
    READ_PAUSE_S,
    REPORT_PAUSE_S,
    SERVICES_MAX,
    OtherWriters,
)
from sliceplane.kit.times import format_time
from sliceplane.watch.controller.base import Done, EventNote

NOW = 1_790_000_000.0
META = ObjectMeta(namespace="shop", name="web-1")


def body(**ages: float) -> bytes:
    """An object, and how long ago each program wrote it."""
    entries = [
        {"manager": name.replace("_", "-"), "time": format_time(NOW - age)}
        for name, age in ages.items()
    ]
    return json.dumps({"metadata": {"name": "web-1", "managedFields": entries}}).encode()


def edited(others: OtherWriters, answer: bytes, now: float = NOW) -> EventNote | None:
    """An edit, our own write, the read, and its answer."""
    others.on_edit("shop/web", META, now)
    assert others.on_own_write("shop/web", now) is not None
    job = others.job(now)
    assert job is not None
    assert [(write.verb, write.name) for write in job.writes] == [("get", "web-1")]
    return others.on_done(Done(job, (answer,)), now)


def test_one_write_of_a_live_manager_is_enough() -> None:
    others = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    note = edited(others, body(kube_controller_manager=1.0, sliceplane_controllers=3.0))
    assert note is not None
    assert note.is_logged
    assert (note.type, note.reason, note.regarding.metadata.key) == (
        "Warning",
        "TwoControllers",
        "shop/web",
    )
    assert note.note.startswith("kube-controller-manager writes EndpointSlice web-1, as this")
    for after_s, is_due in ((REPORT_PAUSE_S - 1, False), (REPORT_PAUSE_S + 1, True)):
        others.on_edit("shop/web", META, NOW + after_s)
        delay_s = others.on_own_write("shop/web", NOW + after_s)
        assert (delay_s is not None) == is_due, "said once"


@pytest.mark.parametrize(
    "answer",
    [
        body(kube_controller_manager=PERIOD_S + 60, sliceplane_controllers=1.0),
        body(kubectl_edit=1.0),
        body(sliceplane=1.0, sliceplane_controllers=1.0),
        b"",
        b"[]",
        b'{"metadata":{}}',
    ],
)
def test_what_is_no_second_controller(answer: bytes) -> None:
    others = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    assert edited(others, answer) is None


def test_another_program_needs_several_edits_in_a_minute() -> None:
    others = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    notes = [
        edited(others, body(my_operator=-10.0 * turn), NOW + 10 * turn) for turn in range(EDITS_MIN)
    ]
    assert [note is not None for note in notes] == [False] * (EDITS_MIN - 1) + [True]
    slow = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    for turn in range(EDITS_MIN + 2):
        at = PERIOD_S * turn
        assert edited(slow, body(my_operator=-at), NOW + at) is None


def test_reads_are_few_whatever_the_number_of_edits() -> None:
    others = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    assert edited(others, body(kubectl=1.0)) is None
    delays: list[Any] = []
    for _ in range(100):
        others.on_edit("shop/web", META, NOW + 1.0)
        delays.append(others.on_own_write("shop/web", NOW + 1.0))
    assert delays == [READ_PAUSE_S - 1.0, *[None] * 99]


def test_an_edit_without_a_write_of_ours_is_nobodys_business() -> None:
    others = OtherWriters(EndpointSlices, "endpoint-slice-controller")
    assert others.on_own_write("shop/web", NOW) is None
    others.on_edit("shop/web", META, NOW)
    assert others.on_own_write("shop/api", NOW) is None
    assert others.on_own_write("shop/web", NOW + PERIOD_S + 1) is None
    for number in range(SERVICES_MAX + 10):
        others.on_edit(f"shop/web-{number}", META, NOW)
    assert len(others._edited) == SERVICES_MAX
