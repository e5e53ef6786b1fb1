"""The index and the document of each group and version.

A document is made when it or the index is first asked for, since the index names the hash of every document.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import msgspec

from sliceplane.api.openapi.components import Components
from sliceplane.api.openapi.paths import paths_of
from sliceplane.api.schema import kubernetes_version
from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource


def _name_of(resource: Resource) -> str:
    return resource.path_prefix.removeprefix("/")


@cache
def document_names(served: tuple[Resource, ...] = SERVED) -> tuple[str, ...]:
    """``api/v1``, ``apis/apps/v1``, ...: the documents about what is *served*, sorted."""
    return tuple(sorted({_name_of(resource) for resource in served}))


def index(served: tuple[Resource, ...] = SERVED) -> dict[str, Any]:
    """The answer to ``/openapi/v3``."""
    names = document_names(served)
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={hash_of(name)}"} for name in names}}


@cache
def document(name: str) -> bytes | None:
    """The document called *name* as JSON, of a version served or not, or ``None`` if there is none."""
    resources = [resource for resource in (*SERVED, *OPTIONAL_RESOURCES) if _name_of(resource) == name]
    if not resources:
        return None
    components = Components(resources[0].group, resources[0].version)
    paths: dict[str, Any] = {}
    for resource in sorted(resources, key=lambda resource: resource.plural):
        paths.update(paths_of(resource, components))
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": kubernetes_version()},
            "paths": dict(sorted(paths.items())),
            "components": {
                "schemas": components.schemas(),
                "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
            },
        }
    )


@cache
def hash_of(name: str) -> str:
    """Upper-case hexadecimal SHA-512 of a document that exists: its ETag, and the ``hash`` of its address."""
    body = document(name)
    assert body is not None, f"no document {name!r}; there are {document_names()}"
    return hashlib.sha512(body).hexdigest().upper()
