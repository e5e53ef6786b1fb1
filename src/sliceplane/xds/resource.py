"""One version of one resource, and what makes the answer for one client differ from that for
another.

The version is a hash of the octets: it is the same in every replica and after a restart, so that a
client that reconnects anywhere is sent nothing that it holds already.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import sha256
from typing import Final, Literal

import msgspec

from sliceplane.xds.wire import any_of, any_parts, head, text

ListenerMode = Literal["none", "cluster-ip", "capture", "port"]
ClientKind = Literal["grpc", "envoy"]
#: sums of digests are counted modulo this
DIGESTS: Final = 2**64
LISTENER_MODES: Final[tuple[ListenerMode, ...]] = ("none", "cluster-ip", "capture", "port")


class XdsResource:
    """Immutable; the octets are shared by all streams that send it."""

    __slots__ = ("_as_any", "_as_delta", "body", "name", "type_url", "version")

    def __init__(self, type_url: str, name: str, body: bytes, version: str = "") -> None:
        """*version*: of who knows one that tells this body from others."""
        self.type_url: Final = type_url
        self.name: Final = name
        self.body: Final = body
        #: 64 bits in 11 characters: it goes out with each member of a collection
        self.version: Final = version or version_of(body)
        self._as_any = b""
        self._as_delta = b""

    @property
    def as_any(self) -> bytes:
        """``google.protobuf.Any``: an item of field 2 of a ``DiscoveryResponse``."""
        if not self._as_any:
            self._as_any = any_of(self.type_url, self.body)
        return self._as_any

    @property
    def as_delta(self) -> bytes:
        """``Resource{version, resource, name}``: an item of field 2 of a
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
    """A number below ``DIGESTS``.  A sum of them tells a set of pieces from others."""
    return int.from_bytes(sha256(piece).digest()[:8], "big")


class XdsClient(msgspec.Struct, frozen=True, kw_only=True):
    """``zone`` and ``node``: as it may claim them; what the API's Node says counts more.
    ``namespace``: its own, for names without one. ``leds``: it takes members of collections (Envoy
    from 1.38, by delta).
    """

    kind: ClientKind
    zone: str = ""
    node: str = ""
    namespace: str = ""
    leds: bool = False
    listeners: ListenerMode = "none"
