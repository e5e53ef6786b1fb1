"""One HTTP request as the handlers see it, parsed once, from the ASGI scope; and URLs to what they
address.

``parse`` understands every path under ``/api`` and ``/apis`` by its shape alone, known resource or
not: authorisation is asked before anything else and has to name what was wanted. ``resolve`` then
finds the resource and the verb, or the 404 or 405 that upstream's router gives.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from sliceplane.api.errors import (
    NOT_SERVED,
    StatusError,
    bad_request,
    method_not_allowed,
    show,
    too_large_body,
    unknown_resource,
)
from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import BY_PATH, LISTED, SERVED, Namespaces, Pods, Resource
from sliceplane.api.selectors.fields import selected_name
from sliceplane.api.users import User
from sliceplane.server.fairness.types import Flow
from sliceplane.server.io.requests.limits import RequestCharges, kept_bytes
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.types import Attributes, Target
from sliceplane.server.store.types import Key
from sliceplane.watch.io.certificates import Certificate

BODY_BYTES_MAX = 3 * 1024 * 1024
_NOT_IMPLEMENTED = (
    "{} cannot be written: this server does not implement {}, and only lists it, always empty, "
    "for controllers that "
    f"watch it; see {NOT_SERVED}"
)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/5.0")
_TRUTHS = ("1", "t", "T", "true", "TRUE", "True")


class StreamConnection(Protocol):
    """The part of a connection that a stream uses, beyond ASGI."""

    @property
    def write_paused(self) -> bool:
        """The peer does not take what was written; *on_resumed* tells when it does again."""

    def write(self, data: bytes) -> None: ...

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """A stream begins.  Neither callback may raise."""

    def detach(self) -> None: ...

    def abort(self) -> None:
        """Cut the connection without ceremony."""

    def authenticated(self, user: User) -> bool:
        """A request on it has shown who sends it: larger heads are taken, and the first such user
        is charged with it. Returns False if that user has as many connections as it may have: this
        one closes with its answer.
        """


class Query(dict[str, list[str]]):
    """The query string.  Upstream's readers take the first value of a name, and so do we."""

    def __init__(self, raw: bytes) -> None:
        if raw:
            # What is no UTF-8 becomes U+FFFD: half a character must not reach what is encoded
            # again, answers and logs.
            for name, value in parse_qsl(
                raw.decode(errors="replace"), keep_blank_values=True, errors="replace"
            ):
                self.setdefault(name, []).append(value)

    def first(self, name: str) -> str:
        """The first value; "" if the name is absent (or empty)."""
        values = self.get(name)
        return values[0] if values else ""

    def optional(self, name: str) -> str | None:
        """The first value, or ``None`` if it is absent or empty (upstream sees no difference)."""
        return self.first(name) or None

    def flag(self, name: str) -> bool:
        """A boolean: absent, "false" and "0" are false, anything else (also "") is true
        (``staging/src/k8s.io/apimachinery/pkg/runtime/conversion.go``)."""
        return name in self and self[name][0].lower() not in ("false", "0")


