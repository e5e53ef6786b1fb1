"""The state-of-the-world stream (``StreamAggregatedResources``), which every gRPC client uses.

Each request names all subscriptions. A response with listeners or clusters has all of them that
exist; the client drops those that it omits. A response with assignments or routes has only changed
ones, and cannot report an absent one: for a name that resolves to nothing, the client gets a
listener without virtual hosts or an assignment without endpoints, so that a call fails immediately.

The server does not respond to a request that changes no subscription: the client answers each
response with a request, so responses would never end.
"""

from __future__ import annotations

from typing import Final

from sliceplane.xds import names
from sliceplane.xds.resource import XdsResource
from sliceplane.xds.streams.channel import XdsChannel
from sliceplane.xds.streams.messages import (
    MESSAGE_BYTES_MAX,
    RESOURCE_EXHAUSTED,
    RESPONSE_NAMES_MAX,
    ResourceError,
    absent_listener,
    empty_assignment,
)
from sliceplane.xds.streams.requests import STEP, DeltaRequest, Steps, WholeRequest, read_whole
from sliceplane.xds.streams.stream import WILDCARD_TYPES, AdsStream

WILDCARD: Final = "*"
_OVERHEAD: Final = 256


class WholeStream(AdsStream):
    """The state-of-the-world variant of ``AdsStream``."""

    times_out_resources = True
    node_field = 2

    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        return read_whole(message)

    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]:
        assert isinstance(request, WholeRequest), "read by this stream"
        first = request.type_url not in self._channels
        channel = self._channel(request.type_url)
        if request.nonce and request.nonce != channel.nonce:
            return  # stale: the answer to the newer response names all subscriptions again
        answers = channel.in_flight is not None and request.nonce == channel.nonce
        if answers:
            self._on_answer(channel, request.error, now)
        named = dict.fromkeys(request.names)
        is_wildcard = WILDCARD in named
        named.pop(WILDCARD, None)
        if request.type_url in WILDCARD_TYPES:
            wildcard = is_wildcard or (not named and (first or channel.is_implicit_wildcard))
            channel.is_implicit_wildcard = wildcard and not is_wildcard
            channel.must_answer |= wildcard and not channel.wildcard
            channel.wildcard = wildcard
        for count, name in enumerate(tuple(channel.names), 1):
            if name not in named:
                self._remove_name(channel, name)
            if not count % STEP:
                yield
        for count, name in enumerate(named, 1):
            if name not in channel.names:
                self._add_names(channel, (name,))
                channel.owe_forced(name)
            if not count % STEP:
                yield
        self._check_limits(channel, answers, now)

    def _on_answer(self, channel: XdsChannel, error: str | None, now: float) -> None:
        sent = self._end_response(channel, now, accepted=error is None)
        if error is not None:
            # The client accepts the other resources of the response (gRFC A46); its error message
            # names the refused ones.
            self._note_refusal(
                channel, tuple([name for name in sent if name in error]) or sent, error
            )

    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        if not self._gate.must_wait(channel, now):
            everything = channel.type_url in WILDCARD_TYPES
            yield from (
                self._respond_with_all(channel, now)
                if everything
                else self._respond_with_changed(channel, now)
            )

    def _respond_with_all(self, channel: XdsChannel, now: float) -> Steps[None]:
        assert self._view is not None, "admitted"
        # Names that change between the steps are owed again.
        owed, channel.owed = channel.owed, {}
        subscribed = dict.fromkeys(channel.names)
        if channel.wildcard:
            subscribed.update(
                dict.fromkeys(resource.name for resource in self._view.all(channel.type_url))
            )
        resources: list[XdsResource] = []
        errors: list[ResourceError] = []
        for count, name in enumerate(subscribed, 1):
            if not count % STEP:
                yield
            resource = self._get(channel, name)
            if channel.type_url == names.LISTENER and name in channel.names:
                resource = resource or absent_listener(name)
                is_sent = channel.sent.get(name) == resource.version
                # The reason of a name that still resolves to nothing may have changed.
                absence = (
                    None
                    if is_sent and name not in channel.absent
                    else self._note_absence(channel, name)
                )
                if absence is not None and not is_sent:
                    errors.append(absence)
            if resource is not None:
                resources.append(resource)
        versions = {resource.name: resource.version for resource in resources}
        forced = any(name in channel.forced for name in versions)
        has_removed = any(name not in versions for name in channel.sent)
        if (
            has_removed
            and not forced
            and channel.type_url == names.CLUSTER
            and self._gate.has_listener_updates()
        ):
            channel.owed = {**owed, **channel.owed}
            return
        channel.forced.clear()
        if not (forced or channel.must_answer or versions != channel.sent):
            return
        size = sum(len(resource.body) + len(resource.name) + _OVERHEAD for resource in resources)
        if size > MESSAGE_BYTES_MAX:
            self._finish(
                RESOURCE_EXHAUSTED,
                f"{len(resources)} resources exceed the {MESSAGE_BYTES_MAX} bytes of a message",
            )
            return
        channel.sent = versions
        self._send_response(channel, resources, errors, now)

    def _respond_with_changed(self, channel: XdsChannel, now: float) -> Steps[None]:
        resources: list[XdsResource] = []
        size = 0
        for count, name in enumerate(tuple(channel.owed), 1):
            if not count % STEP:
                if len(resources) >= RESPONSE_NAMES_MAX:
                    break
                yield
            resource = self._get(channel, name)
            if resource is None and channel.type_url == names.ASSIGNMENT:
                resource = empty_assignment(name)
            if resource is None or not (
                name in channel.forced or channel.sent.get(name) != resource.version
            ):
                channel.clear_owed(name)
                continue
            size += len(resource.body) + len(name) + _OVERHEAD
            if size > MESSAGE_BYTES_MAX and resources:
                break
            channel.clear_owed(name)
            channel.sent[name] = resource.version
            if len(resource.body) + _OVERHEAD > MESSAGE_BYTES_MAX:
                size = 0
                self._note_refusal(
                    channel,
                    (name,),
                    f"{len(resource.body)} bytes exceed the maximum message size of gRPC clients",
                )
            else:
                resources.append(resource)
        if resources:
            self._send_response(channel, resources, [], now)

    def _send_response(
        self,
        channel: XdsChannel,
        resources: list[XdsResource],
        errors: list[ResourceError],
        now: float,
    ) -> None:
        channel.must_answer = False
        nonce = self._next_nonce()
        message = self._encoder.whole(channel.type_url, nonce, resources, errors)
        channel.begin_response(
            nonce, tuple([resource.name for resource in resources]), b"", self._revision, now
        )
        self._send(channel.type_url, message)
