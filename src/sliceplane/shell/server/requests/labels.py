"""What a request is called in metrics and what flow it belongs to.

Both are made of what the server knows, never of what a client says: an invented resource, method or page must not
become a time series of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from sliceplane.api.scheme import Resource, by_path
from sliceplane.flowcontrol.types import uid_of
from sliceplane.shell.server.monitoring.metrics import RequestKey
from sliceplane.shell.server.requests.paths import ResourcePath
from sliceplane.shell.server.requests.response import Header

_VERBS = {
    "get": "GET",
    "list": "LIST",
    "watch": "WATCH",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
}
_METHODS = {"GET": "GET", "HEAD": "GET", "POST": "POST", "PUT": "PUT", "PATCH": "PATCH", "DELETE": "DELETE"}
_OTHER = "other"
_PAGES = frozenset(
    (
        "/",
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    )
)
_APPLY = "application/apply-patch+yaml"


def page_key(method: str, path: str) -> RequestKey:
    """A request for no resource: known pages have their path for a subresource, as upstream has it."""
    page = path if path in _PAGES else "/openapi/v3" if path.startswith("/openapi/v3/") else ""
    return RequestKey(_METHODS.get(method, _OTHER), subresource=page)


def resource_key(
    verb: str, path: ResourcePath, name: str, served: Collection[Resource], *, dry_run: bool, content_type: str
) -> RequestKey:
    """*name* is the object's, also that of a list or watch that selects one by its name."""
    shown = _VERBS.get(verb, _OTHER)
    if verb == "patch" and content_type.startswith(_APPLY):
        shown = "APPLY"
    resource = by_path(path.group, path.version, path.plural)
    if resource is None or resource not in served:
        return RequestKey(shown)
    subresource = path.subresource if path.subresource in resource.subresources else ""
    scope = "resource" if name or verb == "create" else "namespace" if path.namespace else "cluster"
    return RequestKey(shown, "All" if dry_run else "", path.group, path.version, path.plural, subresource, scope)


@lru_cache(maxsize=64)
def flow_headers(schema: str, level: str) -> tuple[Header, ...]:
    """The headers that name the flow schema and the priority level of a request, by uid."""
    return (
        (b"x-kubernetes-pf-flowschema-uid", uid_of("flowschema", schema).encode()),
        (b"x-kubernetes-pf-prioritylevel-uid", uid_of("prioritylevel", level).encode()),
    )
