"""Marks of a drain, and that they are taken back while the server is away for a moment."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.consume.drain.answer import GATE
from sliceplane.consume.io import drain_marks
from sliceplane.consume.io.drain_marks import TAKE_BACK_MAX_S, DrainMarks
from sliceplane.watch.io.base import Unreachable


class Server:
    """Applies patches, after the faults that come first."""

    def __init__(self, *faults: Exception | None) -> None:
        self.faults = list(faults)
        self.annotated: dict[str, str | None] = {}
        self.gates: dict[str, str] = {}
        self.delay = asyncio.Event()
        self.delay.set()

    async def perform(self, write: Write) -> bytes:
        await self.delay.wait()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        body = json.loads(write.body)
        if write.subresource:
            self.gates[write.name] = body["status"]["conditions"][0]["status"]
        else:
            self.annotated[write.name] = body["metadata"]["annotations"]["sliceplane.dev/drain"]
        return b"{}"

    def marked(self) -> list[str]:
        return [name for name, value in self.annotated.items() if value]


def pod(name: str, **more: Any) -> Pod:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "shop", "uid": name}, **more}, Pod
    )


def gated(status: str, reason: str = "") -> dict[str, Any]:
    condition = {"type": GATE, "status": status, "reason": reason}
    return {
        "spec": {"readinessGates": [{"conditionType": GATE}]},
        "status": {"conditions": [condition]},
    }


def marks_of(server: Server, clock: Any = None) -> DrainMarks:
    return DrainMarks(server, clock or asyncio.get_running_loop().time)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_marks, "_PAUSE_MIN_S", 0.0)


async def test_marks_are_set_and_taken_back_with_the_gate() -> None:
    server = Server()
    marks = marks_of(server)
    for name, more in (("plain", {}), ("open", gated("True")), ("shut", gated("False", "App"))):
        await marks.set(pod(name, **more))
    assert (server.marked(), server.gates) == (["plain", "open", "shut"], {"open": "False"})
    assert await marks.take_back() == ()
    assert (server.marked(), server.gates) == ([], {"open": "True"}), (
        "the application's own word stays"
    )


async def test_a_mark_of_another_drain_stays_unless_it_is_adopted() -> None:
    server = Server()
    before = pod("p", **gated("False", "Drain"))
    marks = marks_of(server)
    await marks.set(before)
    assert (await marks.take_back(), server.annotated, server.gates) == ((), {}, {})
    marks.adopt(before)
    assert (await marks.take_back(), server.annotated, server.gates) == (
        (),
        {"p": None},
        {"p": "True"},
    )


async def test_a_server_that_is_away_for_a_moment_is_asked_again() -> None:
    server = Server(
        None,
        Unreachable("away"),
        StatusError(503, "ServiceUnavailable", "later"),
        Unreachable("away"),
    )
    marks = marks_of(server)
    await marks.set(pod("p"))
    assert await marks.take_back() == ()
    assert server.annotated == {"p": None}


async def test_pods_that_stay_marked_are_named_when_the_time_is_over() -> None:
    server = Server(None, None, *[Unreachable("away")] * 1000)
    times = iter(range(0, 10_000, int(TAKE_BACK_MAX_S) // 5))
    marks = marks_of(server, lambda: float(next(times)))
    await marks.set(pod("a"))
    await marks.set(pod("b"))
    assert await marks.take_back() == ("shop/a", "shop/b")
    assert len(server.faults) > 900, "it gives up"


async def test_what_may_not_be_taken_back_is_named_at_once_and_the_others_are() -> None:
    server = Server(None, None, StatusError(403, "Forbidden", "no"), None)
    marks = marks_of(server)
    await marks.set(pod("a"))
    await marks.set(pod("b"))
    assert await marks.take_back() == ("shop/a",)
    assert server.annotated["b"] is None


@pytest.mark.parametrize("reason", ["NotFound", "Conflict", "Invalid"])
async def test_a_pod_that_is_gone_or_another_needs_none(reason: str) -> None:
    server = Server(None, StatusError(404, reason, "gone"))
    marks = marks_of(server)
    await marks.set(pod("p"))
    assert await marks.take_back() == ()


async def test_a_refused_mark_is_no_mark() -> None:
    marks = marks_of(Server(StatusError(403, "Forbidden", "no")))
    with pytest.raises(StatusError):
        await marks.set(pod("p"))
    assert marks.marked == ()


async def test_a_mark_that_is_under_way_when_the_drain_is_cancelled_is_taken_back_after_it() -> (
    None
):
    server = Server()
    server.delay.clear()
    marks = marks_of(server)
    setting = asyncio.create_task(marks.set(pod("p")))
    while not marks.marked:
        await asyncio.sleep(0)
    setting.cancel()
    await asyncio.gather(setting, return_exceptions=True)
    taking = asyncio.create_task(marks.take_back())
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.annotated == {}, "nothing overtakes the request that sets it"
    server.delay.set()
    assert (await taking, server.annotated) == ((), {"p": None})
