"""Who is behind a call: the certificate of its connection, or its bearer token, which the API
server reviews.

A TokenReview is requested once a minute and token at most, however many streams come with it, and
by one call at a time. Tokens are kept as digests. What the API server did not answer is not kept:
the call is UNAVAILABLE and comes again.

Anybody can make tokens up, and a review costs the API server, at the priority level of this
server's own account. So reviews of tokens that were never good are few: ``REVIEWS_MAX`` at a time,
and from an address that sent made-up tokens ``STRANGE_PER_S`` a second behind the first
``STRANGE_BURST``. Beyond that a call is UNAVAILABLE, unreviewed. A token that was good before is
not affected by any of this: its reviews have slots of their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, Protocol, TypeVar

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import TokenReviews
from sliceplane.api.users import TOKEN_CHARACTERS_MAX, User, bearer_token
from sliceplane.kit.http2.grpc import GrpcStatus
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.certificates import Certificate

#: an answer of the API server counts so long
KEPT_S: Final = 60.0
#: digests of good tokens, and of others
KEPT_MAX: Final = 10_000
#: a token that was good within so long is reviewed before others
GOOD_S: Final = 3600.0
#: reviews under way of tokens that were good, and as many of others
REVIEWS_MAX: Final = 16
#: tokens that were never good and wait for a review, shared by address
WAITING_MAX: Final = 2_000
#: made-up tokens of one address that are reviewed at once, and then a second
STRANGE_BURST: Final = 20.0
STRANGE_PER_S: Final = 1.0
#: the same, of all addresses together
STRANGE_BURST_ALL: Final = 200.0
STRANGE_PER_S_ALL: Final = 10.0
#: addresses whose made-up tokens are counted, the newest
SOURCES_MAX: Final = 4_096

K = TypeVar("K")
V = TypeVar("V")

#: who asks on a port that only this machine reaches, as on the API server's insecure port of old
UNSECURED: Final = User(name="system:unsecured", groups=("system:masters", "system:authenticated"))


class CallRefused(Exception):
    """A call that gets no answer but this."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Authenticator(Protocol):
    """Raises ``CallRefused``, at once or when it is awaited; several callers may await the same.

    *peer*: ``ADDRESS:PORT`` of the client.
    """

    def user(
        self, certificate: Certificate | None, authorization: str, peer: str
    ) -> User | Awaitable[User]: ...


class Unsecured:
    """Of a plain port on loopback: every client is the administrator of this machine."""

    def user(self, certificate: Certificate | None, authorization: str, peer: str) -> User:
        return UNSECURED


class _Kept(NamedTuple):
    """An answer: until when it counts, and whose the token is; ``None``: the API server does not
    know it.
    """

    until: float
    user: User | None


class _Allowance:
    """Made-up tokens that are still reviewed: falls with each, and rises with time."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = most
        self._at = now

    def left(self, now: float) -> float:
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left

    def take(self, now: float) -> None:
        self._left = self.left(now) - 1.0


class ReviewedTokens:
    """The API server says whose a token is.  Owned by one listener."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        #: by digest: what was good within ``GOOD_S``, and what was not
        self._good: dict[bytes, _Kept] = {}
        self._strange: dict[bytes, _Kept] = {}
        self._asking: dict[bytes, asyncio.Task[User]] = {}
        self._good_slots = asyncio.Semaphore(REVIEWS_MAX)
        self._strange_slots = asyncio.Semaphore(REVIEWS_MAX)
        self._waiting = Shares(WAITING_MAX)
        self._sources: dict[str, _Allowance] = {}
        self._all_sources = _Allowance(STRANGE_BURST_ALL, STRANGE_PER_S_ALL, clock())
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
                "the client certificate is over"
                if certificate is not None
                else "neither certificate nor token"
            )
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, text)
        if len(token) > TOKEN_CHARACTERS_MAX:
            text = f"a token of {len(token)} characters; {TOKEN_CHARACTERS_MAX} are taken"
            raise CallRefused(GrpcStatus.UNAUTHENTICATED, text)
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        kept = self._good.get(digest) or self._strange.get(digest)
        if kept is not None and now < kept.until:
            return _known(kept.user)
        task = self._asking.get(digest)
        if task is None:
            was_good = kept is not None and kept.user is not None and now < kept.until + GOOD_S
            asked = (
                self._review(digest, token)
                if was_good
                else self._review_strange(digest, token, _source(peer))
            )
            task = self._asking[digest] = asyncio.create_task(asked)
            task.add_done_callback(partial(self._on_asked, digest))
        return task

    def _on_asked(self, digest: bytes, task: asyncio.Task[User]) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # all calls that wanted to know it may be gone

    async def _review_strange(self, digest: bytes, token: str, source: str) -> User:
        """A token that was never good, from the address *source*: only if few made-up ones came
        from there.
        """
        if not self._waiting.take(source):
            raise self._unreviewed_token(source)
        try:
            async with self._strange_slots:
                now = self._clock()
                of_source = self._sources.get(source) or _Allowance(
                    STRANGE_BURST, STRANGE_PER_S, now
                )
                allowances = (of_source, self._all_sources)
                if any(allowance.left(now) < 1.0 for allowance in allowances):
                    raise self._unreviewed_token(source)
                user = await self._requested(digest, token)
        finally:
            self._waiting.give(source)
        if user is None:
            for allowance in allowances:
                allowance.take(self._clock())
            self._sources.pop(source, None)
            _keep(self._sources, source, of_source, SOURCES_MAX)
        return _known(user)

    def _unreviewed_token(self, source: str) -> CallRefused:
        self._unreviewed.value += 1
        text = (
            f"too many tokens that are not known came from {source}, or wait for the API server: "
            "try again"
        )
        return CallRefused(GrpcStatus.UNAVAILABLE, text)

    async def _review(self, digest: bytes, token: str) -> User:
        async with self._good_slots:
            return _known(await self._requested(digest, token))

    async def _requested(self, digest: bytes, token: str) -> User | None:
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
            text = f"the API server does not say whose token it is: {error}"
            raise CallRefused(GrpcStatus.UNAVAILABLE, text) from error
        user = _reviewed(status.get("user", {})) if status.get("authenticated") else None
        self._reviews.of("good" if user else "unknown").value += 1
        self._good.pop(digest, None)
        self._strange.pop(digest, None)
        _keep(
            self._strange if user is None else self._good,
            digest,
            _Kept(self._clock() + KEPT_S, user),
            KEPT_MAX,
        )
        return user


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """The oldest makes room."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def _source(peer: str) -> str:
    """The address; of IPv6 the network of 64 bits, which one machine may have for itself."""
    address = peer.rpartition(":")[0]
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((parsed, 64), strict=False))


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
