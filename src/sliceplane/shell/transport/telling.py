"""A consumer tells how far it is: a node proxy, or whatever else hands out endpoints (``Teller``).

**By its Lease** (``proxy.progress``): one request each time, at a bounded rate, at a beat of its own and soon after a
slice asked for it.  Whether it succeeds is nothing to the rules: a server that refuses (the role may lack Leases) is
told of once and asked again at the same slow pace.

**In the server's memory** (``drain.reports``), where the server has one: a request is held, and answered when a barrier
wants more than was told.  Nothing is written, and the answer comes within milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import PROGRESS_PATH, Write
from sliceplane.api.scheme import Leases
from sliceplane.drain.reports import CONSUMER_HELD_S, Telling, wanteds
from sliceplane.kit.rng import Rng
from sliceplane.proxy.progress import LEASE_NAMESPACE, Progress
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.transport.base import Client, Unreachable, no_answer, post

#: a timer may ring so much before its time, and is not set again for the rest
EARLY_S: Final = 0.001
#: a consumer that does not hold what is wanted tells what it holds all the same
WANTED_MAX_S: Final = 0.25
#: after an answer that is none, until the server's memory is tried again
RETRY_S: Final = 2.0
#: and where there is none
ABSENT_S: Final = 60.0

_log = get_logger("progress")


class Teller(Protocol):
    """``reports_wanted`` is set when a report may be due, ``held_more`` when more is held."""

    @property
    def progress(self) -> Progress: ...
    @property
    def reports_wanted(self) -> asyncio.Event: ...
    @property
    def held_more(self) -> asyncio.Event: ...

    async def wait_ready(self) -> None:
        """Returns when there is something to tell."""

    def note_progress(self) -> None:
        """``progress`` is told what is known: before it is looked at."""


async def tell_progress(client: Client, teller: Teller, rng: Rng, clock: Callable[[], float]) -> None:
    """Both ways, until cancelled; begins when there is something to tell.  The Lease stays, and runs out by itself."""
    await teller.wait_ready()
    async with asyncio.TaskGroup() as group:
        group.create_task(_keep_lease(client, teller, rng, clock), name="progress: Lease")
        group.create_task(_answer_barriers(client, teller, rng), name="progress: barriers")


async def _answer_barriers(client: Client, teller: Teller, rng: Rng) -> None:
    path = f"{PROGRESS_PATH}/{teller.progress.name}"
    while True:
        teller.note_progress()
        body = encode(Telling(teller.progress.report(), CONSUMER_HELD_S))
        try:
            wanted = wanteds.decode(await post(client, path, body))
        except (StatusError, Unreachable, msgspec.DecodeError) as error:
            absent = isinstance(error, StatusError) and error.code in (403, 404, 405)
            await asyncio.sleep((ABSENT_S if absent else RETRY_S) * (1 + rng.below(1000) / 1000))
            continue
        places = wanted.versions.places()
        if not places:
            continue
        await asyncio.sleep(wanted.spread_seconds * rng.below(1000) / 1000)
        try:
            async with asyncio.timeout(WANTED_MAX_S):
                while True:
                    teller.held_more.clear()
                    teller.note_progress()
                    if teller.progress.holds(places):
                        break
                    await teller.held_more.wait()
        except TimeoutError:
            pass


async def _keep_lease(client: Client, teller: Teller, rng: Rng, clock: Callable[[], float]) -> None:
    period_s = teller.progress.changed_period_s
    # thousands of proxies that were started by one command do not come at once
    await asyncio.sleep(rng.below(1000) / 1000 * period_s)
    complained = ""
    beat = clock()
    while True:
        teller.note_progress()
        now = clock() + EARLY_S
        asked_at = teller.progress.asked_deadline()
        at_beat = now >= beat and teller.progress.next_deadline() <= now
        if at_beat or (asked_at is not None and asked_at <= now):
            problem = await _write(client, teller, clock(), at_beat=at_beat)
            if problem and problem != complained:
                _log.warning("how far this node is cannot be told", problem=problem)
            complained = problem
            asked_at = None if problem else teller.progress.asked_deadline()
        while beat <= now:
            beat += period_s
        await _wanted(teller, max(min(beat, asked_at or beat) - clock(), 0.0))


async def _wanted(teller: Teller, delay_s: float) -> None:
    """Returns after *delay_s*, or as soon as a report on demand may be due."""
    try:
        async with asyncio.timeout(delay_s):
            await teller.reports_wanted.wait()
    except TimeoutError:
        pass
    teller.reports_wanted.clear()


async def _write(client: Client, teller: Teller, now: float, *, at_beat: bool) -> str:
    """The problem; "" if there is none."""
    progress = teller.progress
    body = progress.take_report(now, at_beat=at_beat)
    try:
        try:
            await client.perform(
                Write(verb="patch", resource=Leases, namespace=LEASE_NAMESPACE, name=progress.name, body=body)
            )
        except StatusError as error:
            if error.reason != "NotFound":
                raise
            await client.perform(Write(verb="create", resource=Leases, namespace=LEASE_NAMESPACE, body=body))
    except StatusError as error:
        progress.on_failure()
        return str(error)
    except Unreachable as error:
        progress.on_failure()
        return str(no_answer(error))
    return ""
