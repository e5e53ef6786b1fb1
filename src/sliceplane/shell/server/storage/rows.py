"""Records as rows of the table ``history``, and back.

Labels, fields and owners are JSON text, "" if there are none.  ``crc`` is over all other columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

import msgspec

from sliceplane.store.backend import StoredRow
from sliceplane.store.types import EventType, Key, Record, StoreEvent

CREATE = """
CREATE TABLE history (
    revision INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    previous INTEGER NOT NULL,
    created INTEGER NOT NULL,
    uid TEXT NOT NULL,
    labels TEXT NOT NULL,
    fields TEXT NOT NULL,
    owners TEXT NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
)"""
INSERT = "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT = """
SELECT revision, type, resource, namespace, name, previous, created, uid, labels, fields, owners, crc, body
FROM history ORDER BY revision"""
#: what the rows in (?, ?] have replaced
SUPERSEDED = "SELECT previous FROM history WHERE revision > ? AND revision <= ? AND previous > 0"

Row = tuple[int, str, str, str, str, int, int, str, str, str, str, int, bytes]
#: the column ``crc``
CHECKSUM: Final = 11

_encoder = msgspec.json.Encoder(order="sorted")
_mapping = msgspec.json.Decoder(dict[str, str])
_sequence = msgspec.json.Decoder(tuple[str, ...])
#: shared by all records without labels: a dictionary of each one's own is 64 bytes
_EMPTY: Mapping[str, str] = MappingProxyType({})


def encode(event: StoreEvent) -> Row:
    """The row of *event*, for ``INSERT``."""
    record = event.record
    key = record.key
    kind = event.type.value
    previous = event.previous.revision if event.previous is not None else 0
    labels = _encoder.encode(dict(record.labels)).decode() if record.labels else ""
    fields = _encoder.encode(dict(record.fields)).decode() if record.fields else ""
    owners = _encoder.encode(record.owners).decode() if record.owners else ""
    crc = _crc(record.body, record.revision, kind, *key, previous, record.created, record.uid, labels, fields, owners)
    return (
        record.revision, kind, *key, previous, record.created, record.uid, labels, fields, owners, crc, record.body,
    )  # fmt: skip


def decode(row: tuple[Any, ...]) -> StoredRow:
    """A row of ``SELECT``.  Raises ``ValueError`` if it is not what was written."""
    revision, kind, resource, namespace, name, previous, created, uid, labels, fields, owners, crc, body = row
    if not isinstance(body, bytes) or crc != _crc(body, *row[:-2]):
        raise ValueError(f"the row of revision {revision} has a wrong checksum")
    record = Record(
        key=Key(resource, namespace, name),
        revision=revision,
        created=created,
        uid=uid,
        body=body,
        labels=_mapping.decode(labels) if labels else _EMPTY,
        fields=_mapping.decode(fields) if fields else _EMPTY,
        owners=_sequence.decode(owners) if owners else (),
    )
    return StoredRow(EventType(kind), record, previous)


def meta(key: str, value: int) -> tuple[str, int, int]:
    """A row of the table ``meta``."""
    return key, value, _crc(b"", key, value)


def _crc(body: bytes, *columns: str | int) -> int:
    return crc32(body, crc32("\0".join(map(str, columns)).encode()))
