"""Who is behind a call: the certificate of its connection, or its bearer token, which the API server reviews.

A TokenReview is asked once a minute and token at most, however many streams come with it, and by one call at a time.
Tokens are kept as digests.  What the API server did not answer is not kept: the call is UNAVAILABLE and comes again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import TokenReviews
from sliceplane.http2.grpc import GrpcStatus
from sliceplane.registry.types import User
from sliceplane.shell.server.requests.auth import Certificate, bearer_token
from sliceplane.shell.transport.base import Client, Unreachable

#: an answer of the API server counts so long
KEPT_S: Final = 60.0
KEPT_MAX: Final = 10_000

#: who asks on a port that only this machine reaches, as on the API server's insecure port of old
UNSECURED: Final = User(name="system:unsecured", groups=("system:masters", "system:authenticated"))


class CallRefused(Exception):
    """A call that gets no answer but this."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Authenticator(Protocol):
    """Raises ``CallRefused``, at once or when it is awaited; several callers may await the same."""

    def user(self, certificate: Certificate | None, authorization: str) -> User | Awaitable[User]: ...


class Unsecured:
    """Of a plain port on loopback: every client is the administrator of this machine."""

    def user(self, certificate: Certificate | None, authorization: str) -> User:
        return UNSECURED


class ReviewedTokens:
    """The API server says whose a token is.  Owned by one listener."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        #: digest -> until when, and whose; ``None``: the API server does not know it
        self._kept: dict[bytes, tuple[float, User | None]] = {}
        self._asking: dict[bytes, asyncio.Task[User]] = {}

    def user(self, certificate: Certificate | None, authorization: str) -> User | Awaitable[User]:
        now = self._clock()
        if certificate is not None and certificate.counts(now):
            return certificate.user
        token = bearer_token(authorization.encode("latin-1"))
        if not token:
            text = "the client certificate is over" if certificate is not None else "neither certificate nor token"
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, text)
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        kept = self._kept.get(digest)
        if kept is not None and now < kept[0]:
            return _known(kept[1])
        return self._ask(digest, token)

    def _ask(self, digest: bytes, token: str) -> asyncio.Task[User]:
        task = self._asking.get(digest)
        if task is None:
            task = self._asking[digest] = asyncio.create_task(self._review(digest, token))
            task.add_done_callback(partial(self._on_asked, digest))
        return task

    def _on_asked(self, digest: bytes, task: asyncio.Task[User]) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # all calls that wanted to know it may be gone

    async def _review(self, digest: bytes, token: str) -> User:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        write = Write(verb="create", resource=TokenReviews, body=json.dumps(review).encode())
        try:
            status = json.loads(await self._client.perform(write)).get("status", {})
        except (StatusError, Unreachable) as error:
            raise CallRefused(
                GrpcStatus.UNAVAILABLE, f"the API server does not say whose token it is: {error}"
            ) from error
        user = _reviewed(status.get("user", {})) if status.get("authenticated") else None
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(digest, None)
        self._kept[digest] = (self._clock() + KEPT_S, user)
        return _known(user)


def _reviewed(user: dict[str, object]) -> User:
    extra = user.get("extra")
    pairs = sorted(extra.items()) if isinstance(extra, dict) else ()
    groups = user.get("groups")
    return User(
        name=str(user.get("username", "")),
        uid=str(user.get("uid", "")),
        groups=tuple(map(str, groups)) if isinstance(groups, list) else (),
        extra=tuple((str(name), tuple(map(str, values))) for name, values in pairs),
    )


def _known(user: User | None) -> User:
    if user is None:
        raise CallRefused(GrpcStatus.UNAUTHENTICATED, "the API server does not know the token")
    return user
