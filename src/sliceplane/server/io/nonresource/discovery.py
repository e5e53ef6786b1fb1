"""Discovery: ``/api``, ``/apis`` and below, in the legacy and the aggregated form (KEP-3352).

All of it follows from the resources that are served, which never change while the process lives, so
what is asked for often is built at most once.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from sliceplane.api.codec import encode
from sliceplane.api.errors import unknown_resource
from sliceplane.api.meta import Document
from sliceplane.api.requests import SUBRESOURCES, BodyKind
from sliceplane.api.scheme import SERVED, UNDISCOVERED, Resource
from sliceplane.server.io.requests.render import render_bytes
from sliceplane.server.io.requests.request import Request
from sliceplane.server.io.requests.response import (
    CONTENT_TYPES,
    JSON,
    MEDIA,
    NO_CACHE,
    PROTOBUF,
    Media,
    Representation,
    Response,
    conditional,
    not_acceptable,
    parse_accept,
)

_AGGREGATED_FORM = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_AGGREGATED_TYPES: dict[Media, bytes] = {
    "json": f"{JSON}{_AGGREGATED_FORM}".encode(),
    "protobuf": f"{PROTOBUF}{_AGGREGATED_FORM}".encode(),
}
_PUBLIC = (b"cache-control", b"public")
_VARY = (b"vary", b"Accept")


class Discovery:
    """Answers every discovery path.

    *address* is the ``HOST:PORT`` that ``/api`` names; *served* is all that the server offers, the
    preferred version of a group before its others.
    """

    def __init__(self, address: str, served: tuple[Resource, ...] = SERVED) -> None:
        self._address = address
        #: what the documents show
        self.served = tuple(resource for resource in served if resource not in UNDISCOVERED)
        #: all of them, for who asks with each request whether one is in it
        self.offered = frozenset(served)
        self._aggregated_answers: dict[tuple[str, Media], tuple[bytes, bytes]] = {}
        #: versions of each group but the core one, in the order of *served*
        self._groups: dict[str, list[str]] = {}
        for resource in self.served:
            if resource.group:
                versions = self._groups.setdefault(resource.group, [])
                if resource.version not in versions:
                    versions.append(resource.version)

    def respond(self, request: Request) -> Response | None:
        """The answer to a GET of *request.path*; ``None`` if it is no discovery path (404 page).

        Raises ``StatusError`` for an unknown version of a known group, and the 406.
        """
        parts = request.path.strip("/").split("/")
        match parts:
            case ["api"]:
                return _negotiated(
                    request, self._api_versions, lambda media: self._aggregated("api", media)
                )
            case ["apis"]:
                return _negotiated(
                    request, self._group_list, lambda media: self._aggregated("apis", media)
                )
            case ["apis", group] if group in self._groups:
                return _negotiated(
                    request,
                    lambda: {"kind": "APIGroup", "apiVersion": "v1", **self._group_body(group)},
                    None,
                )
            case ["api", version] | ["api", version, ""]:
                if version != "v1":
                    raise unknown_resource()
                return _negotiated(request, lambda: self._resource_list("", "v1"), None)
            case ["apis", group, version] if group in self._groups:
                if version not in self._groups[group]:
                    raise unknown_resource()
                return _negotiated(request, lambda: self._resource_list(group, version), None)
        return None

    def _api_versions(self) -> Document:
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}
            ],
        }

    def paths(self) -> list[str]:
        """Every path of discovery, for ``GET /``."""
        paths = ["/api", "/api/v1", "/apis"]
        for group, versions in self._groups.items():
            paths.append(f"/apis/{group}")
            paths.extend(f"/apis/{group}/{version}" for version in versions)
        return paths

    def _members(self, group: str, version: str) -> list[Resource]:
        members = [
            resource
            for resource in self.served
            if (resource.group, resource.version) == (group, version)
        ]
        return sorted(members, key=lambda resource: resource.plural)

    def _group_body(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._groups[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _group_list(self) -> Document:
        groups = [self._group_body(group) for group in self._groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _resource_list(self, group: str, version: str) -> Document:
        document: Document = {"kind": "APIResourceList"}
        if group:
            document["apiVersion"] = "v1"
        document["groupVersion"] = f"{group}/{version}" if group else version
        document["resources"] = [
            entry
            for resource in self._members(group, version)
            for entry in (resource_entry(resource), *subresource_entries(resource))
        ]
        return document

    def _aggregated(self, root: str, media: Media) -> tuple[bytes, bytes]:
        """Returns the aggregated answer of ``/api`` or ``/apis``, and its ETag; made once for each
        media type.
        """
        answer = self._aggregated_answers.get((root, media))
        if answer is None:
            document = self._aggregated_document({"": ["v1"]} if root == "api" else self._groups)
            body = render_bytes(encode(document), Representation(media))
            etag = f'"{hashlib.sha512(body).hexdigest().upper()}"'.encode()
            answer = self._aggregated_answers[root, media] = (body, etag)
        return answer

    def _aggregated_document(self, groups: dict[str, list[str]]) -> Document:
        items = []
        for group, versions in groups.items():
            entries = [
                {
                    "version": version,
                    "resources": [
                        _aggregated_entry(resource) for resource in self._members(group, version)
                    ],
                    "freshness": "Current",
                }
                for version in versions
            ]
            items.append({"metadata": {"name": group} if group else {}, "versions": entries})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }


def _negotiated(
    request: Request,
    legacy: Callable[[], Document],
    aggregated: Callable[[Media], tuple[bytes, bytes]] | None,
) -> Response:
    """The answer to the first clause that can be met.  Raises the 406 ``StatusError``."""
    accept = request.header(b"accept")
    clauses = parse_accept(accept)
    if not clauses and not accept.strip():
        return _legacy(legacy(), Representation(pretty=request.pretty))
    is_supported_type = False
    for clause in clauses:
        media = MEDIA.get(clause.type, "json" if clause.type in ("*/*", "application/*") else None)
        if media is None:
            continue
        is_supported_type = True
        requested_kind = clause.parameter("as")
        if not requested_kind:
            return _legacy(legacy(), Representation(media, pretty=request.pretty))
        if aggregated and media in _AGGREGATED_TYPES and clause.type in MEDIA:
            named = (clause.parameter("g"), clause.parameter("v"), requested_kind)
            if named == ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"):
                body, etag = aggregated(media)
                content_type = _AGGREGATED_TYPES[media]
                return conditional(request, body, content_type, etag, _PUBLIC, _VARY)
    raise not_acceptable(is_supported_type=is_supported_type)


def _legacy(document: Document, representation: Representation) -> Response:
    if representation.media == "protobuf":
        # The envelope names a version, although the JSON of the core group has none.
        document = {"apiVersion": "v1", **document}
    body = render_bytes(encode(document), representation)
    return Response(200, body, CONTENT_TYPES[representation.media], (NO_CACHE, _VARY))


def subresource_entries(resource: Resource) -> list[dict[str, Any]]:
    entries = []
    for subresource in sorted(resource.subresources):
        kind = _response_kind(resource, subresource)
        entry: dict[str, Any] = {
            "name": f"{resource.plural}/{subresource}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind.kind,
            "verbs": list(SUBRESOURCES[subresource].verbs),
        }
        if kind.version:
            entry["group"] = kind.group
            entry["version"] = kind.version
        entries.append(entry)
    return entries


def resource_entry(resource: Resource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": sorted(resource.verbs),
    }
    _add_names(entry, resource)
    hub = resource.hub or resource
    stored = f"{hub.group}/{hub.version}/{hub.kind}".encode()
    entry["storageVersionHash"] = base64.b64encode(hashlib.sha256(stored).digest()[:8]).decode()
    return entry


def _add_names(entry: dict[str, Any], resource: Resource) -> None:
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)


def _aggregated_entry(resource: Resource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": resource.plural,
        # Group and version stay empty where they equal the enclosing ones.
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": sorted(resource.verbs),
    }
    _add_names(entry, resource)
    if resource.subresources:
        entry["subresources"] = [
            _aggregated_subresource(resource, subresource)
            for subresource in sorted(resource.subresources)
        ]
    return entry


def _aggregated_subresource(resource: Resource, subresource: str) -> dict[str, Any]:
    return {
        "subresource": subresource,
        "responseKind": _response_kind(resource, subresource)._asdict(),
        "verbs": list(SUBRESOURCES[subresource].verbs),
    }


def _response_kind(resource: Resource, subresource: str) -> BodyKind:
    """Returns the kind of the answer; group and version stay empty if they are the enclosing
    ones.
    """
    body = SUBRESOURCES[subresource].body
    if body is None:
        return BodyKind("", "", resource.kind)
    return BodyKind("", "", body.kind) if body.api_version == resource.api_version else body
