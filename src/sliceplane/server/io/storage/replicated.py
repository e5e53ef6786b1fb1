"""The committer of a server that shares its storage with others: performs what
``server.store.replica`` decides.

    write(step) --> replica --Batch--> etcd
                       ^                  |  taken, refused, no answer
                       '------- feed -----'  what the batches of all servers did, in order

- A batch without an answer is sent again until something is known: the condition on the head lets
  it in once at most.
- Meanwhile nothing is acknowledged. Who has waited for storage longer than ``OUTAGE_S`` is not let
  in at all: a write is refused with 503 before it runs, so it certainly did not happen.
- A linearizable read waits ``READ_S_MAX`` for a majority and then fails with 504. Reads that take
  any version, and watches, go on from memory; ``staleness_s`` says how old that is.
- A feed that is behind what the head says, for longer than ``STUCK_S``, is begun anew at another
  member.
- Where the feed has a gap (etcd dropped what this server had not seen), all is loaded anew; watches
  end with 410.
- The same where etcd was restored from a backup: its cluster has another number, or its head
  another name than the one that was seen here. Each linearizable read looks, and a server without
  any does once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sliceplane.api.errors import (
    StatusError,
    internal,
    unavailable,
)
from sliceplane.kit.io.tasks import ends_within
from sliceplane.server.io.storage.committing import CommitMetrics, StorageError, TroubleLog
from sliceplane.server.io.storage.etcd.backend import Answer, Behind, EtcdBackend, Snapshot, Taken
from sliceplane.server.io.storage.etcd.client import EtcdError, NoAnswer, Refused
from sliceplane.server.io.storage.etcd.feed import Feed
from sliceplane.server.io.storage.etcd.health import EtcdHealth
from sliceplane.server.io.storage.etcd.layout import ObservedHead
from sliceplane.server.store.backend import Loaded
from sliceplane.server.store.batches import Batch, FeedItem, PublishedState, Ticket
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.replica import OutOfOrder, Replica, StoreCaches
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import StoreEvent

T = TypeVar("T")

READ_S_MAX: Final = 5.0
STUCK_S: Final = 1.5
#: an idle server asks for the head this often, to know how old its memory is
HEARTBEAT_S: Final = 1.0
#: memory that is older is told to readers, and its server is not ready
STALE_S_MAX: Final = 10.0
_RETRY_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
_COMPACT_CHUNK_REVISIONS: Final = 2048


class ReplicatedCommitter:
    """Owned by the server, made in its loop. ``start``, then any number of ``write`` and
    ``current``, then ``close``.

    *snapshot* is what *store* was made of.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        backend: EtcdBackend,
        *,
        snapshot: Snapshot,
        caches: StoreCaches,
        retention: Retention | None = None,
        trouble: TroubleLog | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._retention = retention if retention is not None else Retention()
        self._trouble = trouble if trouble is not None else TroubleLog()
        self.replica = Replica(
            store,
            hub,
            caches,
            server=backend.server,
            position=snapshot.position,
            name=snapshot.name,
            on_published=self._published,
        )
        self._health = EtcdHealth(len(backend.client.servers), self._trouble)
        self._read_at = snapshot.read_at
        self._loop = asyncio.get_running_loop()
        self._feed: Feed | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_dequeuing = False
        self._reloading = False
        self._closing = False
        #: when the feed was first seen behind; ``None``: it is not
        self._behind_since: float | None = None
        self._compaction_due = 0.0
        #: what the next compaction goes to: the newest revision of one interval ago
        self._compaction_target = 0
        #: when memory was last known to be as new as the log
        self._confirmed_at = 0.0
        self.metrics = self._declared()
        self.reloads = self.metrics.counter(
            "sliceplane_etcd_reloads_total",
            "Times that all was read anew since the feed had a gap.",
        )

    def _declared(self) -> CommitMetrics:
        metrics = CommitMetrics(lambda: self.commits, lambda: self.staleness_s)
        replica = self.replica
        metrics.include(self._backend.client.families)
        for name, text, read in (
            ("conflicts", "Batches that another server's came before.", lambda: replica.conflicts),
            ("redone_steps", "Requests that ran again after that.", lambda: replica.redone),
            ("reads", "Reads that waited for the newest state.", lambda: replica.reads.served),
            (
                "read_questions",
                "Quorum reads of the head; they serve many.",
                lambda: replica.reads.queries,
            ),
        ):
            metrics.computed("counter", f"sliceplane_etcd_{name}_total", text, read)
        return metrics

    @property
    def batches(self) -> int:
        return self.replica.batches

    @property
    def commits(self) -> int:
        return self.replica.commits

    @property
    def staleness_s(self) -> float:
        """Seconds since the state in memory was last known to be the newest."""
        return max(0.0, self._loop.time() - self._confirmed_at)

    @property
    def failing(self) -> str | None:
        """The reason why storage does not work; ``None``: it does."""
        return self._health.failing

    @property
    def unready(self) -> str:
        """The reason why clients had better use another server; "": there is none."""
        if self._reloading:
            return "the state is being loaded anew"
        if self.staleness_s > STALE_S_MAX:
            return f"memory was last known to be current {self.staleness_s:.0f} s ago"
        return ""

    def start(self) -> None:
        self._confirmed_at = self._loop.time()
        self._compaction_due = self._confirmed_at + self._backend.compaction_interval_s
        self._feed = self._backend.follow(
            self._read_at, self._threaded(self._fed), self._threaded(self._gap)
        )
        self._spawn(self._heart(), "etcd heartbeat")

    def _spawn(self, work: Any, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._trouble.report(f"{task.get_name()} met a bug: {task.exception()!r}")

    def _threaded(self, function: Callable[[T], None]) -> Callable[[T], None]:
        """*function* for threads to call: it runs in the loop."""

        def call(argument: T) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it the caller
                self._loop.call_soon_threadsafe(function, argument)

        return call

    # What requests ask for

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        """Run *step*, a synchronous piece of registry work, and return what it returned when that
        is durable and published. It runs again when another server was first.

        *revision_of* tells the revision that a result made, 0 if none. Raises what *step* raises,
        and ``StatusError`` 500 if it was not stored, 503 if storage has been away for long; then
        *step* did not run.
        """
        if self._closing:
            raise unavailable("the server is shutting down")
        if self._reloading and self._health.call_failing is not None:
            # Nothing runs before all is loaded, and that does not work.
            raise unavailable(f"storage is unavailable: {self._health.call_failing}")
        if self._health.is_out(self._loop.time()):
            why = self.failing or "etcd does not answer"
            raise unavailable(f"storage is unavailable: {why}")
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        ticket = Ticket(step, revision_of, done)
        self.replica.submit(ticket, self._loop.time())
        self._act_soon()
        try:
            return await future
        except asyncio.CancelledError:
            # What was sent may be taken all the same; what was not is never run again.
            ticket.abandoned = True
            raise

    async def current(self) -> None:
        """Return when memory is at least as new as the log was at the call.  Raises the 504
        ``StatusError``.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self.replica.reads.add(lambda: None if future.done() else future.set_result(None))
        self._act_soon()
        try:
            async with asyncio.timeout(READ_S_MAX):
                await future
        except TimeoutError:
            why = f"Timeout: {self.failing or 'etcd did not answer in time'}"
            details = {"retryAfterSeconds": 1}
            raise StatusError(504, "Timeout", why, details, retry_after_s=1) from None

    def tick(self, now: float) -> None:
        """Time passes (every few seconds will do): history that is old enough is compacted, here
        and in etcd.
        """
        self._retention.on_tick(now)
        while self._store.compacted < self._retention.target:
            self._store.compact(
                min(self._retention.target, self._store.compacted + _COMPACT_CHUNK_REVISIONS)
            )
        if self._backend.compaction_interval_s and self._loop.time() >= self._compaction_due:
            self._compaction_due = self._loop.time() + self._backend.compaction_interval_s
            target, self._compaction_target = self._compaction_target, self._store.revision
            if target:
                self._spawn(self._compact(target), "etcd compaction")

    async def close(self) -> None:
        """Let the back end go; what waits is told so.  Idempotent."""
        if self._closing:
            return
        await ends_within(1.0, self._written())
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.replica.abandon_all(
            StatusError(503, "ServiceUnavailable", "the server is shutting down")
        )
        await asyncio.to_thread(self._backend.close)

    async def _written(self) -> None:
        """Returns when accepted writes have reached the other servers, or cannot."""
        while self.replica.busy and self.failing is None:
            await asyncio.sleep(0.005)

    # Acting

    def _act_soon(self) -> None:
        """At the end of this turn of the loop, so that what arrives together is one batch and one
        query.
        """
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._act)

    def _act(self) -> None:
        self._scheduled = False
        if self._closing or self._reloading:
            return
        now = self._loop.time()
        replica = self.replica
        replica.tick(now)
        batch = replica.take_batch(now)
        if batch is not None:
            self._send(batch, now, attempt=0)
        number = replica.take_read()
        if number is not None:
            self._request_head(number)
        if replica.is_queued_without_work() and not self._is_dequeuing:
            self._is_dequeuing = True
            self._backend.dequeue(self._threaded(self._on_dequeue_answered))
        self._watch_feed(now)
        due = replica.next_deadline(now)
        if due is not None and (
            self._timer is None or self._timer.cancelled() or self._timer.when() <= now
        ):
            self._timer = self._loop.call_at(due + 0.001, self._act_soon)

    def _send(self, batch: Batch, began: float, attempt: int) -> None:
        self._health.on_call(self._loop.time())
        self._backend.send(
            batch, self._threaded(lambda answer: self._sent(batch, began, attempt, answer))
        )

    def _sent(self, batch: Batch, began: float, attempt: int, answer: Answer) -> None:
        if self._closing:
            return
        now = self._loop.time()
        if isinstance(answer, Taken):
            self._health.on_taken()
            self.metrics.batch_seconds.observe(now - began)
            self.replica.on_taken(batch.number, answer.position, now)
        elif isinstance(answer, Behind):
            self._health.on_answer()
            self.replica.on_refused(batch.number, answer.head)
            if answer.head <= self.replica.position:
                # It is another head, of which the feed has no event.
                self.replica.reads.add(lambda: None)
        elif isinstance(answer, Refused) and attempt == 0:
            why = f"the write was not stored: {answer}"
            self._health.on_refused(why, lasting=answer.lasting)
            self.metrics.failures.value += 1
            self.replica.on_failed(batch.number, internal(why), now)
        else:
            # Also a refusal after silence: it says nothing about the attempts before.
            self._health.on_no_answer(answer)
            if self.replica.waits_for(batch.number):
                delay = _RETRY_S[min(attempt, len(_RETRY_S) - 1)]
                self._loop.call_later(delay, self._send_again, batch, began, attempt + 1)
        self._act_soon()

    def _send_again(self, batch: Batch, began: float, attempt: int) -> None:
        if not self._closing and self.replica.waits_for(batch.number):
            self._send(batch, began, attempt)

    def _request_head(self, number: int) -> None:
        requested_at = self._loop.time()
        self._health.on_call(requested_at)

        def answered(observed: ObservedHead | EtcdError) -> None:
            if self._closing:
                return
            if isinstance(observed, ObservedHead):
                self._health.on_answer()
                self._on_head(number, observed, requested_at)
            else:
                self._health.on_no_answer(observed)
                self._loop.call_later(_RETRY_S[2], self._retry_head, number)

        self._backend.read_head(self._threaded(answered))

    def _on_head(self, number: int, observed: ObservedHead, requested_at: float) -> None:
        if observed.cluster != self._backend.cluster and not self._reloading:
            self.replica.reads.on_no_answer(number)
            self._gap(
                f"etcd is cluster {observed.cluster}, and was {self._backend.cluster}, as after a "
                "restore"
            )
            return

        def confirmed() -> None:
            self._confirmed_at = max(self._confirmed_at, requested_at)

        self.replica.reads.add_to_current(confirmed)
        try:
            name = observed.head.name if observed.head is not None else None
            self.replica.on_head(number, observed.position, name, self._loop.time())
        except OutOfOrder as error:
            self._gap(f"etcd's log is not the one that it was ({error}), as after a restore")
        self._act_soon()

    def _retry_head(self, number: int) -> None:
        self.replica.reads.on_no_answer(number)
        self._act_soon()

    def _on_dequeue_answered(self, error: EtcdError | None) -> None:
        # Either way the feed tells when it is gone; not before is it tried again.
        self._loop.call_later(0.1, self._allow_dequeue)

    def _allow_dequeue(self) -> None:
        self._is_dequeuing = False
        self._act_soon()

    async def _heart(self) -> None:
        """Ask for the head now and then, and see to it that the feed follows."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if not self.replica.reads.has_waiting and not self._reloading:
                self.replica.reads.add(lambda: None)
            self._act_soon()

    # The feed

    def _fed(self, items: list[FeedItem]) -> None:
        if self._closing or self._reloading:
            return
        try:
            self.replica.on_feed(items, self._loop.time())
        except OutOfOrder as error:
            self._gap(str(error))
        self._act_soon()

    def _published(self, events: Sequence[StoreEvent]) -> None:
        if events:
            self._backend.note(events[-1].revision, self.replica.position)
            self._retention.on_events(events, self._store.object_bytes.total)

    def _watch_feed(self, now: float) -> None:
        if self.replica.head <= self.replica.position:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now > self._behind_since + STUCK_S:
            self._behind_since = None
            if self._feed is not None:
                self._feed.restart()

    def _gap(self, why: str) -> None:
        """The feed cannot go on: either nothing was missed (others use this etcd, too), or all is
        loaded anew.
        """
        if not self._closing and not self._reloading:
            self._reloading = True
            self._spawn(self._reload(why), "etcd reload")

    async def _reload(self, why: str) -> None:
        self._trouble.report(f"{why}; loading the state anew")
        while True:
            try:
                snapshot = await asyncio.to_thread(
                    self._backend.snapshot, history=False, published=self.replica.published
                )
                break
            except StorageError as error:
                self._health.fail(str(error))
                await asyncio.sleep(1.0)
        self._reloading = False
        self.reloads.value += 1
        if snapshot.notice:
            self._trouble.report(snapshot.notice)
        self._trouble.report_mended("the state was loaded anew")
        loaded = Loaded(
            tuple(snapshot.loaded.history), snapshot.loaded.revision, snapshot.loaded.compacted
        )
        if (
            PublishedState(snapshot.position, snapshot.name, loaded.revision)
            != self.replica.published
        ):
            self._retention.on_replaced()
            # No client may be told that history is dropped up to a revision that is still to come.
            self._compaction_target = min(self._compaction_target, loaded.revision)
            self.replica.on_reloaded(
                loaded, snapshot.position, snapshot.name, snapshot.queued_writers, self._loop.time()
            )
        if self._feed is not None:
            self._feed.resume(snapshot.read_at)
        self._act_soon()

    # Compaction

    async def _compact(self, revision: int) -> None:
        try:
            await asyncio.to_thread(self._backend.compact, revision)
        except NoAnswer as error:
            self._trouble.report(f"compaction of etcd failed and is tried again: {error}")
        except Refused as error:
            self._trouble.report(f"compaction of etcd was refused: {error}")
