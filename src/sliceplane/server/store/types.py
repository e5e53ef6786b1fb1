"""Keys, records and events, which the store keeps and publishes. All frozen.

Order of keys is the byte order of ``namespace/name``, as etcd has it, so ``zz-b/o`` comes before
``zz/a``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

# Members are kept as their raw text: a number that we would read as a float keeps its digits.
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class Key(NamedTuple):
    """The identity of an object: ``Resource.storage_key``, namespace ("" for cluster scope),
    name.
    """

    resource: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The sort key within a resource: ``namespace/name``, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one object.

    ``body`` is the complete JSON document as clients get it, with kind, apiVersion and a
    metadata.resourceVersion equal to ``revision``. The other columns repeat what selectors,
    admission and garbage collection need, so that reads never decode the body.
    """

    key: Key
    revision: int
    #: revision of the commit that created the object (not of this version)
    created: int
    uid: str
    body: bytes
    labels: Mapping[str, str]
    #: values of ``Resource.selectable_fields`` that differ from "" (metadata.name and namespace are
    #: in the key)
    fields: Mapping[str, str]
    #: uids of ownerReferences, in order
    owners: tuple[str, ...] = ()


class EventType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class StoreEvent(msgspec.Struct, frozen=True):
    """One commit as watchers see it.

    For DELETED, ``record`` is the last stored object with the deletion's own revision in its body
    and ``previous`` the version before it. ``previous`` is ``None`` only for ADDED.
    """

    revision: int
    type: EventType
    record: Record
    previous: Record | None

    @property
    def is_end(self) -> bool:
        """Returns True for the deletion of an object that was there."""
        return self.type is EventType.DELETED and self.previous is not None

    @property
    def last_version(self) -> int:
        """The revision of the version that the event brings, or of the last one before a
        deletion.
        """
        return (
            self.previous.revision if self.previous is not None and self.is_end else self.revision
        )


class RecordPage(msgspec.Struct, frozen=True):
    """A part of a list, in key order."""

    records: tuple[Record, ...]
    #: the revision that the list shows; the same for every page of one list
    revision: int
    #: there are records after the last one of this page
    more: bool = False
    #: how many; 0 unless ``more``
    remaining: int = 0


def trimmed(encoded: bytes) -> bytes:
    """A copy of what msgspec encoded without the spare room of its buffer, which is half as much
    again on average: for bytes that are kept.
    """
    return bytes(memoryview(encoded))


def restamp(record: Record, revision: int) -> Record:
    """*record* with *revision* in the column and in ``metadata.resourceVersion``."""
    return replace(record, revision=revision, body=restamp_body(record.body, revision))


def restamp_body(body: bytes, revision: int) -> bytes:
    """*body* with *revision* in ``metadata.resourceVersion``, every member in its place."""
    document = _members.decode(body)
    metadata = _members.decode(document["metadata"])
    metadata["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
    document["metadata"] = msgspec.Raw(_encode(metadata))
    return trimmed(_encode(document))
