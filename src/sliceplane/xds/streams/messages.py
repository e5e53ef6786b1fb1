"""Responses to clients, on the wire (``envoy.service.discovery.v3``).

A response is a join of pieces that are encoded already, and the one that was made last is kept:
where a resource changes, the usual case, all clients of a view get the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

#: a client of gRPC drops the stream at a larger message, and comes again for ever
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
#: names of a response, so that it is made in a few milliseconds
RESPONSE_NAMES_MAX: Final = 10_000
#: removed names of a response that is remembered: a client may have made them up
REMOVED_KEPT_MAX: Final = 1_000


class ResourceError(msgspec.Struct, frozen=True):
    """Why a client does not get a resource (the field resource_errors of a response)."""

    name: str
    code: int
    why: str

    def encoded(self) -> bytes:
        status = wire.integer(1, self.code) + wire.text(2, f"{self.name}: {self.why}")
        return wire.message(1, wire.text(1, self.name)) + wire.message(2, status)


class ResponseEncoder:
    """Owned by one server; remembers the last frame of each variant and type, whose types are a
    closed set.
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
            if len(removed) <= REMOVED_KEPT_MAX
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
        """*key*: tells this response from all others; ``None``: it is not remembered."""
        if key is None:
            return make()
        last = self._last.get((variant, type_url))
        if last is not None and last[0] == key:
            return last[1]
        frame = make()
        self._last[variant, type_url] = (key, frame)
        return frame


def _identity(resource: XdsResource) -> tuple[str, str]:
    """Not ``id``: a resource that was made for one answer is gone, and another may be in its place
    in memory.
    """
    return resource.name, resource.version


def empty_assignment(name: str) -> XdsResource:
    """Envoy does not hear of an assignment that it is gone; that it is empty it does."""
    return XdsResource(ASSIGNMENT, name, wire.text(1, name))


def absent_listener(name: str) -> XdsResource:
    """Returns the listener that a gRPC client gets for a name that leads nowhere, so that a call
    fails at once and not after 15 s: no answer can say to every client that there is none; a
    listener whose routes have no virtual host is understood by all.
    """
    return XdsResource(LISTENER, name, grpc_listener(name, None))


def delta_ack(type_url: str, nonce: str) -> bytes:
    """Returns the answer of a client that accepts a response and wants nothing else: compared, and
    not read.
    """
    return wire.text(2, type_url) + wire.text(6, nonce)
