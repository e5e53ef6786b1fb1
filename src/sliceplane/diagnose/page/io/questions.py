"""The engines' answers (explain, lint, drift, trace, timeline, what-if), cached for all tabs that
show them.

An engine reads the cluster by lists and may compute for a second, so it runs in a thread with a
loop and a client of its own: the stream of a tab never waits for one. A query is repeated when the
cluster has changed, and periodically; the more it costs, the less often. All of them share a
fraction of a core; the saved budget of a quiet cluster answers a change immediately.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sliceplane.api.codec import UNREADABLE
from sliceplane.api.errors import StatusError
from sliceplane.consume.io.barriers import BarrierBook
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.diagnose.io.drifting import read_drift
from sliceplane.diagnose.io.explaining import explain
from sliceplane.diagnose.io.recordings import timeline_lines
from sliceplane.diagnose.io.tracing import question_of, trace, usual_proxy
from sliceplane.diagnose.page.attention import attention
from sliceplane.diagnose.page.views import Answered
from sliceplane.diagnose.timeline.text import line_document
from sliceplane.diagnose.trace.question import Unanswerable
from sliceplane.kit.delays import TokenBucket
from sliceplane.watch.io import bounds
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.recorder.blocks import RecordingError

#: seconds after an answer until its query may be repeated
GAP_S: Final = 1.0
#: milliseconds of CPU a second for queries on average, except first ones; and the burst
BUSY_MS: Final = 10.0
SAVED_MS: Final = 300
#: seconds since its last use in which a query counts as requested
REQUESTED_S: Final = 5.0
#: seconds until an answer that a tab shows is refreshed without a change
AGE_MAX_S: Final = 10.0
CACHED_MAX: Final = 256
#: bytes of all cached answers, as JSON
CACHED_BYTES_MAX: Final = 16 * 1024 * 1024
#: seconds for one query; a timeout is shown, and the query is repeated later
TIMEOUT_S: Final = 60.0
METRICS_PORT: Final = 10249
#: concurrent lists of ``lint``, which runs repeatedly: each has a connection, and bodies in
#: decoding
CONCURRENT_LISTS: Final = 2

#: what-ifs that are computed or queued: they are the longest queries
WHAT_IFS_MAX: Final = 3

#: the kind of the query, and its arguments
Question = tuple[str, ...]
#: the engine of what-if, from a layer above: takes a client, a namespace, a name and settings
WhatIf = Callable[[HttpClient, str, str, Sequence[str]], Awaitable[Any]]


@dataclass(slots=True)
class _CachedAnswer:
    ended: float = 0.0
    version: int = -1
    #: time of the last use with an outdated version
    requested_at: float = -REQUESTED_S
    running: asyncio.Task[None] | None = None
    answered: Answered | None = None
    size_bytes: int = 0


class Questions:
    """The queries and their answers. Used from one loop. *connect* creates a client, within the
    thread's loop; *clock*: seconds since the epoch.
    """

    def __init__(
        self,
        connect: Callable[[], HttpClient],
        clock: Callable[[], float],
        namespace: str,
        what_if: WhatIf,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._namespace = namespace
        self._what_if = what_if
        self._what_ifs = 0
        self._cached: dict[Question, _CachedAnswer] = {}
        self._budget = TokenBucket(rate_per_s=BUSY_MS, burst=SAVED_MS)
        self._barriers = BarrierBook(namespace)
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="engines", daemon=True)
        self._client: HttpClient

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def latest(self, question: Question, version: int) -> Answered | None:
        """Returns the last answer. If it is older than *version* of the model, a newer one is
        computed.
        """
        cached = self._cached.pop(question, None) or _CachedAnswer()
        self._cached[question] = cached
        self._evict()
        now = time.monotonic()
        rested = now - cached.ended
        if (
            cached.running is None
            and rested >= GAP_S
            and (cached.version != version or rested >= AGE_MAX_S)
        ):
            cached.requested_at = now
            if cached.answered is None or self._is_next(cached, now):
                cached.version = version
                cached.requested_at = -REQUESTED_S
                cached.running = asyncio.create_task(self._note(question, cached))
        return cached.answered

    def _evict(self) -> None:
        """Evicts answers, the least recently used first; the newest is kept whatever its size."""
        size_bytes = sum(cached.size_bytes for cached in self._cached.values())
        while len(self._cached) > 1 and (
            len(self._cached) > CACHED_MAX or size_bytes > CACHED_BYTES_MAX
        ):
            size_bytes -= self._cached.pop(next(iter(self._cached))).size_bytes

    def _is_next(self, cached: _CachedAnswer, now: float) -> bool:
        """Returns True if there is a budget, no other query runs, and its answer is the oldest of
        all requested ones.
        """
        if self._budget.take(now, 0) > 0 or any(
            other.running is not None for other in self._cached.values()
        ):
            return False
        return all(
            cached.ended <= other.ended
            for other in self._cached.values()
            if now - other.requested_at < REQUESTED_S
        )

    async def compute(self, question: Question) -> Answered:
        """Computes the answer once, immediately."""
        return (await self._timed(question))[0]

    async def compute_what_if(self, question: Question) -> Answered | None:
        """Computes a what-if; ``None``: too many are running."""
        if self._what_ifs >= WHAT_IFS_MAX:
            return None
        self._what_ifs += 1
        try:
            return await self.compute(question)
        finally:
            self._what_ifs -= 1

    async def _timed(self, question: Question) -> tuple[Answered, float, int]:
        """Returns the answer, the CPU that the thread used meanwhile, also for other questions, and
        the answer's bytes as JSON.
        """
        future: Future[tuple[Answered, float, int]] = asyncio.run_coroutine_threadsafe(
            self._measured(question), self._loop
        )
        return await asyncio.wrap_future(future)

    async def _note(self, question: Question, cached: _CachedAnswer) -> None:
        try:
            answered, cpu_s, cached.size_bytes = await self._timed(question)
            if cached.answered is not None:
                self._budget.take(time.monotonic(), cpu_s * 1000)
            cached.answered = answered
        finally:
            cached.ended = time.monotonic()
            cached.running = None

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._client = self._connect()
        try:
            self._loop.run_forever()
        finally:
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.run_until_complete(self._client.close())
            self._loop.close()

    async def _measured(self, question: Question) -> tuple[Answered, float, int]:
        began = time.thread_time()
        answered = await self._answer(question)
        size_bytes = len(msgspec.json.encode(answered.part()))
        return answered, time.thread_time() - began, size_bytes

    async def _answer(self, question: Question) -> Answered:
        at = self._clock()
        try:
            async with bounds.question(TIMEOUT_S):
                return Answered(at, await self._document(question, at))
        except (StatusError, Unreachable, Unanswerable, RecordingError) as error:
            return Answered(at, None, _sentence(error))
        except UNREADABLE as error:
            return Answered(at, None, f"the server sent an object that cannot be read: {error}")
        except BaseExceptionGroup as errors:
            group = errors.subgroup((StatusError, Unreachable, *UNREADABLE))
            if group is not None:
                return Answered(at, None, _sentence(group.exceptions[0]))
            return Answered(at, None, _fault(errors.exceptions[0]))
        except Exception as error:
            # A bug of ours, or objects that no server accepts: shown on the page like a refusal.
            return Answered(at, None, _fault(error))

    def _document(self, question: Question, at: float) -> Awaitable[Any]:
        client, clock = self._client, self._clock
        match question:
            case ("lint",):
                return _attention(client, self._namespace, clock)
            case ("explain", namespace, name):
                return _explained(client, ExplainQuestion("service", name, namespace), clock)
            case ("drift",):
                return _drifted(client, clock)
            case ("drains",):
                return self._barriers.refresh(client, clock)
            case ("trace", source, target, protocol, node, namespace):
                return _traced(
                    client, source, target, protocol=protocol, node=node, namespace=namespace
                )
            case ("timeline", namespace, name, since):
                return _timeline(client, namespace, name, at - float(since))
            case ("what-if", namespace, name, *settings):
                return self._what_if(client, namespace, name, settings)
        raise AssertionError(f"no such question: {question}")


async def _explained(
    client: HttpClient, question: ExplainQuestion, clock: Callable[[], float]
) -> Any:
    return (await explain(client, question, clock)).as_document()


async def _attention(client: HttpClient, namespace: str, clock: Callable[[], float]) -> Any:
    question = ExplainQuestion("everything", namespace=namespace)
    return attention(await explain(client, question, clock, concurrent_lists=CONCURRENT_LISTS))


async def _drifted(client: HttpClient, clock: Callable[[], float]) -> Any:
    return (await read_drift(client, clock, port=METRICS_PORT)).as_document()


async def _traced(
    client: HttpClient, source: str, target: str, *, protocol: str, node: str, namespace: str
) -> Any:
    question = await question_of(
        client, source, target, protocol=protocol or None, node=node, namespace=namespace
    )
    return (await trace(client, question, usual_proxy())).as_document()


async def _timeline(client: HttpClient, namespace: str, name: str, since: float) -> Any:
    lines, notice = await timeline_lines(client, namespace, name, since)
    return {"lines": [line_document(line) for line in lines], "notice": notice}


def _fault(error: BaseException) -> str:
    return f"a fault of this program, or of the server's objects: {type(error).__name__}: {error}"


def _sentence(error: BaseException) -> str:
    return f"the server refuses: {error}" if isinstance(error, StatusError) else str(error)
