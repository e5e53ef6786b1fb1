"""What clients ask and what they are answered, on the wire (``envoy.service.discovery.v3``).

Of a request is read what a server needs: Envoy's first one has 60 kB of extensions that are passed over.  A response is
a join of pieces that are encoded already, and the one that was made last is kept: where a resource changes, the usual
case, all clients of a view get the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from sliceplane.kit.protobuf import MalformedProtobuf
from sliceplane.xds import wire
from sliceplane.xds.listeners import grpc_listener
from sliceplane.xds.names import ASSIGNMENT, KEYS_KEPT, LISTENER, NAME_MAX
from sliceplane.xds.resource import XdsResource

#: google.rpc.Code
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNAVAILABLE: Final = 14

#: a client of gRPC drops the stream at a larger message, and comes again for ever
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
#: of a text that a client sends us
TEXT_MAX: Final = 1024
#: a name of ours and its version, each with its tag and length, are shorter
ENTRY_MAX: Final = NAME_MAX + 64


class RequestError(Exception):
    """A message that is no request; the text is a sentence."""


class ClientFacts(msgspec.Struct, frozen=True):
    """What a client says of itself."""

    id: str = ""
    cluster: str = ""
    region: str = ""
    zone: str = ""
    agent: str = ""
    #: major, minor, patch; zeros where it does not say
    version: tuple[int, int, int] = (0, 0, 0)
    #: the members of ``metadata`` that are strings
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    features: tuple[str, ...] = ()


class WholeRequest(msgspec.Struct, frozen=True):
    """``DiscoveryRequest``: of the state of the world."""

    type_url: str
    node: ClientFacts | None
    version: str
    names: tuple[str, ...]
    nonce: str
    #: why the client refuses what it was sent; ``None``: it does not
    error: str | None


class DeltaRequest(msgspec.Struct, frozen=True):
    """``DeltaDiscoveryRequest``."""

    type_url: str
    node: ClientFacts | None
    subscribe: tuple[str, ...]
    unsubscribe: tuple[str, ...]
    initial: Mapping[str, str]
    nonce: str
    error: str | None


def read_whole(message: bytes) -> WholeRequest:
    """Raises ``RequestError``."""
    values = _Values(message)
    return WholeRequest(
        type_url=values.text(4),
        node=values.node(2),
        version=values.text(1),
        names=values.texts(3),
        nonce=values.text(5),
        error=values.status(6),
    )


def read_delta(message: bytes) -> DeltaRequest:
    """Raises ``RequestError``."""
    values = _Values(message)
    return DeltaRequest(
        type_url=values.text(2),
        node=values.node(1),
        subscribe=values.shared_texts(3),
        unsubscribe=values.texts(4),
        initial=values.pairs(5),
        nonce=values.text(6),
        error=values.status(7),
    )


def read_node(message: bytes, number: int) -> ClientFacts | None:
    """Which node a request, which may be long, says that it is of, in its field *number*; what follows that is not
    looked at.  Raises ``RequestError``."""
    try:
        for found, value in wire.fields(message):
            if found == number and isinstance(value, bytes):
                return _Values(wire.message(number, value)).node(number)
    except MalformedProtobuf as error:
        raise RequestError(f"this is no protobuf message: {error}") from error
    return None


class _Values:
    """The fields of a message by number."""

    __slots__ = ("_fields",)

    def __init__(self, message: bytes) -> None:
        try:
            self._fields = wire.by_number(message)
        except MalformedProtobuf as error:
            raise RequestError(f"this is no protobuf message: {error}") from error

    def messages(self, number: int) -> list[bytes]:
        values = self._fields.get(number, ())
        for value in values:
            if not isinstance(value, bytes):
                raise RequestError(f"field {number} is a number, and not a message")
        return [value for value in values if isinstance(value, bytes)]

    def texts(self, number: int) -> tuple[str, ...]:
        try:
            return tuple([value.decode() for value in self.messages(number)])
        except UnicodeDecodeError as error:
            raise RequestError(f"field {number} is no text: {error}") from error

    def shared_texts(self, number: int) -> tuple[str, ...]:
        """As ``texts``, where a fleet of clients says the same: they are held once."""
        entries = self.messages(number)
        return tuple(map(_shared_text, entries)) if _are_short(entries) else self.texts(number)

    def pairs(self, number: int) -> dict[str, str]:
        """A map of texts; the texts are held once, as by ``shared_texts``."""
        entries = self.messages(number)
        return dict(map(_shared_pair if _are_short(entries) else _pair, entries))

    def text(self, number: int) -> str:
        texts = self.texts(number)
        return texts[-1] if texts else ""

    def message(self, number: int) -> _Values:
        """Of several pieces the last one counts: no client of ours sends several."""
        pieces = self.messages(number)
        return _Values(pieces[-1] if pieces else b"")

    def integer(self, number: int) -> int:
        values = self._fields.get(number, [0])
        value = values[-1]
        return value if isinstance(value, int) else 0

    def status(self, number: int) -> str | None:
        return self.message(number).text(2)[:TEXT_MAX] if number in self._fields else None

    def node(self, number: int) -> ClientFacts | None:
        if number not in self._fields:
            return None
        node = self.message(number)
        locality = node.message(4)
        build = node.message(8).message(1)
        return ClientFacts(
            id=node.text(1)[:TEXT_MAX],
            cluster=node.text(2)[:TEXT_MAX],
            region=locality.text(1)[:TEXT_MAX],
            zone=locality.text(2)[:TEXT_MAX],
            agent=node.text(6)[:TEXT_MAX],
            version=(build.integer(1), build.integer(2), build.integer(3)),
            metadata=_strings(node.message(3)),
            features=node.texts(10),
        )


def _strings(struct: _Values) -> dict[str, str]:
    """The members of a ``google.protobuf.Struct`` that are strings (``Value`` 3)."""
    members = [_Values(entry) for entry in struct.messages(1)]
    return {member.text(1): member.message(2).text(3)[:TEXT_MAX] for member in members if member.message(2).messages(3)}


def _pair(entry: bytes) -> tuple[str, str]:
    """Of a map: in the way in which every library writes short ones, else in any that is allowed."""
    size = len(entry)
    middle = 2 + entry[1] if size > 1 and entry[0] == 0x0A and entry[1] < 0x80 else size
    if middle + 2 <= size < middle + 0x82 and entry[middle] == 0x12 and entry[middle + 1] == size - middle - 2:
        try:
            return entry[2:middle].decode(), entry[middle + 2 :].decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"a map has no texts: {error}") from error
    values = _Values(entry)
    return values.text(1), values.text(2)


def _text(entry: bytes) -> str:
    try:
        return entry.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"a name is no text: {error}") from error


#: what strangers say may be remembered if it is short
_shared_pair: Final = lru_cache(KEYS_KEPT)(_pair)
_shared_text: Final = lru_cache(KEYS_KEPT)(_text)


def _are_short(entries: Sequence[bytes]) -> bool:
    return not entries or max(map(len, entries)) <= ENTRY_MAX


class ResourceError(msgspec.Struct, frozen=True):
    """Why a client does not get a resource."""

    name: str
    code: int
    text: str

    def encoded(self) -> bytes:
        status = wire.integer(1, self.code) + wire.text(2, self.text)
        return wire.message(1, wire.text(1, self.name)) + wire.message(2, status)


class ResponseEncoder:
    """Owned by one server; remembers the last frame of each kind."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[tuple[object, ...], bytes]] = {}

    def delta(
        self,
        type_url: str,
        nonce: str,
        resources: Sequence[XdsResource],
        removed: Sequence[str],
        errors: Sequence[ResourceError] = (),
    ) -> bytes:
        key = (nonce, *map(_identity, resources), *removed, *errors)
        return self._last_or("delta", type_url, key, lambda: b"".join((
            *[wire.message(2, item.as_delta) for item in resources],
            wire.text(4, type_url),
            wire.text(5, nonce),
            *[wire.message(6, name.encode()) for name in removed],
            *[wire.message(9, error.encoded()) for error in errors],
        )))  # fmt: skip

    def whole(
        self, type_url: str, nonce: str, resources: Sequence[XdsResource], errors: Sequence[ResourceError] = ()
    ) -> bytes:
        key = (nonce, *map(_identity, resources), *errors)
        return self._last_or("whole", type_url, key, lambda: b"".join((
            wire.text(1, nonce),
            *[wire.message(2, item.as_any) for item in resources],
            wire.text(4, type_url),
            wire.text(5, nonce),
            *[wire.message(7, error.encoded()) for error in errors],
        )))  # fmt: skip

    def _last_or(self, variant: str, type_url: str, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        last = self._last.get((variant, type_url))
        if last is not None and last[0] == key:
            return last[1]
        frame = make()
        self._last[variant, type_url] = (key, frame)
        return frame


def _identity(resource: XdsResource) -> tuple[str, str]:
    """Not ``id``: a resource that was made for one answer is gone, and another may be in its place in memory."""
    return resource.name, resource.version


def empty_assignment(name: str) -> XdsResource:
    """Envoy does not hear of an assignment that it is gone; that it is empty it does."""
    return XdsResource(ASSIGNMENT, name, wire.text(1, name))


def absent_listener(name: str) -> XdsResource:
    """What a gRPC client gets of a name that leads nowhere, so that a call fails at once and not after 15 s: no answer
    can say to every client that there is none; a listener whose routes have no virtual host is understood by all."""
    return XdsResource(LISTENER, name, grpc_listener(name, None))


def delta_ack(type_url: str, nonce: str) -> bytes:
    """What a client answers that accepts a response and wants nothing else: compared, and not read."""
    return wire.text(2, type_url) + wire.text(6, nonce)