class _Metadata(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_named = msgspec.json.Decoder(_Named)


class Request:
    """A request.  Owned by the task that answers it."""

    __slots__ = (
        "_receive",
        "_scope",
        "certificate",
        "charges",
        "claim",
        "connection",
        "created",
        "flow",
        "headers",
        "method",
        "path",
        "query",
        "user",
    )

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = Query(scope["query_string"])
        headers = dict(scope["headers"])
        self.headers = (
            headers if len(headers) == len(scope["headers"]) else _joined(scope["headers"])
        )
        #: verified when the connection was made
        self.certificate: Certificate | None = scope["state"]["certificate"]
        self.connection: StreamConnection = scope["state"]["connection"]
        #: set once authentication has succeeded
        self.user: User | None = None
        #: set once it is clear whose request this is
        self.flow: Flow | None = None
        #: set before a handler is called
        self.charges: RequestCharges
        #: what lets the request in, set once it is
        self.claim: Claim | None = None
        #: the object that was created, as JSON
        self.created = b""
        self._scope = scope
        self._receive = receive

    @property
    def created_name(self) -> str:
        """The name of the object that was created; "" if none was."""
        return _named.decode(self.created).metadata.name if self.created else ""

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes until it is answered, besides its body."""
        return kept_bytes(self.headers, self._scope["query_string"])

    @property
    def uri(self) -> str:
        """Path and query as they were sent."""
        path = self._scope["raw_path"].decode("latin-1")
        query = self._scope["query_string"].decode("latin-1")
        return f"{path}?{query}" if query else path

    @property
    def client_address(self) -> str:
        """The IP address of the peer; "" if it is gone."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    def header(self, name: bytes) -> str:
        """A header by its lower-case name; "" if absent."""
        return self.headers.get(name, b"").decode("latin-1")

    def headers_of(self, prefix: bytes) -> tuple[tuple[str, str], ...]:
        """Every header whose lower-case name begins with *prefix*, in the order in which they
        came.
        """
        if not any(name.startswith(prefix) for name in self.headers):
            return ()
        headers = (
            (name, value) for name, value in self._scope["headers"] if name.startswith(prefix)
        )
        return tuple(
            (name.decode("latin-1"), value.decode(errors="replace")) for name, value in headers
        )

    def attributes(self, verb: str, path: ResourcePath) -> Attributes:
        """Returns what authorisation is asked about. A list or watch of one object, by field
        selector, names it.
        """
        name = path.name
        namespace = path.namespace
        if path.plural == "namespaces" and not path.group:
            namespace = name
        if not name and verb in ("list", "watch"):
            name = selected_name(self.query.first("fieldSelector"))
        return Attributes(
            verb=verb,
            path=self.path,
            group=path.group,
            resource=path.plural,
            subresource=path.subresource,
            namespace=namespace,
            name=name,
        )

    @property
    def pretty(self) -> bool:
        """True if query or user agent ask for indented JSON; the query wins."""
        if "pretty" in self.query:
            return self.query.first("pretty") in _TRUTHS
        return self.header(b"user-agent").startswith(_PRETTY_AGENTS)

    @property
    def accepts_gzip(self) -> bool:
        return "gzip" in self.header(b"accept-encoding")

    def credentials_end_in(self, now: float) -> float:
        """Returns the seconds that the client certificate which authenticated the request still
        counts; infinite for any other request: upstream lets a watch outlive its token.
        """
        if self.certificate is None or not self.certificate.counts(now):
            return math.inf
        return self.certificate.ends - now

    async def body(self) -> bytes:
        """The whole body; when it is there the request takes its seat, and not before. Raises the
        413 ``StatusError`` beyond ``BODY_BYTES_MAX``, ``OverCapacity``, and ``ConnectionError`` if the
        client went away.
        """
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
            raise too_large_body(BODY_BYTES_MAX)
        body = await read_body(self._receive, self.charges.on_body)
        await self.charges.take_seat()
        return body


async def read_body(receive: Receive, on_size: Callable[[int], None]) -> bytes:
    """Returns the body of a request.  *on_size*: called with the bytes that have come so far. Raises
    what it raises, the 413 ``StatusError`` and ``ConnectionAbortedError``.
    """
    chunks = []
    size = 0
    on_size(0)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the client went away while sending its request")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise too_large_body(BODY_BYTES_MAX)
        on_size(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _joined(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Header by header; values of one name become one, in their order (RFC 9110 5.3).  As long as
    *fields* are.
    """
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(lines) for name, lines in values.items()}


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
#: verbs of one object, of a collection across namespaces, and of a collection
_OF_ONE = ("get", "update", "patch", "delete")
_OF_ALL = ("list", "watch")
_OF_COLLECTION = (*_OF_ALL, "create", "deletecollection")
#: subresources of Pods that a kubelet answers
_OF_CONTAINERS = ("attach", "exec", "log", "portforward", "proxy")


class ResourcePath(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def pod_of_containers(path: ResourcePath) -> Key | None:
    """The Pod of whose containers a kubelet is asked (``log``, ``exec`` ...), if the request is one
    of those.
    """
    if (path.group, path.plural) != (
        Pods.group,
        Pods.plural,
    ) or path.subresource not in _OF_CONTAINERS:
        return None
    return Key(Pods.storage_key, path.namespace, path.name)


class Route(msgspec.Struct, frozen=True):
    """A request for a resource: what it addresses and the verb of the API."""

    target: Target
    verb: str


def parse(path: str) -> ResourcePath | None:
    """The resource path of *path*; ``None`` for discovery, health and every other non-resource
    path.
    """
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
    # "namespaces/NS" and "namespaces/NS/status" address the Namespace; more segments a resource
    # inside it.
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


def verb_of(method: str, path: ResourcePath, *, is_watch: bool) -> str:
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
        return "watch" if is_watch else "list"
    return method.lower()


def resolve(path: ResourcePath, verb: str, served: Collection[Resource] = SERVED) -> Route:
    """The route of a path whose request was authorised, if its resource is *served*.

    Raises the 404 or 405 ``StatusError``.
    """
    resource = BY_PATH.get((path.group, path.version, path.plural))
    if resource is None or resource not in served:
        raise unknown_resource(path.plural, path.group_version)
    if path.overlong or (path.namespace and not resource.namespaced):
        raise unknown_resource()
    if path.name and resource.namespaced and not path.namespace:
        raise unknown_resource()
    if path.subresource and (path.subresource not in resource.subresources or path.legacy_watch):
        if resource is Pods and path.subresource in _OF_CONTAINERS:
            # A 404 as for any subresource that is not served, with the reason: kubectl prints
            # nothing but the message.
            why = (
                f"there is no {path.subresource} of a pod here: no kubelet runs containers behind "
                "this server"
            )
            raise StatusError(404, "NotFound", f"{why}; see {NOT_SERVED}", {})
        raise unknown_resource(f"{path.plural}/{path.subresource}", path.group_version)
    if path.legacy_watch:
        allowed: tuple[str, ...] = ("watch",)
    elif path.subresource:
        allowed = SUBRESOURCES[path.subresource].verbs
    elif path.name:
        allowed = tuple(name for name in resource.verbs if name in _OF_ONE)
    else:
        across_namespaces = resource.namespaced and not path.namespace
        allowed = tuple(
            name
            for name in resource.verbs
            if name in (_OF_ALL if across_namespaces else _OF_COLLECTION)
        )
    if verb not in allowed:
        why = _NOT_IMPLEMENTED.format(resource.key, resource.kind) if resource in LISTED else ""
        raise method_not_allowed(tuple(sorted({_VERB_METHODS[name] for name in allowed})), why)
    # What can be no part of a path can be no name, as upstream:
    # staging/src/k8s.io/apimachinery/pkg/api/validation/path/name.go.
    if path.name in (".", ".."):
        raise _name_invalid(path.name, f"may not be '{path.name}'")
    if "%" in path.name:
        raise _name_invalid(path.name, "may not contain '%'")
    target = Target(
        resource=resource, namespace=path.namespace, name=path.name, subresource=path.subresource
    )
    return Route(target, verb)


def _name_invalid(name: str, why: str) -> StatusError:
    return bad_request(f"Name parameter invalid: {show(name)}: {why}")
