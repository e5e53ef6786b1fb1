"""One type on one stream: what the client wants, what it holds, what it is owed, and the one
response under way.

Each name is owed at most once, however often it changes meanwhile: a client that is slow costs what
it holds, and never a queue. A refusal (NACK) takes nothing back: what was refused counts as sent,
and is sent again when it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from sys import getsizeof
from typing import Final

from sliceplane.xds.streams.actions import Action, ChannelStatus, XdsAbsent, XdsSight
from sliceplane.xds.streams.messages import NOT_FOUND, PERMISSION_DENIED, ResourceError
from sliceplane.xds.view import XdsView

#: version of what a client was told not to exist
ABSENT: Final = ""
#: refusals that are kept with what the client says of them, the newest
REFUSED_MAX: Final = 16
#: requested names that lead nowhere, which are kept with the reason, the newest; and reported in
#: the life of a stream
ABSENT_MAX: Final = 16
#: bytes of an entry of a table, measured with CPython 3.11; a name may be in four tables
ENTRY_BYTES: Final = 48
NAME_BYTES: Final = 4 * ENTRY_BYTES
#: bytes of a refusal with the longest text
REFUSED_BYTES: Final = 5 * 1024
#: bytes of a name that leads nowhere, with the longest reason
ABSENT_BYTES: Final = 2 * 1024
#: bytes of a text of ASCII, beside its characters
_TEXT_BYTES: Final = getsizeof("")


class XdsChannel:
    """Owned by one stream."""

    __slots__ = (
        "absent",
        "absent_reports",
        "ack",
        "acked_revision",
        "again",
        "began",
        "changed",
        "flight",
        "flight_at",
        "flight_changed",
        "flight_from",
        "forced",
        "is_legacy",
        "late",
        "must_answer",
        "names",
        "nonce",
        "owed",
        "owed_at",
        "owed_from",
        "refused",
        "sent",
        "sent_revision",
        "text_bytes",
        "type_url",
        "wildcard",
    )

    def __init__(self, type_url: str) -> None:
        self.type_url: Final = type_url
        #: subscribed names, globs among them, in the order in which they came
        self.names: dict[str, None] = {}
        self.wildcard = False
        #: everything is wanted because no name was ever given
        self.is_legacy = False
        #: what the client holds, by name; ``ABSENT``: it was told that there is none
        self.sent: dict[str, str] = {}
        #: names that are to be looked at before the next response; and those that are sent whatever
        #: the client holds
        self.owed: dict[str, None] = {}
        self.forced: dict[str, None] = {}
        #: since which revision, and when, something is owed; ``None``: nothing that changed is
        self.owed_from: int | None = None
        self.owed_at = 0.0
        #: names that are owed because they changed, and those of the response under way
        self.changed: dict[str, None] = {}
        self.flight_changed: dict[str, None] = {}
        #: of names and versions that the client said
        self.text_bytes = 0
        #: the client waits for an answer, be it empty
        self.must_answer = False
        #: parts of a message that the client refused: each in a message of its own
        self.again: list[tuple[str, ...]] = []
        #: the last response, and the bytes of the answer that accepts it and says nothing else
        self.nonce = ""
        self.ack = b""
        #: names of the response that the client has not answered; ``None``: there is none
        self.flight: tuple[str, ...] | None = None
        self.flight_from: int | None = None
        self.flight_at = 0.0
        self.began = 0.0
        self.late = False
        self.sent_revision = 0
        self.acked_revision = 0
        #: what the client said of a resource that it does not take, by name, the newest last; at
        #: most ``REFUSED_MAX``
        self.refused: dict[str, str] = {}
        #: requested names that lead nowhere, and why; at most ``ABSENT_MAX``
        self.absent: dict[str, str] = {}
        self.absent_reports = 0

    def owe(self, name: str, revision: int | None, now: float) -> None:
        """*revision*: of the change; ``None``: the client asked."""
        self.owed[name] = None
        if revision is not None:
            self.changed[name] = None
            if self.owed_from is None:
                self.owed_from = revision
                self.owed_at = now

    def want(self, names: Iterable[str]) -> list[str]:
        """Subscribes to *names*, which are distinct; returns those that were not subscribed."""
        known = self.names
        fresh = [name for name in names if name not in known]
        known.update(dict.fromkeys(fresh))
        self.text_bytes += _sizes_of(fresh)
        return fresh

    def unwant(self, name: str) -> None:
        """Forgets *name*, which the client wants no more."""
        if name in self.names:
            del self.names[name]
            self.text_bytes -= getsizeof(name)
        self.forget(name)

    def hold(self, versions: Mapping[str, str]) -> None:
        """The client says that it holds *versions* by name."""
        self.sent.update(versions)
        self.text_bytes += _sizes_of(versions) + _sizes_of(versions.values())

    def refuse(self, names: tuple[str, ...], text: str) -> None:
        for name in names[-REFUSED_MAX:]:
            self.refused.pop(name, None)
            self.refused[name] = text
        while len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def miss(self, name: str, why: str) -> bool:
        """*name*, which the client requests, leads nowhere.  Returns True if that is to be
        reported.
        """
        before = self.absent.pop(name, None)
        self.absent[name] = why
        if len(self.absent) > ABSENT_MAX:
            del self.absent[next(iter(self.absent))]
        if before == why or self.absent_reports >= ABSENT_MAX:
            return False
        self.absent_reports += 1
        return True

    @property
    def has_something(self) -> bool:
        """Something is to be answered."""
        return bool(self.owed or self.again or self.must_answer)

    @property
    def memory_bytes(self) -> int:
        """An estimate of what the client has this channel keep.  O(1)."""
        entries = len(self.sent) + len(self.owed) + len(self.changed) + len(self.flight or ())
        tables = len(self.names) * NAME_BYTES + entries * ENTRY_BYTES
        return (
            tables
            + self.text_bytes
            + len(self.refused) * REFUSED_BYTES
            + (len(self.absent) * ABSENT_BYTES)
        )

    def force(self, name: str) -> None:
        self.owed[name] = None
        self.forced[name] = None

    def settle(self, name: str) -> None:
        """It is in the response that is being made, or needs not be in any."""
        self.owed.pop(name, None)
        self.forced.pop(name, None)

    def forget(self, name: str) -> None:
        self.settle(name)
        self.sent.pop(name, None)
        self.refused.pop(name, None)
        self.absent.pop(name, None)
        self.rest()

    def rest(self) -> None:
        """Clears the mark of what is owed, if nothing is any more."""
        if not self.owed and not self.again:
            self.owed_from = None
            self.changed.clear()

    def launch(
        self, nonce: str, names: tuple[str, ...], ack: bytes, revision: int, now: float
    ) -> None:
        self.nonce = nonce
        self.ack = ack
        self.flight = names
        if not self.owed:
            # It is empty: the answer to the last response has emptied it.
            self.flight_changed, self.changed = self.changed, self.flight_changed
        else:
            # Some of what changed may be in the next response: it counts for both.
            self.flight_changed = dict(self.changed)
            self.changed = {name: None for name in self.changed if name in self.owed}
        self.flight_from = self.owed_from
        self.flight_at = self.owed_at
        self.began = now
        self.late = False
        self.sent_revision = revision
        self.rest()

    def land(self, *, accepted: bool) -> tuple[str, ...]:
        """The client has answered; the names of the response."""
        assert self.flight is not None, "there was no response under way"
        names = self.flight
        self.flight = None
        self.flight_changed.clear()
        self.flight_from = None
        self.late = False
        if accepted:
            self.acked_revision = self.sent_revision
            for name in names if self.refused else ():
                self.refused.pop(name, None)
        self.rest()
        return names

    def status(self) -> ChannelStatus:
        return ChannelStatus(
            type_url=self.type_url,
            held=sum(1 for version in self.sent.values() if version),
            sent_revision=self.sent_revision,
            acked_revision=self.acked_revision,
            waiting_since=self.began if self.flight is not None else 0.0,
            owed=len(self.owed),
            refused=next(reversed(self.refused.items()), ("", "")),
            absent=tuple(self.absent.items()),
        )

    @property
    def behind_from(self) -> int | None:
        """The first revision that the client may not have; ``None``: it has everything."""
        if self.flight_from is None:
            return self.owed_from
        return self.flight_from if self.owed_from is None else min(self.flight_from, self.owed_from)


def _sizes_of(texts: Collection[str]) -> int:
    """Returns the sum of ``getsizeof`` of *texts*."""
    joined = "".join(texts)
    if joined.isascii():
        return len(texts) * _TEXT_BYTES + len(joined)
    return sum(map(getsizeof, texts))


def note_absence(
    view: XdsView, sight: XdsSight, channel: XdsChannel, name: str, actions: list[Action]
) -> ResourceError | None:
    """Why *name* leads nowhere; ``None`` if it leads somewhere. If the client requests it by name,
    the channel keeps that for the status, and *actions* report it once.
    """
    error = absence_of(view, sight, channel.type_url, name)
    if error is None:
        channel.absent.pop(name, None)
    elif name in channel.names and channel.miss(name, error.why):
        actions.append(XdsAbsent(channel.type_url, name, error.why))
    return error


def absence_of(view: XdsView, sight: XdsSight, type_url: str, name: str) -> ResourceError | None:
    """``None``: *name* leads to a port of a Service that the client may see.

    A client that lacks rights is told the same whatever is there, or it could find out which
    Services exist.
    """
    namespace = view.namespace_of(type_url, name)
    if not sight.everything and not sight.sees(namespace):
        why = (
            f"this client may not get EndpointSlices in the namespace {namespace}, or it has no "
            "Service"
        )
        return ResourceError(name, PERMISSION_DENIED, why)
    why = view.absence(type_url, name)
    return ResourceError(name, NOT_FOUND, why) if why else None
