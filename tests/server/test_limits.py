"""Places of requests: who sits, who stands in line, and that everything is given back whatever
becomes of a request.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import turns

from sliceplane.server.fairness.types import Asked
from sliceplane.server.io.requests.limits import (
    BODY_BYTES_LEAST,
    InFlight,
    Limits,
    RequestPlace,
    TooMany,
)
from sliceplane.server.registry.types import User

ACCOUNTS = ("system:serviceaccounts", "system:authenticated")


def place(in_flight: InFlight, name: str) -> RequestPlace:
    user = User(name=name, groups=ACCOUNTS)
    flow = in_flight.flows.classify(name, ACCOUNTS, Asked("list", resource="pods"))
    return RequestPlace(in_flight, flow, user, "read")


async def full() -> tuple[InFlight, list[RequestPlace]]:
    """Every seat that workloads can have is taken."""
    in_flight = InFlight(Limits(reads_max=8, writes_max=8))
    taken = []
    while True:
        task = asyncio.create_task((sat := place(in_flight, "hog")).sit())
        await turns()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            sat.close()
            in_flight.flows.check()
            return in_flight, taken
        taken.append(sat)


async def test_who_stands_in_line_gets_the_next_seat() -> None:
    in_flight, taken = await full()
    waits = place(in_flight, "quiet")
    task = asyncio.create_task(waits.sit())
    await turns()
    assert not task.done()
    taken[0].close()
    await asyncio.wait_for(task, 60)
    for each in (waits, *taken):
        each.close()
        each.close()
    in_flight.flows.check()
    assert in_flight.flows.seats["read"].in_use == 0


@pytest.mark.looptime
async def test_who_stood_in_line_for_too_long_is_told_to_come_back() -> None:
    in_flight, _ = await full()
    with pytest.raises(TooMany):
        await place(in_flight, "quiet").sit()
    assert in_flight.flows.tally("service-accounts").refused["time-out"] == 1
    assert in_flight.flows.tally("service-accounts").waiting == 0
    in_flight.flows.check()


async def test_a_request_that_ends_in_line_or_just_as_it_gets_a_seat_leaves_nothing_behind() -> (
    None
):
    in_flight, taken = await full()
    in_line, just_seated = place(in_flight, "a"), place(in_flight, "b")
    tasks = [asyncio.create_task(each.sit()) for each in (just_seated, in_line)]
    await turns()
    taken.pop().close()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for each in (*taken, just_seated, in_line):
        each.close()
    in_flight.flows.check()
    assert in_flight.flows.seats["read"].in_use == 0
    assert in_flight.flows.tally("service-accounts").waiting == 0


async def test_a_body_counts_from_its_beginning_to_the_end_of_the_request() -> None:
    in_flight = InFlight(Limits())
    body = place(in_flight, "a")
    body.hold_body(0)
    assert in_flight.bodies.held_by("a") == BODY_BYTES_LEAST
    body.hold_body(100_000)
    assert in_flight.bodies.held_by("a") == 100_000
    await body.sit()
    assert in_flight.bodies.held_by("a") == 100_000
    body.close()
    assert in_flight.bodies.total == 0


async def test_bodies_of_one_user_leave_room_for_another() -> None:
    in_flight = InFlight(Limits(bodies_bytes_max=100 * BODY_BYTES_LEAST))
    for _ in range(45):
        place(in_flight, "hog").hold_body(1)
    with pytest.raises(TooMany):
        place(in_flight, "hog").hold_body(1)
    place(in_flight, "quiet").hold_body(1)


async def test_waits_for_the_future_have_an_end_for_one_user() -> None:
    in_flight = InFlight(Limits(future_reads_of_user=2))
    with place(in_flight, "hog").awaiting_future(), place(in_flight, "hog").awaiting_future():
        with pytest.raises(TooMany), place(in_flight, "hog").awaiting_future():
            pass
        with place(in_flight, "quiet").awaiting_future():
            pass
    assert in_flight.future_reads.total == 0
