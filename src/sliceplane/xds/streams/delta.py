"""The incremental stream (``DeltaAggregatedResources``), which Envoy uses: a response has only the
resources that differ.

Every subscription is answered, even if the server has already sent that resource; the answer omits
the resource only if the client itself reports its current version. Envoy ignores the removal of an
assignment, so it gets an assignment without endpoints instead. The server sends a cluster's
assignment after each sent cluster; otherwise Envoy would wait 15 s for it.

A refused message of several resources is sent again in halves until the refused resource is alone
in its message: the client accepts the others.
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

WILDCARD: Final = "*"
#: bytes of the encoded name, version and frame of a resource, beside its body
_OVERHEAD: Final = 64
_PREFIX: Final = "type.googleapis.com/envoy."
#: types that only other xDS servers have; an Envoy may request them here, too, and gets an empty
#: answer
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
    """The incremental variant of ``AdsStream``."""

    node_field = 1

    def __init__(self, encoder: ResponseEncoder) -> None:
        super().__init__(encoder)
        #: sent clusters to whose assignments the client has not subscribed yet
        self._unclaimed_assignments: dict[str, None] = {}

    def _read(self, message: bytes) -> Steps[WholeRequest | DeltaRequest]:
        return read_delta(message)

    def _is_plain_ack(self, message: bytes, now: float) -> bool:
        for channel in self._channels.values():
            if channel.in_flight is not None and channel.expected_ack == message:
                self._end_response(channel, now, accepted=True)
                self._flush(now)
                return True
        return False

    def _on_read(self, request: WholeRequest | DeltaRequest, now: float) -> Steps[None]:
        assert isinstance(request, DeltaRequest), "read by this stream"
        if request.type_url in UNSERVED:
            self._answer_unserved(request, now)
            return
        first = request.type_url not in self._channels
        channel = self._channel(request.type_url)
        # A request with a stale nonce is honoured: its subscriptions count.
        answers = channel.in_flight is not None and request.nonce == channel.nonce
        if answers:
            self._on_answer(channel, request.error, now)
        subscribe = request.subscribe
        if first and not subscribe and request.type_url in WILDCARD_TYPES:
            subscribe = (WILDCARD,)
        for count, name in enumerate(request.unsubscribe, 1):
            self._unsubscribe(channel, name)
            if not count % STEP:
                yield
        versions = request.initial if first else {}
        # Versions of resources to which the client does not subscribe are ignored.
        initial = versions if WILDCARD in subscribe else (n for n in subscribe if n in versions)
        for some in batched(initial, STEP):
            channel.note_client_versions({name: versions[name] for name in some})
            if len(some) == STEP:
                yield
        for some in batched(subscribe, STEP):
            self._add_names(channel, [name for name in some if name != WILDCARD])
            for name in self._select_outdated(channel, some, versions):
                self._subscribe(channel, name, versions)
                if channel.type_url == names.ENDPOINT and len(channel.owed) > STEP:
                    yield  # a collection may have thousands of members
            if len(some) == STEP:
                yield
        self._check_limits(channel, answers, now)

    def _answer_unserved(self, request: DeltaRequest, now: float) -> None:
        """Reports that none of the requested resources exists, and retains nothing."""
        if self._take_token(now) and request.subscribe:
            message = self._encoder.delta(
                request.type_url, self._next_nonce(), (), request.subscribe
            )
            self._send(request.type_url, message)

    def _on_answer(self, channel: XdsChannel, error: str | None, now: float) -> None:
        sent = self._end_response(channel, now, accepted=error is None)
        if error is not None and len(sent) > 1:
            middle = len(sent) // 2
            channel.retries[:0] = [sent[:middle], sent[middle:]]
        elif error is not None:
            self._note_refusal(channel, sent, error)

    def _select_outdated(
        self, channel: XdsChannel, subscribe: tuple[str, ...], versions: Mapping[str, str]
    ) -> Iterable[str]:
        """Returns the names of *subscribe* without assignments of which the client has the current
        version. After a reconnect these are nearly all, and ``_subscribe`` would owe nothing for
        them.
        """
        if not versions or channel.type_url != names.ASSIGNMENT or not self._visible.everything:
            return subscribe
        assert self._view is not None, "admitted"
        built, promised = self._view.built_assignments, self._unclaimed_assignments
        return [
            name
            for name in subscribe
            if name in promised or name not in built or built[name].version != versions.get(name)
        ]

    def _subscribe(self, channel: XdsChannel, name: str, versions: Mapping[str, str]) -> None:
        if name == WILDCARD:
            if channel.type_url in WILDCARD_TYPES:
                channel.wildcard = True
                for relevant in self._relevant_names(channel):
                    channel.owe(relevant, None, 0.0)
                channel.must_answer = not versions
            return
        if channel.type_url == names.ENDPOINT:
            self._subscribe_collection(channel, name)
        elif name in versions and not (
            channel.type_url == names.ASSIGNMENT and name in self._unclaimed_assignments
        ):
            # After a reconnect a client subscribes to thousands of names, and usually has the
            # current version.
            if self._difference(channel, name)[1]:
                channel.owe(name, None, 0.0)
        else:
            channel.owe_forced(name)
            self._unclaimed_assignments.pop(name, None)

    def _subscribe_collection(self, channel: XdsChannel, glob: str) -> None:
        """Owes all members of *glob*, and the removal of former ones: Envoy keeps members over a
        reconnect without reporting them.
        """
        assert self._view is not None, "admitted"
        is_visible = self._visible.everything or self._visible.includes(
            self._view.namespace_of(names.ENDPOINT, glob)
        )
        for name in self._expand_collection(glob) if is_visible else (glob,):
            channel.owe_forced(name)

    def _expand_collection(self, glob: str) -> list[str]:
        """Returns the names to report for a collection: an empty one is reported by its own
        name.
        """
        assert self._view is not None, "admitted"
        collection = self._view.collection(glob)
        if collection is None:
            return [glob]
        members = [member.name for member in collection.members]
        return [*collection.removed, *members] if members else [glob, *collection.removed]

    def _relevant_names(self, channel: XdsChannel) -> list[str]:
        if channel.type_url != names.ENDPOINT:
            return super()._relevant_names(channel)
        return [name for glob in channel.names for name in self._expand_collection(glob)]

    def _unsubscribe(self, channel: XdsChannel, name: str) -> None:
        if name == WILDCARD:
            channel.wildcard = False
            for other in [other for other in channel.sent if other not in channel.names]:
                channel.forget_name(other)
        elif name in channel.names:
            self._remove_name(channel, name)
            self._unclaimed_assignments.pop(name, None)
            if channel.wildcard:
                channel.owe_forced(name)
            elif channel.type_url == names.ENDPOINT:
                for member in self._expand_collection(name):
                    channel.clear_owed(member)

    def _respond(self, channel: XdsChannel, now: float) -> Steps[None]:
        is_part = bool(channel.retries)
        if is_part:
            group = channel.retries.pop(0)
            for name in group:
                if self._is_subscribed(channel, name):
                    channel.owe_forced(name)
            candidates = group
        elif channel.owed or channel.must_answer:
            candidates = tuple(channel.owed)
        else:
            return
        must_delay_new = self._gate.must_wait(channel, now)
        must_delay_removed = channel.type_url == names.CLUSTER and self._gate.has_listener_updates()
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
                channel.clear_owed(name)
            elif resource is None:
                if must_delay_removed:
                    continue
                removed.append(name)
                errors += self._errors(channel, name)
                size += len(name) + _OVERHEAD
                self._note_sent(channel, name, ABSENT)
            elif not must_delay_new:
                size += len(resource.body) + len(name) + _OVERHEAD
                if size > MESSAGE_BYTES_MAX and resources:
                    break
                resources.append(resource)
                if name in channel.absent or (
                    channel.type_url == names.ASSIGNMENT and name in channel.forced
                ):
                    self._note_absence(channel, name)  # an assignment exists for every name
                self._note_sent(channel, name, resource.version)
        if resources or removed or channel.must_answer:
            channel.must_answer = False
            nonce = self._next_nonce()
            message = self._encoder.delta(channel.type_url, nonce, resources, removed, errors)
            sent = tuple([resource.name for resource in resources])
            # A client that refuses the message may apply nothing of it, not even removals.
            carried = (*sent, *removed)
            channel.begin_response(
                nonce, carried, delta_ack(channel.type_url, nonce), self._revision, now
            )
            self._send(channel.type_url, message)
            if channel.type_url == names.CLUSTER:
                self._owe_assignments(sent, removed)
        elif is_part:
            # Nothing of this part can be sent now; other names need not wait for clusters.
            yield from self._respond(channel, now)

    def _difference(self, channel: XdsChannel, name: str) -> tuple[XdsResource | None, bool]:
        """Returns the resource to send for *name* (``None``: its removal), and True if anything
        must be sent.
        """
        forced = name in channel.forced
        resource = self._get(channel, name)
        if channel.type_url == names.ENDPOINT:
            return resource, self._is_subscribed(channel, name)
        sent_version = channel.sent.get(name)
        if resource is None and channel.type_url == names.ASSIGNMENT and sent_version:
            resource = empty_assignment(name)
        if resource is not None:
            return resource, forced or sent_version != resource.version
        return None, forced or bool(sent_version)

    def _note_sent(self, channel: XdsChannel, name: str, version: str) -> None:
        channel.clear_owed(name)
        if channel.type_url != names.ENDPOINT:
            if version or name in channel.names:
                channel.sent[name] = version
            else:
                channel.sent.pop(name, None)

    def _errors(self, channel: XdsChannel, name: str) -> list[ResourceError]:
        """Returns the reason for a removal, if the client may not see *name* or just requested it."""
        is_requested = (
            name in channel.names and name in channel.forced and channel.type_url != names.ENDPOINT
        )
        if not is_requested and self._is_visible(channel.type_url, name):
            return []
        absence = self._note_absence(channel, name)
        return [] if absence is None else [absence]

    def _owe_assignments(self, sent: Iterable[str], removed: Iterable[str]) -> None:
        assignments = self._channels.get(names.ASSIGNMENT)
        for name in sent:
            if assignments is not None and name in assignments.names:
                assignments.owe_forced(name)
            else:
                self._unclaimed_assignments[name] = None
        for name in removed:
            self._unclaimed_assignments.pop(name, None)
