"""The meaning of a server's answers for a reflector: errors that invalidate a version, and small
bodies.
"""

from __future__ import annotations

import msgspec

from sliceplane.api import codec
from sliceplane.api.errors import StatusError, from_status, internal, is_unreachable
from sliceplane.watch.cache import Undecodable

_EXPIRED_REASONS = ("Expired", "Gone")


def is_expired(error: StatusError) -> bool:
    return error.code == 410 or error.reason in _EXPIRED_REASONS


def is_bad_version(error: StatusError) -> bool:
    """The version, and not the moment, is the reason."""
    if is_expired(error):
        return True
    if error.code == 504:
        return (
            _has_cause(error, "ResourceVersionTooLarge")
            or "too large resource version" in error.message.lower()
        )
    # What servers answer to a version that is not a number.
    return error.code == 500 and not error.reason


def _has_cause(error: StatusError, reason: str) -> bool:
    causes = (error.details or {}).get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == reason for cause in causes
    )


def is_overload(error: StatusError) -> bool:
    """The server is gone or busy, and its clients should not make it list on top of that."""
    return error.code in (429, 503) or is_unreachable(error)


class _VersionOnly(msgspec.Struct, frozen=True, gc=False):
    resourceVersion: str = ""  # noqa: N815  # the name on the wire


class _Bookmark(msgspec.Struct, frozen=True, gc=False):
    metadata: _VersionOnly = _VersionOnly()


_bookmark_decoder = msgspec.json.Decoder(_Bookmark)


def bookmark_version(body: bytes) -> str:
    try:
        return _bookmark_decoder.decode(body).metadata.resourceVersion
    except codec.UNREADABLE as error:
        raise Undecodable(str(error)) from error


def status_of(body: bytes) -> StatusError:
    try:
        return from_status(codec.decode_document(body), 500)
    except (*codec.UNREADABLE, ValueError, TypeError) as error:
        return internal(f"an ERROR event cannot be read: {error}")
