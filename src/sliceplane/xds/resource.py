"""One version of one resource, and the properties of a client that determine its resources.

The version is a hash of the octets: it is the same in every replica and after a restart, so a client
that reconnects to any replica receives only resources that it does not have.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import sha256
from typing import Final, Literal

import msgspec

from sliceplane.xds.wire import any_of, any_parts, head, text

ListenerMode = Literal["none", "cluster-ip", "capture", "port"]
ClientKind = Literal["grpc", "envoy"]
#: modulus of sums of digests
DIGESTS: Final = 2**64
LISTENER_MODES: Final[tuple[ListenerMode, ...]] = ("none", "cluster-ip", "capture", "port")


class XdsResource:
    """One version of a resource.  Immutable; all streams that send it share the octets."""

    __slots__ = ("_as_any", "_as_delta", "body", "name", "type_url", "version")

    def __init__(self, type_url: str, name: str, body: bytes, version: str = "") -> None:
        """*version*: a text that identifies the body, if the caller has one."""
        self.type_url: Final = type_url
        self.name: Final = name
        self.body: Final = body
        #: 64 bits in 11 characters, since each member of a collection is sent with it
        self.version: Final = version or version_of(body)
        self._as_any = b""
        self._as_delta = b""

    @property
    def as_any(self) -> bytes:
        """Returns the ``google.protobuf.Any``: an item of field 2 of a ``DiscoveryResponse``."""
        if not self._as_any:
            self._as_any = any_of(self.type_url, self.body)
        return self._as_any

    @property
    def as_delta(self) -> bytes:
        """Returns the ``Resource{version, resource, name}``: an item of field 2 of a
        ``DeltaDiscoveryResponse``.
        """
        if not self._as_delta:
            url, before = any_parts(self.type_url, self.body)
            size = len(url) + len(before) + len(self.body)
            parts = (
                text(1, self.version),
                head(2, size),
                url,
                before,
                self.body,
                text(3, self.name),
            )
            self._as_delta = b"".join(parts)
        return self._as_delta

    def __repr__(self) -> str:
        return f"XdsResource({self.name} {self.version})"


def version_of(body: bytes) -> str:
    return b2a_base64(sha256(body).digest()[:8], newline=False)[:11].decode()


def digest_of(piece: bytes) -> int:
    """Returns a number below ``DIGESTS``.  The sum of these numbers identifies a set of pieces."""
    return int.from_bytes(sha256(piece).digest()[:8], "big")


class XdsClient(msgspec.Struct, frozen=True, kw_only=True):
    """``zone`` and ``node``: as the client may claim them; the API's Node overrides them.
    ``namespace``: its own, for names without one. ``leds``: it supports members of collections
    (Envoy from 1.38, by delta).
    """

    kind: ClientKind
    zone: str = ""
    node: str = ""
    namespace: str = ""
    leds: bool = False
    listeners: ListenerMode = "none"
