"""The index, the document of each group and version, and those about what is no resource: ``/api``,
``/apis``, each group, ``/version``.

The latter are small and only say that the pages are there and what they answer: readers of the
index want every document that upstream's names, and generators of clients make one call of each.

A document is made when it or the index is first asked for, since the index names the hash of every
document.

Of OpenAPI v2 there is as little as there may be: what still asks for it is old fall-back code in
client-go, which takes only the protobuf form and needs no more than a message that parses; without
definitions it leaves validation to the server. The message is ``openapi.v2.Document`` of the
gnostic project: field 1 ``swagger`` (string), field 2 ``info`` (message: 1 ``title``, 2
``version``), field 8 ``paths`` (message, empty).
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Final

import msgspec

from sliceplane.api.scheme import DESCRIBED, LISTED, OPTIONAL_RESOURCES, Resource
from sliceplane.server.documents.openapi import protobuf
from sliceplane.server.documents.openapi.components import Components
from sliceplane.server.documents.openapi.paths import paths_of
from sliceplane.server.documents.schema import kubernetes_version

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_VERSION_INFO: Final = "io.k8s.apimachinery.pkg.version.Info"
_MEDIA_TYPES: Final = (
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
)
_STRING: Final = {"type": "string"}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}


def _object(text: str, required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": text,
        "type": "object",
        "required": list(required),
        "properties": properties,
    }


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_BUILD: Final = (
    "buildDate",
    "compiler",
    "gitCommit",
    "gitTreeState",
    "gitVersion",
    "goVersion",
    "major",
    "minor",
    "platform",
)
_EMULATION: Final = (
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
)
_GROUP_VERSION: Final = f"{_META}.GroupVersionForDiscovery"
_ADDRESS: Final = f"{_META}.ServerAddressByClientCIDR"
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    f"{_META}.APIGroup": _object(
        "A group, its versions and which of them is preferred.",
        ("name", "versions"),
        apiVersion=_STRING,
        kind=_STRING,
        name=_STRING,
        preferredVersion={"allOf": [_reference(_GROUP_VERSION)]},
        versions=_list_of({"allOf": [_reference(_GROUP_VERSION)]}),
    ),
    f"{_META}.APIGroupList": _object(
        "Every group but the core one.",
        ("groups",),
        apiVersion=_STRING,
        groups=_list_of({"allOf": [_reference(f"{_META}.APIGroup")]}),
        kind=_STRING,
    ),
    f"{_META}.APIVersions": _object(
        "The versions of the core group.",
        ("serverAddressByClientCIDRs", "versions"),
        apiVersion=_STRING,
        kind=_STRING,
        serverAddressByClientCIDRs=_list_of({"allOf": [_reference(_ADDRESS)]}),
        versions=_list_of(_STRING),
    ),
    _GROUP_VERSION: _object(
        "One version.", ("groupVersion", "version"), groupVersion=_STRING, version=_STRING
    ),
    _ADDRESS: _object(
        "Where clients of a network find the server.",
        ("clientCIDR", "serverAddress"),
        clientCIDR=_STRING,
        serverAddress=_STRING,
    ),
    _VERSION_INFO: _object(
        "The release whose API this is, and what serves it.",
        _BUILD,
        **dict.fromkeys((*_BUILD, *_EMULATION), _STRING),
    ),
}


def discovery_paths(name: str) -> dict[str, Any]:
    """``paths`` of the document called *name*: ``api``, ``apis``, ``apis/GROUP`` or ``version``."""
    answer, operation, tag, media_types = _page(name)
    reply = {
        "description": "OK",
        "content": {media: {"schema": _reference(answer)} for media in media_types},
    }
    get = {
        "tags": [tag],
        "operationId": operation,
        "responses": {"200": reply, "401": {"description": "Unauthorized"}},
    }
    return {f"/{name}/": {"get": get}}


def discovery_schemas(name: str) -> dict[str, Any]:
    """``components.schemas`` of that document: what its answer is made of."""
    pending = [_page(name)[0]]
    schemas: dict[str, Any] = {}
    while pending:
        schema_name = pending.pop()
        schemas[schema_name] = _SCHEMAS[schema_name]
        text = str(_SCHEMAS[schema_name])
        pending.extend(other for other in _SCHEMAS if f"/{other}'" in text and other not in schemas)
    return dict(sorted(schemas.items()))


def _page(name: str) -> tuple[str, str, str, tuple[str, ...]]:
    """The schema of the answer, the operation's name, its tag, and the media types."""
    match name:
        case "api":
            return f"{_META}.APIVersions", "getCoreAPIVersions", "core", _MEDIA_TYPES
        case "apis":
            return f"{_META}.APIGroupList", "getAPIVersions", "apis", _MEDIA_TYPES
        case "version":
            return _VERSION_INFO, "getCodeVersion", "version", _MEDIA_TYPES[:1]
    group = name.removeprefix("apis/").partition(".")[0]
    return f"{_META}.APIGroup", f"get{group.capitalize()}APIGroup", group, _MEDIA_TYPES


_LENGTH_DELIMITED: Final = 2


def _name_of(resource: Resource) -> str:
    return resource.path_prefix.removeprefix("/")


@cache
def document_names(served: tuple[Resource, ...] = DESCRIBED) -> tuple[str, ...]:
    """``api/v1``, ``apis/apps/v1``, ..., the documents about what is *served* and has fields here,
    and those about discovery, sorted.
    """
    described = [resource for resource in served if resource not in LISTED]
    groups = {f"apis/{resource.group}" for resource in described if resource.group}
    return tuple(
        sorted({_name_of(resource) for resource in described} | groups | {"api", "apis", "version"})
    )


def index(served: tuple[Resource, ...] = DESCRIBED) -> dict[str, Any]:
    """The answer to ``/openapi/v3``."""
    names = document_names(served)
    return {
        "paths": {
            name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={hash_of(name)}"}
            for name in names
        }
    }


@cache
def document(name: str) -> bytes | None:
    """The document called *name* as JSON, of a version served or not, or ``None`` if there is
    none.
    """
    all_resources = (*DESCRIBED, *OPTIONAL_RESOURCES)
    resources = [resource for resource in all_resources if _name_of(resource) == name]
    paths: dict[str, Any] = {}
    if resources:
        components = Components(resources[0].group, resources[0].version)
        for resource in sorted(resources, key=lambda resource: resource.plural):
            paths.update(paths_of(resource, components))
        schemas = components.schemas()
    elif name in ("api", "apis", "version") or name in {
        f"apis/{resource.group}" for resource in all_resources
    }:
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
                "securitySchemes": {
                    "BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}
                },
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
    """Upper-case hexadecimal SHA-512 of a document that exists: its ETag, and the ``hash`` of its
    address.
    """
    body = document(name)
    assert body is not None, f"no document {name!r}; there are {document_names()}"
    return hashlib.sha512(body).hexdigest().upper()


def v2_protobuf() -> bytes:
    """The smallest valid document, as
    ``application/com.github.proto-openapi.spec.v2.v1.0+protobuf``.
    """
    info = _v2_field(1, b"Kubernetes") + _v2_field(2, _version().encode())
    return _v2_field(1, b"2.0") + _v2_field(2, info) + _v2_field(8, b"")


def v2_json() -> bytes:
    """The same as JSON."""
    swagger = {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": _version()},
        "paths": {},
    }
    return msgspec.json.encode(swagger)


def _version() -> str:
    return f"v{kubernetes_version()}"


def _v2_field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, f"{len(value)} bytes need a longer length"
    return bytes((number << 3 | _LENGTH_DELIMITED, len(value))) + value
