"""The layout of the state in etcd: keys and values. docs/deploy.md says it to operators.

    PREFIX/format                            the version of this layout
    PREFIX/head                              the newest batch: who wrote it, the revision after it, the batch that it
                                             rests on, and the events that the objects' keys do not
                                             show
    PREFIX/objects/RESOURCE/NAMESPACE/NAME   the newest version of an object (cluster scope: without NAMESPACE)
    PREFIX/turns/SERVER                      a queued server: its batch was refused, and others let it write first
    PREFIX/compaction                        the revision up to which history was dropped, and etcd's for it
    PREFIX/identity                          fingerprints of the authority and the token key that all servers share

A batch is one transaction: it puts each object that it left in place at its last version, deletes
those that it removed, and puts the head. The events of a batch are the objects' puts and the head's
``others``: deletions (etcd keeps no value of those) and versions that a later event of the same
batch replaced. So every event is stored once, and etcd's own history of the prefix is our history.

A condition on the head's revision alone would hold in an etcd that was restored and written to
since, with other batches under the same numbers. So the head's *name* (server, batch, revision:
what its value begins with) is a condition as well, and each head says which one it rests on. The
head also says by what a start can tell a cluster that was made of a backup (``Origin``).

Values are JSON, so that ``etcdctl get`` shows what there is; an object's body is in it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.store.backend import StoredRow
from sliceplane.server.store.batches import (
    Batch,
    FeedItem,
    Group,
    HeadName,
    WriterDequeued,
    WriterQueued,
)
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

FORMAT: Final = b"1"
#: etcd tells entries and revisions one after the other
LEAD_SLACK: Final = 32


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of one object; members as of ``Record``."""

    type: str
    revision: int
    created: int
    resource: str
    name: str
    uid: str
    body: msgspec.Raw
    namespace: str = ""
    #: revision of the version before; 0: none
    previous: int = 0
    labels: dict[str, str] = {}
    fields: dict[str, str] = {}
    owners: tuple[str, ...] = ()


class Origin(msgspec.Struct, frozen=True):
    """The identity of an etcd. ``cluster`` is its number; clusters of the same members and token
    have the same, though.

    ``lead`` is how many entries more etcd's log had had than revisions. Each revision takes an
    entry, so it never shrinks, but for a cluster that was made of a backup: that keeps the
    revisions and begins its log anew.
    """

    cluster: str
    lead: int

    def is_before(self, later: Origin) -> bool:
        """Returns True if *later* may be the same etcd at a later time."""
        return self.cluster == later.cluster and later.lead + LEAD_SLACK >= self.lead


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """``revision`` is the newest of all; ``events`` says how many the batch has, ``others`` are
    those not at keys. The first three are the head's name, and stay the first three: see
    ``Layout.batch``.
    """

    revision: int
    server: str
    batch: int
    events: int
    others: tuple[Row, ...] = ()
    #: the head that it rests on, as SERVER/BATCH; "": an older server did not say
    after: str = ""
    #: of the etcd that it was written to
    origin: Origin | None = None
    #: versions up to this one may have been given out by a history that is lost
    beyond: int = 0
    #: etcd's revision of the head that its server knew when it had work for this batch
    since: int = 0

    @property
    def name(self) -> HeadName:
        return HeadName(self.server, self.batch, self.revision)


class Compaction(msgspec.Struct, frozen=True):
    """``position`` is etcd's revision of the last batch whose events are all up to ``revision``."""

    revision: int
    position: int


class Damaged(Exception):
    """A stored value that cannot be ours. The text is one sentence for a person."""


class UnknownFormat(Damaged):
    """A layout of a newer version of this program."""

    def __init__(self, value: bytes) -> None:
        version = value.decode(errors="replace") or "none"
        super().__init__(
            f"it has format {version}, of another version of Sliceplane (this one knows format "
            f"{FORMAT.decode()}); "
            "use that version or another --etcd-prefix"
        )


