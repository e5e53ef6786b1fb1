"""The documents about what is no resource: ``/api``, ``/apis``, each group, ``/version``.

They are small and only say that the pages are there and what they answer: readers of the index want every document
that upstream's names, and generators of clients make one call of each.
"""

from __future__ import annotations

from typing import Any, Final

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_VERSION_INFO: Final = "io.k8s.apimachinery.pkg.version.Info"
_MEDIA_TYPES: Final = ("application/json", "application/vnd.kubernetes.protobuf", "application/yaml")
_STRING: Final = {"type": "string"}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}


def _object(text: str, required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "type": "object", "required": list(required), "properties": properties}


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
_EMULATION: Final = ("emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor")
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
    _GROUP_VERSION: _object("One version.", ("groupVersion", "version"), groupVersion=_STRING, version=_STRING),
    _ADDRESS: _object(
        "Where clients of a network find the server.",
        ("clientCIDR", "serverAddress"),
        clientCIDR=_STRING,
        serverAddress=_STRING,
    ),
    _VERSION_INFO: _object(
        "The release whose API this is, and what serves it.", _BUILD, **dict.fromkeys((*_BUILD, *_EMULATION), _STRING)
    ),
}


def discovery_paths(name: str) -> dict[str, Any]:
    """``paths`` of the document called *name*: ``api``, ``apis``, ``apis/GROUP`` or ``version``."""
    answer, operation, tag, media_types = _page(name)
    reply = {"description": "OK", "content": {media: {"schema": _reference(answer)} for media in media_types}}
    get = {"tags": [tag], "operationId": operation, "responses": {"200": reply, "401": {"description": "Unauthorized"}}}
    return {f"/{name}/": {"get": get}}


def discovery_schemas(name: str) -> dict[str, Any]:
    """``components.schemas`` of that document: what its answer is made of."""
    wanted = [_page(name)[0]]
    schemas: dict[str, Any] = {}
    while wanted:
        schema_name = wanted.pop()
        schemas[schema_name] = _SCHEMAS[schema_name]
        text = str(_SCHEMAS[schema_name])
        wanted.extend(other for other in _SCHEMAS if f"/{other}'" in text and other not in schemas)
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
