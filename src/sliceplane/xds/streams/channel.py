"""One resource type on one stream: subscribed names, sent versions, owed names, and the one
response in flight.

Each name is owed at most once, however often its resource changes: a slow client costs memory for
its names, and never a queue of responses. A refusal (NACK) reverts nothing: the refused version
counts as sent, and the resource is sent again when it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from sys import getsizeof
from typing import Final

from sliceplane.xds.streams.actions import Action, ChannelStatus, VisibleNamespaces, XdsAbsent
from sliceplane.xds.streams.messages import NOT_FOUND, PERMISSION_DENIED, ResourceError
from sliceplane.xds.view import XdsView

#: version of a resource whose absence was reported to the client
ABSENT: Final = ""
#: refused names retained with the error messages of the client, the newest
REFUSED_MAX: Final = 16
#: the newest requested names that resolve to nothing, retained with the reason; also the number of
#: such reports in the lifetime of a stream
ABSENT_MAX: Final = 16
#: bytes of a dictionary entry, measured with CPython 3.11; a name may be in four dictionaries
ENTRY_BYTES: Final = 48
NAME_BYTES: Final = 4 * ENTRY_BYTES
#: bytes of a refused name with the longest error message
REFUSED_BYTES: Final = 5 * 1024
#: bytes of a name that resolves to nothing, with the longest reason
ABSENT_BYTES: Final = 2 * 1024
#: bytes of an ASCII string without its characters
_TEXT_BYTES: Final = getsizeof("")


class XdsChannel:
    """State of one resource type.  Owned by one stream."""

    __slots__ = (
        "absent",
        "absent_reports",
        "acked_revision",
        "changed",
        "expected_ack",
        "forced",
        "in_flight",
        "in_flight_changed",
        "in_flight_changed_at",
        "in_flight_from",
        "is_implicit_wildcard",
        "is_late",
        "must_answer",
        "names",
        "nonce",
        "owed",
        "owed_at",
        "owed_from",
        "refused",
        "retries",
        "sent",
        "sent_at",
        "sent_revision",
        "text_bytes",
        "type_url",
        "wildcard",
    )

    def __init__(self, type_url: str) -> None:
        self.type_url: Final = type_url
        #: subscribed names, globs included, in the order of subscription
        self.names: dict[str, None] = {}
        self.wildcard = False
        #: the client never named a resource, which subscribes to all of them
        self.is_implicit_wildcard = False
        #: the versions that the client has, by name; ``ABSENT``: it knows that there is no resource
        self.sent: dict[str, str] = {}
        #: names that the next response must consider; and those of them that are sent even if the
        #: client has the current version
        self.owed: dict[str, None] = {}
        self.forced: dict[str, None] = {}
        #: revision and time of the first change that is owed; ``None``: no change is owed
        self.owed_from: int | None = None
        self.owed_at = 0.0
        #: names owed because of a change, and those of the response in flight
        self.changed: dict[str, None] = {}
        self.in_flight_changed: dict[str, None] = {}
        #: size of the names and versions that the client sent
        self.text_bytes = 0
        #: the client expects a response, even an empty one
        self.must_answer = False
        #: parts of a refused message, which are sent again, each in its own message
        self.retries: list[tuple[str, ...]] = []
        #: nonce of the last response, and the bytes of a request that only accepts it
        self.nonce = ""
        self.expected_ack = b""
        #: names of the response that the client has not answered; ``None``: all are answered
        self.in_flight: tuple[str, ...] | None = None
        self.in_flight_from: int | None = None
        self.in_flight_changed_at = 0.0
        self.sent_at = 0.0
        self.is_late = False
        self.sent_revision = 0
        self.acked_revision = 0
        #: error messages of the client by refused name, the newest last; at most ``REFUSED_MAX``
        self.refused: dict[str, str] = {}
        #: reasons by requested name that resolves to nothing; at most ``ABSENT_MAX``
        self.absent: dict[str, str] = {}
        self.absent_reports = 0

    def owe(self, name: str, revision: int | None, now: float) -> None:
        """Marks *name* for the next response.  *revision*: that of the change; ``None``: the client
        requested it.
        """
        self.owed[name] = None
        if revision is not None:
            self.changed[name] = None
            if self.owed_from is None:
                self.owed_from = revision
                self.owed_at = now

    def subscribe(self, names: Iterable[str]) -> list[str]:
        """Subscribes to *names*, which are distinct; returns those that were not subscribed."""
        subscribed = self.names
        fresh = [name for name in names if name not in subscribed]
        subscribed.update(dict.fromkeys(fresh))
        self.text_bytes += _total_size(fresh)
        return fresh

    def unsubscribe(self, name: str) -> None:
        """Ends the subscription to *name*."""
        if name in self.names:
            del self.names[name]
            self.text_bytes -= getsizeof(name)
        self.forget_name(name)

    def note_client_versions(self, versions: Mapping[str, str]) -> None:
        """Records the versions by name that a reconnected client reports as its own."""
        self.sent.update(versions)
        self.text_bytes += _total_size(versions) + _total_size(versions.values())

    def note_refusal(self, names: tuple[str, ...], text: str) -> None:
        for name in names[-REFUSED_MAX:]:
            self.refused.pop(name, None)
            self.refused[name] = text
        while len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def note_absent(self, name: str, why: str) -> bool:
        """Records that the requested *name* resolves to nothing.  Returns True if that must be
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
    def needs_response(self) -> bool:
        """Returns True if a response is due."""
        return bool(self.owed or self.retries or self.must_answer)

    @property
    def memory_bytes(self) -> int:
        """Estimates the memory of this channel.  O(1)."""
        entries = len(self.sent) + len(self.owed) + len(self.changed) + len(self.in_flight or ())
        tables = len(self.names) * NAME_BYTES + entries * ENTRY_BYTES
        return (
            tables
            + self.text_bytes
            + len(self.refused) * REFUSED_BYTES
            + (len(self.absent) * ABSENT_BYTES)
        )

    def owe_forced(self, name: str) -> None:
        """Marks *name* for the next response, even if the client has the current version."""
        self.owed[name] = None
        self.forced[name] = None

    def clear_owed(self, name: str) -> None:
        """Clears the marks of *name*: the current response has it, or none needs it."""
        self.owed.pop(name, None)
        self.forced.pop(name, None)

    def forget_name(self, name: str) -> None:
        self.clear_owed(name)
        self.sent.pop(name, None)
        self.refused.pop(name, None)
        self.absent.pop(name, None)
        self.clear_change_mark()

    def clear_change_mark(self) -> None:
        """Forgets the first owed change if nothing is owed any more."""
        if not self.owed and not self.retries:
            self.owed_from = None
            self.changed.clear()

    def begin_response(
        self, nonce: str, names: tuple[str, ...], ack: bytes, revision: int, now: float
    ) -> None:
        """Notes the response of *names* as in flight; *ack*: the bytes that would accept it."""
        self.nonce = nonce
        self.expected_ack = ack
        self.in_flight = names
        if not self.owed:
            # The answer to the last response has emptied ``in_flight_changed``.
            self.in_flight_changed, self.changed = self.changed, self.in_flight_changed
        else:
            # Some changed names may be in the next response: they count for both.
            self.in_flight_changed = dict(self.changed)
            self.changed = {name: None for name in self.changed if name in self.owed}
        self.in_flight_from = self.owed_from
        self.in_flight_changed_at = self.owed_at
        self.sent_at = now
        self.is_late = False
        self.sent_revision = revision
        self.clear_change_mark()

    def end_response(self, *, accepted: bool) -> tuple[str, ...]:
        """Notes the answer of the client, and returns the names of the response."""
        assert self.in_flight is not None, "no response is in flight"
        names = self.in_flight
        self.in_flight = None
        self.in_flight_changed.clear()
        self.in_flight_from = None
        self.is_late = False
        if accepted:
            self.acked_revision = self.sent_revision
            for name in names if self.refused else ():
                self.refused.pop(name, None)
        self.clear_change_mark()
        return names

    def status(self) -> ChannelStatus:
        return ChannelStatus(
            type_url=self.type_url,
            resources=sum(1 for version in self.sent.values() if version),
            sent_revision=self.sent_revision,
            acked_revision=self.acked_revision,
            waiting_since=self.sent_at if self.in_flight is not None else 0.0,
            owed=len(self.owed),
            refused=next(reversed(self.refused.items()), ("", "")),
            absent=tuple(self.absent.items()),
        )

    @property
    def behind_from(self) -> int | None:
        """Returns the first revision that the client may lack; ``None``: it lacks none."""
        if self.in_flight_from is None:
            return self.owed_from
        return (
            self.in_flight_from
            if self.owed_from is None
            else min(self.in_flight_from, self.owed_from)
        )


