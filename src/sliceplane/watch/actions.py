"""The actions that a reflector requests from its shell, its phases, and the meaning of answers:
errors that invalidate a version, and small bodies.

The shell (``watch.io.reflect``, or a simulator) performs actions in their order and has one request
open at a time; ``watch.reflector`` says what it feeds back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from sliceplane.api import codec
from sliceplane.api.errors import StatusError, from_status, internal, is_unreachable
from sliceplane.watch.cache import Undecodable

_EXPIRED_REASONS = ("Expired", "Gone")


class Phase(Enum):
    NEW = "new"
    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"
    STOPPED = "stopped"


class StartList(msgspec.Struct, frozen=True):
    """Ask for one page.  ``resource_version`` is always ``None`` (the most recent state); limit 0:
    all of it.
    """

    resource_version: str | None
    limit: int
    continue_token: str


class StartWatch(msgspec.Struct, frozen=True):
    """Open a watch with bookmarks; events strictly after ``resource_version``."""

    resource_version: str
    timeout_s: int


class StopWatch(msgspec.Struct, frozen=True):
    """Close the stream that is open or being opened."""


Action = StartList | StartWatch | StopWatch


@dataclass(slots=True)
class Counters:
    """For metrics; they only grow."""

    lists: int = 0
    pages: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    failures: int = 0
    expired: int = 0
    silent: int = 0
    backwards: int = 0


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
