"""Group commit: the one way by which staged commits become durable, visible and acknowledged.

One task takes what is staged, has the back end write it as one batch (one fsync), publishes it and
takes what was staged meanwhile. There is no timer: a single write goes at once, and under load
batches grow by themselves to what arrives during one fsync.

    registry --stage--> store --take_staged--> append (thread) --> on_durable --> hub --> waiting writers

When a batch fails, the state decides, never hope:

=================  ===========================================  ==========================================
the back end says  the store                                    writers
=================  ===========================================  ==========================================
WriteFailed        forgets all that is staged (a later commit   500, "was not stored"; the next write is
                   may rest on a failed one)                    tried again
OutcomeUnknown     is left alone until ``reconcile`` has read   as if the batch had succeeded, or failed;
                   back what is on disk; then as above, or      they have waited
                   the batch is published after all
reconcile fails    forgets all that is staged; serves reads     500, "is not known", and from then on every
                   of what was acknowledged (*sealed*)          write is refused until a restart
=================  ===========================================  ==========================================

So an acknowledged write is always on disk, and the memory never shows what the disk does not have.
A refused write may still turn up after a restart in the third case only, which is what a 500 means
to a client.

Compaction goes through the same thread in chunks between batches, so no commit waits for more than
one chunk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sliceplane.api.errors import StatusError, internal
from sliceplane.server.io.storage.committing import CommitMetrics, TroubleLog
from sliceplane.server.store.backend import Backend, WriteFailed
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import StoreEvent
from sliceplane.server.store.watcher import nothing

T = TypeVar("T")

#: revisions that one chunk of compaction covers at least
COMPACT_CHUNK_REVISIONS = 256
#: ranges of abandoned revisions that are remembered for writers that ask late
_ABANDONED_MAX = 1024


class Committer:
    """Owned by the server, in its loop. ``start``, then any number of ``durable``, then ``close``,
    which also closes the back end.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        backend: Backend,
        *,
        retention: Retention | None = None,
        trouble: TroubleLog | None = None,
        on_aborted: Callable[[], None] = nothing,
    ) -> None:
        self._store = store
        self._hub = hub
        self._backend = backend
        self._retention = retention if retention is not None else Retention()
        self.trouble = trouble if trouble is not None else TroubleLog()
        self._on_aborted = on_aborted
        self._executor = (
            ThreadPoolExecutor(1, thread_name_prefix="storage") if backend.blocking else None
        )
        self._wake = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        #: (low, high]: revisions that were staged and forgotten
        self._abandoned: deque[tuple[int, int, str]] = deque(maxlen=_ABANDONED_MAX)
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._stopped = False
        self._may_compact = self._may_release_space = True
        self._compaction_failing = ""
        #: memory is always as new as storage: no other server writes to that
        self.staleness_s = 0.0
        #: why every write is refused until a restart; ``None``: it is not so
        self.sealed: str | None = None
        #: why the last batch failed; ``None``: it did not
        self.failing: str | None = None
        self.batches = 0
        self.commits = 0
        self.metrics = CommitMetrics(lambda: self.commits, lambda: self.staleness_s)

    def start(self) -> None:
        # History of earlier lives counts, too: a server that is killed again and again would never
        # drop any.
        for event in self._store.history():
            self._retention.on_events((event,), self._store.object_bytes.total)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="committer")

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        """Returns what *step*, a synchronous piece of registry work, returned, when that is durable
        and published.

        *revision_of* returns the revision that a result made, 0 if none. A refusal may rest on a
        write that is only staged ("already exists"): it waits, too, or its client would read next
        that there is no such object. If that write is not stored, *step* runs again. Raises what
        *step* and ``durable`` raise.
        """
        while True:
            try:
                result = step()
            except StatusError as refusal:
                staged = self._store.staged_revision
                if staged == self._store.revision or not refusal.rests_on_state:
                    raise
                try:
                    await self.durable(staged)
                except StatusError:
                    if self._store.staged_revision == staged:  # the server stops
                        raise
                    continue
                raise
            if revision := revision_of(result):
                await self.durable(revision)
            return result

    async def current(self) -> None:
        """Return when memory is as new as storage, which is always so: no other server writes to
        it.
        """

    async def durable(self, revision: int) -> None:
        """Return when *revision* is durable and published (at once for 0: nothing was written).

        Raises ``StatusError`` 500 if it was not stored or that is not known, 503 after ``close``.
        """
        if self._stopped:
            self._abandon_staged(self.sealed or "the committer stopped")
        for low, high, why in self._abandoned:
            if low < revision <= high:
                raise internal(why)
        if revision <= self._store.revision:
            return
        assert revision <= self._store.staged_revision, (
            f"{revision} was never staged, {self._store.staged_revision} was"
        )
        if self._closing:
            raise StatusError(503, "ServiceUnavailable", "the server is shutting down")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, future))
        self._wake.set()
        await future

    def tick(self, now: float) -> None:
        """Time passes (every few seconds will do): history that is old enough is compacted, and
        space given back.
        """
        self._retention.on_tick(now)
        self._may_compact = self._may_release_space = True
        self._wake.set()

    async def close(self) -> None:
        """Commit what is staged, then let the back end go.  Idempotent.  Re-raises a fault of the
        committer itself.
        """
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            await self._call(self._backend.close)
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    async def _run(self) -> None:
        try:
            while not self._closing:
                await self._wake.wait()
                self._wake.clear()
                await self._drain()
        except BaseException as error:
            # No writer may wait for a task that is gone, now or later.
            self._stopped = True
            self._seal(f"the committer stopped: {error!r}")
            raise

    async def _drain(self) -> None:
        """Until nothing is staged, no compaction is due, and no space is to be given back."""
        while True:
            batch = self._store.take_staged()
            if batch and self.sealed is not None:
                self._abandon_staged(self.sealed)
            elif batch:
                await self._commit(batch)
            due = (
                self._may_compact
                and self.sealed is None
                and self._retention.target > self._store.compacted
            )
            if due and not self._closing:
                # As much again as was added: compaction keeps up with any load.
                await self._compact(max(COMPACT_CHUNK_REVISIONS, 2 * len(batch)))
            elif (
                self._may_release_space and not batch and self.sealed is None and not self._closing
            ):
                await self._release_space()
            elif not batch:
                return

    async def _commit(self, batch: tuple[StoreEvent, ...]) -> None:
        started = time.perf_counter()
        try:
            await self._call(self._backend.append, batch)
        except WriteFailed as error:
            self._failed(f"the write was not stored: {error}")
            return
        except Exception as error:
            # OutcomeUnknown, or a fault of the back end: either way only the disk knows.
            if not await self._reconcile(error, batch):
                return
        self.metrics.batch_seconds.observe(time.perf_counter() - started)
        if self.failing is not None:
            self.failing = None
            self.trouble.report_mended("writes are stored again")
        self.batches += 1
        self.commits += len(batch)
        events = self._store.on_durable(batch[-1].revision)
        self._hub.publish(events)
        self._retention.on_events(batch, self._store.object_bytes.total)
        newest = self._store.revision
        waiting, self._waiting = self._waiting, []
        for revision, future in waiting:
            if revision > newest:
                self._waiting.append((revision, future))
            elif not future.done():
                future.set_result(None)

    async def _reconcile(self, error: Exception, batch: tuple[StoreEvent, ...]) -> bool:
        """Returns True if the uncertain *batch* (empty: it was a compaction) is there after all."""
        self.trouble.report(f"it is not known whether a write was stored ({error!r}); reading back")
        try:
            newest = await self._call(self._backend.reconcile)
        except Exception as again:
            self._seal(
                "it is not known whether the write was stored, and writes are refused until a "
                f"restart: {again}"
            )
            return False
        if batch and newest == batch[-1].revision:
            self.trouble.report_mended("the write was stored")
            return True
        if newest == self._store.revision:
            if batch:
                self._failed(f"the write was not stored: {error}")
        else:
            self._seal(
                f"storage is at revision {newest}, which is not {self._store.revision}: writes "
                "are refused"
            )
        return False

    async def _compact(self, chunk: int) -> None:
        step = min(self._retention.target, self._store.compacted + chunk)
        await asyncio.sleep(
            0
        )  # a back end without a thread must not keep the loop through all of it
        try:
            await self._call(self._backend.compact, step)
        except WriteFailed as error:
            self._may_compact = False
            # It is tried again with every tick; one line is enough until the reason changes.
            if self._compaction_failing != (why := str(error)):
                self._compaction_failing = why
                self.trouble.report(f"compaction failed, history grows: {why}")
        except Exception as error:
            self._may_compact = False
            await self._reconcile(error, ())
        else:
            if self._compaction_failing:
                self._compaction_failing = ""
                self.trouble.report_mended("compaction works again")
            self._store.compact(step)

    async def _release_space(self) -> None:
        self._may_release_space = False
        try:
            if await self._call(self._backend.release_space):
                self._may_release_space = True  # a tick that came meanwhile counts, too
        except WriteFailed:
            pass  # a full disk, say: the file is as large as it was, and the next tick tries again
        except Exception as error:
            await self._reconcile(error, ())

    def _failed(self, why: str) -> None:
        self.metrics.failures.value += 1
        is_reported, self.failing = self.failing == why, why
        self._abandon_staged(why)
        if not is_reported:
            self.trouble.report(why)

    def _seal(self, why: str) -> None:
        self.sealed = self.failing = why
        self._abandon_staged(why)
        self.trouble.report(why)

    def _abandon_staged(self, why: str) -> None:
        """Forgets everything staged and fails the writers that wait for it."""
        forgotten = self._store.abort_staged()
        self._on_aborted()
        if forgotten:
            self._abandoned.append((forgotten[0].revision - 1, forgotten[-1].revision, why))
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(internal(why))

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        if self._executor is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, function, *arguments
        )
