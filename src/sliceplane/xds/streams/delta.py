"""An incremental stream (``DeltaAggregatedResources``), as Envoy uses it: what differs is sent, and
nothing else.

Every name that a client subscribes to is answered, whatever the server thinks that it holds; only
the version that the client itself says it has saves the resource. Assignments are never removed
from a client that holds them, for Envoy passes that over: it gets one without endpoints. A cluster
that is sent is followed by its assignment, or Envoy waits for it for 15 s.

A refused message of several resources is sent again in halves, until it is known which of them the
client does not take: the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sliceplane.kit.containers import batched
from sliceplane.xds import names
from sliceplane.xds.resource import XdsResource
from sliceplane.xds.streams.channel import ABSENT, XdsChannel
from sliceplane.xds.streams.messages import (
    MESSAGE_BYTES_MAX,
    RESPONSE_NAMES_MAX,
    ResourceError,
    ResponseEncoder,
    delta_ack,
    empty_assignment,
)
from sliceplane.xds.streams.requests import STEP, DeltaRequest, Steps, WholeRequest, read_delta
from sliceplane.xds.streams.stream import WILDCARD_TYPES, AdsStream

EVERYTHING: Final = "*"
#: of an encoded name, version and frame, beside the resource itself
_OVERHEAD: Final = 64
_PREFIX: Final = "type.googleapis.com/envoy."
#: types of other xDS servers, which an Envoy may ask of this one, too: it is told that there is
#: nothing
UNSERVED: Final = frozenset(
    {
        f"{_PREFIX}config.core.v3.TypedExtensionConfig",
        f"{_PREFIX}config.route.v3.ScopedRouteConfiguration",
        f"{_PREFIX}config.route.v3.VirtualHost",
        f"{_PREFIX}extensions.transport_sockets.tls.v3.Secret",
        f"{_PREFIX}service.runtime.v3.Runtime",
    }
)


class DeltaStream(AdsStream):
    """See ``AdsStream``."""

    node_field = 1

    def __init__(self, encoder: ResponseEncoder) -> None:
        super().__init__(encoder)
        #: clusters that were sent, and to whose assignments the client has not subscribed yet
        self._promised: dict[str, None] = {}

    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        return read_delta(message)

    def _is_plain_ack(self, message: bytes, now: float) -> bool:
        for channel in self._channels.values():
            if channel.flight is not None and channel.ack == message:
                self._landed(channel, now, accepted=True)
                self._flush(now)
                return True
        return False

    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]:
        assert isinstance(request, DeltaRequest), "read by this stream"
        if request.type_url in UNSERVED:
            self._say_nothing_exists(request, now)
            return
        first = request.type_url not in self._channels
        channel = self._channel(request.type_url)
        # A stale nonce makes no request void: what it subscribes to counts.
        answers = channel.flight is not None and request.nonce == channel.nonce
        if answers:
            self._on_answer(channel, request.error, now)
        subscribe = request.subscribe
        if first and not subscribe and request.type_url in WILDCARD_TYPES:
            subscribe = (EVERYTHING,)
        for count, name in enumerate(request.unsubscribe, 1):
            self._unsubscribe(channel, name)
            if not count % STEP:
                yield
        versions = request.initial if first else {}
        # What the client holds; of what it does not want versions say nothing.
        held = versions if EVERYTHING in subscribe else (n for n in subscribe if n in versions)
        for some in batched(held, STEP):
            channel.hold({name: versions[name] for name in some})
            if len(some) == STEP:
                yield
        for some in batched(subscribe, STEP):
            self._want(channel, [name for name in some if name != EVERYTHING])
            for name in self._not_current(channel, some, versions):
                self._subscribe(channel, name, versions)
                if channel.type_url == names.ENDPOINT and len(channel.owed) > STEP:
                    yield  # a collection may have thousands of members
            if len(some) == STEP:
                yield
        self._may_ask(channel, answers, now)

    def _say_nothing_exists(self, request: DeltaRequest, now: float) -> None:
        """Nothing of it is kept."""
        if self._take_token(now) and request.subscribe:
            message = self._encoder.delta(
                request.type_url, self._next_nonce(), (), request.subscribe
            )
            self._send(request.type_url, message)

    def _on_answer(self, channel: XdsChannel, error: str | None, now: float) -> None:
        sent = self._landed(channel, now, accepted=error is None)
        if error is not None and len(sent) > 1:
            middle = len(sent) // 2
            channel.again[:0] = [sent[:middle], sent[middle:]]
        elif error is not None:
            self._note_refusal(channel, sent, error)

    def _not_current(
        self, channel: XdsChannel, subscribe: tuple[str, ...], versions: Mapping[str, str]
    ) -> Iterable[str]:
        """Leaves out assignments of which the client holds the version that there is, as nearly
        all are of a client that comes back: ``_subscribe`` would owe it nothing for them.
        """
        if not versions or channel.type_url != names.ASSIGNMENT or not self._sight.everything:
            return subscribe
        assert self._view is not None, "admitted"
        built, promised = self._view.built_assignments, self._promised
        return [
            name
            for name in subscribe
            if name in promised or name not in built or built[name].version != versions.get(name)
        ]

    def _subscribe(self, channel: XdsChannel, name: str, versions: Mapping[str, str]) -> None:
        if name == EVERYTHING:
            if channel.type_url in WILDCARD_TYPES:
                channel.wildcard = True
                for wanted in self._of_interest(channel):
                    channel.owe(wanted, None, 0.0)
                channel.must_answer = not versions
            return
        if channel.type_url == names.ENDPOINT:
            self._subscribe_collection(channel, name)
        elif name in versions and not (
            channel.type_url == names.ASSIGNMENT and name in self._promised
        ):
            # The usual case of a client that comes back, which asks for thousands: it holds what
            # there is.
            if self._difference(channel, name)[1]:
                channel.owe(name, None, 0.0)
        else:
            channel.force(name)
            self._promised.pop(name, None)

    def _subscribe_collection(self, channel: XdsChannel, glob: str) -> None:
        """Envoy keeps members over a reconnect, and does not say which: all are sent, and what ever
        went is removed.
        """
        assert self._view is not None, "admitted"
        is_seen = self._sight.everything or self._sight.sees(
            self._view.namespace_of(names.ENDPOINT, glob)
        )
        for name in self._collected(glob) if is_seen else (glob,):
            channel.force(name)

    def _collected(self, glob: str) -> list[str]:
        """Returns the names to report for a collection: an empty one is reported by its own
        name.
        """
        assert self._view is not None, "admitted"
        collection = self._view.collection(glob)
        if collection is None:
            return [glob]
        members = [member.name for member in collection.members]
        return [*collection.removed, *members] if members else [glob, *collection.removed]

    def _of_interest(self, channel: XdsChannel) -> list[str]:
        if channel.type_url != names.ENDPOINT:
            return super()._of_interest(channel)
        return [name for glob in channel.names for name in self._collected(glob)]

    def _unsubscribe(self, channel: XdsChannel, name: str) -> None:
        if name == EVERYTHING:
            channel.wildcard = False
            for held in [held for held in channel.sent if held not in channel.names]:
                channel.forget(held)
        elif name in channel.names:
            self._forget(channel, name)
            self._promised.pop(name, None)
            if channel.wildcard:
                channel.force(name)
            elif channel.type_url == names.ENDPOINT:
                for member in self._collected(name):
                    channel.settle(member)

    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        is_part = bool(channel.again)
        if is_part:
            group = channel.again.pop(0)
            for name in group:
                if self._wants(channel, name):
                    channel.force(name)
            candidates = group
        elif channel.owed or channel.must_answer:
            candidates = tuple(channel.owed)
        else:
            return
        new_waits = self._waits_for_clusters(channel, now)
        gone_waits = channel.type_url == names.CLUSTER and self._listeners_go()
        resources: list[XdsResource] = []
        removed: list[str] = []
        errors: list[ResourceError] = []
        size = 0
        for count, name in enumerate(candidates, 1):
            if size > MESSAGE_BYTES_MAX:
                break
            if not count % STEP:
                if len(resources) + len(removed) >= RESPONSE_NAMES_MAX:
                    break
                yield
            resource, changed = self._difference(channel, name)
            if not changed:
                channel.settle(name)
            elif resource is None:
                if gone_waits:
                    continue
                removed.append(name)
                errors += self._errors(channel, name)
                size += len(name) + _OVERHEAD
                self._note_sent(channel, name, ABSENT)
            elif not new_waits:
                size += len(resource.body) + len(name) + _OVERHEAD
                if size > MESSAGE_BYTES_MAX and resources:
                    break
                resources.append(resource)
                if name in channel.absent or (
                    channel.type_url == names.ASSIGNMENT and name in channel.forced
                ):
                    self._absence(channel, name)  # an assignment is there for every name
                self._note_sent(channel, name, resource.version)
        if resources or removed or channel.must_answer:
            channel.must_answer = False
            nonce = self._next_nonce()
            message = self._encoder.delta(channel.type_url, nonce, resources, removed, errors)
            sent = tuple([resource.name for resource in resources])
            # A client that refuses the message may take nothing of it, removals neither.
            carried = (*sent, *removed)
            channel.launch(nonce, carried, delta_ack(channel.type_url, nonce), self._revision, now)
            self._send(channel.type_url, message)
            if channel.type_url == names.CLUSTER:
                self._owe_assignments(sent, removed)
        elif is_part:
            # Nothing of this part is sent now. The rest goes before what waits for clusters.
            yield from self._respond(channel, now)

    def _difference(self, channel: XdsChannel, name: str) -> tuple[XdsResource | None, bool]:
        """Returns the resource to send for *name* (``None``: that there is none), and True if
        anything must be sent.
        """
        forced = name in channel.forced
        resource = self._get(channel, name)
        if channel.type_url == names.ENDPOINT:
            return resource, self._wants(channel, name)
        held = channel.sent.get(name)
        if resource is None and channel.type_url == names.ASSIGNMENT and held:
            resource = empty_assignment(name)
        if resource is not None:
            return resource, forced or held != resource.version
        return None, forced or bool(held)

    def _note_sent(self, channel: XdsChannel, name: str, version: str) -> None:
        channel.settle(name)
        if channel.type_url != names.ENDPOINT:
            if version or name in channel.names:
                channel.sent[name] = version
            else:
                channel.sent.pop(name, None)

    def _errors(self, channel: XdsChannel, name: str) -> list[ResourceError]:
        """Why *name* is not there, if the client may not see it or requested it just now."""
        is_requested = (
            name in channel.names and name in channel.forced and channel.type_url != names.ENDPOINT
        )
        if not is_requested and self._is_seen(channel.type_url, name):
            return []
        absence = self._absence(channel, name)
        return [] if absence is None else [absence]

    def _owe_assignments(self, sent: Iterable[str], removed: Iterable[str]) -> None:
        assignments = self._channels.get(names.ASSIGNMENT)
        for name in sent:
            if assignments is not None and name in assignments.names:
                assignments.force(name)
            else:
                self._promised[name] = None
        for name in removed:
            self._promised.pop(name, None)
