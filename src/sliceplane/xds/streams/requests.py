"""Decoding of requests (``envoy.service.discovery.v3``) in steps and within bounds.

A request may have 4 MiB of untrusted bytes. A generator decodes it and yields after ``STEP`` fields
or entries, so that the caller can serve other clients in between; each step takes a few
milliseconds at most. ``run_steps`` runs all steps.

Only the fields that the server needs are decoded: Envoy's first request has 60 kB of extensions,
which are skipped. A name above the maximum length is refused before it is copied.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Final, TypeVar, cast

import msgspec

from sliceplane.kit.protobuf import MalformedProtobuf
from sliceplane.xds import wire
from sliceplane.xds.names import KEYS_CACHED, NAME_MAX

T = TypeVar("T")
#: a computation that yields between its steps, and returns T
Steps = Generator[None, None, T]

#: fields or entries that one step decodes, in about a millisecond
STEP: Final = 1_000
#: names in each field of a request, and subscribed names of a stream
NAMES_MAX: Final = 50_000
#: fields of a request
FIELDS_MAX: Final = 3 * NAMES_MAX + 1_000
#: bytes and fields of the node in a request; Envoy sends 61 kB, nearly all of it 516 extensions
NODE_BYTES_MAX: Final = 256 * 1024
NODE_FIELDS_MAX: Final = 2_000
#: fields before the node
HEAD_FIELDS_MAX: Final = 16
#: characters of a client's text that are retained
TEXT_MAX: Final = 1024
#: bytes of a name and a version, each with its tag and length
ENTRY_MAX: Final = 2 * (NAME_MAX + 8)
#: bytes up to which a pair of name and version is shared between clients
SHARED_MAX: Final = NAME_MAX + 64
#: clusters of a load report, and localities of each of them
LOAD_CLUSTERS_MAX: Final = 200
LOAD_LOCALITIES_MAX: Final = 64
#: requests to one cluster in one report that count, a million in a second
LOAD_REQUESTS_MAX: Final = 10_000_000
#: members of ``metadata`` that this server honours
METADATA: Final = ("node_name", "namespace", "namespaces", "listeners", "leds")

#: maximum bytes of a field, by its number
_WHOLE_LENGTHS: Final = {1: NAME_MAX, 2: NODE_BYTES_MAX, 3: NAME_MAX, 4: NAME_MAX, 5: NAME_MAX}
_DELTA_LENGTHS: Final = {
    1: NODE_BYTES_MAX,
    2: NAME_MAX,
    3: NAME_MAX,
    4: NAME_MAX,
    5: ENTRY_MAX,
    6: NAME_MAX,
}


class RequestError(Exception):
    """The message is not a valid request (INVALID_ARGUMENT); the text is a sentence.  ``limit``:
    label of the limit that it exceeds.
    """

    def __init__(self, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.limit = limit


class RequestTooLarge(RequestError):
    """The request exceeds a limit (RESOURCE_EXHAUSTED)."""


class ClientFacts(msgspec.Struct, frozen=True):
    """The node of a client, as it describes itself."""

    id: str = ""
    cluster: str = ""
    region: str = ""
    zone: str = ""
    agent: str = ""
    #: major, minor, patch; zeros if the client does not send them
    version: tuple[int, int, int] = (0, 0, 0)
    #: members of ``metadata`` that are strings and listed in ``METADATA``
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)


class WholeRequest(msgspec.Struct, frozen=True):
    """A ``DiscoveryRequest`` (state of the world)."""

    type_url: str
    node: ClientFacts | None
    version: str
    #: distinct
    names: tuple[str, ...]
    nonce: str
    #: error message of a refusal (NACK); ``None``: the client accepts the response
    error: str | None


class DeltaRequest(msgspec.Struct, frozen=True):
    """A ``DeltaDiscoveryRequest``; names are distinct."""

    type_url: str
    node: ClientFacts | None
    subscribe: tuple[str, ...]
    unsubscribe: tuple[str, ...]
    initial: Mapping[str, str]
    nonce: str
    error: str | None


def run_steps(steps: Steps[T]) -> T:
    """Runs all *steps* and returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def read_whole(message: bytes) -> Steps[WholeRequest]:
    """Raises ``RequestError``."""
    values = yield from _read_fields(message, _WHOLE_LENGTHS)
    names = yield from values.names(3)
    return WholeRequest(
        type_url=values.text(4),
        node=values.node(2),
        version=values.text(1),
        names=names,
        nonce=values.text(5),
        error=values.status(6),
    )


