"""An old body with a new resourceVersion.

When a change makes an object leave a watcher's selector, the watcher gets DELETED with the object as it
was before and the resourceVersion of the change.  A write that was worked out elsewhere gets its
revision here too, when it is staged (``registry.rehearsal``).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from sliceplane.store.types import Record

# Members are kept as their raw text: a number that we would read as a float keeps its digits.
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def restamp(record: Record, revision: int) -> Record:
    """*record* with *revision* in the column and in ``metadata.resourceVersion``."""
    return replace(record, revision=revision, body=restamp_body(record.body, revision))


def restamp_body(body: bytes, revision: int) -> bytes:
    """*body* with *revision* in ``metadata.resourceVersion``, every member in its place."""
    document = _members.decode(body)
    metadata = _members.decode(document["metadata"])
    metadata["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
    document["metadata"] = msgspec.Raw(_encode(metadata))
    return _encode(document)
