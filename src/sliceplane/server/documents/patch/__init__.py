"""Patches: three ways to make a new document from an old one (kubernetes.io, API concepts, "Patch
and apply").

Promises: ``apply_json`` (RFC 6902), ``apply_merge`` (RFC 7396) and ``apply_strategic`` return
documents that share nothing with what they were given, so that defaulting the result in place is
safe; ``decode_*`` read a request body; every fault of a client is a ``StatusError`` worded as
Kubernetes words it. Never: changes its input; validates the result beyond its decoding
(``check_patched``); knows server-side apply.
"""

from __future__ import annotations

from sliceplane.server.documents.patch.json_and_merge import (
    OPERATIONS_MAX,
    apply_json,
    apply_merge,
    check_patched,
    decode_json_patch,
    decode_merge_patch,
    decode_strategic_patch,
    go_text,
)
from sliceplane.server.documents.patch.strategic import apply_strategic

__all__ = [
    "OPERATIONS_MAX",
    "apply_json",
    "apply_merge",
    "apply_strategic",
    "check_patched",
    "decode_json_patch",
    "decode_merge_patch",
    "decode_strategic_patch",
    "go_text",
]
