"""The actions that a reflector requests from its shell, and its phases.

The shell (``watch.io.reflect``, or a simulator) performs actions in their order and has one request
open at a time; ``watch.reflector`` says what it feeds back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec


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
