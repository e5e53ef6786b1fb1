"""Authentication of a call by the certificate of its connection, or by its bearer token, which the
API server reviews.

The server requests at most one TokenReview per token and minute, and one at a time, however many
streams present the token. It caches results by digest of the token. A failed review is not cached:
the call ends with UNAVAILABLE, and the client retries.

A client can invent tokens, and each review costs the API server, at the priority level of this
server's own account. Reviews of tokens that were never valid are therefore limited: ``REVIEWS_MAX``
at a time, and for an address that sent invalid tokens a burst of ``INVALID_TOKENS_BURST`` and then
``INVALID_TOKENS_PER_S`` a second. Beyond these limits a call ends with UNAVAILABLE, without a
review. A token that was valid before has slots of its own, so none of this affects it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, Protocol, TypeVar

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import TokenReviews
from sliceplane.api.users import TOKEN_CHARACTERS_MAX, User, bearer_token
from sliceplane.kit.http2.grpc import GrpcStatus
from sliceplane.kit.io.tasks import SharedCalls
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.certificates import Certificate

#: seconds for which the result of a review is cached
CACHED_S: Final = 60.0
#: cached digests of valid tokens, and as many of invalid ones
CACHED_MAX: Final = 10_000
#: seconds for which a token that was valid keeps the right to the reserved slots
VALID_S: Final = 3600.0
#: concurrent reviews of tokens that were valid before, and as many of others
REVIEWS_MAX: Final = 16
#: never valid tokens that wait for a review, shared fairly by address
WAITING_MAX: Final = 2_000
#: invalid tokens of one address that are reviewed: a burst, and the rate afterwards
INVALID_TOKENS_BURST: Final = 20.0
INVALID_TOKENS_PER_S: Final = 1.0
#: the same for all addresses together
INVALID_TOKENS_BURST_ALL: Final = 200.0
INVALID_TOKENS_PER_S_ALL: Final = 10.0
#: addresses whose invalid tokens are counted, the newest
SOURCES_MAX: Final = 4_096

K = TypeVar("K")
V = TypeVar("V")

#: user of calls on a plain loopback port, like the former insecure port of the API server
UNSECURED: Final = User(name="system:unsecured", groups=("system:masters", "system:authenticated"))


class CallRefused(Exception):
    """The call ends with this status."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Authenticator(Protocol):
    """Finds the user of a call.

    ``user`` raises ``CallRefused``, or its awaitable does; several callers may await the same one.
    *peer*: ``ADDRESS:PORT`` of the client.
    """

    def user(
        self, certificate: Certificate | None, authorization: str, peer: str
    ) -> User | Awaitable[User]: ...


class Unsecured:
    """The authenticator of a plain port on loopback: every client is an administrator of this host."""

    def user(self, certificate: Certificate | None, authorization: str, peer: str) -> User:
        return UNSECURED


class _CachedReview(NamedTuple):
    """The result of a review, valid before ``expires_at``; ``user`` is ``None`` for an invalid
    token.
    """

    expires_at: float
    user: User | None


