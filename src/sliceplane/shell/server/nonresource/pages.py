"""Paths that are no resource: which page answers, and the pages of few lines.

``/sliceplane/snapshot`` is the whole state at one revision, while the server goes on (``store.snapshot``).  The right
is ``get`` on that non-resource URL, which ``system:masters`` has and no other user unless a ClusterRole says so, for
everything is in it, Secrets too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.errors import method_not_allowed
from sliceplane.api.gates import Release
from sliceplane.shell.process.version import version_document
from sliceplane.shell.server.keys.token_keys import TokenKeys
from sliceplane.shell.server.nonresource import openapi
from sliceplane.shell.server.nonresource.discovery import Discovery
from sliceplane.shell.server.nonresource.health import HealthChecks
from sliceplane.shell.server.requests.request import Request, Send
from sliceplane.shell.server.requests.response import NO_CACHE, Response, common_headers, text_response
from sliceplane.store.mvcc import Store
from sliceplane.store.snapshot import PATH as SNAPSHOT_PATH
from sliceplane.store.snapshot import records_of, written

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
KEYS_PATH: Final = "/openid/v1/jwks"
_HEALTH_ROOTS: Final = ("healthz", "livez", "readyz")
#: first segments of every page
_ROOTS: Final = (*_HEALTH_ROOTS, "", "api", "apis", "metrics", "openapi", "sliceplane", "version")
_INDEXED: Final = (
    *("/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", SNAPSHOT_PATH, "/version"),
)
_CACHE: Final = ((b"cache-control", b"public, max-age=3600"),)


class IssuerPages:
    """What programs that verify our service account tokens themselves need: OpenID discovery and the keys (KEP-1393).

    Readable by service accounts, and by users to whom ``system:service-account-issuer-discovery`` is bound.  *url* is
    where this server is reached; *keys_url*, where the keys are, if elsewhere.
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
    """Every page that is answered whole; the snapshot is a stream.  Owned by the application."""

    def __init__(
        self,
        *,
        discovery: Discovery,
        health: HealthChecks,
        metrics: Callable[[str], tuple[bytes, bytes]],
        issuer: IssuerPages | None,
        emulated: Release,
        clock: Callable[[], float],
    ) -> None:
        """*metrics* makes the page that an Accept header asks for, and its content type."""
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
            return Response(200, json.dumps(version_document(self._emulated), indent=2).encode(), headers=(NO_CACHE,))
        if request.path == "/metrics":
            return Response(200, *self._metrics(request.header(b"accept")))
        if request.path == "/":
            issued = self._issuer.paths if self._issuer else ()
            return Response(200, encode({"paths": sorted((*issued, *self._discovery.paths(), *_INDEXED))}) + b"\n")
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


async def send_snapshot(send: Send, store: Store, *, now: float, audit_id: str) -> None:
    """A portion is made when the client has taken the one before; its connection cuts off one that takes nothing."""
    records = records_of(store)
    revision = store.revision
    headers = [*common_headers(now, audit_id), NO_CACHE, (b"content-type", b"application/x-ndjson")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for portion in written(records, revision):
        await send({"type": "http.response.body", "body": portion, "more_body": True})
        # A client that is quick must not keep others waiting.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})
