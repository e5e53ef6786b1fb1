"""What both variants of an aggregated stream (ADS) have in common: who asks, what is held back,
order, answers.

A stream is fed with the client's messages, with what changed in its view, and with what it may see;
it hands out what is to be done. Nothing is answered before the server says what the client sees
(``on_admitted``), which it does not before its first lists are complete: an empty answer would take
everything away from a client that comes again.

**Order** (make before break): clusters, their assignments, endpoints, and only when the client has
accepted the clusters, or after ``GATE_S``, listeners and routes that may name them. What goes does
so the other way round. An assignment never waits for its cluster's acceptance: Envoy gives that
when the assignment is there.

**Flow**: one response of a type is under way at a time, and what changes meanwhile goes into the
next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from sliceplane.consume.model import ServiceKey
from sliceplane.xds import names
from sliceplane.xds.catalog import XdsChange
from sliceplane.xds.resource import XdsResource
from sliceplane.xds.streams.actions import (
    Action,
    ChannelStatus,
    XdsAdmit,
    XdsApplied,
    XdsFinish,
    XdsGateForced,
    XdsLate,
    XdsRefusal,
    XdsSend,
    XdsSight,
)
from sliceplane.xds.streams.channel import XdsChannel, note_absence
from sliceplane.xds.streams.messages import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    ResourceError,
    ResponseEncoder,
)
from sliceplane.xds.streams.requests import (
    NAMES_MAX,
    ClientFacts,
    DeltaRequest,
    RequestError,
    RequestTooLarge,
    Steps,
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
#: types whose answers wait for no other type
_ALONE: Final = frozenset({names.ASSIGNMENT, names.ENDPOINT})
#: names that are answered in one step
SMALL: Final = 256
_LATER: Final = frozenset({names.LISTENER, names.ROUTES})
#: how long listeners and routes wait for clusters to be accepted
GATE_S: Final = 2.0
#: a client that has not answered for so long is slow, and is told of
LATE_S: Final = 30.0
#: how long a client of gRPC waits for the server's first lists: its own limit is 15 s, and then
#: nothing exists
HELD_S: Final = 10.0
HELD_REQUESTS_MAX: Final = 1_000
#: requests that answer nothing: so many at once, and so many a second
REQUESTS_BURST: Final = 10_000
REQUESTS_PER_S: Final = 100.0
#: bytes of a stream without names, and of a message that waits, beside its own
STREAM_BYTES: Final = 16 * 1024
MESSAGE_BYTES: Final = 64


class AdsStream(ABC):
    """Owned by one server, like the *encoder*.  The order of actions is that of what caused them.

    A request may be long. ``on_request``, ``on_changes`` and ``on_admitted`` take the first step of
    what follows from them; while ``has_work`` is true, the server calls ``work`` for each further
    step, and lets others go on in between. Requests that come meanwhile wait, so their order is
    kept. A change that comes meanwhile is owed at once and sent behind the work that is under way.
    """

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
        #: names of listeners by the topic of their changes, where that is another text
        self._by_topic: dict[str, dict[str, None]] = {}
        #: requests that wait for the admission, or for the work under way
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._job: Steps[None] | None = None
        self._flush_due = False
        self._opened = 0.0
        self._now = 0.0
        self._actions: list[Action] = []
        self.finished = False
        self._revision = 0
        self._counted: tuple[int, int] = (-1, 0)
        #: since when listeners wait for clusters
        self._gate_since: float | None = None
        #: they wait no longer: in the next answers, and in those under way
        self._gate_is_forced = False
        self._gate_is_open = False
        self._tokens = float(REQUESTS_BURST)
        self._tokens_at = 0.0

    # -- what is told

    def on_request(self, message: bytes, now: float, *, later: bool = False) -> bool:
        """*later*: no step of it now, others have worked enough. Returns False for an answer that
        accepts a response and says nothing else, which is nearly every message.
        """
        if self.finished:
            return False
        is_idle = self._job is None and not self._waiting
        if is_idle and self._is_plain_ack(message, now):
            return False
        self._waiting.append(message)
        self._waiting_bytes += len(message) + MESSAGE_BYTES
        if self._view is None:
            self._await_admission(message, now)
        elif is_idle and not later:
            self.work(now)
        return True

    def _await_admission(self, message: bytes, now: float) -> None:
        """Until it is known what the client may see. Of the first message the node is read, and the
        rest later: a client that comes back says all that it holds, and keeping that as text would
        cost several times its octets.
        """
        if self.node is None:
            try:
                node = read_node(message, self.node_field)
            except RequestError as error:
                self._refuse(error)
                return
            if node is None:
                text = "the first message of a stream must say which node asks, before all else"
                self._finish(INVALID_ARGUMENT, text)
                return
            self.node = node
            self._opened = self._tokens_at = now
            self._actions.append(XdsAdmit(node))
        if len(self._waiting) > HELD_REQUESTS_MAX:
            text = f"more than {HELD_REQUESTS_MAX} requests before the first answer"
            self._finish(RESOURCE_EXHAUSTED, text, "held-requests")

    @property
    def has_work(self) -> bool:
        return self._job is not None or (bool(self._waiting) and self._view is not None)

    def work(self, now: float) -> None:
        """One step, which takes some milliseconds at most."""
        self._now = now
        if self._job is None:
            if self._waiting and self._view is not None:
                self._job = self._handle(self._waiting.popleft())
            elif self._flush_due:
                self._flush_due = False
                self._job = self._answers()
            else:
                return
        try:
            next(self._job)
        except StopIteration:
            self._job = self._answers() if self._flush_due else None
            self._flush_due = False
        except RequestError as error:
            self._refuse(error)

    def _handle(self, message: bytes) -> Steps[None]:
        self._waiting_bytes -= len(message) + MESSAGE_BYTES
        if self._is_plain_ack(message, self._now):
            self._flush_due = True
            return
        request = yield from self._read(message)
        yield from self._on_read(request, self._now)
        if not self.finished:
            yield from self._answers()

    def _refuse(self, error: RequestError) -> None:
        status = RESOURCE_EXHAUSTED if isinstance(error, RequestTooLarge) else INVALID_ARGUMENT
        self._finish(status, str(error), error.limit)

    def on_admitted(self, view: XdsView, sight: XdsSight, revision: int, now: float) -> None:
        """*view* and *sight* are the client's from now on: at the first call what it asked before
        is answered.
        """
        first = self._view is None
        self._view, self._sight, self._revision = view, sight, revision
        if first:
            self.work(now)
            return
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
        sees_everything = self._sight.everything
        for view, type_url, topic in changes:
            channel = self._channels.get(type_url)
            if channel is not None and view is self._view:
                for name in self._wanted(channel, topic):
                    if sees_everything or self._is_seen(type_url, name):
                        channel.owe(name, revision, now)
                        touched = True
        if touched:
            self._flush(now)

    def on_deadline(self, now: float) -> None:
        if self.finished:
            return
        if self._view is None:
            if self.impatient and self._waiting and now >= self._opened + HELD_S:
                self._finish(UNAVAILABLE, "the server has not read the cluster yet; ask again")
            return
        for channel in self._channels.values():
            if channel.flight is not None and not channel.late and now >= channel.began + LATE_S:
                channel.late = True
                self._actions.append(XdsLate(channel.type_url))
        if self._gate_since is not None and now >= self._gate_since + GATE_S:
            self._gate_since = None
            self._gate_is_forced = True
            self._actions.append(XdsGateForced())
            self._flush(now)

    def next_deadline(self) -> float | None:
        if self.finished:
            return None
        if self._view is None:
            return self._opened + HELD_S if self.impatient and self._waiting else None
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

    # -- what is asked

    @property
    def view(self) -> XdsView | None:
        return self._view

    @property
    def sight(self) -> XdsSight:
        return self._sight

    @property
    def behind_from(self) -> int | None:
        """The first revision that the client may not have; ``None``: it has everything that it
        wants.
        """
        froms = [channel.behind_from for channel in self._channels.values()]
        return min((revision for revision in froms if revision is not None), default=None)

    def lacking(self) -> set[ServiceKey]:
        """The Services of which the client may lack a change that it may see.  O(changed names)."""
        return {
            service
            for channel in self._channels.values()
            for name in (*channel.changed, *channel.flight_changed)
            if (service := self._service_of(channel.type_url, name)) is not None
        }

    def concerned(self, changes: Sequence[XdsChange]) -> set[ServiceKey]:
        """The Services of *changes* that are of this client.  O(changes)."""
        found = set()
        for change in changes:
            channel = self._channels.get(change.type_url)
            for name in () if channel is None else self._wanted(channel, change.topic):
                service = self._service_of(change.type_url, name)
                if service is not None:
                    found.add(service)
        return found

    def _service_of(self, type_url: str, name: str) -> ServiceKey | None:
        assert self._view is not None, "admitted"
        service = self._view.service_of(type_url, name)
        return service if service is not None and self._sight.sees(service.namespace) else None

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory that the client has the stream keep.  O(1)."""
        return (
            STREAM_BYTES
            + self._waiting_bytes
            + sum(channel.memory_bytes for channel in self._channels.values())
        )

    @property
    def is_late(self) -> bool:
        return any(channel.late for channel in self._channels.values())

    def status(self) -> tuple[ChannelStatus, ...]:
        """In the order of ``ORDER``."""
        return tuple(
            self._channels[type_url].status() for type_url in ORDER if type_url in self._channels
        )

    # -- of the variants

    @abstractmethod
    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        """Raises ``RequestError``."""

    @abstractmethod
    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]: ...

    @abstractmethod
    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        """Sends what *channel* owes as far as it may go now."""

    def _is_plain_ack(self, message: bytes, now: float) -> bool:
        """The client accepts what is under way and says nothing else: the usual message."""
        return False

    # -- shared

    def _finish(self, status: int, text: str, limit: str = "") -> None:
        self.close()
        self._actions.append(XdsFinish(status, text, limit))

    def close(self) -> None:
        """The stream is over; frees what it keeps.  Idempotent."""
        self.finished = True
        self._job = None  # its frame refers to this stream
        self._waiting.clear()
        self._waiting_bytes = 0

    def _channel(self, type_url: str) -> XdsChannel:
        """Raises ``RequestError`` for a type that is none of ours."""
        channel = self._channels.get(type_url)
        if channel is None:
            known = _KNOWN.get(type_url)
            if known is None:
                served = ", ".join(held.rpartition(".")[2] for held in ORDER)
                raise RequestError(
                    f"{type_url[:100]!r} is no type that is served: {served}", "types"
                )
            channel = self._channels[known] = XdsChannel(known)
        return channel

    def _may_ask(self, channel: XdsChannel, answers: bool, now: float) -> bool:
        """Whether the limits allow one more request; else the stream is finished."""
        is_allowed = answers or self._take_token(now)
        if is_allowed and sum(len(other.names) for other in self._channels.values()) > NAMES_MAX:
            self._finish(RESOURCE_EXHAUSTED, f"more than {NAMES_MAX} names on a stream", "names")
        return not self.finished

    def _take_token(self, now: float) -> bool:
        """Counts a request that answers nothing; returns False if there are too many, and the
        stream is finished.
        """
        self._tokens = (
            min(REQUESTS_BURST, self._tokens + (now - self._tokens_at) * REQUESTS_PER_S) - 1.0
        )
        self._tokens_at = now
        if self._tokens < 0.0:
            text = f"more than {REQUESTS_PER_S:g} requests a second that answer nothing"
            self._finish(RESOURCE_EXHAUSTED, text, "requests")
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
        channel.refuse(refused, text)
        self._actions.append(XdsRefusal(channel.type_url, refused, text))

    def _wants(self, channel: XdsChannel, name: str) -> bool:
        if channel.wildcard or name in channel.names:
            return True
        return channel.type_url == names.ENDPOINT and names.collection_of(name) in channel.names

    def _wanted(self, channel: XdsChannel, topic: str) -> Sequence[str]:
        """The names of which a change of *topic* tells."""
        if topic in channel.names:
            return (topic,)
        if channel.type_url == names.LISTENER and topic in self._by_topic:
            return tuple(self._by_topic[topic])
        return (topic,) if self._wants(channel, topic) else ()

    def _want(self, channel: XdsChannel, wanted: Iterable[str]) -> None:
        """The client wants *wanted*, which are distinct, from now on."""
        fresh = channel.want(wanted)
        for name in fresh if channel.type_url == names.LISTENER else ():
            topic = self._topic(name)
            if topic != name:
                self._by_topic.setdefault(topic, {})[name] = None

    def _forget(self, channel: XdsChannel, name: str) -> None:
        """The client does not want it any more."""
        channel.unwant(name)
        if channel.type_url != names.LISTENER:
            return
        topic = self._topic(name)
        listeners = self._by_topic.get(topic)
        if listeners is not None:
            listeners.pop(name, None)
            if not listeners:
                del self._by_topic[topic]

    def _topic(self, listener: str) -> str:
        assert self._view is not None, "admitted"
        return self._view.topic(names.LISTENER, listener)

    def _of_interest(self, channel: XdsChannel) -> list[str]:
        """Every name whose resource the client holds or should hold."""
        assert self._view is not None, "admitted"
        wanted = dict.fromkeys(channel.sent)
        wanted.update(channel.names)
        if channel.wildcard:
            wanted.update(
                dict.fromkeys(resource.name for resource in self._view.all(channel.type_url))
            )
        return list(wanted)

    def _get(self, channel: XdsChannel, name: str) -> XdsResource | None:
        """What the client may see of that name."""
        assert self._view is not None, "admitted"
        # The view works nothing out for a client that may not see it.
        is_seen = self._sight.everything or self._is_seen(channel.type_url, name)
        return self._view.get(channel.type_url, name) if is_seen else None

    def _is_seen(self, type_url: str, name: str) -> bool:
        assert self._view is not None, "admitted"
        return self._sight.sees(self._view.namespace_of(type_url, name))

    def _absence(self, channel: XdsChannel, name: str) -> ResourceError | None:
        """Why *name* leads nowhere; see ``note_absence``."""
        assert self._view is not None, "admitted"
        return note_absence(self._view, self._sight, channel, name, self._actions)

    def _next_nonce(self) -> str:
        """The same on every stream that is told of nothing but a change: so their responses are the
        same.
        """
        revision, count = self._counted
        count = count + 1 if revision == self._revision else 0
        self._counted = (self._revision, count)
        return f"{self._revision}.{count}" if count else str(self._revision)

    def _flush(self, now: float) -> None:
        """Sends what is owed and may go now; at once if it is little, as nearly always."""
        if self._job is not None:
            self._flush_due = True
            return
        only: XdsChannel | None = None
        for channel in self._channels.values():
            if channel.flight is None and (channel.owed or channel.must_answer or channel.again):
                if only is not None or channel.type_url not in _ALONE or len(channel.owed) > SMALL:
                    self._flush_due = True
                    self.work(now)
                    return
                only = channel
        if only is not None:
            for _ in self._respond(only, now):
                pass
            only.rest()

    def _answers(self) -> Steps[None]:
        self._gate_is_open, self._gate_is_forced = self._gate_is_forced, False
        # Clusters come twice: those that go wait for what names them.
        for type_url in (*ORDER, names.CLUSTER):
            channel = self._channels.get(type_url)
            if (
                channel is not None
                and channel.flight is None
                and channel.has_something
                and not self.finished
            ):
                yield from self._respond(channel, self._now)
                channel.rest()
        self._gate_is_open = False

    def _waits_for_clusters(self, channel: XdsChannel, now: float) -> bool:
        """Whether new listeners and routes wait for clusters that the client has not accepted."""
        clusters = self._channels.get(names.CLUSTER)
        if (
            self._gate_is_open
            or channel.type_url not in _LATER
            or clusters is None
            or clusters.flight is None
            or not (clusters.flight or clusters.has_something)
        ):
            return False
        if self._gate_since is None:
            self._gate_since = now
        return True

    def _listeners_go(self) -> bool:
        """Whether listeners or routes are owed, or under way: clusters that go wait for them."""
        later = [
            self._channels[type_url]
            for type_url in ORDER
            if type_url in self._channels and type_url in _LATER
        ]
        return any(channel.owed or channel.flight is not None for channel in later)
