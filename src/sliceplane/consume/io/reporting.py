"""A consumer tells how far it is: a node proxy, or whatever else hands out endpoints
(``Reporter``).

**By its Lease** (``consume.progress``): one request each time, at a bounded rate, at a beat of its
own and soon after a slice asked for it. Whether it succeeds is nothing to the rules: a server that
refuses (the role may lack Leases) is told of once and asked again at the same slow pace.

**In the server's memory** (``consume.drain.reports``), where the server has one: a request is held,
and answered when a barrier wants more than was told. Nothing is written, and the answer comes
within milliseconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

from sliceplane.api.codec import UNREADABLE, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import PROGRESS_PATH, Write
from sliceplane.api.scheme import Leases
from sliceplane.consume.drain.reports import CONSUMER_HELD_S, ConsumerPost, wanteds
from sliceplane.consume.progress import LEASE_NAMESPACE, SPREAD_MAX_S, Place, Progress
from sliceplane.consume.selections import ALL, readings_of_slice
from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Client, Unreachable, no_answer, post
from sliceplane.watch.io.reflect import RunningInformer

#: a timer may ring so much before its time, and is not set again for the rest
EARLY_S: Final = 0.001
#: a consumer that does not hold what is wanted tells what it holds all the same
WANTED_MAX_S: Final = 0.25
#: after an answer that is none, until the server's memory is tried again
RETRY_S: Final = 2.0
#: and where there is none
ABSENT_S: Final = 60.0
#: reports in answer to questions; a server that asks more often than barriers do is answered no
#: faster
ANSWERS_PER_S: Final = 10.0
ANSWERS_BURST: Final = 50
#: a consumer lists anew no sooner than this after it did
RELIST_GAP_S: Final = 1.0

#: a timer that rings so late: the process stood still (SIGSTOP, a frozen cgroup, a machine without
#: a processor for it)
STOOD_STILL_S: Final = 5.0
#: after that, until caches and the kernel are told of
CATCH_UP_S: Final = 1.0

#: consumers without a kernel have no families
FAMILY: Final[Family] = "IPv4"

_log = get_logger("progress")


class Reporter(Protocol):
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

    def catch_up(self, wanted: Mapping[Place, int]) -> None:
        """It does not hold that yet, and may have been told of nothing for long."""


class Consumer:
    """A ``Reporter`` that holds what its informers told it: a view, a name server.

    *informers*, by reading (``consume.selections``; ``SERVICE_READING`` and a Service's key for who
    follows its slices alone); their own handlers come first. *kind* is a word, *name* its own among
    those of the *kind*. The Lease is in ``LEASE_NAMESPACE`` for who reads all slices, in a
    Service's namespace for who reads this one.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        informers: Mapping[str, RunningInformer[Any]],
        clock: Callable[[], float],
        *,
        namespace: str = LEASE_NAMESPACE,
    ) -> None:
        self.progress = Progress(name, (FAMILY,), kind=kind, namespace=namespace)
        self.reports_wanted = asyncio.Event()
        self.held_more = asyncio.Event()
        self._clock = clock
        self._caught_up = -math.inf
        self._informers = dict(informers)
        for reading, informer in self._informers.items():
            on_mark = partial(self._on_mark, reading)
            informer.add_handler(partial(self._on_changes, reading), lambda: None, on_mark)

    def _on_changes(self, reading: str, changes: tuple[Change[Any], ...]) -> None:
        """Notes changes; a reader of every slice reports those in ``ALL``, so that others can
        compare: it has none of headless Services.
        """
        for change in changes:
            old, new = (
                item if reading != ALL or _is_of_all(item) else None
                for item in (change.old, change.new)
            )
            if old is not None or new is not None:
                self.progress.on_change(Change(change.resource, old, new), reading, self._clock())

    def _on_mark(self, reading: str, mark: Mark) -> None:
        self.progress.on_mark(mark.resource, reading, mark)
        self.note_progress()
        self.held_more.set()
        if self.progress.asked:
            self.reports_wanted.set()

    async def wait_ready(self) -> None:
        for informer in self._informers.values():
            await informer.wait_synced()

    def note_progress(self) -> None:
        self.progress.on_idle(FAMILY)

    def catch_up(self, wanted: Mapping[Place, int]) -> None:
        if self._clock() - self._caught_up < RELIST_GAP_S:
            return
        self._caught_up = self._clock()
        held = self.progress.held
        for (_, reading), revision in wanted.items():
            place = (self._informers[reading].resource.plural, reading)
            if held[place].revision < revision:
                self._informers[reading].relist("a drain barrier asks", is_logged=False)


def _is_of_all(subject: Object | None) -> bool:
    return not isinstance(subject, EndpointSlice) or ALL in readings_of_slice(subject)


