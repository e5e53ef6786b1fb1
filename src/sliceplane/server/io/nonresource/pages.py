"""Paths that are no resource: which page answers, the pages of few lines, and health checks.

``/sliceplane/snapshot`` is the whole state at one revision, while the server goes on
(``server.store.snapshot``). The right is ``get`` on that non-resource URL, which ``system:masters``
has and no other user unless a ClusterRole says so, for everything is in it, Secrets too.
``/sliceplane/recording`` is what the flight recorder keeps (``watch.io.flight``), with a right of
its own. So is ``/sliceplane/writes/...``, the last writers of an object: names of users are nothing
for every user who may read it.

A check behind ``/healthz``, ``/livez`` and ``/readyz`` (kubernetes.io, API health endpoints) is a
function that returns "" when all is well, else why not; it must not block. The reason goes to the
single check's page only; lists say "reason withheld", as upstream does, because every client may
read them.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sliceplane.api.codec import encode
from sliceplane.api.errors import method_not_allowed
from sliceplane.api.gates import Release
from sliceplane.kit.io.pages import expose
from sliceplane.kit.metrics import Labels, Metrics
from sliceplane.server.io.keys.token_keys import TokenKeys
from sliceplane.server.io.nonresource import openapi
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.requests.request import Query, Request, Send
from sliceplane.server.io.requests.response import NO_CACHE, Response, head_of, text_response
from sliceplane.server.registry.types import Attributes
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.snapshot import PATH as SNAPSHOT_PATH
from sliceplane.server.store.snapshot import records_of, written
from sliceplane.watch.io.flight import PATH as RECORDING_PATH
from sliceplane.watch.io.service import Check
from sliceplane.watch.io.version import version_document

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
KEYS_PATH: Final = "/openid/v1/jwks"
SLIS_PATH: Final = "/metrics/slis"
WRITES_PATH: Final = "/sliceplane/writes"
#: objects that are remembered; the one that was written longest ago goes first
OBJECTS_MAX: Final = 10_000
WRITES_PER_OBJECT_MAX: Final = 4
#: written again and again, and shown by no finding
_UNRECORDED: Final = ("leases", "events")
_AGENT_CHARACTERS_MAX: Final = 64
#: of a user, and of an object: a longer name of a user is cut, an object with a longer one is not
#: remembered
NAME_CHARACTERS_MAX: Final = 320
_HEALTH_ROOTS: Final = ("healthz", "livez", "readyz")
#: first segments of every page
_ROOTS: Final = (*_HEALTH_ROOTS, "", "api", "apis", "metrics", "openapi", "sliceplane", "version")
_INDEXED: Final = (
    *("/healthz", "/livez", "/metrics", SLIS_PATH, "/openapi/v2", "/openapi/v3", "/readyz"),
    *(RECORDING_PATH, SNAPSHOT_PATH, "/version"),
)
_CACHE: Final = ((b"cache-control", b"public, max-age=3600"),)


class NotedWrite(NamedTuple):
    """*time*: seconds since the epoch."""

    time: float
    user: str
    verb: str
    agent: str


class LastWrites:
    """The last few requests that wrote each object, for ``sliceplane explain``.  Owned by the
    application.

    ``metadata.managedFields`` tells which program wrote a field, to the second; the user is in the
    audit log alone, which is a file, if there is one. This is the memory between the two: bounded,
    lost with the process, and of this server's requests alone. It is served at
    ``WRITES_PATH/RESOURCE/NAMESPACE/NAME`` ("-": no namespace).
    """

    def __init__(self) -> None:
        #: by resource, namespace and name
        self._by_object: OrderedDict[tuple[str, str, str], tuple[NotedWrite, ...]] = OrderedDict()

    def note(self, attributes: Attributes, name: str, write: NotedWrite) -> None:
        """Remembers *write* of the object *name*."""
        if not name or len(name) > NAME_CHARACTERS_MAX or attributes.resource in _UNRECORDED:
            return
        write = write._replace(
            user=write.user[:NAME_CHARACTERS_MAX], agent=write.agent[:_AGENT_CHARACTERS_MAX]
        )
        resource = (
            f"{attributes.resource}.{attributes.group}" if attributes.group else attributes.resource
        )
        key = (resource, attributes.namespace, name)
        last = (*self._by_object.pop(key, ()), write)
        self._by_object[key] = last[-WRITES_PER_OBJECT_MAX:]
        if len(self._by_object) > OBJECTS_MAX:
            self._by_object.popitem(last=False)

    def page(self, path: str) -> bytes | None:
        """``None``: *path* is none of these."""
        parts = path.removeprefix(f"{WRITES_PATH}/").split("/")
        if not path.startswith(f"{WRITES_PATH}/") or len(parts) != 3:
            return None
        resource, namespace, name = parts
        writes = self._by_object.get((resource, "" if namespace == "-" else namespace, name), ())
        return encode([write._asdict() for write in writes]) + b"\n"


class IssuerPages:
    """OpenID discovery and the keys, for programs that verify our service account tokens themselves
    (KEP-1393).

    Readable by service accounts, and by users to whom ``system:service-account-issuer-discovery``
    is bound. *url* is where this server is reached; *keys_url*, where the keys are, if elsewhere.
    """

    paths = (CONFIGURATION_PATH, KEYS_PATH)

    def __init__(self, keys: TokenKeys, url: str, keys_url: str = "") -> None:
        self._keys = keys
        self._keys_url = keys_url or f"{url}{KEYS_PATH}"

    def respond(self, path: str) -> Response | None:
        """The page at *path*, ``None`` if it is none of ours."""
        if path == KEYS_PATH:
            return Response(200, encode(self._keys.key_set()), b"application/jwk-set+json", _CACHE)
        if path != CONFIGURATION_PATH:
            return None
        document = {
            "issuer": self._keys.issuer,
            "jwks_uri": self._keys_url,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": self._keys.algorithms,
        }
        return Response(200, encode(document), headers=_CACHE)


class Pages:
    """Every page that is answered whole; snapshot and recording are streams.  Owned by the
    application.
    """

    def __init__(
        self,
        *,
        writes: LastWrites,
        discovery: Discovery,
        health: HealthChecks,
        metrics: Callable[[str], tuple[bytes, bytes]],
        issuer: IssuerPages | None,
        emulated: Release,
        clock: Callable[[], float],
    ) -> None:
        """*metrics* makes the page that an Accept header asks for, and its content type."""
        self._writes = writes
        self._discovery = discovery
        self._health = health
        self._metrics = metrics
        self._issuer = issuer
        self._emulated = emulated
        self._clock = clock
        self._started = clock()

    async def respond(self, request: Request) -> Response:
        """Raises ``StatusError``."""
        root, _, rest = request.path[1:].partition("/")
        if request.method not in ("GET", "HEAD"):
            if root in _ROOTS:
                raise method_not_allowed(("GET", "HEAD"))
            return _not_found()
        if root in _HEALTH_ROOTS:
            return self._health.respond(request.path, request.query)
        if root == "version" and not rest:
            return Response(
                200,
                json.dumps(version_document(self._emulated), indent=2).encode(),
                headers=(NO_CACHE,),
            )
        if request.path == "/metrics":
            return Response(200, *self._metrics(request.header(b"accept")))
        if request.path == SLIS_PATH:
            return Response(
                200, *expose(self._health.metrics.families(), request.header(b"accept"))
            )
        if request.path == "/":
            issued = self._issuer.paths if self._issuer else ()
            return Response(
                200,
                encode({"paths": sorted((*issued, *self._discovery.paths(), *_INDEXED))}) + b"\n",
            )
        if root == "sliceplane" and (writes := self._writes.page(request.path)) is not None:
            return Response(200, writes, headers=(NO_CACHE,))
        if root in ("api", "apis"):
            page = self._discovery.respond(request)
        elif root == "openapi":
            served = self._discovery.served
            page = await openapi.respond(request, served, now=self._clock(), started=self._started)
        else:
            page = self._issuer.respond(request.path) if self._issuer is not None else None
        return page or _not_found()


def _not_found() -> Response:
    return text_response(404, "404 page not found\n")


def snapshot_portions(store: Store) -> Iterator[bytes]:
    """Returns the portions of a snapshot of the current state."""
    records = records_of(store)
    return written(records, store.revision)


async def send_portions(
    request: Request, send: Send, portions: Iterator[bytes], *, now: float, audit_id: str
) -> None:
    """A portion is made when the client has taken the one before; its connection cuts off one that
    takes nothing.
    """
    headers = (NO_CACHE, (b"content-type", b"application/x-ndjson"))
    await send(head_of(request, 200, headers, now=now, audit_id=audit_id))
    for portion in portions:
        await send({"type": "http.response.body", "body": portion, "more_body": True})
        # A client that is quick must not keep others waiting.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


class HealthChecks:
    """The checks of one process, in the order of their registration.  Owned by the plane."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {"ping": lambda: ""}
        self._ready: dict[str, Check] = {}
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "kubernetes_healthcheck",
            "Health checks: 1 is well.",
            self._rows,
            "name",
            "type",
        )
        self._results = self.metrics.counters(
            "kubernetes_healthchecks_total",
            "Results of health checks that were requested.",
            "name",
            "type",
            "status",
        )

    def add(self, name: str, check: Check) -> None:
        """Count for all three endpoints."""
        self._live[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """Count for ``/readyz`` alone: a failure means "not now", not "restart me"."""
        self._ready[name] = check

    def respond(self, path: str, query: Query) -> Response:
        """Answer ``/healthz``, ``/livez``, ``/readyz`` and ``/livez/NAME``."""
        endpoint, _, single = path[1:].partition("/")
        if path.count("/") > 1:
            return self._single(self._checks(endpoint).get(single))
        results = self.results(endpoint)
        for name, why in results:
            self._results.of(name, endpoint, "error" if why else "success").value += 1
        return _summary(endpoint, results, query)

    def results(self, endpoint: str) -> list[tuple[str, str]]:
        """Each check of *endpoint* and what it says now."""
        return [(name, check()) for name, check in self._checks(endpoint).items()]

    def _rows(self) -> list[tuple[Labels, float]]:
        endpoints = ("healthz", "livez", "readyz")
        return [
            ((name, endpoint), not why)
            for endpoint in endpoints
            for name, why in self.results(endpoint)
        ]

    def _checks(self, endpoint: str) -> dict[str, Check]:
        return {**self._live, **self._ready} if endpoint == "readyz" else self._live

    @staticmethod
    def _single(check: Check | None) -> Response:
        if check is None:
            return text_response(404, "404 page not found\n")
        why = check()
        return (
            text_response(500, f"internal server error: {why}\n")
            if why
            else text_response(200, "ok")
        )


def _summary(endpoint: str, results: list[tuple[str, str]], query: Query) -> Response:
    excluded = set(query.get("exclude", ()))
    lines = []
    healthy = True
    for name, why in results:
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok")
        elif why:
            lines.append(f"[-]{name} failed: reason withheld")
            healthy = False
        else:
            lines.append(f"[+]{name} ok")
    unknown = ",".join(f'"{name}"' for name in sorted(excluded - dict(results).keys()))
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
    if not healthy:
        return text_response(500, "\n".join([*lines, f"{endpoint} check failed", "", ""]))
    if "verbose" in query:
        return text_response(200, "\n".join([*lines, f"{endpoint} check passed", ""]))
    return text_response(200, "ok")
