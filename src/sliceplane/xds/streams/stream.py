"""The common part of both variants of an aggregated stream (ADS): authorization, deadlines, order,
responses.

The inputs of a stream are the client's messages, the changes of its view, and the namespaces that
the client may see; its outputs are actions. It sends no response before the server admits the
client (``on_admitted``), which requires complete first lists: an empty response would make a
reconnected client drop all its resources.

**Order** (make before break): clusters, their assignments, endpoints. Listeners and routes, which
may name new clusters, follow when the client has accepted the clusters (``gate``).
Removals go in the reverse order. An assignment never waits for the acceptance of its cluster: Envoy
accepts a cluster only when it has the assignment.

**Flow**: one response of each type is in flight at a time; later changes go into the next one.
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
    VisibleNamespaces,
    XdsAdmit,
    XdsApplied,
    XdsFinish,
    XdsGateForced,
    XdsLate,
    XdsRefusal,
    XdsSend,
)
from sliceplane.xds.streams.channel import XdsChannel, check_absence
from sliceplane.xds.streams.gate import ClusterGate
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

#: the order in which responses to one change are sent
TYPE_ORDER: Final = names.TYPES
#: types whose resources a client may subscribe to as a whole
WILDCARD_TYPES: Final = frozenset({names.LISTENER, names.CLUSTER})
#: the one string object of each type URL, so that comparisons are by identity
_INTERNED_TYPES: Final = {type_url: type_url for type_url in TYPE_ORDER}
#: types whose responses wait for no other type
_INDEPENDENT_TYPES: Final = frozenset({names.ASSIGNMENT, names.ENDPOINT})
#: names up to which a response is built in one step
SINGLE_STEP_NAMES_MAX: Final = 256
#: seconds after which a response without an answer is reported as late
LATE_S: Final = 30.0
#: seconds for which a gRPC client waits for the server's first lists; after 15 s it would treat all
#: resources as absent
ADMISSION_WAIT_S: Final = 10.0
PENDING_REQUESTS_MAX: Final = 1_000
#: limits of requests that answer no response: a burst, and the rate afterwards
REQUESTS_BURST: Final = 10_000
REQUESTS_PER_S: Final = 100.0
#: bytes of a stream without names, and overhead of a waiting message
STREAM_BYTES: Final = 16 * 1024
MESSAGE_BYTES: Final = 64


class AdsStream(ABC):
    """One stream.  Owned by one server, like the *encoder*.  Actions are in the order of the events
    that caused them.

    A request may be long. ``on_request``, ``on_changes`` and ``on_admitted`` execute only the first
    step; while ``has_work`` is true, the server calls ``work`` for each further step, and serves
    other streams in between. Requests that arrive meanwhile wait, so their order is kept. A change
    that arrives meanwhile is owed immediately and sent after the current work.
    """

    #: True if the client treats a resource as absent when no response arrives for 15 s
    times_out_resources = False
    #: number of the field ``node`` in requests
    node_field: ClassVar[int]

    def __init__(self, encoder: ResponseEncoder) -> None:
        self._encoder = encoder
        self.node: ClientFacts | None = None
        self._view: XdsView | None = None
        self._visible = VisibleNamespaces(everything=False)
        self._channels: dict[str, XdsChannel] = {}
        #: names of listeners by the topic of their changes, if it differs from the name
        self._by_topic: dict[str, dict[str, None]] = {}
        #: requests that wait for the admission, or for the current work
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
        self._gate = ClusterGate(self._channels)
        self._tokens = float(REQUESTS_BURST)
        self._tokens_at = 0.0

    # -- events

    def on_request(self, message: bytes, now: float, *, later: bool = False) -> bool:
        """Handles a message of the client.  *later*: queue it without executing a step.

        Returns False if the message only accepts a response, as nearly every message does.
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
        """Queues *message* until the client is admitted.

        Only the node of the first message is decoded now: a reconnected client lists all its
        versions, which take several times their encoded size when decoded.
        """
        if self.node is None:
            try:
                node = read_node(message, self.node_field)
            except RequestError as error:
                self._refuse(error)
                return
            if node is None:
                text = "the first message of a stream must begin with the node of the client"
                self._finish(INVALID_ARGUMENT, text)
                return
            self.node = node
            self._opened = self._tokens_at = now
            self._actions.append(XdsAdmit(node))
        if len(self._waiting) > PENDING_REQUESTS_MAX:
            text = f"more than {PENDING_REQUESTS_MAX} requests before the first answer"
            self._finish(RESOURCE_EXHAUSTED, text, "held-requests")

    @property
    def has_work(self) -> bool:
        return self._job is not None or (bool(self._waiting) and self._view is not None)

    def work(self, now: float) -> None:
        """Executes one step, which takes a few milliseconds at most."""
        self._now = now
        if self._job is None:
            if self._waiting and self._view is not None:
                self._job = self._handle(self._waiting.popleft())
            elif self._flush_due:
                self._flush_due = False
                self._job = self._respond_all()
            else:
                return
        try:
            next(self._job)
        except StopIteration:
            self._job = self._respond_all() if self._flush_due else None
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
            yield from self._respond_all()

    def _refuse(self, error: RequestError) -> None:
        status = RESOURCE_EXHAUSTED if isinstance(error, RequestTooLarge) else INVALID_ARGUMENT
        self._finish(status, str(error), error.limit)

    def on_admitted(
        self, view: XdsView, visible: VisibleNamespaces, revision: int, now: float
    ) -> None:
        """Sets the *view* and the namespaces of the client; the first call starts the responses to
        its waiting requests.
        """
        is_first = self._view is None
        self._view, self._visible, self._revision = view, visible, revision
        if is_first:
            self.work(now)
            return
        for channel in self._channels.values():
            for name in self._relevant_names(channel):
                channel.owe(name, revision, now)
        self._flush(now)

    def on_changes(self, changes: Sequence[XdsChange], revision: int, now: float) -> None:
        """Notes changes of the stream's view, and ignores those of other views."""
        if self._view is None or self.finished:
            return
        self._revision = revision
        is_affected = False
        sees_everything = self._visible.everything
        for view, type_url, topic in changes:
            channel = self._channels.get(type_url)
            if channel is not None and view is self._view:
                for name in self._find_subscribed(channel, topic):
                    if sees_everything or self._is_visible(type_url, name):
                        channel.owe(name, revision, now)
                        is_affected = True
        if is_affected:
            self._flush(now)

    def on_deadline(self, now: float) -> None:
        if self.finished:
            return
        if self._view is None:
            if (
                self.times_out_resources
                and self._waiting
                and now >= self._opened + ADMISSION_WAIT_S
            ):
                self._finish(UNAVAILABLE, "the server has not read the cluster yet; try again")
            return
        for channel in self._channels.values():
            if (
                channel.in_flight is not None
                and not channel.is_late
                and now >= channel.sent_at + LATE_S
            ):
                channel.is_late = True
                self._actions.append(XdsLate(channel.type_url))
        if self._gate.expire(now):
            self._actions.append(XdsGateForced())
            self._flush(now)

    def next_deadline(self) -> float | None:
        if self.finished:
            return None
        if self._view is None:
            return (
                self._opened + ADMISSION_WAIT_S
                if self.times_out_resources and self._waiting
                else None
            )
        due = [
            channel.sent_at + LATE_S
            for channel in self._channels.values()
            if channel.in_flight is not None and not channel.is_late
        ]
        if self._gate.deadline is not None:
            due.append(self._gate.deadline)
        return min(due, default=None)

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    # -- queries

    @property
    def view(self) -> XdsView | None:
        return self._view

    @property
    def visible(self) -> VisibleNamespaces:
        return self._visible

    @property
    def behind_from(self) -> int | None:
        """Returns the first revision that the client may lack; ``None``: it lacks none."""
        froms = [channel.behind_from for channel in self._channels.values()]
        return min((revision for revision in froms if revision is not None), default=None)

    def services_behind(self) -> set[ServiceKey]:
        """Returns the visible Services of which the client may lack a change.  O(changed names)."""
        return {
            service
            for channel in self._channels.values()
            for name in (*channel.changed, *channel.in_flight_changed)
            if (service := self._service_of(channel.type_url, name)) is not None
        }

    def services_affected(self, changes: Sequence[XdsChange]) -> set[ServiceKey]:
        """Returns the Services of *changes* to which the client subscribes.  O(changes)."""
        services = set()
        for change in changes:
            channel = self._channels.get(change.type_url)
            for name in () if channel is None else self._find_subscribed(channel, change.topic):
                service = self._service_of(change.type_url, name)
                if service is not None:
                    services.add(service)
        return services

    def _service_of(self, type_url: str, name: str) -> ServiceKey | None:
        assert self._view is not None, "admitted"
        service = self._view.service_of(type_url, name)
        return (
            service if service is not None and self._visible.includes(service.namespace) else None
        )

    @property
    def memory_bytes(self) -> int:
        """Estimates the memory of the stream.  O(1)."""
        return (
            STREAM_BYTES
            + self._waiting_bytes
            + sum(channel.memory_bytes for channel in self._channels.values())
        )

    @property
    def is_late(self) -> bool:
        return any(channel.is_late for channel in self._channels.values())

    def status(self) -> tuple[ChannelStatus, ...]:
        """Returns the progress of each type in ``TYPE_ORDER``."""
        return tuple(
            self._channels[type_url].status()
            for type_url in TYPE_ORDER
            if type_url in self._channels
        )

    # -- to be implemented by the variants

    @abstractmethod
    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        """Decodes a request.  Raises ``RequestError``."""

    @abstractmethod
    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]:
        """Handles a decoded request."""

    @abstractmethod
    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        """Sends the owed names of *channel* that need not wait."""

    def _is_plain_ack(self, message: bytes, now: float) -> bool:
        """Returns True if *message* only accepts the response in flight, as usual."""
        return False

    # -- for both variants

    def _finish(self, status: int, text: str, limit: str = "") -> None:
        self.close()
        self._actions.append(XdsFinish(status, text, limit))

    def close(self) -> None:
        """Ends the stream and frees its memory.  Idempotent."""
        self.finished = True
        self._job = None  # its frame refers to this stream
        self._waiting.clear()
        self._waiting_bytes = 0

    def _channel(self, type_url: str) -> XdsChannel:
        """Returns the channel of a type.  Raises ``RequestError`` if the server does not serve it."""
        channel = self._channels.get(type_url)
        if channel is None:
            interned = _INTERNED_TYPES.get(type_url)
            if interned is None:
                served = ", ".join(url.rpartition(".")[2] for url in TYPE_ORDER)
                raise RequestError(
                    f"{type_url[:100]!r} is not served; served types: {served}", "types"
                )
            channel = self._channels[interned] = XdsChannel(interned)
        return channel

    def _check_limits(self, channel: XdsChannel, answers: bool, now: float) -> bool:
        """Returns True if the limits allow the request; otherwise finishes the stream."""
        is_allowed = answers or self._take_token(now)
        if is_allowed and sum(len(other.names) for other in self._channels.values()) > NAMES_MAX:
            self._finish(RESOURCE_EXHAUSTED, f"more than {NAMES_MAX} names on a stream", "names")
        return not self.finished

    def _take_token(self, now: float) -> bool:
        """Counts a request that answers no response; returns False, and finishes the stream, if the
        rate is too high.
        """
        self._tokens = (
            min(REQUESTS_BURST, self._tokens + (now - self._tokens_at) * REQUESTS_PER_S) - 1.0
        )
        self._tokens_at = now
        if self._tokens < 0.0:
            text = f"more than {REQUESTS_PER_S:g} requests per second that answer no response"
            self._finish(RESOURCE_EXHAUSTED, text, "requests")
        return not self.finished

    def _send(self, type_url: str, message: bytes) -> None:
        self._actions.append(XdsSend(type_url, message))

    def _end_response(self, channel: XdsChannel, now: float, *, accepted: bool) -> tuple[str, ...]:
        """Notes the answer to the response in flight; returns the names of the response."""
        if accepted and channel.in_flight_from is not None:
            self._actions.append(XdsApplied(channel.type_url, now - channel.in_flight_changed_at))
        if channel.type_url == names.CLUSTER:
            self._gate.on_clusters_answered()
        return channel.end_response(accepted=accepted)

    def _note_refusal(self, channel: XdsChannel, refused: tuple[str, ...], text: str) -> None:
        channel.note_refusal(refused, text)
        self._actions.append(XdsRefusal(channel.type_url, refused, text))

    def _is_subscribed(self, channel: XdsChannel, name: str) -> bool:
        if channel.wildcard or name in channel.names:
            return True
        return channel.type_url == names.ENDPOINT and names.collection_of(name) in channel.names

    def _find_subscribed(self, channel: XdsChannel, topic: str) -> Sequence[str]:
        """Returns the subscribed names that a change of *topic* concerns."""
        if topic in channel.names:
            return (topic,)
        if channel.type_url == names.LISTENER and topic in self._by_topic:
            return tuple(self._by_topic[topic])
        return (topic,) if self._is_subscribed(channel, topic) else ()

    def _add_names(self, channel: XdsChannel, added: Iterable[str]) -> None:
        """Subscribes to *added*, which are distinct."""
        fresh = channel.subscribe(added)
        for name in fresh if channel.type_url == names.LISTENER else ():
            topic = self._topic(name)
            if topic != name:
                self._by_topic.setdefault(topic, {})[name] = None

    def _remove_name(self, channel: XdsChannel, name: str) -> None:
        """Ends the subscription to *name*."""
        channel.unsubscribe(name)
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

    def _relevant_names(self, channel: XdsChannel) -> list[str]:
        """Returns the names of all resources that the client has or should have."""
        assert self._view is not None, "admitted"
        relevant = dict.fromkeys(channel.sent)
        relevant.update(channel.names)
        if channel.wildcard:
            relevant.update(
                dict.fromkeys(resource.name for resource in self._view.all(channel.type_url))
            )
        return list(relevant)

    def _get(self, channel: XdsChannel, name: str) -> XdsResource | None:
        """Returns the resource *name* if the client may see it."""
        assert self._view is not None, "admitted"
        # The view computes nothing for a client that may not see it.
        is_visible = self._visible.everything or self._is_visible(channel.type_url, name)
        return self._view.get(channel.type_url, name) if is_visible else None

    def _is_visible(self, type_url: str, name: str) -> bool:
        assert self._view is not None, "admitted"
        return self._visible.includes(self._view.namespace_of(type_url, name))

    def _note_absence(self, channel: XdsChannel, name: str) -> ResourceError | None:
        """Returns the reason why *name* resolves to nothing; see ``check_absence``."""
        assert self._view is not None, "admitted"
        return check_absence(self._view, self._visible, channel, name, self._actions)

    def _next_nonce(self) -> str:
        """Returns the revision, with a counter if it was used before: after a change all streams
        have the same nonce, and so the same response.
        """
        revision, count = self._counted
        count = count + 1 if revision == self._revision else 0
        self._counted = (self._revision, count)
        return f"{self._revision}.{count}" if count else str(self._revision)

    def _flush(self, now: float) -> None:
        """Sends owed names that need not wait: immediately if they are few, as usual."""
        if self._job is not None:
            self._flush_due = True
            return
        only: XdsChannel | None = None
        for channel in self._channels.values():
            if channel.in_flight is None and (
                channel.owed or channel.must_answer or channel.retries
            ):
                if (
                    only is not None
                    or channel.type_url not in _INDEPENDENT_TYPES
                    or len(channel.owed) > SINGLE_STEP_NAMES_MAX
                ):
                    self._flush_due = True
                    self.work(now)
                    return
                only = channel
        if only is not None:
            for _ in self._respond(only, now):
                pass
            only.clear_change_mark()

    def _respond_all(self) -> Steps[None]:
        self._gate.begin_round()
        # Clusters are twice in the order: removed ones wait for the listeners that name them.
        for type_url in (*TYPE_ORDER, names.CLUSTER):
            channel = self._channels.get(type_url)
            if (
                channel is not None
                and channel.in_flight is None
                and channel.needs_response
                and not self.finished
            ):
                yield from self._respond(channel, self._now)
                channel.clear_change_mark()
        self._gate.end_round()
