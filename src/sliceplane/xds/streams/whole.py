"""A stream of the state of the world (``StreamAggregatedResources``), as every gRPC client uses it.

A request names everything that is wanted, each time; an answer of listeners or clusters is
everything that exists of that, and what it leaves out is gone. Of assignments and routes only what
changed is sent, and no answer can say that there is none: so a name that leads nowhere is answered
with what makes a call fail at once, a listener without virtual hosts, an assignment without
endpoints.

Nothing is answered when nothing changed that the client wants: an answer causes an acceptance, and
an answer to each of these would never end.
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

EVERYTHING: Final = "*"
_OVERHEAD: Final = 256


class WholeStream(AdsStream):
    """See ``AdsStream``."""

    impatient = True
    node_field = 2

    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        return read_whole(message)

    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]:
        assert isinstance(request, WholeRequest), "read by this stream"
        first = request.type_url not in self._channels
        channel = self._channel(request.type_url)
        if request.nonce and request.nonce != channel.nonce:
            return  # stale: the client says again what it wants when it answers the newer response
        answers = channel.flight is not None and request.nonce == channel.nonce
        if answers:
            self._on_answer(channel, request.error, now)
        named = dict.fromkeys(request.names)
        is_wildcard = EVERYTHING in named
        named.pop(EVERYTHING, None)
        if request.type_url in WILDCARD_TYPES:
            wildcard = is_wildcard or (not named and (first or channel.is_legacy))
            channel.is_legacy = wildcard and not is_wildcard
            channel.must_answer |= wildcard and not channel.wildcard
            channel.wildcard = wildcard
        for count, name in enumerate(tuple(channel.names), 1):
            if name not in named:
                self._forget(channel, name)
            if not count % STEP:
                yield
        for count, name in enumerate(named, 1):
            if name not in channel.names:
                self._want(channel, (name,))
                channel.force(name)
            if not count % STEP:
                yield
        self._may_ask(channel, answers, now)

    def _on_answer(self, channel: XdsChannel, error: str | None, now: float) -> None:
        sent = self._landed(channel, now, accepted=error is None)
        if error is not None:
            # The client takes the others of a response (gRFC A46), and names those that it does
            # not.
            self._note_refusal(
                channel, tuple([name for name in sent if name in error]) or sent, error
            )

    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        if not self._waits_for_clusters(channel, now):
            everything = channel.type_url in WILDCARD_TYPES
            yield from (
                self._respond_with_all(channel, now)
                if everything
                else self._respond_with_changed(channel, now)
            )

    def _respond_with_all(self, channel: XdsChannel, now: float) -> Steps[None]:
        assert self._view is not None, "admitted"
        # What changes while this is worked out is owed anew.
        owed, channel.owed = channel.owed, {}
        wanted = dict.fromkeys(channel.names)
        if channel.wildcard:
            wanted.update(
                dict.fromkeys(resource.name for resource in self._view.all(channel.type_url))
            )
        resources: list[XdsResource] = []
        errors: list[ResourceError] = []
        for count, name in enumerate(wanted, 1):
            if not count % STEP:
                yield
            resource = self._get(channel, name)
            if channel.type_url == names.LISTENER and name in channel.names:
                resource = resource or absent_listener(name)
                is_told = channel.sent.get(name) == resource.version
                # Of a name that still leads nowhere the reason may be another.
                absence = (
                    None if is_told and name not in channel.absent else self._absence(channel, name)
                )
                if absence is not None and not is_told:
                    errors.append(absence)
            if resource is not None:
                resources.append(resource)
        versions = {resource.name: resource.version for resource in resources}
        forced = any(name in channel.forced for name in versions)
        gone = any(name not in versions for name in channel.sent)
        if gone and not forced and channel.type_url == names.CLUSTER and self._listeners_go():
            channel.owed = {**owed, **channel.owed}
            return
        channel.forced.clear()
        if not (forced or channel.must_answer or versions != channel.sent):
            return
        size = sum(len(resource.body) + len(resource.name) + _OVERHEAD for resource in resources)
        if size > MESSAGE_BYTES_MAX:
            self._finish(
                RESOURCE_EXHAUSTED,
                f"{len(resources)} resources are more than one message can carry",
            )
            return
        channel.sent = versions
        self._launch(channel, resources, errors, now)

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
                channel.settle(name)
                continue
            size += len(resource.body) + len(name) + _OVERHEAD
            if size > MESSAGE_BYTES_MAX and resources:
                break
            channel.settle(name)
            channel.sent[name] = resource.version
            if len(resource.body) + _OVERHEAD > MESSAGE_BYTES_MAX:
                size = 0
                self._note_refusal(
                    channel,
                    (name,),
                    f"{len(resource.body)} bytes are more than a client of gRPC takes",
                )
            else:
                resources.append(resource)
        if resources:
            self._launch(channel, resources, [], now)

    def _launch(
        self,
        channel: XdsChannel,
        resources: list[XdsResource],
        errors: list[ResourceError],
        now: float,
    ) -> None:
        channel.must_answer = False
        nonce = self._next_nonce()
        message = self._encoder.whole(channel.type_url, nonce, resources, errors)
        channel.launch(
            nonce, tuple([resource.name for resource in resources]), b"", self._revision, now
        )
        self._send(channel.type_url, message)
