"""What both variants of an aggregated stream (ADS) have in common: who asks, what is held back, order, answers.

A stream is fed with the client's messages, with what changed in its view, and with what it may see; it hands out what
is to be done.  Nothing is answered before the server says what the client sees (``on_admitted``), which it does not
before its first lists are complete: an empty answer would take everything away from a client that comes again.

**Order** (make before break): clusters, their assignments, endpoints, and only when the client has accepted the
clusters, or after ``GATE_S``, listeners and routes that may name them.  What goes does so the other way round.  An
assignment never waits for its cluster's acceptance: Envoy gives that when the assignment is there.

**Flow**: one response of a type is under way at a time, and what changes meanwhile goes into the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from sliceplane.xds import names
from sliceplane.xds.catalog import XdsChange
from sliceplane.xds.resource import XdsResource
from sliceplane.xds.streams.channel import XdsChannel
from sliceplane.xds.streams.messages import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    ClientFacts,
    DeltaRequest,
    RequestError,
    ResponseEncoder,
    WholeRequest,
    read_node,
)
from sliceplane.xds.view import XdsView

#: the order in which a change goes out
ORDER: Final = names.TYPES
#: types of which a client may want everything
WILDCARD_TYPES: Final = frozenset({names.LISTENER, names.CLUSTER})
#: one object for each: what is compared with each name is then the same text
_KNOWN: Final = {type_url: type_url for type_url in ORDER}
_LATER: Final = frozenset({names.LISTENER, names.ROUTES})
#: how long listeners and routes wait for clusters to be accepted
GATE_S: Final = 2.0
#: a client that has not answered for so long is slow, and is told of
LATE_S: Final = 30.0
#: how long a client of gRPC waits for the server's first lists: its own limit is 15 s, and then nothing exists
HELD_S: Final = 10.0
HELD_REQUESTS_MAX: Final = 1_000
#: subscribed names of a stream
NAMES_MAX: Final = 50_000
TYPES_MAX: Final = 64
#: requests that answer nothing: so many at once, and so many a second
REQUESTS_BURST: Final = 10_000
REQUESTS_PER_S: Final = 100.0


class XdsSight(msgspec.Struct, frozen=True):
    """What a client may see."""

    everything: bool = True
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str | None) -> bool:
        return self.everything or namespace is None or namespace in self.namespaces


class XdsAdmit(msgspec.Struct, frozen=True):
    """The server is to say what this client sees, by ``on_admitted``, or to end the stream."""

    node: ClientFacts


class XdsSend(msgspec.Struct, frozen=True):
    type_url: str
    message: bytes


class XdsFinish(msgspec.Struct, frozen=True):
    """The stream ends with this status of gRPC."""

    status: int
    text: str


class XdsRefusal(msgspec.Struct, frozen=True):
    """The client refuses (NACK) one of these resources, by what it says."""

    type_url: str
    names: tuple[str, ...]
    text: str


class XdsLate(msgspec.Struct, frozen=True):
    """The client has not answered for ``LATE_S``."""

    type_url: str


class XdsApplied(msgspec.Struct, frozen=True):
    """The client has what changed first of a response, *took_s* after that changed."""

    type_url: str
    took_s: float


class XdsGateForced(msgspec.Struct, frozen=True):
    """Listeners or routes go out although the client has not accepted the clusters for ``GATE_S``."""


Action = XdsAdmit | XdsSend | XdsFinish | XdsRefusal | XdsLate | XdsApplied | XdsGateForced


class ChannelStatus(msgspec.Struct, frozen=True):
    """How far a client is with a type."""

    type_url: str
    #: resources that it holds, as far as is known
    held: int
    sent_revision: int
    acked_revision: int
    #: since when a response waits for its answer; 0.0: none does
    waiting_since: float
    owed: int
    #: the last resource that it refused and what it said of it
    refused: tuple[str, str]


class AdsStream(ABC):
    """Owned by one server, like the *encoder*.  The order of actions is that of what caused them."""

    #: whether its client takes silence for an answer
    impatient = False
    #: where requests say which node asks
    node_field: ClassVar[int]

    def __init__(self, encoder: ResponseEncoder) -> None:
        self._encoder = encoder
        self.node: ClientFacts | None = None
        self._view: XdsView | None = None
        self._sight = XdsSight(everything=False)
        self._channels: dict[str, XdsChannel] = {}
        #: by which changes of a listener are told
        self._topics: dict[str, str] = {}
        self._held: list[bytes] = []
        self._opened = 0.0
        self._actions: list[Action] = []
        self.finished = False
        self._revision = 0
        self._counted: tuple[int, int] = (-1, 0)
        #: since when listeners wait for clusters
        self._gate_since: float | None = None
        self._gate_is_open = False
        self._tokens = float(REQUESTS_BURST)
        self._tokens_at = 0.0

    # -- what is told ------------------------------------------------------------------------------------

    def on_request(self, message: bytes, now: float) -> None:
        if self.finished or self._is_plain_ack(message, now):
            return
        try:
            if self._view is None:
                self._hold(message, now)
                return
            self._on_read(self._read(message), now)
        except RequestError as error:
            self._finish(INVALID_ARGUMENT, str(error))
            return
        self._flush(now)

    def _hold(self, message: bytes, now: float) -> None:
        """Until it is known what the client may see.  Of the first message the node is read, and the rest later: a
        client that comes back says all that it holds, and keeping that as text would cost several times its octets."""
        if self.node is None:
            node = read_node(message, self.node_field)
            if node is None:
                raise RequestError("the first message of a stream must say which node asks")
            self.node = node
            self._opened = self._tokens_at = now
            self._actions.append(XdsAdmit(node))
        self._held.append(message)
        if len(self._held) > HELD_REQUESTS_MAX:
            self._finish(RESOURCE_EXHAUSTED, f"more than {HELD_REQUESTS_MAX} requests before the first answer")

    def on_admitted(self, view: XdsView, sight: XdsSight, revision: int, now: float) -> None:
        """*view* and *sight* are the client's from now on: at the first call what it asked before is answered."""
        first = self._view is None
        self._view, self._sight, self._revision = view, sight, revision
        if first:
            held, self._held = self._held, []
            try:
                for message in held:
                    self._on_read(self._read(message), now)
            except RequestError as error:
                self._finish(INVALID_ARGUMENT, str(error))
                return
        else:
            for channel in self._channels.values():
                for name in self._of_interest(channel):
                    channel.owe(name, revision, now)
        self._flush(now)

    def on_changes(self, changes: Sequence[XdsChange], revision: int, now: float) -> None:
        """Of the stream's view; others are passed over."""
        if self._view is None or self.finished:
            return
        self._revision = revision
        touched = False
        for change in changes:
            channel = self._channels.get(change.type_url)
            if channel is not None and change.view is self._view:
                for name in self._wanted(channel, change.topic):
                    channel.owe(name, revision, now)
                    touched = True
        if touched:
            self._flush(now)

    def on_deadline(self, now: float) -> None:
        if self.finished:
            return
        if self._view is None:
            if self.impatient and self._held and now >= self._opened + HELD_S:
                self._finish(UNAVAILABLE, "the server has not read the cluster yet; ask again")
            return
        for channel in self._channels.values():
            if channel.flight is not None and not channel.late and now >= channel.began + LATE_S:
                channel.late = True
                self._actions.append(XdsLate(channel.type_url))
        if self._gate_since is not None and now >= self._gate_since + GATE_S:
            self._gate_since = None
            self._gate_is_open = True
            self._actions.append(XdsGateForced())
            self._flush(now)
            self._gate_is_open = False

    def next_deadline(self) -> float | None:
        if self.finished:
            return None
        if self._view is None:
            return self._opened + HELD_S if self.impatient and self._held else None
        due = [
            channel.began + LATE_S
            for channel in self._channels.values()
            if channel.flight is not None and not channel.late
        ]
        if self._gate_since is not None:
            due.append(self._gate_since + GATE_S)
        return min(due, default=None)

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    # -- what is asked -----------------------------------------------------------------------------------

    @property
    def view(self) -> XdsView | None:
        return self._view

    @property
    def sight(self) -> XdsSight:
        return self._sight

    @property
    def behind_from(self) -> int | None:
        """The first revision that the client may not have; ``None``: it has everything that it wants."""
        froms = [channel.behind_from for channel in self._channels.values()]
        return min((revision for revision in froms if revision is not None), default=None)

    @property
    def is_late(self) -> bool:
        return any(channel.late for channel in self._channels.values())

    def status(self) -> tuple[ChannelStatus, ...]:
        """In the order of ``ORDER``."""
        channels = [self._channels[type_url] for type_url in ORDER if type_url in self._channels]
        return tuple(
            ChannelStatus(
                type_url=channel.type_url,
                held=sum(1 for version in channel.sent.values() if version),
                sent_revision=channel.sent_revision,
                acked_revision=channel.acked_revision,
                waiting_since=channel.began if channel.flight is not None else 0.0,
                owed=len(channel.owed),
                refused=next(reversed(channel.refused.items()), ("", "")),
            )
            for channel in channels
        )

    # -- of the variants ---------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, message: bytes) -> WholeRequest | DeltaRequest:
        """Raises ``RequestError``."""

    @abstractmethod
    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> None: ...

    @abstractmethod
    def _respond(self, channel: XdsChannel, now: float) -> None:
        """Sends what *channel* owes as far as it may go now."""

    def _is_plain_ack(self, message: bytes, now: float) -> bool:
        """The client accepts what is under way and says nothing else: the usual message."""
        return False

    # -- shared ------------------------------------------------------------------------------------------

    def _finish(self, status: int, text: str) -> None:
        self.finished = True
        self._held.clear()
        self._actions.append(XdsFinish(status, text))

    def _channel(self, type_url: str) -> XdsChannel | None:
        """``None``: the client asks for too much, and the stream is finished."""
        channel = self._channels.get(type_url)
        if channel is None:
            if len(self._channels) >= TYPES_MAX:
                self._finish(RESOURCE_EXHAUSTED, f"more than {TYPES_MAX} types of resources on a stream")
                return None
            type_url = _KNOWN.get(type_url, type_url)
            channel = self._channels[type_url] = XdsChannel(type_url)
        return channel

    def _may_ask(self, channel: XdsChannel, answers: bool, now: float) -> bool:
        """Whether the limits allow one more request; else the stream is finished."""
        if not answers:
            self._tokens = min(REQUESTS_BURST, self._tokens + (now - self._tokens_at) * REQUESTS_PER_S) - 1.0
            self._tokens_at = now
        if self._tokens < 0.0:
            self._finish(RESOURCE_EXHAUSTED, f"more than {REQUESTS_PER_S:g} requests a second that answer nothing")
        elif sum(len(other.names) for other in self._channels.values()) > NAMES_MAX:
            self._finish(RESOURCE_EXHAUSTED, f"more than {NAMES_MAX} names on a stream")
        return not self.finished

    def _send(self, type_url: str, message: bytes) -> None:
        self._actions.append(XdsSend(type_url, message))

    def _landed(self, channel: XdsChannel, now: float, *, accepted: bool) -> tuple[str, ...]:
        """The names that the response carried."""
        if accepted and channel.flight_from is not None:
            self._actions.append(XdsApplied(channel.type_url, now - channel.flight_at))
        if channel.type_url == names.CLUSTER:
            self._gate_since = None
        return channel.land(accepted=accepted)

    def _note_refusal(self, channel: XdsChannel, refused: tuple[str, ...], text: str) -> None:
        for name in refused:
            channel.refused.pop(name, None)
            channel.refused[name] = text
        self._actions.append(XdsRefusal(channel.type_url, refused, text))

    def _wants(self, channel: XdsChannel, name: str) -> bool:
        if channel.wildcard or name in channel.names:
            return True
        return channel.type_url == names.ENDPOINT and names.collection_of(name) in channel.names

    def _wanted(self, channel: XdsChannel, topic: str) -> Sequence[str]:
        """The names of which a change of *topic* tells."""
        if self._wants(channel, topic):
            return (topic,)
        if channel.type_url != names.LISTENER:
            return ()
        return [name for name in channel.names if self._topic(name) == topic]

    def _forget(self, channel: XdsChannel, name: str) -> None:
        """The client does not want it any more."""
        channel.forget(name)
        if channel.type_url == names.LISTENER:
            self._topics.pop(name, None)

    def _topic(self, listener: str) -> str:
        topic = self._topics.get(listener)
        if topic is None:
            assert self._view is not None, "admitted"
            topic = self._topics[listener] = self._view.topic(names.LISTENER, listener)
        return topic

    def _of_interest(self, channel: XdsChannel) -> list[str]:
        """Every name whose resource the client holds or should hold."""
        assert self._view is not None, "admitted"
        wanted = dict.fromkeys(channel.sent)
        wanted.update(channel.names)
        if channel.wildcard:
            wanted.update(dict.fromkeys(resource.name for resource in self._view.all(channel.type_url)))
        return list(wanted)

    def _get(self, channel: XdsChannel, name: str) -> XdsResource | None:
        """What the client may see of that name."""
        assert self._view is not None, "admitted"
        resource = self._view.get(channel.type_url, name)
        if resource is None or self._sight.everything:
            return resource
        return resource if self._sight.sees(self._view.namespace_of(channel.type_url, name)) else None

    def _is_forbidden(self, channel: XdsChannel, name: str) -> bool:
        assert self._view is not None, "admitted"
        if self._sight.everything or self._view.get(channel.type_url, name) is None:
            return False
        return not self._sight.sees(self._view.namespace_of(channel.type_url, name))

    def _next_nonce(self) -> str:
        """The same on every stream that is told of nothing but a change: so their responses are the same."""
        revision, count = self._counted
        count = count + 1 if revision == self._revision else 0
        self._counted = (self._revision, count)
        return f"{self._revision}.{count}" if count else str(self._revision)

    def _flush(self, now: float) -> None:
        others = [type_url for type_url in self._channels if type_url not in ORDER]
        # Clusters come twice: those that go wait for what names them.
        for type_url in (*ORDER, names.CLUSTER, *others):
            channel = self._channels.get(type_url)
            if channel is not None and channel.flight is None and not self.finished:
                self._respond(channel, now)
                channel.rest()

    def _waits_for_clusters(self, channel: XdsChannel, now: float) -> bool:
        """Whether new listeners and routes wait for clusters that the client has not accepted."""
        clusters = self._channels.get(names.CLUSTER)
        if self._gate_is_open or channel.type_url not in _LATER or clusters is None or not clusters.flight:
            return False
        if self._gate_since is None:
            self._gate_since = now
        return True

    def _listeners_go(self) -> bool:
        """Whether listeners or routes are owed, or under way: clusters that go wait for them."""
        later = [self._channels[type_url] for type_url in ORDER if type_url in self._channels and type_url in _LATER]
        return any(channel.owed or channel.flight is not None for channel in later)
