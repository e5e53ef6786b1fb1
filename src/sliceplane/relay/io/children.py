"""The identities and rights of children, as the parent says; and the watches whose rights
are gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sliceplane.api.errors import StatusError, unauthorized, unavailable
from sliceplane.api.resource import Resource
from sliceplane.api.scheme import SubjectAccessReviews, TokenReviews
from sliceplane.api.users import TOKEN_CHARACTERS_MAX, User
from sliceplane.kit.io.tasks import SharedCalls
from sliceplane.kit.metrics import Metrics
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.relay.reviews import (
    VERDICT_S,
    Verdicts,
    access_reviews,
    decision_of,
    is_node_reading,
    token_review,
    user_of,
)
from sliceplane.server.registry.authorization.index import refusal
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.types import Attributes, Decision
from sliceplane.server.store.watcher import Watcher
from sliceplane.watch.io.base import Unreachable

V = TypeVar("V")

#: reviews that are sent to the parent at a time; others wait
REVIEWS_MAX: Final = 32
#: checks of open watches are spread over their period in so many steps
_STEPS: Final = 20
#: answered without a review, as upstream's --authorization-always-allow-paths
ALWAYS_ALLOWED: Final = ("/healthz", "/livez", "/readyz")
_REMEDY: Final = "; bind the ClusterRole system:auth-delegator to the relay"


class Reviewer(Generic[V]):
    """One kind of review: shares equal questions that are under way, and keeps the answers for
    ``VERDICT_S``.
    """

    def __init__(
        self,
        client: ParentClient,
        resource: Resource,
        read: Callable[[bytes], V],
        room: asyncio.Semaphore,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._resource = resource
        self._read = read
        self._room = room
        self._clock = clock
        self._verdicts: Verdicts[V] = Verdicts(VERDICT_S)
        self._calls: SharedCalls[bytes, V] = SharedCalls()
        self.sent = 0

    def newest(self, question: bytes) -> V | None:
        """Returns the last answer, however old; for a caller that has just asked."""
        verdict = self._verdicts.newest(question)
        return None if verdict is None else verdict.value

    async def ask(self, question: bytes, review: bytes, age_s_max: float = math.inf) -> V:
        """Raises the 503 ``StatusError`` where the parent gives no answer."""
        verdict = self._verdicts.fresh(question, self._clock(), age_s_max)
        if verdict is not None:
            return verdict.value
        return await asyncio.shield(
            self._calls.start(question, lambda: self._send(question, review))
        )

    def close(self) -> None:
        self._calls.cancel()

    async def _send(self, question: bytes, review: bytes) -> V:
        async with self._room:
            self.sent += 1
            asked_at = self._clock()
            try:
                value = self._read(await self._client.post(self._resource.path(), review))
            except (StatusError, Unreachable, ValueError) as error:
                is_forbidden = isinstance(error, StatusError) and error.code == 403
                remedy = _REMEDY if is_forbidden else ""
                kind = self._resource.kind
                raise unavailable(
                    f"the relay's parent did not answer {kind}: {error}{remedy}"
                ) from error
        self._verdicts.put(question, value, asked_at)
        return value


class Children:
    """*trusted*: the plurals that nodes read without a question; empty: none."""

    def __init__(
        self,
        client: ParentClient,
        clock: Callable[[], float],
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        self._trusted = trusted
        room = asyncio.Semaphore(REVIEWS_MAX)
        self._users: Reviewer[User | None] = Reviewer(client, TokenReviews, user_of, room, clock)
        self._decisions = Reviewer(client, SubjectAccessReviews, decision_of, room, clock)
        self.metrics = Metrics()
        self.metrics.computed(
            "counter",
            "sliceplane_relay_reviews_total",
            "Reviews of children that were sent to the parent.",
            lambda: [
                (("TokenReview",), self._users.sent),
                (("SubjectAccessReview",), self._decisions.sent),
            ],
            "kind",
        )

    def close(self) -> None:
        """Ends questions that are under way."""
        self._users.close()
        self._decisions.close()

    def known_user(self, token: str) -> User | None:
        """``user_of`` for a caller that has awaited it."""
        return self._users.newest(_bytes_of(token))

    def known_decision(self, user: User, attributes: Attributes) -> Decision:
        """``decide`` for a caller that has awaited it."""
        if self._needs_no_question(user, attributes):
            return Decision(True)
        decision = Decision(False)
        for review in access_reviews(user, attributes):
            decision = self._decisions.newest(review) or Decision(False)
            if decision.allowed:
                break
        return decision

    async def user_of(self, token: str, age_s_max: float = math.inf) -> User | None:
        """Returns the user of *token*; ``None``: it is not valid.  Raises as ``Reviewer.ask``."""
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
            return None
        return await self._users.ask(_bytes_of(token), token_review(token), age_s_max)

    async def decide(
        self, user: User, attributes: Attributes, age_s_max: float = math.inf
    ) -> Decision:
        """Raises as ``Reviewer.ask``."""
        if self._needs_no_question(user, attributes):
            return Decision(True)
        decision = Decision(False)
        for review in access_reviews(user, attributes):
            decision = await self._decisions.ask(review, review, age_s_max)
            if decision.allowed:
                break
        return decision

    async def require(self, claim: Claim, age_s_max: float = math.inf) -> None:
        """Raises the 401 or 403 ``StatusError`` if the parent refuses *claim*, and 503."""
        user = claim.user
        if claim.token:
            found = await self.user_of(claim.token, age_s_max)
            if found is None:
                raise unauthorized()
            user = found
        decision = await self.decide(user, claim.attributes, age_s_max)
        if not decision.allowed:
            raise refusal(user, claim.attributes, decision.reason)

    def _needs_no_question(self, user: User, attributes: Attributes) -> bool:
        if not attributes.resource:
            return attributes.path.startswith(ALWAYS_ALLOWED)
        return attributes.resource in self._trusted and is_node_reading(user, attributes)


def _bytes_of(token: str) -> bytes:
    return token.encode("utf-8", "surrogateescape")


class OpenChildren:
    """The open watches of children, whose claims are checked again every ``VERDICT_S``. ``run`` is
    one task.

    A parent that gives no answer revokes nothing: the relay goes on with what it has.
    """

    def __init__(self, children: Children) -> None:
        self._children = children
        self._watches: dict[int, tuple[Claim, Watcher]] = {}
        self._last = 0
        self._revoked = children.metrics.counter(
            "sliceplane_relay_revoked_watches_total",
            "Watches of children ended since their token or rights were gone.",
        )

    def begin(self, claim: Claim, watcher: Watcher) -> int:
        """Returns the number to pass to ``end``."""
        self._last += 1
        self._watches[self._last] = claim, watcher
        return self._last

    def end(self, number: int) -> None:
        self._watches.pop(number, None)

    async def run(self) -> None:
        """Checks each watch once in ``VERDICT_S``, a part of them at a time, by answers of the last
        step: with those of others, which may be as old, a revocation would take twice that time.
        """
        step = 0
        while True:
            await asyncio.sleep((VERDICT_S - _age_s()) / _STEPS)
            step = (step + 1) % _STEPS
            due = [number for number in self._watches if number % _STEPS == step]
            await asyncio.gather(*map(self._check, due))

    async def _check(self, number: int) -> None:
        found = self._watches.get(number)
        if found is None:
            return  # it ended since the step began
        claim, watcher = found
        try:
            await self._children.require(claim, _age_s())
        except StatusError as error:
            if error.code in (401, 403) and number in self._watches:
                self._revoked.value += 1
                watcher.close(error)
                watcher.notify()


def _age_s() -> float:
    """The greatest age of an answer by which an open watch goes on."""
    return VERDICT_S / _STEPS
