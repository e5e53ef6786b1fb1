"""Reports on demand in a server's memory: who is asked for what, and what a barrier hears; without
sockets.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import PROGRESS_PATH
from sliceplane.consume.drain.reports import (
    CONSUMERS_MAX,
    BarrierAnswer,
    BarrierQuestion,
    ConsumerAnswer,
    ConsumerPost,
    Reports,
    Versions,
    barrier_answers,
    consumer_answers,
    versions_of,
)
from sliceplane.consume.progress import AppliedRevision, ProgressReport
from sliceplane.server.io.requests.reports import ReportService, rights

NODE = "kube-node-lease/sliceplane-proxy-n1"


def told(version: int, reading: str = "all") -> ProgressReport:
    return ProgressReport({reading: AppliedRevision(version, "")})


def asked(version: int, reading: str = "all", wait_s: float = 1.0) -> BarrierQuestion:
    return BarrierQuestion(Versions({reading: version}), wait_seconds=wait_s)


def test_a_consumer_is_asked_for_what_it_has_not_told_as_long_as_a_barrier_asks() -> None:
    reports = Reports(100)
    assert reports.answer_consumer(NODE, 0.0) is None
    reports.on_report(NODE, told(7))
    reports.on_question(asked(7), 0.0)
    assert reports.answer_consumer(NODE, 0.0) is None, "it holds that"
    reports.on_question(asked(9), 0.0)
    reports.on_question(asked(8), 0.5)
    assert reports.answer_consumer(NODE, 1.0) == ConsumerAnswer(Versions({"all": 9}))
    assert reports.answer_consumer("sliceplane-proxy-n2", 1.0) is None, "it never told"
    assert reports.answer_consumer(NODE, 2.5) is None, "all who asked went away"
    reports.on_report(NODE, told(9))
    reports.on_question(asked(9), 2.5)
    assert reports.answer_consumer(NODE, 2.5) is None


@pytest.mark.parametrize(
    ("reading", "wanted"),
    [
        ("all", 20),
        ("for-zone-a", 20),
        ("service/shop/web", 12),
        ("service/shop/other", 11),
        ("service/store/web", 0),
    ],
)
def test_a_barrier_wants_of_each_reading_what_could_show_the_pod(reading: str, wanted: int) -> None:
    reports = Reports(0)
    reports.on_report(NODE, told(1, reading))
    goal = {"*": 20, "service/shop/web": 12, "service/shop/*": 11}
    reports.on_question(BarrierQuestion(Versions(goal), wait_seconds=1.0), 0.0)
    answer = reports.answer_consumer(NODE, 0.0)
    assert (answer.versions if answer else None) == (
        Versions({reading: wanted}) if wanted else None
    )


def test_a_barrier_hears_what_came_since_its_last_answer() -> None:
    reports = Reports(100)
    for number in range(1, 4):
        reports.on_report(f"n{number}", told(number))
    assert reports.since(101) == BarrierAnswer(103, {"n2": told(2), "n3": told(3)})
    assert reports.since(103) == BarrierAnswer(103)
    assert len(reports.since(0).reports) == len(reports.since(999).reports) == 3, (
        "a number of another server's"
    )
    reports.on_report("n1", told(9))
    assert reports.since(103) == BarrierAnswer(104, {"n1": told(9)})


def test_thousands_spread_their_answers_and_the_memory_is_bounded() -> None:
    reports = Reports(0)
    for number in range(1200):
        reports.on_report(f"n{number}", told(1))
    reports.on_question(asked(2), 0.0)
    answer = reports.answer_consumer("n1", 0.0)
    assert answer is not None
    assert answer.spread_seconds == 3
    for number in range(CONSUMERS_MAX):
        reports.on_report(f"m{number}", told(1))
    assert (len(reports), reports.answer_consumer("n1", 0.0)) == (CONSUMERS_MAX, None)


def post(held: ReportService, path: str, body: Any) -> asyncio.Task[bytes]:
    return asyncio.create_task(held.answer(path, encode(body)))


async def test_a_node_that_is_asked_answers_and_nothing_waits_for_a_time() -> None:
    held = ReportService(lambda: 1000.0)
    path = f"{PROGRESS_PATH}/{NODE}"
    async with asyncio.timeout(PATIENCE_S):
        node = post(held, path, ConsumerPost(told(7), 60.0))
        await asyncio.sleep(0)
        barrier = post(held, PROGRESS_PATH, asked(9, wait_s=60.0))
        assert consumer_answers.decode(await node).versions == Versions({"all": 9})
        heard = barrier_answers.decode(await barrier)
        assert heard.reports == {NODE: told(7)}
        again = BarrierQuestion(Versions({"all": 9}), heard.number, 60.0)
        barrier = post(held, PROGRESS_PATH, again)
        await asyncio.sleep(0)
        node = post(held, path, ConsumerPost(told(9), 60.0))
        assert barrier_answers.decode(await barrier).reports == {NODE: told(9)}
        held.close()
        assert consumer_answers.decode(await node) == ConsumerAnswer()
        with pytest.raises(StatusError) as refused:
            await held.answer(path, encode(ConsumerPost(told(9))))
        assert refused.value.code == 503


async def test_what_is_no_report_is_refused() -> None:
    held = ReportService(lambda: 1000.0)
    for body, code in (
        (b"{", 400),
        (b'{"report":{"endpointslices":[]}}', 400),
        (b" " * 70_000, 413),
    ):
        with pytest.raises(StatusError) as refused:
            await held.answer(f"{PROGRESS_PATH}/{NODE}", body)
        assert refused.value.code == code


def test_who_tells_must_be_allowed_to_write_that_lease_and_who_asks_to_watch_them() -> None:
    tells, asks = rights("POST", f"{PROGRESS_PATH}/{NODE}"), rights("POST", PROGRESS_PATH)
    assert tells is not None
    assert asks is not None
    where = ("coordination.k8s.io", "leases", "kube-node-lease")
    assert (tells.verb, tells.group, tells.resource, tells.namespace, tells.name) == (
        "patch",
        *where,
        NODE[16:],
    )
    assert (asks.verb, asks.group, asks.resource, asks.namespace, asks.name) == (
        "watch",
        *where,
        "",
    )
    for method, path in (
        ("GET", PROGRESS_PATH),
        ("POST", f"{PROGRESS_PATH}/a"),
        ("POST", f"{PROGRESS_PATH}/a/b/c"),
        ("POST", f"{PROGRESS_PATH}s"),
    ):
        assert rights(method, path) is None


def test_versions_are_told_by_resource() -> None:
    places = {("services", "all"): 3, ("endpointslices", "all"): 4, ("endpointslices", "*"): 2}
    assert versions_of(places).revisions_by_scope() == places
