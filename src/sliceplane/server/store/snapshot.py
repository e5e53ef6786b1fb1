"""The state at one revision as lines of JSON: what ``sliceplane snapshot`` writes and reads,
whatever the back end is.

    {"format":"sliceplane-snapshot","version":1,"revision":4711,"objects":2}
    {"key":["pods","default","web-0"],"revision":4702,"created":12,"uid":"...","labels":{...},"body":{...}}
    {"key":["services","default","web"],...} {"end":2,"sha256":"..."}

The body stands as it is stored, so that ``jq`` can read it. The last line is the digest of all
bytes before it: a file that was cut off, or changed, is told from a whole one before anything is
made of it.

History is not in it. A restored server begins at a revision far beyond (``restored``), so that no
version is given out twice, and all clients that watched or listed before must list again (410),
instead of waiting for what never comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

FORMAT = "sliceplane-snapshot"
#: where a server hands it out
PATH = "/sliceplane/snapshot"
VERSION = 1
#: of a line: an object of 3 MiB, with its labels
LINE_BYTES_MAX = 16 << 20
#: bytes that are handed on at a time, about
CHUNK_BYTES = 256 * 1024
#: revisions are 64-bit integers in SQLite, and in clients that compute with them
REVISION_MAX = (1 << 63) - 1


class BadSnapshot(Exception):
    """A sentence: what is wrong, and in which line."""


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    revision: int
    objects: int


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    key: tuple[str, str, str]
    revision: int
    created: int
    uid: str
    body: msgspec.Raw
    labels: dict[str, str] = {}
    fields: dict[str, str] = {}
    owners: tuple[str, ...] = ()


class _End(msgspec.Struct, forbid_unknown_fields=True):
    end: int
    sha256: str


_encoder = msgspec.json.Encoder(order="deterministic")


def records_of(store: Store) -> tuple[Record, ...]:
    """Every object as it is now, by resource and key.  Records are frozen: later commits change
    nothing here.
    """
    return tuple(
        record
        for resource in store.resources()
        for record in store.scan(resource, namespace="", revision=store.revision, after="", limit=0)
    )


def written(records: Sequence[Record], revision: int) -> Iterator[bytes]:
    """The snapshot in chunks of about ``CHUNK_BYTES``; each one costs about a millisecond."""
    digest = hashlib.sha256()
    chunk = bytearray(_encode(_Head(FORMAT, VERSION, revision, len(records))))
    for record in records:
        chunk += _encode(_line(record))
        if len(chunk) >= CHUNK_BYTES:
            digest.update(chunk)
            yield bytes(chunk)
            chunk.clear()
    digest.update(chunk)
    chunk += _encode(_End(len(records), digest.hexdigest()))
    yield bytes(chunk)


def _line(record: Record) -> _Line:
    return _Line(
        key=(record.key.resource, record.key.namespace, record.key.name),
        revision=record.revision,
        created=record.created,
        uid=record.uid,
        body=msgspec.Raw(record.body),
        labels=dict(record.labels),
        fields=dict(record.fields),
        owners=record.owners,
    )


def _encode(value: object) -> bytes:
    return _encoder.encode(value) + b"\n"


class SnapshotReader:
    """Reads a snapshot's lines, once. Used by one caller: ``revision``, then ``records`` to their
    end.

    Nothing that was read counts before ``records`` has ended: only then the digest has been
    compared.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """*lines* with their line ends.  Raises ``BadSnapshot`` for what does not begin as a
        snapshot.
        """
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        first = next(self._lines, b"")
        head = _decoded(first, _Head, "line 1: this is no snapshot of Sliceplane")
        if head.format != FORMAT:
            raise BadSnapshot(f"line 1: this is a {head.format!r}, no {FORMAT}")
        if head.version > VERSION:
            raise BadSnapshot(
                f"line 1: written by a newer Sliceplane (version {head.version}, we know up to "
                f"{VERSION})"
            )
        self._digest.update(first)
        #: the state is that of this revision
        self.revision = head.revision
        #: how many there are
        self.objects = head.objects

    def records(self) -> Iterator[Record]:
        """Raises ``BadSnapshot``, also after the last record."""
        seen: set[Key] = set()
        for number, line in enumerate(self._lines, 2):
            if not line.endswith(b"}") and not line.endswith(b"\n"):
                break
            if line.startswith(b'{"end":'):
                self._check_end(_decoded(line, _End, f"line {number}"), len(seen), number)
                return
            self._digest.update(line)
            record = _record(_decoded(line, _Line, f"line {number}"))
            if record.key in seen:
                raise BadSnapshot(
                    f"line {number}: {record.key.resource} {record.key.path} is there twice"
                )
            if not 0 < record.created <= record.revision <= self.revision:
                raise BadSnapshot(
                    f"line {number}: revision {record.revision} does not belong into this snapshot"
                )
            seen.add(record.key)
            yield record
        raise BadSnapshot(f"it is cut off after {len(seen):,} of {self.objects:,} objects")

    def _check_end(self, end: _End, count: int, number: int) -> None:
        if next(self._lines, None) is not None:
            raise BadSnapshot(f"line {number + 1}: something follows the end")
        if (end.end, self.objects) != (count, count):
            raise BadSnapshot(
                f"line {number}: there are {count:,} objects, {self.objects:,} were announced"
            )
        if end.sha256 != self._digest.hexdigest():
            raise BadSnapshot("its checksum is wrong: it was changed after it was written")


def _decoded(line: bytes, shape: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(line, type=shape)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot(f"{where}: {error}") from error


def _record(line: _Line) -> Record:
    return Record(
        key=Key(*line.key),
        revision=line.revision,
        created=line.created,
        uid=line.uid,
        body=bytes(line.body),
        labels=line.labels,
        fields=line.fields,
        owners=line.owners,
    )


def restored(records: Iterable[Record]) -> list[StoreEvent]:
    """*records* as a back end takes them: in the order of revisions, each one new."""
    ordered = sorted(records, key=lambda record: record.revision)
    return [StoreEvent(record.revision, EventType.ADDED, record, None) for record in ordered]
