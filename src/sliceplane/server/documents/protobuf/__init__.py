"""``application/vnd.kubernetes.protobuf``: documents to bytes and back, byte for byte as upstream
writes them.

A small codec of our own, driven by one table (``fields.txt``: number, name, type and presence of
every field of every message), because both general runtimes fall short of one half: what upstream
writes depends on which Go fields are pointers (a plain empty string is written, an absent pointer
is not), and the documents are JSON, with inlined members, RFC 3339 times and quantities as text.

- ``schema``: the table, as messages; which kind is which message.
- ``special``: messages whose JSON form is not an object (times, quantities, int-or-string, ...).
- ``encoder``, ``decoder``: each message compiled, on first use, into a list of closures.
- ``envelope``: the ``k8s\\0`` envelope, lists from ready items, watch streams, errors as
  StatusError 400.
- ``nothings``: what has no form here is left out of documents that came in another one.

Decoding yields what a JSON client would have sent: fields that JSON leaves out when empty are left
out, those that it always writes are there, nulls are dropped. Nothing here imports a protobuf
runtime.
"""

from __future__ import annotations

from sliceplane.server.documents.protobuf.envelope import (
    MAGIC,
    assemble_list,
    decode,
    encode,
    encode_item,
    encode_watch_event,
    frame_item,
    list_frame,
    supports,
)
from sliceplane.server.documents.protobuf.nothings import drop_nothings

__all__ = [
    "MAGIC",
    "assemble_list",
    "decode",
    "drop_nothings",
    "encode",
    "encode_item",
    "encode_watch_event",
    "frame_item",
    "list_frame",
    "supports",
]
