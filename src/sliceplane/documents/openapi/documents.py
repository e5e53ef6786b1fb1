"""The index and the document of each group and version.

A document is made when it or the index is first asked for, since the index names the hash of every document.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import msgspec

from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource
from sliceplane.documents.openapi import protobuf
from sliceplane.documents.openapi.components import Components
from sliceplane.documents.openapi.discovery import discovery_paths, discovery_schemas
from sliceplane.documents.openapi.paths import paths_of
from sliceplane.documents.schema import kubernetes_version


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
    known = (*SERVED, *OPTIONAL_RESOURCES)
    resources = [resource for resource in known if _name_of(resource) == name]
    paths: dict[str, Any] = {}
    if resources:
        components = Components(resources[0].group, resources[0].version)
        for resource in sorted(resources, key=lambda resource: resource.plural):
            paths.update(paths_of(resource, components))
        schemas = components.schemas()
    elif name in ("api", "apis", "version") or name in {f"apis/{resource.group}" for resource in known}:
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