class _TokenBucket:
    """A token bucket: each review of an invalid token takes one, and time refills it."""

    __slots__ = ("_at", "_available", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._available = most
        self._at = now

    def available(self, now: float) -> float:
        self._available = min(self._most, self._available + (now - self._at) * self._per_s)
        self._at = now
        return self._available

    def take(self, now: float) -> None:
        self._available = self.available(now) - 1.0


class ReviewedTokens:
    """The authenticator of the TLS port, by reviews of the API server.  Owned by one listener."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        #: cached reviews by digest: of valid tokens, and of invalid ones
        self._valid: dict[bytes, _CachedReview] = {}
        self._invalid: dict[bytes, _CachedReview] = {}
        self._reviewing: SharedCalls[bytes, User] = SharedCalls()
        self._valid_slots = asyncio.Semaphore(REVIEWS_MAX)
        self._invalid_slots = asyncio.Semaphore(REVIEWS_MAX)
        self._waiting = Shares(WAITING_MAX)
        self._sources: dict[str, _TokenBucket] = {}
        self._all_sources = _TokenBucket(
            INVALID_TOKENS_BURST_ALL, INVALID_TOKENS_PER_S_ALL, clock()
        )
        self.metrics = Metrics()
        self._reviews = self.metrics.counters(
            "sliceplane_xds_token_reviews_total",
            "TokenReviews that were requested, by what came of them.",
            "result",
        )
        self._unreviewed = self.metrics.counter(
            "sliceplane_xds_unreviewed_tokens_total",
            "Calls whose token was not reviewed, as too many made-up ones had come or too many "
            "waited.",
        )

    def user(
        self, certificate: Certificate | None, authorization: str, peer: str
    ) -> User | Awaitable[User]:
        now = self._clock()
        if certificate is not None and certificate.counts(now):
            return certificate.user
        token = bearer_token(authorization.encode("latin-1"))
        if not token:
            text = (
                "the client certificate has expired"
                if certificate is not None
                else "the client sent neither a certificate nor a token"
            )
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, text)
        if len(token) > TOKEN_CHARACTERS_MAX:
            text = f"the token has {len(token)} characters; the maximum is {TOKEN_CHARACTERS_MAX}"
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, text)
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        cached = self._valid.get(digest) or self._invalid.get(digest)
        if cached is not None and now < cached.expires_at:
            return _require_user(cached.user)
        was_valid = (
            cached is not None and cached.user is not None and now < cached.expires_at + VALID_S
        )
        if was_valid:
            return self._reviewing.start(digest, lambda: self._review(digest, token))
        source = _network_of(peer)
        return self._reviewing.start(
            digest, lambda: self._review_never_valid(digest, token, source)
        )

    async def _review_never_valid(self, digest: bytes, token: str, source: str) -> User:
        """Reviews a token that was never valid, unless *source* sent too many invalid ones."""
        if not self._waiting.take(source):
            raise self._refuse_unreviewed(source)
        try:
            async with self._invalid_slots:
                now = self._clock()
                source_bucket = self._sources.get(source) or _TokenBucket(
                    INVALID_TOKENS_BURST, INVALID_TOKENS_PER_S, now
                )
                buckets = (source_bucket, self._all_sources)
                if any(bucket.available(now) < 1.0 for bucket in buckets):
                    raise self._refuse_unreviewed(source)
                user = await self._request_review(digest, token)
        finally:
            self._waiting.release(source)
        if user is None:
            for bucket in buckets:
                bucket.take(self._clock())
            self._sources.pop(source, None)
            _insert(self._sources, source, source_bucket, SOURCES_MAX)
        return _require_user(user)

    def _refuse_unreviewed(self, source: str) -> CallRefused:
        self._unreviewed.value += 1
        text = (
            f"too many invalid tokens came from {source}, or too many tokens wait for the API "
            "server: try again"
        )
        return CallRefused(GrpcStatus.UNAVAILABLE, text)

    async def _review(self, digest: bytes, token: str) -> User:
        async with self._valid_slots:
            return _require_user(await self._request_review(digest, token))

    async def _request_review(self, digest: bytes, token: str) -> User | None:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        write = Write(verb="create", resource=TokenReviews, body=json.dumps(review).encode())
        try:
            status = json.loads(await self._client.perform(write)).get("status", {})
        except (StatusError, Unreachable) as error:
            self._reviews.of("unanswered").value += 1
            text = f"the API server does not review the token: {error}"
            raise CallRefused(GrpcStatus.UNAVAILABLE, text) from error
        user = _parse_user(status.get("user", {})) if status.get("authenticated") else None
        self._reviews.of("good" if user else "unknown").value += 1
        self._valid.pop(digest, None)
        self._invalid.pop(digest, None)
        _insert(
            self._invalid if user is None else self._valid,
            digest,
            _CachedReview(self._clock() + CACHED_S, user),
            CACHED_MAX,
        )
        return user


def _insert(cached: dict[K, V], key: K, value: V, most: int) -> None:
    """Inserts the item, and evicts the oldest ones beyond *most*."""
    while len(cached) >= most:
        del cached[next(iter(cached))]
    cached[key] = value


def _network_of(peer: str) -> str:
    """Returns the IPv4 address, or the /64 of an IPv6 address, which one host may own as a whole."""
    address = peer.rpartition(":")[0]
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((parsed, 64), strict=False))


def _parse_user(user: dict[str, object]) -> User:
    extra = user.get("extra")
    pairs = sorted(extra.items()) if isinstance(extra, dict) else ()
    groups = user.get("groups")
    return User(
        name=str(user.get("username", "")),
        uid=str(user.get("uid", "")),
        groups=tuple(map(str, groups)) if isinstance(groups, list) else (),
        extra=tuple((str(name), tuple(map(str, values))) for name, values in pairs),
    )


def _require_user(user: User | None) -> User:
    if user is None:
        raise CallRefused(GrpcStatus.UNAUTHENTICATED, "the token is not valid")
    return user
