"""Reports of the progress of a consumer: a node proxy, or anything else that serves endpoints
(``Reporter``).

**By its Lease** (``consume.progress``): one request for each report, at a bounded rate, at regular
intervals and soon after a slice requested one. The rules do not depend on its success: if a server
refuses (the role may lack Leases), one warning is logged, and the request is repeated at the same
slow pace.

**In the server's memory** (``consume.drain.reports``), where the server has that: the server leaves
a request open, and answers it when a barrier requires more than was reported. Nothing is written,
and the answer arrives within milliseconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

from sliceplane.api.codec import UNREADABLE, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import PROGRESS_PATH, Write
from sliceplane.api.scheme import Leases
from sliceplane.consume.drain.reports import CONSUMER_WAIT_S, ConsumerPost, consumer_answers
from sliceplane.consume.progress import (
    LEASE_NAMESPACE,
    SPREAD_MAX_S,
    Progress,
    ProgressReport,
    Scope,
)
from sliceplane.consume.selections import ALL, list_selections_of_slice
from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Client, Unreachable, no_answer, post
from sliceplane.watch.io.reflect import RunningInformer

#: seconds by which a timer may fire early without being set again
EARLY_S: Final = 0.001
#: seconds until a consumer reports although it has not applied the required revisions
APPLY_WAIT_MAX_S: Final = 0.25
#: seconds until the server's memory is tried again after a failure
RETRY_S: Final = 2.0
#: seconds until that if the server has no such memory
ABSENT_S: Final = 60.0
#: maximum rate of reports in answer to questions, for a server that asks more often than barriers
ANSWERS_PER_S: Final = 10.0
ANSWERS_BURST: Final = 50
#: minimum seconds between two lists of a consumer
RELIST_GAP_S: Final = 1.0

#: a timer that fires so many seconds late: the process was suspended (SIGSTOP, a frozen cgroup, a
#: machine without a processor for it)
SUSPENDED_S: Final = 5.0
#: seconds from then until caches and the kernel are reported
CATCH_UP_S: Final = 1.0

#: consumers without a kernel have no families
FAMILY: Final[Family] = "IPv4"

_log = get_logger("progress")


class Reporter(Protocol):
    """A consumer that reports: sets ``report_due`` when a report may be due, ``revision_applied``
    when more is applied.
    """

    @property
    def progress(self) -> Progress: ...
    @property
    def report_due(self) -> asyncio.Event: ...
    @property
    def revision_applied(self) -> asyncio.Event: ...

    async def wait_ready(self) -> None:
        """Returns when there is something to report."""

    def note_progress(self) -> None:
        """Updates ``progress`` before it is read."""

    def relist_if_behind(self, required: Mapping[Scope, int]) -> None:
        """Lists again what is behind the *required* revisions: its watch may be stalled."""


class Consumer:
    """A ``Reporter`` that applies what its informers deliver: a view, a name server.

    *informers*, by selection (``consume.selections``; ``SERVICE_SELECTION_PREFIX`` and a Service's
    key if it reads the slices of one Service); their other handlers run first. *kind* is a word,
    *name* is unique among consumers of the *kind*. The Lease is in ``LEASE_NAMESPACE`` if the
    consumer reads all slices, in the Service's namespace if it reads those of one Service.
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
        self.report_due = asyncio.Event()
        self.revision_applied = asyncio.Event()
        self._clock = clock
        self._relisted_at = -math.inf
        self._informers = dict(informers)
        for selection, informer in self._informers.items():
            on_mark = partial(self._on_mark, selection)
            informer.add_handler(partial(self._on_changes, selection), lambda: None, on_mark)

    def _on_changes(self, selection: str, changes: tuple[Change[Any], ...]) -> None:
        """Notes changes. A reader of every slice reports those in ``ALL``, without headless
        Services, so that others can compare digests.
        """
        for change in changes:
            old, new = (
                item if selection != ALL or _is_of_all(item) else None
                for item in (change.old, change.new)
            )
            if old is not None or new is not None:
                self.progress.on_change(Change(change.resource, old, new), selection, self._clock())

    def _on_mark(self, selection: str, mark: Mark) -> None:
        self.progress.on_mark(mark.resource, selection, mark)
        self.note_progress()
        self.revision_applied.set()
        if self.progress.has_requests:
            self.report_due.set()

    async def wait_ready(self) -> None:
        for informer in self._informers.values():
            await informer.wait_synced()

    def note_progress(self) -> None:
        self.progress.on_idle(FAMILY)

    def relist_if_behind(self, required: Mapping[Scope, int]) -> None:
        if self._clock() - self._relisted_at < RELIST_GAP_S:
            return
        self._relisted_at = self._clock()
        applied = self.progress.applied
        for (_, selection), revision in required.items():
            scope = (self._informers[selection].resource.plural, selection)
            if applied[scope].revision < revision:
                self._informers[selection].relist("a drain barrier asks", is_logged=False)


def _is_of_all(subject: Object | None) -> bool:
    return not isinstance(subject, EndpointSlice) or ALL in list_selections_of_slice(subject)


