"""OpenAPI v2, as little of it as there may be.

Clients ask for v3 first.  What still asks for v2 is old fall-back code in client-go, which takes only the protobuf form
and needs no more than a message that parses: without definitions it validates nothing and leaves that to the server.

The message is ``openapi.v2.Document`` of the gnostic project: field 1 ``swagger`` (string), field 2 ``info`` (message:
1 ``title``, 2 ``version``), field 8 ``paths`` (message, empty).  Four fields are written by hand; a generated class
would cost more than it saves.
"""

from __future__ import annotations

import json
from typing import Final

from sliceplane.documents.schema import kubernetes_version

_LENGTH_DELIMITED: Final = 2


def v2_protobuf() -> bytes:
    """The smallest valid document, as ``application/com.github.proto-openapi.spec.v2.v1.0+protobuf``."""
    info = _field(1, b"Kubernetes") + _field(2, _version().encode())
    return _field(1, b"2.0") + _field(2, info) + _field(8, b"")


def v2_json() -> bytes:
    """The same as JSON."""
    document = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": _version()}, "paths": {}}
    return json.dumps(document, separators=(",", ":")).encode()


def _version() -> str:
    return f"v{kubernetes_version()}"


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, f"{len(value)} bytes need a longer length"
    return bytes((number << 3 | _LENGTH_DELIMITED, len(value))) + value
