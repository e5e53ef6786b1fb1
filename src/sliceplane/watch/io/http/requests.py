"""Requests to a Kubernetes API server as HTTP/1.1 messages: method, path, parameters and headers of
each verb.

A request is a value. ``HttpClient`` sends it, and sends it again where that is allowed
(``may_be_repeated``); the credentials and the headers of the connection are added in ``encode``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from sliceplane.api.requests import PatchType, Selection, Verb, Write
from sliceplane.watch.io.bounds import OBJECT_BYTES_MAX, PAGE_BYTES_MAX
from sliceplane.watch.io.http.answers import request_head

_METHODS: Mapping[Verb, str] = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_PATCH_TYPES: Mapping[PatchType, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
#: requests only the metadata of the object; a server without this type returns the whole object
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
#: characters that are not escaped in a path, which may be encoded already and have a query, and in
#: a parameter (RFC 3986, section 3)
PATH_SAFE: Final = "%/?:@!$&'()*+,;=~"
_QUERY: Final = "/:@!$'()*,"
_PLAIN: Final = re.compile(r"[\w./:-]*", re.ASCII)
#: methods, and types of patches, with the same result if they are executed twice. They are repeated
#: if the server closed an idle connection and the client did not know yet (RFC 9110, section 9.2.2)
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})
_IDEMPOTENT_PATCHES: Final = frozenset({_PATCH_TYPES["merge"], _PATCH_TYPES["apply"]})
Params = dict[str, str]


class HttpRequest(msgspec.Struct, frozen=True):
    """One request, without what depends on the connection."""

    method: str
    path: str
    params: Params
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    #: the caller reads the answer in portions, and bounds the time itself
    stream: bool = False
    #: bound of the answer's body
    bytes_max: int = OBJECT_BYTES_MAX

    @property
    def may_be_repeated(self) -> bool:
        return self.method in _IDEMPOTENT or (
            self.method == "PATCH" and self.content_type in _IDEMPOTENT_PATCHES
        )

    def encode(
        self, path_prefix: str, headers: Iterable[tuple[str, str]], authorization: str
    ) -> bytes:
        """Returns the message with the *headers* of the connection.  *path_prefix*: the server's
        path, or its whole URL for a proxy.  Raises ``ValueError`` for an invalid header.
        """
        path = self.path if _PLAIN.fullmatch(self.path) else quote(self.path, PATH_SAFE)
        target = f"{path_prefix}{path}"
        if self.params:
            target += f"?{_query(self.params)}"
        all_headers = [*headers, ("Accept", self.accept)]
        if authorization:
            all_headers.append(("Authorization", authorization))
        if self.method == "GET":
            if not self.stream:
                all_headers.append(("Accept-Encoding", "gzip"))
        elif self.body is not None:
            all_headers.append(("Content-Type", self.content_type))
            all_headers.append(("Content-Length", str(len(self.body))))
        elif self.method != "DELETE":
            all_headers.append(("Content-Length", "0"))
        return request_head(self.method, target, all_headers) + (self.body or b"")


def list_request(
    selection: Selection, *, resource_version: str | None, limit: int | None, continue_token: str
) -> HttpRequest:
    """Returns the request for one page of a list."""
    params = _params(selection, resource_version)
    if limit:
        params["limit"] = str(limit)
    if continue_token:
        params["continue"] = continue_token
    path = selection.resource.path(selection.namespace)
    return HttpRequest("GET", path, params, bytes_max=PAGE_BYTES_MAX)


def watch_request(
    selection: Selection, *, resource_version: str | None, timeout_s: int | None, bookmarks: bool
) -> HttpRequest:
    params = _params(selection, resource_version)
    params["watch"] = "true"
    if bookmarks:
        params["allowWatchBookmarks"] = "true"
    if timeout_s is not None:
        params["timeoutSeconds"] = str(timeout_s)
    return HttpRequest("GET", selection.resource.path(selection.namespace), params, stream=True)


def write_request(write: Write, field_manager: str) -> HttpRequest:
    """Returns the request of *write*.  Raises ``ValueError`` for an unknown type of patch."""
    if write.verb == "patch" and write.patch_type not in _PATCH_TYPES:
        raise ValueError(
            f"patch_type is {write.patch_type!r}, it must be one of {', '.join(_PATCH_TYPES)}"
        )
    path = write.resource.path(write.namespace, write.name, write.subresource)
    params = {} if write.verb == "delete" else {"fieldManager": field_manager}
    if write.force:
        params["force"] = "true"
    content_type = _PATCH_TYPES[write.patch_type] if write.verb == "patch" else "application/json"
    accept = _METADATA if write.metadata_only else "application/json"
    return HttpRequest(_METHODS[write.verb], path, params, write.body or None, content_type, accept)


def _params(selection: Selection, resource_version: str | None) -> Params:
    params: Params = {}
    if selection.label_selector:
        params["labelSelector"] = selection.label_selector
    if selection.field_selector:
        params["fieldSelector"] = selection.field_selector
    if resource_version is not None:
        params["resourceVersion"] = resource_version
    return params


def _query(params: Params) -> str:
    return "&".join(
        f"{name}={value}" if _PLAIN.fullmatch(value) else urlencode({name: value}, safe=_QUERY)
        for name, value in params.items()
    )
