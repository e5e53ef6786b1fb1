"""The index and the document of each group and version.

A document is made when it or the index is first asked for, since the index names the hash of every document.

Of OpenAPI v2 there is as little as there may be: what still asks for it is old fall-back code in client-go, which takes
only the protobuf form and needs no more than a message that parses; without definitions it leaves validation to the
server.  The message is ``openapi.v2.Document`` of the gnostic project: field 1 ``swagger`` (string), field 2 ``info``
(message: 1 ``title``, 2 ``version``), field 8 ``paths`` (message, empty).
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Final

import msgspec

from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource
from sliceplane.documents.openapi import protobuf
from sliceplane.documents.openapi.components import Components
from sliceplane.documents.openapi.discovery import discovery_paths, discovery_schemas
from sliceplane.documents.openapi.paths import paths_of
from sliceplane.documents.schema import kubernetes_version

_LENGTH_DELIMITED: Final = 2


def _name_of(resource: Resource) -> str:
    return resource.path_prefix.removeprefix("/")


@cache
def document_names(served: tuple[Resource, ...] = SERVED) -> tuple[str, ...]:
    """``api/v1``, ``apis/apps/v1``, ..., the documents about what is *served*, and those about discovery, sorted."""
    groups = {f"apis/{resource.group}" for resource in served if resource.group}
    return tuple(sorted({_name_of(resource) for resource in served} | groups | {"api", "apis", "version"}))


def index(served: tuple[Resource, ...] = SERVED) -> dict[str, Any]:
    """The answer to ``/openapi/v3``."""
    names = document_names(served)
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={hash_of(name)}"} for name in names}}


@cache
def document(name: str) -> bytes | None:
    """The document called *name* as JSON, of a version served or not, or ``None`` if there is none."""
    all_resources = (*SERVED, *OPTIONAL_RESOURCES)
    resources = [resource for resource in all_resources if _name_of(resource) == name]
    paths: dict[str, Any] = {}
    if resources:
        components = Components(resources[0].group, resources[0].version)
        for resource in sorted(resources, key=lambda resource: resource.plural):
            paths.update(paths_of(resource, components))
        schemas = components.schemas()
    elif name in ("api", "apis", "version") or name in {f"apis/{resource.group}" for resource in all_resources}:
        paths = discovery_paths(name)
        schemas = discovery_schemas(name)
    else:
        return None
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": kubernetes_version()},
            "paths": dict(sorted(paths.items())),
            "components": {
                "schemas": schemas,
                "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
            },
        }
    )


@cache
def document_protobuf(name: str) -> bytes:
    """A document that exists, as ``application/com.github.proto-openapi.spec.v3.v1.0+protobuf``."""
    body = document(name)
    assert body is not None, f"no document {name!r}; there are {document_names()}"
    return protobuf.encode(msgspec.json.decode(body))


@cache
def hash_of(name: str) -> str:
    """Upper-case hexadecimal SHA-512 of a document that exists: its ETag, and the ``hash`` of its address."""
    body = document(name)
    assert body is not None, f"no document {name!r}; there are {document_names()}"
    return hashlib.sha512(body).hexdigest().upper()


def v2_protobuf() -> bytes:
    """The smallest valid document, as ``application/com.github.proto-openapi.spec.v2.v1.0+protobuf``."""
    info = _v2_field(1, b"Kubernetes") + _v2_field(2, _version().encode())
    return _v2_field(1, b"2.0") + _v2_field(2, info) + _v2_field(8, b"")


def v2_json() -> bytes:
    """The same as JSON."""
    swagger = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": _version()}, "paths": {}}
    return msgspec.json.encode(swagger)


def _version() -> str:
    return f"v{kubernetes_version()}"


def _v2_field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, f"{len(value)} bytes need a longer length"
    return bytes((number << 3 | _LENGTH_DELIMITED, len(value))) + value
