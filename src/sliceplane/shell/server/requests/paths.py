"""URLs to what they address.

``parse`` understands every path under ``/api`` and ``/apis`` by its shape alone, known resource or not:
authorisation is asked before anything else and has to name what was wanted.  ``resolve``
then finds the resource and the verb, or the 404 or 405 that upstream's router gives.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sliceplane.api.errors import StatusError, bad_request, method_not_allowed, show, unknown_resource
from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import BY_PATH, SERVED, Namespaces, Pods, Resource
from sliceplane.registry.types import Target

_METHOD_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_VERB_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
#: subresources of Pods that a kubelet answers
_OF_CONTAINERS = ("attach", "exec", "log", "portforward", "proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePath:
    """The parts of a path under a group version; "" where a part is absent."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    #: more segments follow than any resource has
    overlong: bool = False
    #: the old ``/api/v1/watch/...`` form
    legacy_watch: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A request for a resource: what it addresses and the verb of the API."""

    target: Target
    verb: str


def parse(path: str) -> ResourcePath | None:
    """The resource path of *path*; ``None`` for discovery, health and every other non-resource path."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group = ""
        version = parts[1]
        rest = parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group = parts[1]
        version = parts[2]
        rest = parts[3:]
    else:
        return None
    legacy_watch = rest[0] == "watch"
    if legacy_watch:
        rest = rest[1:]
        if not rest:
            return None
    namespace = ""
    # "namespaces/NS" and "namespaces/NS/status" address the Namespace; more segments a resource inside it.
    is_namespace = len(rest) <= 2 or (len(rest) == 3 and rest[2] in Namespaces.subresources)
    if rest[0] == "namespaces" and not is_namespace:
        namespace, rest = rest[1], rest[2:]
    padded = [*rest, "", ""]
    return ResourcePath(
        group=group,
        version=version,
        plural=padded[0],
        namespace=namespace,
        name=padded[1],
        subresource=padded[2],
        overlong=len(rest) > 3,
        legacy_watch=legacy_watch,
    )


def verb_of(method: str, path: ResourcePath, *, wants_watch: bool) -> str:
    """The API verb of *method*; unknown methods are named by themselves, in lower case."""
    if method in _METHOD_VERBS:
        return _METHOD_VERBS[method]
    if method == "DELETE":
        return "delete" if path.name else "deletecollection"
    if method == "GET":
        if path.legacy_watch:
            return "watch"
        if path.name:
            return "get"
        return "watch" if wants_watch else "list"
    return method.lower()


def resolve(path: ResourcePath, verb: str, served: Collection[Resource] = SERVED) -> Route:
    """The route of a path whose request was authorised, if its resource is *served*.

    Raises the 404 or 405 ``StatusError``.
    """
    resource = BY_PATH.get((path.group, path.version, path.plural))
    if resource is None or resource not in served or path.overlong or (path.namespace and not resource.namespaced):
        raise unknown_resource()
    if path.name and resource.namespaced and not path.namespace:
        raise unknown_resource()
    if path.subresource and (path.subresource not in resource.subresources or path.legacy_watch):
        if resource is Pods and path.subresource in _OF_CONTAINERS:
            # A 404 as for any subresource that is not served, with the reason: kubectl prints nothing but the message.
            why = f"there is no {path.subresource} of a pod here"
            raise StatusError(404, "NotFound", f"{why}: this server keeps objects, no containers run behind it", {})
        raise unknown_resource()
    allowed = _verbs_at(resource, path)
    if verb not in allowed:
        raise method_not_allowed(tuple(sorted({_VERB_METHODS[known] for known in allowed})))
    # What can be no part of a path can be no name, as upstream:
    # staging/src/k8s.io/apimachinery/pkg/api/validation/path/name.go.
    if path.name in (".", ".."):
        raise _name_invalid(path.name, f"may not be '{path.name}'")
    if "%" in path.name:
        raise _name_invalid(path.name, "may not contain '%'")
    target = Target(resource=resource, namespace=path.namespace, name=path.name, subresource=path.subresource)
    return Route(target, verb)


def _name_invalid(name: str, why: str) -> StatusError:
    return bad_request(f"Name parameter invalid: {show(name)}: {why}")


def _verbs_at(resource: Resource, path: ResourcePath) -> tuple[str, ...]:
    if path.legacy_watch:
        return ("watch",)
    if path.subresource:
        return SUBRESOURCES[path.subresource].verbs
    if path.name:
        return tuple(verb for verb in resource.verbs if verb in ("get", "update", "patch", "delete"))
    across_namespaces = resource.namespaced and not path.namespace
    here = ("list", "watch") if across_namespaces else ("list", "watch", "create", "deletecollection")
    return tuple(verb for verb in resource.verbs if verb in here)
