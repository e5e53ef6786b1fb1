"""The token that continues a list: where to go on, and in which revision (kubernetes.io, API
concepts, Retrieving large results sets in chunks).

URL-safe, unpadded base64 of ``{"v":"meta.k8s.io/v1","rv":N,"start":"/NAME\\u0000"}``.  ``start`` is the last
key below the listed prefix and a NUL, which makes it the smallest key that may come next; ``rv`` -1 means
"whatever is newest", and is what an expired token is traded for.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
from dataclasses import dataclass

from sliceplane.api.errors import StatusError, bad_request

NEWEST = -1
_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Continue:
    """``start`` is relative to the listed prefix and has no leading slash."""

    revision: int
    start: str

    def after(self, namespace: str) -> str:
        """The key path strictly after which the list goes on."""
        relative = self.start
        if relative.endswith("\0"):
            relative = relative[:-1]
        else:
            # A key without the NUL is itself the next one: go on after its greatest predecessor.
            relative = relative[:-1] + chr(max(ord(relative[-1]) - 1, 1)) + "\U0010ffff"
        return f"{namespace}/{relative}" if namespace else relative


def encode(revision: int, path: str, namespace: str) -> str:
    """The token for "after *path*" in a list of *namespace* ("": all, or cluster scope)."""
    relative = path[len(namespace) :].removeprefix("/") if namespace else path
    return encode_start(revision, f"/{relative}\0")


def encode_start(revision: int, start: str) -> str:
    text = json.dumps({"v": _VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode(token: str) -> Continue:
    """Raises a 400 StatusError that says what is wrong."""
    padding = "=" * (-len(token) % 4)
    try:
        raw = base64.b64decode(token + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad("illegal base64 data at input byte 0") from error
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _bad("invalid character looking for beginning of value") from error
    if not isinstance(fields, dict):
        raise _bad("json: cannot unmarshal into Go value of type storage.continueToken")
    version = fields.get("v", "")
    revision = fields.get("rv", 0)
    start = fields.get("start", "")
    if version != _VERSION:
        raise _bad(f"server does not recognize this encoded version {json.dumps(version)}")
    if type(revision) is not int or revision == 0 or revision < NEWEST:
        raise _bad(f"incorrect encoded start resourceVersion (version {_VERSION})")
    if not isinstance(start, str) or not start.strip("/\0"):
        raise _bad(f"encoded start key empty (version {_VERSION})")
    key = start if start.startswith("/") else f"/{start}"
    # A start that climbs out of the listed prefix would list what was not asked for.
    if posixpath.normpath(key.rstrip("\0")) != key.rstrip("\0"):
        # Half a surrogate pair cannot be told as it is.
        raise _bad(start.encode(errors="replace").decode())
    return Continue(revision, key[1:])


def _bad(detail: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {detail}")
