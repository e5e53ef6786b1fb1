"""``paths`` of one document: what can be done with each resource, and how.

kubectl reads from here that a kind exists, that its PATCH knows ``fieldValidation`` (else it would
validate by itself) and which patch types it takes. Query parameters are written out at each
operation, not shared by reference, since kubectl looks for their names there. The deprecated
``/watch/`` paths are not described.
"""

from __future__ import annotations

from typing import Any, Final

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import Resource
from sliceplane.server.documents.openapi.components import Components

_MEDIA_TYPES: Final = (
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
)
_STREAMS: Final = (
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
)
_PATCH_TYPES: Final = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)


def _query(name: str, kind: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "description": text,
        "schema": {"type": kind, "uniqueItems": True},
    }


_DRY_RUN = _query("dryRun", "string", "All: do everything but store the result.")
_FIELD_MANAGER = _query(
    "fieldManager", "string", "Who makes this change, for managedFields; at most 128 bytes."
)
_FIELD_VALIDATION = _query(
    "fieldValidation",
    "string",
    "What to do about unknown and repeated fields: Ignore, Warn (the default) or Strict, which "
    "refuses the request.",
)
_LABEL_SELECTOR = _query("labelSelector", "string", "Only objects whose labels fit.")
_FIELD_SELECTOR = _query("fieldSelector", "string", "Only objects whose fields fit.")
_RESOURCE_VERSION = _query("resourceVersion", "string", "Which state of the store to start from.")
_LIST: Final = (
    _query(
        "allowWatchBookmarks",
        "boolean",
        "Watch: send BOOKMARK events, which tell how far the stream has come.",
    ),
    _query("continue", "string", "List: the token of the part before, to get the next one."),
    _FIELD_SELECTOR,
    _LABEL_SELECTOR,
    _query("limit", "integer", "List: at most so many objects, with a token for the rest."),
    _RESOURCE_VERSION,
    _query(
        "resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan."
    ),
    _query(
        "sendInitialEvents",
        "boolean",
        "Watch: begin with the objects that there are, then a bookmark.",
    ),
    _query("timeoutSeconds", "integer", "How long a list or watch may take."),
    _query("watch", "boolean", "Send changes as they happen instead of a list."),
)
_WRITE: Final = (_DRY_RUN, _FIELD_MANAGER, _FIELD_VALIDATION)
_PATCH: Final = (
    *_WRITE,
    _query("force", "boolean", "Apply: take fields over from other managers."),
)
_DELETE: Final = (
    _DRY_RUN,
    _query("gracePeriodSeconds", "integer", "How long the object may take to go; 0 is at once."),
    _query("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    _query(
        "propagationPolicy",
        "string",
        "What becomes of dependents: Background, Foreground or Orphan.",
    ),
)
_PRETTY = _query("pretty", "string", "true: indent the answer.")
_NAME: Final = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The name of the object.",
    "schema": {"type": "string", "uniqueItems": True},
}
_NAMESPACE: Final = {
    "name": "namespace",
    "in": "path",
    "required": True,
    "description": "The namespace of the object.",
    "schema": {"type": "string", "uniqueItems": True},
}


def paths_of(resource: Resource, components: Components) -> dict[str, Any]:
    """Path items by path template."""
    writer = _Paths(resource, components)
    namespace = "{namespace}" if resource.namespaced else ""
    if resource.verbs == ("create",):
        return {resource.path(namespace): writer.collection()}
    paths = {
        resource.path(namespace): writer.collection(),
        resource.path(namespace, "{name}"): writer.item(),
    }
    if resource.namespaced:
        paths[resource.path()] = writer.all_namespaces()
    for subresource in resource.subresources:
        paths[resource.path(namespace, "{name}", subresource)] = writer.subresource(subresource)
    return paths


