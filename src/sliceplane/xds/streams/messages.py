"""Encoding of responses to clients (``envoy.service.discovery.v3``).

A response joins pieces that are already encoded, and the last one of each type is cached: if a
resource changes, all clients of a view usually get the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from sliceplane.xds import wire
from sliceplane.xds.listeners import grpc_listener
from sliceplane.xds.names import ASSIGNMENT, LISTENER
from sliceplane.xds.resource import XdsResource

#: google.rpc.Code
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNAVAILABLE: Final = 14

#: seconds between two load reports of a client, as nodes read their counters
LOAD_INTERVAL_S: Final = 10
#: a gRPC client that receives a larger message ends the stream and reconnects, repeatedly
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
#: names of a response, so that it is encoded in a few milliseconds
RESPONSE_NAMES_MAX: Final = 10_000
#: removed names of a response that is cached: a client may have invented them
REMOVED_MAX: Final = 1_000


class ResourceError(msgspec.Struct, frozen=True):
    """The reason why a client does not get a resource (field resource_errors of a response)."""

    name: str
    code: int
    why: str

    def encoded(self) -> bytes:
        status = wire.integer(1, self.code) + wire.text(2, f"{self.name}: {self.why}")
        return wire.message(1, wire.text(1, self.name)) + wire.message(2, status)


class ResponseEncoder:
    """Encodes responses and caches the last frame of each variant and type, which are closed sets.
    Owned by one server.
    """

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
        key = (
            (nonce, *map(_identity, resources), *removed, *errors)
            if len(removed) <= REMOVED_MAX
            else None
        )
        return self._last_or(
            "delta",
            type_url,
            key,
            lambda: b"".join(
                (
                    *[wire.message(2, item.as_delta) for item in resources],
                    wire.text(4, type_url),
                    wire.text(5, nonce),
                    *[wire.message(6, name.encode()) for name in removed],
                    *[wire.message(9, error.encoded()) for error in errors],
                )
            ),
        )

    def whole(
        self,
        type_url: str,
        nonce: str,
        resources: Sequence[XdsResource],
        errors: Sequence[ResourceError] = (),
    ) -> bytes:
        key = (nonce, *map(_identity, resources), *errors)
        return self._last_or(
            "whole",
            type_url,
            key,
            lambda: b"".join(
                (
                    wire.text(1, nonce),
                    *[wire.message(2, item.as_any) for item in resources],
                    wire.text(4, type_url),
                    wire.text(5, nonce),
                    *[wire.message(7, error.encoded()) for error in errors],
                )
            ),
        )

    def _last_or(
        self, variant: str, type_url: str, key: tuple[object, ...] | None, make: Callable[[], bytes]
    ) -> bytes:
        """Returns the cached frame if its key is *key*, else the result of *make*.  ``None`` as
        *key* disables caching.
        """
        if key is None:
            return make()
        last = self._last.get((variant, type_url))
        if last is not None and last[0] == key:
            return last[1]
        frame = make()
        self._last[variant, type_url] = (key, frame)
        return frame


def _identity(resource: XdsResource) -> tuple[str, str]:
    """Returns a key for *resource*.  ``id`` would not do: CPython reuses the address of a deleted
    object.
    """
    return resource.name, resource.version


def empty_assignment(name: str) -> XdsResource:
    """Returns the assignment without endpoints that replaces a removal, which Envoy ignores."""
    return XdsResource(ASSIGNMENT, name, wire.text(1, name))


def absent_listener(name: str) -> XdsResource:
    """Returns the listener that a gRPC client gets for a name that resolves to nothing.

    Its routes have no virtual host, so a call fails immediately, and not after 15 s. This variant
    of the protocol has no other way to report an absent listener to every client.
    """
    return XdsResource(LISTENER, name, grpc_listener(name, None))


def delta_ack(type_url: str, nonce: str) -> bytes:
    """Returns the request by which a client only accepts a response; the server compares the bytes
    instead of decoding them.
    """
    return wire.text(2, type_url) + wire.text(6, nonce)


def load_request(clusters: Collection[str]) -> bytes:
    """Encodes the LoadStatsResponse that requests reports of *clusters*."""
    names = [wire.text(1, name) for name in sorted(clusters)]
    return b"".join((*names, wire.message(2, wire.integer(1, LOAD_INTERVAL_S))))
