"""An old body with a new resourceVersion.

When a change makes an object leave a watcher's selector, the watcher gets DELETED with the object as it
was before and the resourceVersion of the change (reference B5).  This is the only body that the store's
side ever makes; all others are served as they were written.
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
    document = _members.decode(record.body)
    metadata = _members.decode(document["metadata"])
    metadata["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
    document["metadata"] = msgspec.Raw(_encode(metadata))
    return replace(record, revision=revision, body=_encode(document))