class _Paths:
    """Writes the path items of one resource."""

    def __init__(self, resource: Resource, components: Components) -> None:
        self.resource = resource
        self.components = components
        self.object = components.kind(resource.api_version, resource.kind)
        title = (resource.group or "core").split(".", maxsplit=1)[0]
        self.tag = f"{title}_{resource.version}"
        self.group_title = f"{title.capitalize()}{resource.version.upper()}"
        self.scope = "Namespaced" if resource.namespaced else ""

    def collection(self) -> dict[str, Any]:
        verbs = self.resource.verbs
        item: dict[str, Any] = {}
        if "list" in verbs:
            answers = {"200": self._list()}
            item["get"] = self._operation(
                "list", "list", parameters=_LIST, answers=answers, streams=True
            )
        if "create" in verbs:
            answers = {"200": self.object, "201": self.object, "202": self.object}
            item["post"] = self._operation(
                "create",
                "post",
                parameters=_WRITE,
                body=_body(("*/*",), self.object),
                answers=answers,
            )
        if "deletecollection" in verbs:
            item["delete"] = self._operation(
                "delete",
                "deletecollection",
                middle="Collection",
                parameters=(*_DELETE, _FIELD_SELECTOR, _LABEL_SELECTOR),
                body=_body(("*/*",), self.components.delete_options(), required=False),
                answers={"200": self.components.status()},
            )
        item["parameters"] = self._path_parameters(named=False)
        return item

    def all_namespaces(self) -> dict[str, Any]:
        operation = self._operation(
            "list",
            "list",
            scope="",
            suffix="ForAllNamespaces",
            parameters=_LIST,
            answers={"200": self._list()},
            streams=True,
        )
        return {"get": operation, "parameters": [_PRETTY]}

    def item(self) -> dict[str, Any]:
        answer = self.components.status() if self.resource.delete_reply == "status" else self.object
        delete = self._operation(
            "delete",
            "delete",
            parameters=_DELETE,
            body=_body(("*/*",), self.components.delete_options(), required=False),
            answers={"200": answer, "202": answer},
        )
        return {
            **self._get_put_patch(self.object),
            "delete": delete,
            "parameters": self._path_parameters(named=True),
        }

    def subresource(self, name: str) -> dict[str, Any]:
        row = SUBRESOURCES[name]
        shape = (
            self.object
            if row.body is None
            else self.components.kind(row.body.api_version, row.body.kind)
        )
        kind = None if row.body is None else row.body._asdict()
        if row.is_posted:
            answers = {"200": shape, "201": shape, "202": shape}
            body = _body(("*/*",), shape)
            posted = self._operation(
                "create", "post", suffix=name.capitalize(), kind=kind, body=body, answers=answers
            )
            operations = {"post": posted}
        else:
            operations = self._get_put_patch(shape, suffix=name.capitalize(), kind=kind)
            methods = {_METHODS[verb] for verb in row.verbs}
            operations = {
                method: operation for method, operation in operations.items() if method in methods
            }
        return {**operations, "parameters": self._path_parameters(named=True)}

    def _list(self) -> dict[str, Any]:
        return self.components.kind_list(self.resource.api_version, self.resource.kind)

    def _get_put_patch(
        self, shape: dict[str, Any], *, suffix: str = "", kind: dict[str, str] | None = None
    ) -> dict[str, Any]:
        written = {"200": shape, "201": shape}
        return {
            "get": self._operation("read", "get", suffix=suffix, kind=kind, answers={"200": shape}),
            "put": self._operation(
                "replace",
                "put",
                suffix=suffix,
                kind=kind,
                parameters=_WRITE,
                body=_body(("*/*",), shape),
                answers=written,
            ),
            "patch": self._operation(
                "patch",
                "patch",
                suffix=suffix,
                kind=kind,
                parameters=_PATCH,
                body=_body(_PATCH_TYPES, self.components.patch()),
                answers=written,
            ),
        }

    def _path_parameters(self, *, named: bool) -> list[dict[str, Any]]:
        return [
            *([_NAME] if named else []),
            *([_NAMESPACE] if self.resource.namespaced else []),
            _PRETTY,
        ]

    def _operation(
        self,
        verb: str,
        action: str,
        *,
        answers: dict[str, Any],
        parameters: tuple[dict[str, Any], ...] = (),
        body: dict[str, Any] | None = None,
        middle: str = "",
        scope: str | None = None,
        suffix: str = "",
        kind: dict[str, str] | None = None,
        streams: bool = False,
    ) -> dict[str, Any]:
        resource = self.resource
        types = (*_MEDIA_TYPES, *_STREAMS) if streams else _MEDIA_TYPES
        operation: dict[str, Any] = {
            "tags": [self.tag],
            "operationId": f"{verb}{self.group_title}{middle}{self.scope if scope is None else scope}"
            f"{resource.kind}{suffix}",
        }
        if parameters:
            operation["parameters"] = list(parameters)
        if body:
            operation["requestBody"] = body
        operation["responses"] = {
            code: {
                "description": _REASONS[code],
                "content": {media: {"schema": shape} for media in types},
            }
            for code, shape in answers.items()
        } | {"401": {"description": "Unauthorized"}}
        operation["x-kubernetes-action"] = action
        operation["x-kubernetes-group-version-kind"] = kind or {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        }
        return operation


_METHODS: Final = {"get": "get", "update": "put", "patch": "patch"}
_REASONS: Final = {"200": "OK", "201": "Created", "202": "Accepted"}


def _body(
    media_types: tuple[str, ...], shape: dict[str, Any], *, required: bool = True
) -> dict[str, Any]:
    body: dict[str, Any] = {"content": {media: {"schema": shape} for media in media_types}}
    if required:
        body["required"] = True
    return body