@asynccontextmanager
async def reporting(
    client: Client, consumer: Consumer, rng: Rng, clock: Callable[[], float]
) -> AsyncIterator[None]:
    """Reports the progress of *consumer* inside the context, where barriers wait for it. After that
    its Lease is deleted; if that fails, barriers wait until it expires.
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
        with suppress(StatusError, Unreachable):  # the Lease expires
            await client.perform(write)


async def report_progress(
    client: Client,
    reporter: Reporter,
    rng: Rng,
    clock: Callable[[], float],
    *,
    spread_s: float | None = None,
) -> None:
    """Reports in both ways, until cancelled; starts when there is something to report. The Lease
    is not deleted; it expires.

    *spread_s*: seconds over which thousands of proxies that one command started spread their first
    reports; by default the interval of their reports.
    """
    await reporter.wait_ready()
    first_report_within_s = reporter.progress.changed_period_s if spread_s is None else spread_s
    async with asyncio.TaskGroup() as group:
        group.create_task(
            _keep_lease(client, reporter, rng.below(1000) / 1000 * first_report_within_s, clock),
            name="progress: Lease",
        )
        progress = reporter.progress
        lease = f"{progress.namespace}/{progress.name}"

        def report() -> ProgressReport:
            reporter.note_progress()
            return progress.report()

        apply = partial(_apply, reporter)
        answering = answer_barriers(partial(post, client), lease, report, apply, rng)
        group.create_task(answering, name="progress: barriers")


async def answer_barriers(
    ask: Callable[[str, bytes], Awaitable[bytes]],
    lease: str,
    report: Callable[[], ProgressReport],
    apply: Callable[[Mapping[Scope, int]], Awaitable[None]],
    rng: Rng,
) -> None:
    """Leaves a request for a consumer open at the server, until cancelled. *ask*: posts to a path
    of the server; *lease*: the key of the consumer's. *apply*: returns when the revisions that
    barriers require are applied, or after a moment.
    """
    path = f"{PROGRESS_PATH}/{lease}"
    pace = TokenBucket(rate_per_s=ANSWERS_PER_S, burst=ANSWERS_BURST)
    while True:
        await asyncio.sleep(pace.take(asyncio.get_running_loop().time()))
        current = report()
        # A server asks nobody who has no revisions; a relay has some once a node reported.
        wait_s = CONSUMER_WAIT_S if current.revisions() else RETRY_S
        body = encode(ConsumerPost(current, wait_s))
        try:
            answer = consumer_answers.decode(await ask(path, body))
        except (StatusError, Unreachable, *UNREADABLE) as error:
            absent = isinstance(error, StatusError) and error.code in (403, 404, 405)
            await asyncio.sleep((ABSENT_S if absent else RETRY_S) * (1 + rng.below(1000) / 1000))
            continue
        required = answer.versions.revisions_by_scope()
        if not required:
            continue
        await asyncio.sleep(min(answer.spread_seconds, SPREAD_MAX_S) * rng.below(1000) / 1000)
        await apply(required)


async def _apply(reporter: Reporter, required: Mapping[Scope, int]) -> None:
    try:
        async with asyncio.timeout(APPLY_WAIT_MAX_S):
            while True:
                reporter.revision_applied.clear()
                reporter.note_progress()
                if reporter.progress.report().has_applied(required):
                    break
                await reporter.revision_applied.wait()
    except TimeoutError:
        reporter.relist_if_behind(required)


async def _keep_lease(
    client: Client, reporter: Reporter, delay_s: float, clock: Callable[[], float]
) -> None:
    period_s = reporter.progress.changed_period_s
    await asyncio.sleep(delay_s)
    last_warning = ""
    period_end = clock()
    while True:
        reporter.note_progress()
        now = clock() + EARLY_S
        on_demand_at = reporter.progress.on_demand_deadline()
        is_periodic = now >= period_end and reporter.progress.next_deadline() <= now
        if is_periodic or (on_demand_at is not None and on_demand_at <= now):
            problem = await _write(client, reporter, clock(), is_periodic=is_periodic)
            if problem and problem != last_warning:
                _log.warning("the progress of this node cannot be reported", problem=problem)
            last_warning = problem
            on_demand_at = None if problem else reporter.progress.on_demand_deadline()
        while period_end <= now:
            period_end += period_s
        due = max(min(period_end, on_demand_at or period_end), clock())
        await _wait_for_due_report(reporter, due - clock())
        if clock() - due > SUSPENDED_S:
            # The process was suspended. Timers fire before pending input is read: a report created
            # now would contain old caches, and be valid for the rest of the period.
            await asyncio.sleep(CATCH_UP_S)
            period_end = clock()


async def _wait_for_due_report(reporter: Reporter, delay_s: float) -> None:
    """Returns after *delay_s*, or as soon as a report on demand may be due."""
    try:
        async with asyncio.timeout(delay_s):
            await reporter.report_due.wait()
    except TimeoutError:
        pass
    reporter.report_due.clear()


async def _write(client: Client, reporter: Reporter, now: float, *, is_periodic: bool) -> str:
    """Writes the Lease and returns the problem; "" if there is none."""
    progress = reporter.progress
    body = progress.take_report(now, is_periodic=is_periodic)
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