def read_delta(message: bytes) -> Steps[DeltaRequest]:
    """Raises ``RequestError``."""
    values = yield from _read_fields(message, _DELTA_LENGTHS)
    subscribe = yield from values.names(3)
    unsubscribe = yield from values.names(4)
    initial = yield from values.pairs(5)
    return DeltaRequest(
        type_url=values.text(2),
        node=values.node(1),
        subscribe=subscribe,
        unsubscribe=unsubscribe,
        initial=initial,
        nonce=values.text(6),
        error=values.status(7),
    )


def read_node(message: bytes, number: int) -> ClientFacts | None:
    """Decodes only the node of a request, which is field *number*.

    Fields are written in order, so the node is among the first ``HEAD_FIELDS_MAX``; returns
    ``None`` if it is not.  Raises ``RequestError``.
    """
    values_by_number: dict[int, list[int | bytes]] = {}
    values = _Values(values_by_number)
    position = 0
    for _ in range(HEAD_FIELDS_MAX):
        position = _collect(message, position, 1, values_by_number, {number: NODE_BYTES_MAX})
        if number in values_by_number:
            return values.node(number)
        if position >= len(message):
            break
    return None


def read_load_stats(message: bytes) -> tuple[ClientFacts | None, dict[str, int]]:
    """Decodes a LoadStatsRequest: the node, and the requests issued to clusters; of libraries that do
    not count those, the successful and the failed ones.

    Reads ``LOAD_CLUSTERS_MAX`` clusters and ``LOAD_LOCALITIES_MAX`` localities of each, and counts up
    to ``LOAD_REQUESTS_MAX`` requests to a cluster. Raises ``RequestError``.
    """
    values = _Values.of(message, LOAD_CLUSTERS_MAX + HEAD_FIELDS_MAX)
    requests: dict[str, int] = {}
    for entry in values.messages(2):
        cluster = _Values.of(entry, LOAD_LOCALITIES_MAX)
        name = cluster.text(1)
        for part in cluster.messages(2):
            locality = _Values.of(part, LOAD_LOCALITIES_MAX)
            issued = locality.integer(8) or locality.integer(2) + locality.integer(4)
            requests[name] = min(requests.get(name, 0) + issued, LOAD_REQUESTS_MAX)
    return values.node(1), requests


def forget_shared() -> None:
    """Clears the caches of texts that are shared between clients."""
    _shared_pair.cache_clear()
    _shared_text.cache_clear()


def _read_fields(message: bytes, lengths_max: Mapping[int, int]) -> Steps[_Values]:
    values_by_number: dict[int, list[int | bytes]] = {}
    position = read = 0
    while True:
        position = _collect(message, position, STEP, values_by_number, lengths_max)
        if position >= len(message):
            return _Values(values_by_number)
        read += STEP
        if read > FIELDS_MAX:
            raise RequestTooLarge(f"a request with more than {FIELDS_MAX} fields", "request-fields")
        yield


def _collect(
    message: bytes,
    position: int,
    most: int,
    values_by_number: dict[int, list[int | bytes]],
    lengths_max: Mapping[int, int],
) -> int:
    try:
        return wire.collect(message, position, most, values_by_number, lengths_max)
    except MalformedProtobuf as error:
        raise RequestError(f"the message is not valid protobuf: {error}") from error
    except wire.TooLong as error:
        raise RequestError(
            f"field {error.number} has {error.size} bytes, and may have {error.most}", "name"
        ) from error