@asynccontextmanager
async def reporting(
    client: Client, consumer: Consumer, rng: Rng, clock: Callable[[], float]
) -> AsyncIterator[None]:
    """All that a consumer needs: it tells at once, and inside barriers wait for it; after it, for
    as long as its Lease lasts where that cannot be taken away.
    """
    task = asyncio.create_task(
        report_progress(client, consumer, rng, clock, spread_s=0.0), name="progress"
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        progress = consumer.progress
        write = Write(
            verb="delete", resource=Leases, namespace=progress.namespace, name=progress.name
        )
        with suppress(StatusError, Unreachable):  # it runs out by itself
            await client.perform(write)


async def report_progress(
    client: Client,
    reporter: Reporter,
    rng: Rng,
    clock: Callable[[], float],
    *,
    spread_s: float | None = None,
) -> None:
    """Both ways, until cancelled; begins when there is something to tell. The Lease stays, and runs
    out by itself.

    *spread_s*: thousands of proxies that were started by one command do not come at once, but
    within so long; as long as their beat if it is not said.
    """
    await reporter.wait_ready()
    within_s = reporter.progress.changed_period_s if spread_s is None else spread_s
    async with asyncio.TaskGroup() as group:
        group.create_task(
            _keep_lease(client, reporter, rng.below(1000) / 1000 * within_s, clock),
            name="progress: Lease",
        )
        group.create_task(_answer_barriers(client, reporter, rng), name="progress: barriers")


async def _answer_barriers(client: Client, reporter: Reporter, rng: Rng) -> None:
    path = f"{PROGRESS_PATH}/{reporter.progress.namespace}/{reporter.progress.name}"
    pace = TokenBucket(rate_per_s=ANSWERS_PER_S, burst=ANSWERS_BURST)
    while True:
        await asyncio.sleep(pace.take(asyncio.get_running_loop().time()))
        reporter.note_progress()
        body = encode(ConsumerPost(reporter.progress.report(), CONSUMER_HELD_S))
        try:
            wanted = wanteds.decode(await post(client, path, body))
        except (StatusError, Unreachable, *UNREADABLE) as error:
            absent = isinstance(error, StatusError) and error.code in (403, 404, 405)
            await asyncio.sleep((ABSENT_S if absent else RETRY_S) * (1 + rng.below(1000) / 1000))
            continue
        places = wanted.versions.places()
        if not places:
            continue
        await asyncio.sleep(min(wanted.spread_seconds, SPREAD_MAX_S) * rng.below(1000) / 1000)
        try:
            async with asyncio.timeout(WANTED_MAX_S):
                while True:
                    reporter.held_more.clear()
                    reporter.note_progress()
                    if reporter.progress.holds(places):
                        break
                    await reporter.held_more.wait()
        except TimeoutError:
            reporter.catch_up(places)


async def _keep_lease(
    client: Client, reporter: Reporter, delay_s: float, clock: Callable[[], float]
) -> None:
    period_s = reporter.progress.changed_period_s
    await asyncio.sleep(delay_s)
    complained = ""
    beat = clock()
    while True:
        reporter.note_progress()
        now = clock() + EARLY_S
        asked_at = reporter.progress.asked_deadline()
        at_beat = now >= beat and reporter.progress.next_deadline() <= now
        if at_beat or (asked_at is not None and asked_at <= now):
            problem = await _write(client, reporter, clock(), at_beat=at_beat)
            if problem and problem != complained:
                _log.warning("how far this node is cannot be told", problem=problem)
            complained = problem
            asked_at = None if problem else reporter.progress.asked_deadline()
        while beat <= now:
            beat += period_s
        due = max(min(beat, asked_at or beat), clock())
        await _wanted(reporter, due - clock())
        if clock() - due > STOOD_STILL_S:
            # The process was stopped. Timers ring before what arrived meanwhile is read: a report
            # made now would tell of caches that are old, and stand for the rest of a beat.
            await asyncio.sleep(CATCH_UP_S)
            beat = clock()


async def _wanted(reporter: Reporter, delay_s: float) -> None:
    """Returns after *delay_s*, or as soon as a report on demand may be due."""
    try:
        async with asyncio.timeout(delay_s):
            await reporter.reports_wanted.wait()
    except TimeoutError:
        pass
    reporter.reports_wanted.clear()


async def _write(client: Client, reporter: Reporter, now: float, *, at_beat: bool) -> str:
    """The problem; "" if there is none."""
    progress = reporter.progress
    body = progress.take_report(now, at_beat=at_beat)
    try:
        try:
            await client.perform(
                Write(
                    verb="patch",
                    resource=Leases,
                    namespace=progress.namespace,
                    name=progress.name,
                    body=body,
                )
            )
        except StatusError as error:
            if error.reason != "NotFound":
                raise
            # An apply carries the name, so that a role can allow this one alone.
            await client.perform(
                Write(
                    verb="patch",
                    resource=Leases,
                    namespace=progress.namespace,
                    name=progress.name,
                    body=body,
                    patch_type="apply",
                    force=True,
                )
            )
    except StatusError as error:
        progress.on_failure()
        return str(error)
    except Unreachable as error:
        progress.on_failure()
        return str(no_answer(error))
    return ""