def _total_size(texts: Collection[str]) -> int:
    """Returns the sum of ``getsizeof`` of *texts*."""
    joined = "".join(texts)
    if joined.isascii():
        return len(texts) * _TEXT_BYTES + len(joined)
    return sum(map(getsizeof, texts))


def check_absence(
    view: XdsView, visible: VisibleNamespaces, channel: XdsChannel, name: str, actions: list[Action]
) -> ResourceError | None:
    """Returns the reason why *name* resolves to nothing; ``None`` if it resolves.

    If the client requested it by name, the channel retains the reason for the status, and *actions*
    report it once.
    """
    error = find_absence(view, visible, channel.type_url, name)
    if error is None:
        channel.absent.pop(name, None)
    elif name in channel.names and channel.note_absent(name, error.why):
        actions.append(XdsAbsent(channel.type_url, name, error.why))
    return error


def find_absence(
    view: XdsView, visible: VisibleNamespaces, type_url: str, name: str
) -> ResourceError | None:
    """Returns ``None`` if *name* resolves to a port of a Service that the client may see.

    A client that lacks rights gets the same reason for every name: otherwise it could find out
    which Services exist.
    """
    namespace = view.namespace_of(type_url, name)
    if not visible.everything and not visible.includes(namespace):
        why = (
            f"this client may not get EndpointSlices in the namespace {namespace}, or it has no "
            "Service"
        )
        return ResourceError(name, PERMISSION_DENIED, why)
    why = view.absence(type_url, name)
    return ResourceError(name, NOT_FOUND, why) if why else None