_encode = msgspec.json.Encoder().encode
_row = msgspec.json.Decoder(Row)
_head = msgspec.json.Decoder(Head)
_compaction = msgspec.json.Decoder(Compaction)


class ObservedHead(msgspec.Struct, frozen=True):
    """The head as a read returned it; ``position`` 0: there is none.  ``cluster``: of the etcd that
    answered.
    """

    position: int
    head: Head | None
    cluster: str = ""


class Layout:
    """Keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"/{prefix.strip('/')}/".encode()
        self.head = self.prefix + b"head"
        self.format = self.prefix + b"format"
        self.compaction = self.prefix + b"compaction"
        self.identity = self.prefix + b"identity"
        self.objects = self.prefix + b"objects/"
        self.queue = self.prefix + b"turns/"

    def object(self, key: Key) -> bytes:
        return self.objects + f"{key.resource}/{key.path}".encode()

    def queue_key(self, server: str) -> bytes:
        return self.queue + server.encode()

    # Writing

    def batch(self, server: str, batch: Batch, origin: Origin | None = None) -> Any:
        """The transaction that writes *batch* if the head is still what it rests on, in the etcd of
        *origin*.
        """
        last: dict[Key, StoreEvent] = {event.record.key: event for event in batch.events}
        kept = [
            event
            for event in batch.events
            if last[event.record.key] is event and event.type is not EventType.DELETED
        ]
        at_keys = {event.revision for event in kept}
        others = tuple(_row_of(event) for event in batch.events if event.revision not in at_keys)
        revision = batch.events[-1].revision
        head = Head(
            revision,
            server,
            batch.number,
            len(batch.events),
            others,
            str(batch.after),
            origin,
            since=batch.since,
        )
        operations = [
            wire.put(self.object(event.record.key), encode_event(event)) for event in kept
        ]
        operations += [
            wire.delete(self.object(key))
            for key, event in last.items()
            if event.type is EventType.DELETED
        ]
        operations += [wire.delete(self.queue_key(name)) for name in batch.dequeued_servers]
        operations.append(wire.put(self.head, _encode(head)))
        otherwise = [wire.get(self.head)]
        if batch.queues_if_refused:
            otherwise.append(wire.put(self.queue_key(server), b"{}"))
        return wire.TxnRequest(
            compare=self._rests_on(batch.basis, batch.after), success=operations, failure=otherwise
        )

    def _rests_on(self, position: int, name: HeadName) -> list[Any]:
        return [
            wire.unchanged_since(self.head, position),
            *wire.begins_with(self.head, _beginning_of(name)),
        ]

    def beginning(self, server: str) -> Any:
        """The transaction that makes an empty log, if there is none."""
        return wire.TxnRequest(
            compare=[wire.unchanged_since(self.head, 0)],
            success=[
                wire.put(self.format, FORMAT),
                wire.put(self.head, _encode(Head(1, server, 0, 0))),
            ],
        )

    def going_beyond(
        self, position: int, head: Head, server: str, origin: Origin, revision: int
    ) -> Any:
        """The transaction that has versions go on after *revision*, and forgets what was before;
        *server* must be a name of its own.
        """
        raised = Head(revision, server, 0, 0, after=str(head.name), origin=origin, beyond=revision)
        return wire.TxnRequest(
            compare=self._rests_on(position, head.name),
            success=[
                wire.put(self.head, _encode(raised)),
                wire.put(self.compaction, encode_compaction(Compaction(revision, position))),
            ],
        )

    # Reading

    def head_of(self, kvs: Sequence[Any], header: Any) -> ObservedHead:
        """Raises ``Damaged``."""
        cluster = f"{header.cluster_id:016x}"
        if not kvs:
            return ObservedHead(0, None, cluster)
        return ObservedHead(kvs[0].mod_revision, decode_head(kvs[0].value), cluster)

    def items(self, events: Sequence[Any]) -> list[FeedItem]:
        """Events of a watch, of whole transactions, as what the replica follows.  Raises
        ``Damaged``.
        """
        feed_items: list[FeedItem] = []
        start = 0
        for end in range(1, len(events) + 1):
            if end == len(events) or events[end].kv.mod_revision != events[start].kv.mod_revision:
                feed_items.extend(self._transaction(events[start:end]))
                start = end
        return feed_items

    def _transaction(self, events: Sequence[Any]) -> Iterable[FeedItem]:
        head: Head | None = None
        rows: list[StoredRow] = []
        queue_items: list[FeedItem] = []
        position = events[0].kv.mod_revision
        for event in events:
            key = event.kv.key
            if key.startswith(self.queue):
                name = key[len(self.queue) :].decode()
                queue_items.append(
                    WriterDequeued(name)
                    if event.type == wire.DELETE
                    else WriterQueued(name, position)
                )
            elif key == self.format and event.kv.value != FORMAT:
                # Who changes the layout puts the head in the same transaction, so no batch of ours
                # rests on it.
                raise UnknownFormat(event.kv.value)
            elif key == self.head:
                if event.type == wire.DELETE:
                    raise Damaged("somebody deleted the head")
                head = decode_head(event.kv.value)
            elif key.startswith(self.objects) and event.type != wire.DELETE:
                rows.append(decode_row(event.kv.value))
        if head is not None:
            rows = sorted((*rows, *map(_stored, head.others)), key=lambda row: row.record.revision)
            if len(rows) != head.events:
                raise Damaged(
                    f"batch {head.batch} of {head.server} has {head.events} events, {len(rows)} "
                    "are there"
                )
            yield Group(position, head.name, head.after, tuple(rows), head.beyond, head.since)
        elif any(event.kv.key.startswith(self.objects) for event in events):
            raise Damaged(
                f"{events[0].kv.key.decode()} was changed by something that is no server of ours"
            )
        yield from queue_items


def _beginning_of(name: HeadName) -> bytes:
    """Returns the first bytes of the value of the head of that *name*."""
    return b'{"revision":%d,"server":"%s","batch":%d,' % (
        name.revision,
        name.server.encode(),
        name.number,
    )


def encode_event(event: StoreEvent) -> bytes:
    return _encode(_row_of(event))


def _row_of(event: StoreEvent) -> Row:
    record = event.record
    return Row(
        type=event.type.value,
        revision=event.revision,
        created=record.created,
        resource=record.key.resource,
        name=record.key.name,
        uid=record.uid,
        body=msgspec.Raw(record.body),
        namespace=record.key.namespace,
        previous=event.previous.revision if event.previous is not None else 0,
        labels=dict(record.labels),
        fields=dict(record.fields),
        owners=record.owners,
    )


def decode_row(value: bytes) -> StoredRow:
    """Raises ``Damaged``."""
    try:
        return _stored(_row.decode(value))
    except (msgspec.DecodeError, ValueError) as error:
        raise Damaged(f"an object's value cannot be read ({error})") from error


def _stored(row: Row) -> StoredRow:
    record = Record(
        key=Key(row.resource, row.namespace, row.name),
        revision=row.revision,
        created=row.created,
        uid=row.uid,
        body=bytes(row.body),
        labels=row.labels,
        fields=row.fields,
        owners=row.owners,
    )
    return StoredRow(EventType(row.type), record, row.previous)


def decode_head(value: bytes) -> Head:
    """Raises ``Damaged``."""
    try:
        return _head.decode(value)
    except msgspec.DecodeError as error:
        raise Damaged(f"the head cannot be read ({error})") from error


def decode_compaction(value: bytes) -> Compaction:
    """Raises ``Damaged``."""
    try:
        return _compaction.decode(value)
    except msgspec.DecodeError as error:
        raise Damaged(f"the compaction point cannot be read ({error})") from error


def encode_compaction(compaction: Compaction) -> bytes:
    return _encode(compaction)
