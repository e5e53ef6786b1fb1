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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from sliceplane.api.errors import (
    StatusError,
    internal,
    read_timeout,
    shutting_down,
    storage_unavailable,
)
from sliceplane.kit.io.last_steps import ends_within
from sliceplane.server.io.storage.committing import CommitMetrics, StorageError
from sliceplane.server.io.storage.etcd.backend import Answer, Behind, EtcdBackend, Snapshot, Taken
from sliceplane.server.io.storage.etcd.client import EtcdError, NoAnswer, Refused
from sliceplane.server.io.storage.etcd.feed import Feed
from sliceplane.server.io.storage.etcd.layout import HeadSeen
from sliceplane.server.store.backend import Loaded
from sliceplane.server.store.batches import Batch, FeedItem, Known, Ticket
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.replica import OutOfOrder, Replica
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import Key, StoreEvent

T = TypeVar("T")

#: storage that did not answer for so long takes no new writes
OUTAGE_S: Final = 3.0
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

    *snapshot* is what *store* was made of. *on_changed* and *on_replaced*: see ``Replica``.
    *report* gets one sentence for each thing that an operator should know.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        backend: EtcdBackend,
        *,
        snapshot: Snapshot,
        on_changed: Callable[[Iterable[Key]], None],
        on_replaced: Callable[[], None],
        retention: Retention | None = None,
        compaction_interval_s: float = 300.0,
        report: Callable[[str], None] = lambda _: None,
        report_mended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._retention = retention if retention is not None else Retention()
        self._report = report
        #: for what is well again
        self._report_mended = report_mended
        self.replica = Replica(
            store,
            hub,
            server=backend.server,
            position=snapshot.position,
            name=snapshot.name,
            on_changed=on_changed,
            on_replaced=on_replaced,
            on_published=self._published,
        )
        self._read_at = snapshot.read_at
        self._loop = asyncio.get_running_loop()
        self._feed: Feed | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._dropping_turn = False
        self._reloading = False
        self._closing = False
        #: when the feed was first seen behind; ``None``: it is not
        self._behind_since: float | None = None
        self._compaction_interval_s = compaction_interval_s
        self._compaction_due = 0.0
        #: what the next compaction goes to: the newest revision of one interval ago
        self._compaction_target = 0
        #: when the oldest call that is still without an answer began
        self._silent_since: float | None = None
        #: when memory was last known to be as new as the log
        self._confirmed_at = 0.0
        #: why the last call failed; ``None``: it did not
        self._call_failing: str | None = None
        #: why etcd takes no writes, whatever its answers to reads are; ``None``: it does
        self._writes_failing: str | None = None
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
                lambda: replica.reads.questions,
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
        """How long ago what is in memory was last known to be the newest."""
        return max(0.0, self._loop.time() - self._confirmed_at)

    @property
    def failing(self) -> str | None:
        """Why storage does not do what it is for; ``None``: it does."""
        return self._call_failing or self._writes_failing

    @property
    def unready(self) -> str:
        """Why this server had better not be asked; "" if nothing speaks against it."""
        if self._reloading:
            return "the state is being loaded anew"
        if self.staleness_s > STALE_S_MAX:
            return f"memory was last known to be current {self.staleness_s:.0f} s ago"
        return ""

    def start(self) -> None:
        self._confirmed_at = self._loop.time()
        self._compaction_due = self._confirmed_at + self._compaction_interval_s
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
            self._report(f"{task.get_name()} met a bug: {task.exception()!r}")

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
            raise shutting_down()
        if self._reloading and self._call_failing is not None:
            raise storage_unavailable(
                self._call_failing
            )  # nothing runs before all is loaded, and that does not work
        if self._silent_since is not None and self._loop.time() - self._silent_since > OUTAGE_S:
            raise storage_unavailable(self.failing or "etcd does not answer")
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
        self.replica.reads.want(lambda: None if future.done() else future.set_result(None))
        self._act_soon()
        try:
            async with asyncio.timeout(READ_S_MAX):
                await future
        except TimeoutError:
            raise read_timeout(self.failing or "etcd did not answer in time") from None

    def tick(self, now: float) -> None:
        """Time passes (every few seconds will do): history that is old enough is compacted, here
        and in etcd.
        """
        self._retention.on_tick(now)
        while self._store.compacted < self._retention.target:
            self._store.compact(
                min(self._retention.target, self._store.compacted + _COMPACT_CHUNK_REVISIONS)
            )
        if self._compaction_interval_s and self._loop.time() >= self._compaction_due:
            self._compaction_due = self._loop.time() + self._compaction_interval_s
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
        """What was accepted is told to the other servers, or can not be."""
        while self.replica.busy and self.failing is None:
            await asyncio.sleep(0.005)

    # Acting

    def _act_soon(self) -> None:
        """At the end of this turn of the loop, so that what arrives together is one batch and one
        question.
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
            self._ask(number)
        if replica.has_idle_turn() and not self._dropping_turn:
            self._dropping_turn = True
            self._backend.drop_turn(self._threaded(self._turn_dropped))
        self._watch_feed(now)
        due = replica.next_deadline(now)
        if due is not None and (
            self._timer is None or self._timer.cancelled() or self._timer.when() <= now
        ):
            self._timer = self._loop.call_at(due + 0.001, self._act_soon)

    def _send(self, batch: Batch, began: float, attempt: int) -> None:
        self._heard_nothing_since(self._loop.time())
        self._backend.send(
            batch, self._threaded(lambda answer: self._sent(batch, began, attempt, answer))
        )

    def _sent(self, batch: Batch, began: float, attempt: int, answer: Answer) -> None:
        if self._closing:
            return
        now = self._loop.time()
        if isinstance(answer, Taken):
            if self._writes_failing is not None:
                self._writes_failing = None
                self._report_mended("etcd takes writes again")
            self._answered()
            self.metrics.batch_seconds.observe(now - began)
            self.replica.on_taken(batch.number, answer.position, now)
        elif isinstance(answer, Behind):
            self._answered()
            self.replica.on_refused(batch.number, answer.head)
            if answer.head <= self.replica.position:
                self.replica.reads.want(
                    lambda: None
                )  # it is another head, which the feed will not tell
        elif isinstance(answer, Refused) and attempt == 0:
            self._answered()
            self.metrics.failures.value += 1
            self._refused(f"the write was not stored: {answer}", lasting=answer.lasting)
            self.replica.on_failed(
                batch.number, internal(f"the write was not stored: {answer}"), now
            )
        else:
            # Also a refusal after silence: it says nothing about the attempts before.
            self._no_answer(answer)
            if self.replica.waits_for(batch.number):
                delay = _RETRY_S[min(attempt, len(_RETRY_S) - 1)]
                self._loop.call_later(delay, self._send_again, batch, began, attempt + 1)
        self._act_soon()

    def _send_again(self, batch: Batch, began: float, attempt: int) -> None:
        if not self._closing and self.replica.waits_for(batch.number):
            self._send(batch, began, attempt)

    def _ask(self, number: int) -> None:
        asked_at = self._loop.time()
        self._heard_nothing_since(asked_at)

        def answered(seen: HeadSeen | EtcdError) -> None:
            if self._closing:
                return
            if isinstance(seen, HeadSeen):
                self._answered()
                self._head_seen(number, seen, asked_at)
            else:
                self._no_answer(seen)
                self._loop.call_later(_RETRY_S[2], self._ask_again, number)

        self._backend.ask_head(self._threaded(answered))

    def _head_seen(self, number: int, seen: HeadSeen, asked_at: float) -> None:
        if seen.cluster != self._backend.cluster and not self._reloading:
            self.replica.reads.on_no_answer(number)
            self._gap(
                f"etcd is cluster {seen.cluster}, and was {self._backend.cluster}, as after a "
                "restore"
            )
            return

        def confirmed() -> None:
            self._confirmed_at = max(self._confirmed_at, asked_at)

        self.replica.reads.also(confirmed)
        try:
            name = seen.head.name if seen.head is not None else None
            self.replica.on_head(number, seen.position, name, self._loop.time())
        except OutOfOrder as error:
            self._gap(f"etcd's log is not the one that it was ({error}), as after a restore")
        self._act_soon()

    def _ask_again(self, number: int) -> None:
        self.replica.reads.on_no_answer(number)
        self._act_soon()

    def _turn_dropped(self, error: EtcdError | None) -> None:
        # Either way the feed tells when it is gone; not before is it tried again.
        self._loop.call_later(0.1, self._may_drop_turn)

    def _may_drop_turn(self) -> None:
        self._dropping_turn = False
        self._act_soon()

    # What is known of etcd

    def _heard_nothing_since(self, now: float) -> None:
        if self._silent_since is None:
            self._silent_since = now

    def _answered(self) -> None:
        self._silent_since = None
        self._failures = 0
        known, self._call_failing = self._call_failing is not None, None
        if known and self.failing is None:
            self._report_mended("etcd answers again")

    def _no_answer(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > len(self._backend.client.servers):
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        known, self._call_failing = self._call_failing is not None, why
        if not known:
            self._report(f"etcd: {why}")

    def _refused(self, why: str, *, lasting: bool) -> None:
        """An answer, so reads may go on; where it is about more than this write, health says so
        until one is taken.
        """
        if why != self._writes_failing:
            self._report(f"etcd: {why}")
        if lasting:
            self._writes_failing = why

    async def _heart(self) -> None:
        """Ask for the head now and then, and see to it that the feed follows."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if not self.replica.reads.wanted and not self._reloading:
                self.replica.reads.want(lambda: None)
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
            size = sum(len(event.record.body) for event in events)
            self._retention.on_commit(
                events[-1].revision, len(events), size, self._store.object_bytes.total
            )

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
        self._report(f"{why}; loading the state anew")
        while True:
            try:
                snapshot = await asyncio.to_thread(
                    self._backend.snapshot, history=False, known=self.replica.known
                )
                break
            except StorageError as error:
                self._fail(str(error))
                await asyncio.sleep(1.0)
        self._reloading = False
        self.reloads.value += 1
        if snapshot.told:
            self._report(snapshot.told)
        self._report_mended("the state was loaded anew")
        loaded = Loaded(
            tuple(snapshot.loaded.history), snapshot.loaded.revision, snapshot.loaded.compacted
        )
        if Known(snapshot.position, snapshot.name, loaded.revision) != self.replica.known:
            self._retention.on_replaced()
            # No client may be told that history is dropped up to a revision that is still to come.
            self._compaction_target = min(self._compaction_target, loaded.revision)
            self.replica.on_reloaded(
                loaded, snapshot.position, snapshot.name, snapshot.turns, self._loop.time()
            )
        if self._feed is not None:
            self._feed.resume(snapshot.read_at)
        self._act_soon()

    # Compaction

    async def _compact(self, revision: int) -> None:
        try:
            await asyncio.to_thread(self._backend.compact, revision)
        except NoAnswer as error:
            self._report(f"compaction of etcd failed and is tried again: {error}")
        except Refused as error:
            self._report(f"compaction of etcd was refused: {error}")
