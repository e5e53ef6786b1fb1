"""The state of the servers that share an etcd: reading it at a start, batches, the head, the feed,
compaction.

``server.io.storage.replicated`` makes the calls; their callbacks come from other threads.

A batch is one transaction on the condition that the head is what the batch rests on. So it may be
sent any number of times: it is taken once at most. That is how a lost answer is dealt with; there
is no other fence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.client import (
    EtcdClient,
    EtcdCompacted,
    EtcdConfig,
    EtcdError,
    NoAnswer,
    Refused,
)
from sliceplane.server.io.storage.etcd.feed import Feed
from sliceplane.server.io.storage.etcd.layout import (
    FORMAT,
    Compaction,
    Damaged,
    Layout,
    ObservedHead,
    Origin,
    UnknownFormat,
    decode_compaction,
    decode_row,
    encode_compaction,
)
from sliceplane.server.store.backend import (
    REVISIONS_BEYOND,
    Loaded,
    StoredRow,
    chain,
)
from sliceplane.server.store.batches import Batch, FeedItem, Group, HeadName, PublishedState
from sliceplane.server.store.types import EventType, Key

#: a start waits so long for an etcd that answers
START_S_MAX: Final = 15.0
_PAGE_KEYS: Final = 500
_LOAD_S_MAX: Final = 30.0
#: what compaction looks its position up in; older ones are compacted to the oldest that is known
_POSITIONS_MAX: Final = 200_000


class Taken(msgspec.Struct, frozen=True):
    position: int


class Behind(msgspec.Struct, frozen=True):
    """Another batch was first; the head is at ``head``."""

    head: int


Answer = Taken | Behind | Refused | NoAnswer


class Snapshot(msgspec.Struct, frozen=True):
    """The state with which a start or a reload begins."""

    loaded: Loaded
    position: int
    #: etcd's revision of this; the feed goes on after it
    read_at: int
    #: (server, position) of each queue key
    queued_writers: tuple[tuple[str, int], ...]
    #: of the head
    name: HeadName
    #: a notice to the operator; "": none
    notice: str = ""


class EtcdBackend:
    """Owned by one committer."""

    def __init__(self, config: EtcdConfig) -> None:
        """Raises ``StorageError``.  Nothing is asked of etcd yet."""
        try:
            self.client = EtcdClient(config)
        except OSError as error:
            raise StorageError(
                f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}"
            ) from error
        self.layout = Layout(config.prefix)
        #: 0: never
        self.compaction_interval_s = config.compaction_interval_s
        #: unique among all servers and all their starts
        self.server = os.urandom(6).hex()
        #: of the etcd that the state is of, which each batch notes; ``None``: nothing was read yet
        self._origin: Origin | None = None
        #: (revision after a batch, its position), of batches after the compaction point
        self._positions: deque[tuple[int, int]] = deque(maxlen=_POSITIONS_MAX)
        #: the compaction key as it was last seen: etcd's revision of it, and the revision that it
        #: says
        self._compaction_mod = 0
        self._compacted = 0
        self._feed: Feed | None = None
        self._closed = threading.Event()

    # Starting

    def snapshot(
        self,
        *,
        history: bool = True,
        patience_s: float = _LOAD_S_MAX,
        published: PublishedState | None = None,
    ) -> Snapshot:
        """Everything; without *history* the state alone.  Blocks; raises ``StorageError``.

        Where etcd was restored from a backup, or lacks what this server has *published*,
        versions first go on beyond all that may have been given out, for all servers.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                why = self._go_beyond_what_is_lost(published)
                return replace(self._snapshot(history), notice=why)
            except NoAnswer as error:
                if self._closed.wait(0.1) or time.monotonic() > deadline:
                    raise StorageError(f"etcd cannot be reached: {error}") from error
            except EtcdCompacted:
                history = False  # another program compacts this etcd; what is there now is enough
            except Refused as error:
                raise StorageError(f"etcd refused to be read: {error}") from error
            except UnknownFormat as error:
                raise StorageError(
                    f"what is in etcd under {self.layout.prefix.decode()} cannot be used: {error}"
                ) from error
            except (Damaged, ValueError) as error:
                raise StorageError(
                    f"what is in etcd under {self.layout.prefix.decode()} is damaged: {error}"
                ) from error

    def _go_beyond_what_is_lost(self, published: PublishedState | None) -> str:
        """Returns the reason why versions had to go on beyond lost ones; "": they did not. Raises
        ``EtcdError`` and ``Damaged``.
        """
        layout = self.layout
        while True:
            keys = (layout.head, layout.compaction, layout.format)
            answer = self.client.ask("txn", wire.TxnRequest(success=list(map(wire.get, keys))))
            head, point, version = (response.range.kvs for response in answer.responses)
            if version and version[0].value != FORMAT:
                raise UnknownFormat(version[0].value)
            status = self.client.ask("status", wire.StatusRequest())
            if status.header.member_id != answer.header.member_id:
                # one that lags behind says something else; the member that was read from does not
                continue
            observed = layout.head_of(head, answer.header)
            origin = Origin(observed.cluster, status.raft_index - status.header.revision)
            self._origin = origin
            if observed.head is None:
                if published is None:
                    return ""
                self.client.ask("txn", layout.beginning(self.server))
                continue
            revision = observed.head.revision
            if observed.head.origin is not None and not observed.head.origin.is_before(origin):
                why = "etcd was restored from a backup: it is not the one that was last written to"
            elif published is None or self._led_from(published, observed):
                return ""
            elif point and decode_compaction(point[0].value).revision >= published.revision:
                return ""  # another server has done it
            else:
                why = "etcd lacks what was acknowledged: it was restored from a backup, or emptied"
            beyond = (
                max(revision, published.revision if published is not None else 0) + REVISIONS_BEYOND
            )
            name = os.urandom(6).hex()
            raised = layout.going_beyond(observed.position, observed.head, name, origin, beyond)
            if self.client.ask("txn", raised).succeeded:
                return f"{why}; versions go on after {beyond}, and clients list again"

    @property
    def cluster(self) -> str:
        """etcd's number of the cluster that the state is of."""
        return self._origin.cluster if self._origin is not None else ""

    def _led_from(self, published: PublishedState, observed: ObservedHead) -> bool:
        """Returns True if the *published* head is among those that led to the one *observed*, as
        far as etcd still has them.
        """
        if observed.head is None or observed.position < published.position:
            return False
        if observed.position == published.position:
            return observed.head.name == published.name
        try:
            before = self.client.ask(
                "range", wire.RangeRequest(key=self.layout.head, revision=published.position)
            )
        except EtcdCompacted:
            return True
        then = self.layout.head_of(before.kvs, before.header)
        return then.head is not None and (then.position, then.head.name) == (
            published.position,
            published.name,
        )

    def _snapshot(self, history: bool) -> Snapshot:
        layout = self.layout
        answer = self.client.ask(
            "txn",
            wire.TxnRequest(
                success=[
                    wire.get(layout.head),
                    wire.get(layout.compaction),
                    wire.get(layout.format),
                    wire.get(layout.queue, wire.end_of(layout.queue)),
                ]
            ),
        )
        head, compaction, version, queue = (response.range.kvs for response in answer.responses)
        if not head:
            self.client.ask("txn", layout.beginning(self.server))
            return self._snapshot(history)
        if not version:
            raise Damaged("its format is missing")
        if version[0].value != FORMAT:
            raise UnknownFormat(version[0].value)
        observed = layout.head_of(head, answer.header)
        assert observed.head is not None, "there is a head"
        self._note_compaction(compaction)
        point = (
            decode_compaction(compaction[0].value)
            if compaction
            else Compaction(1, head[0].create_revision)
        )
        if not history:
            point = Compaction(observed.head.revision, observed.position)
        # Where nothing was written since the head, the state is that of the head; and it is
        # certainly not compacted.
        state = self._state_at(point.position if history else answer.header.revision)
        groups = list(self._history(point.position, observed.position))
        rows = list(_folded(state, groups, point.revision))
        self._positions.clear()
        self._positions.append((point.revision, point.position))
        for group in groups:
            if group.rows:
                self.note(group.rows[-1].record.revision, group.position)
        loaded = Loaded(tuple(chain(rows, point.revision)), observed.head.revision, point.revision)
        queued_writers = ((kv.key[len(layout.queue) :].decode(), kv.mod_revision) for kv in queue)
        return Snapshot(
            loaded,
            observed.position,
            answer.header.revision,
            tuple(queued_writers),
            observed.head.name,
        )

    def _note_compaction(self, kvs: Sequence[Any]) -> None:
        """Raises ``Damaged``."""
        self._compaction_mod = kvs[0].mod_revision if kvs else 0
        self._compacted = decode_compaction(kvs[0].value).revision if kvs else 0

    def _state_at(self, position: int) -> list[StoredRow]:
        """Every object as it was at etcd's revision *position*, by revision."""
        start = self.layout.objects
        end = wire.end_of(self.layout.objects)
        rows: list[StoredRow] = []
        while True:
            request = wire.RangeRequest(
                key=start, range_end=end, limit=_PAGE_KEYS, revision=position
            )
            answer = self.client.ask("range", request, timeout_s=_LOAD_S_MAX)
            rows.extend(decode_row(kv.value) for kv in answer.kvs)
            if not answer.more:
                return sorted(rows, key=lambda row: row.record.revision)
            start = answer.kvs[-1].key + b"\0"

    def _history(self, after: int, until: int) -> Iterator[Group]:
        """Batches after etcd's revision *after*, up to the one at *until*.  Raises
        ``EtcdError``.
        """
        if after >= until:
            return
        arrived: list[FeedItem] = []
        ended = threading.Event()
        problem: list[Exception] = []

        def on_events(events: list[Any]) -> None:
            try:
                arrived.extend(self.layout.items(events))
            except Damaged as error:
                problem.append(error)
            if problem or events[-1].kv.mod_revision >= until:
                ended.set()

        def on_gap(why: str) -> None:
            problem.append(EtcdCompacted(why))
            ended.set()

        feed = Feed(self.client, self.layout.prefix, on_events=on_events, on_gap=on_gap)
        feed.start(after)
        finished = ended.wait(_LOAD_S_MAX)
        feed.close()
        if problem:
            raise problem[0]
        if not finished:
            raise NoAnswer("etcd did not tell the history in time")
        yield from (item for item in arrived if isinstance(item, Group) and item.position <= until)

    def note(self, revision: int, position: int) -> None:
        """A batch that ends with *revision* is at *position*; for compaction."""
        self._positions.append((revision, position))

    # Calls with callbacks

    def send(self, batch: Batch, done: Callable[[Answer], None]) -> None:
        def ended(answer: Any, error: EtcdError | None) -> None:
            if error is not None:
                done(error if isinstance(error, (Refused, NoAnswer)) else NoAnswer(str(error)))
            elif answer.succeeded:
                done(Taken(answer.header.revision))
            else:
                kvs = answer.responses[0].range.kvs
                done(Behind(kvs[0].mod_revision) if kvs else NoAnswer("there is no head in etcd"))

        self.client.call("txn", self.layout.batch(self.server, batch, self._origin), ended)

    def read_head(self, done: Callable[[ObservedHead | EtcdError], None]) -> None:
        """A quorum read."""

        def ended(answer: Any, error: EtcdError | None) -> None:
            if error is not None:
                done(error)
                return
            try:
                done(self.layout.head_of(answer.kvs, answer.header))
            except Damaged as damage:
                done(Refused(str(damage)))

        self.client.call("range", wire.RangeRequest(key=self.layout.head), ended)

    def dequeue(self, done: Callable[[EtcdError | None], None]) -> None:
        request = wire.TxnRequest(success=[wire.delete(self.layout.queue_key(self.server))])
        self.client.call("txn", request, lambda _, error: done(error))

    def follow(
        self, after: int, on_items: Callable[[list[FeedItem]], None], on_gap: Callable[[str], None]
    ) -> Feed:
        """Start the feed; once."""

        def on_events(events: list[Any]) -> None:
            try:
                items = self.layout.items(events)
            except Damaged as error:
                on_gap(str(error))
            else:
                on_items(items)

        assert self._feed is None, "there is a feed already"
        self._feed = Feed(self.client, self.layout.prefix, on_events=on_events, on_gap=on_gap)
        self._feed.start(after)
        return self._feed

    # Compaction

    def compact(self, revision: int) -> bool:
        """Have etcd drop what nothing after *revision* needs; ``False`` if another server did it
        since the last call. Blocks; raises ``EtcdError``.
        """
        point = self._point(revision)
        if point is None or revision <= self._compacted:
            return False
        key = self.layout.compaction
        request = wire.TxnRequest(
            compare=[wire.unchanged_since(key, self._compaction_mod)],
            success=[wire.put(key, encode_compaction(point))],
            failure=[wire.get(key)],
        )
        answer = self.client.ask("txn", request)
        if not answer.succeeded:
            with contextlib.suppress(Damaged):  # a start will tell
                self._note_compaction(answer.responses[0].range.kvs)
            return False
        self._compaction_mod = answer.header.revision
        self._compacted = revision
        with contextlib.suppress(EtcdCompacted):  # it was further already
            self.client.ask(
                "compact", wire.CompactionRequest(revision=point.position), timeout_s=_LOAD_S_MAX
            )
        return True

    def _point(self, revision: int) -> Compaction | None:
        """The last batch that is wholly up to *revision*."""
        while len(self._positions) > 1 and self._positions[1][0] <= revision:
            self._positions.popleft()
        if not self._positions or self._positions[0][0] > revision:
            return None
        return Compaction(revision, self._positions[0][1])

    # Identity

    def claim_identity(self, fingerprints: str) -> str:
        """Stores the identity that all servers must share, or returns the one that is stored.
        Blocks; raises ``StorageError``.
        """
        key = self.layout.identity
        request = wire.TxnRequest(
            compare=[wire.unchanged_since(key, 0)],
            success=[wire.put(key, fingerprints.encode())],
            failure=[wire.get(key)],
        )
        try:
            answer = self.client.ask("txn", request)
        except EtcdError as error:
            raise StorageError(f"etcd cannot be reached: {error}") from error
        if answer.succeeded:
            return fingerprints
        kvs = answer.responses[0].range.kvs
        return str(kvs[0].value.decode()) if kvs else fingerprints

    def close(self) -> None:
        """Also ends a ``snapshot`` under way in another thread."""
        self._closed.set()
        if self._feed is not None:
            self._feed.close()
        self.client.close()


def _folded(state: list[StoredRow], groups: Sequence[Group], revision: int) -> Iterator[StoredRow]:
    """The state at *revision*, which may be in the midst of a batch, and what came after it."""
    there: dict[Key, StoredRow] = {row.record.key: row for row in state}
    later: list[StoredRow] = []
    for group in groups:
        for row in group.rows:
            if row.record.revision > revision:
                later.append(row)
            elif row.type is EventType.DELETED:
                there.pop(row.record.key, None)
            else:
                there[row.record.key] = row
    yield from sorted(there.values(), key=lambda row: row.record.revision)
    yield from later