class _Values:
    """Decoded fields of a message by number."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[int, list[int | bytes]]) -> None:
        self._fields = fields

    @classmethod
    def of(cls, message: bytes, most: int = NODE_FIELDS_MAX) -> _Values:
        """Decodes the first *most* fields of an embedded message."""
        values_by_number: dict[int, list[int | bytes]] = {}
        _collect(message, 0, most, values_by_number, {})
        return cls(values_by_number)

    def messages(self, number: int) -> list[bytes]:
        values = self._fields.get(number, [])
        if not set(map(type, values)) <= {bytes}:
            raise RequestError(f"field {number} is a number, not a message")
        return cast("list[bytes]", values)

    def names(self, number: int) -> Steps[tuple[str, ...]]:
        """Returns distinct names.  Clients of a fleet send the same names, so their texts are
        shared.
        """
        entries = self._entries(number)
        if len(entries) < 2:
            return tuple(map(_shared_text, entries))
        names: dict[str, None] = {}
        for start in range(0, len(entries), STEP):
            if start:
                yield
            names.update(dict.fromkeys(map(_shared_text, entries[start : start + STEP])))
        return tuple(names)

    def pairs(self, number: int) -> Steps[dict[str, str]]:
        """Returns a map of texts, which are shared like those of ``names``."""
        entries = self._entries(number)
        pairs: dict[str, str] = {}
        for start in range(0, len(entries), STEP):
            if start:
                yield
            part = entries[start : start + STEP]
            pairs.update(map(_shared_pair if max(map(len, part)) <= SHARED_MAX else _pair, part))
        return pairs

    def _entries(self, number: int) -> list[bytes]:
        entries = self.messages(number)
        if len(entries) > NAMES_MAX:
            raise RequestTooLarge(
                f"a request with more than {NAMES_MAX} names in field {number}", "names"
            )
        return entries

    def text(self, number: int) -> str:
        """Returns the last value of the field, cut to ``TEXT_MAX`` characters."""
        values = self.messages(number)
        return _text(values[-1])[:TEXT_MAX] if values else ""

    def message(self, number: int) -> _Values:
        """Returns the embedded message in the field, or the last one of several."""
        pieces = self.messages(number)
        return _Values.of(pieces[-1] if pieces else b"")

    def integer(self, number: int) -> int:
        values = self._fields.get(number, [0])
        value = values[-1]
        return value if isinstance(value, int) else 0

    def status(self, number: int) -> str | None:
        return self.message(number).text(2) if number in self._fields else None

    def node(self, number: int) -> ClientFacts | None:
        if number not in self._fields:
            return None
        node = self.message(number)
        locality = node.message(4)
        build = node.message(8).message(1)
        return ClientFacts(
            id=node.text(1),
            cluster=node.text(2),
            region=locality.text(1),
            zone=locality.text(2),
            agent=node.text(6),
            version=(build.integer(1), build.integer(2), build.integer(3)),
            metadata=_metadata(node.message(3)),
        )


def _metadata(struct: _Values) -> dict[str, str]:
    """Returns the members of a ``google.protobuf.Struct`` that are strings (``Value`` 3) and listed
    in ``METADATA``.
    """
    members = {}
    for entry in struct.messages(1):
        member = _Values.of(entry, 2)
        name = member.text(1)
        if name in METADATA:
            value = member.message(2)
            if value.messages(3):
                members[name] = value.text(3)
    return members


def _pair(entry: bytes) -> tuple[str, str]:
    """Decodes an entry of a map: on a fast path if it has the form that libraries write for short
    entries, else field by field.
    """
    size = len(entry)
    middle = 2 + entry[1] if size > 1 and entry[0] == 0x0A and entry[1] < 0x80 else size
    if (
        middle + 2 <= size < middle + 0x82
        and entry[middle] == 0x12
        and entry[middle + 1] == size - middle - 2
    ):
        try:
            return entry[2:middle].decode(), entry[middle + 2 :].decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"a map entry is not valid UTF-8: {error}") from error
    values = _Values.of(entry)
    return _name(values, 1), _name(values, 2)


def _name(values: _Values, number: int) -> str:
    name = values.text(number)
    if len(name) > NAME_MAX:
        raise RequestError(
            f"a name or version of {len(name)} characters, and it may have {NAME_MAX}", "name"
        )
    return name


def _text(entry: bytes) -> str:
    try:
        return entry.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"a name is not valid UTF-8: {error}") from error


#: caches bounded by their number of entries and by ``SHARED_MAX``; ``forget_shared`` clears them
_shared_pair: Final = lru_cache(KEYS_CACHED)(_pair)
_shared_text: Final = lru_cache(KEYS_CACHED)(_text)
