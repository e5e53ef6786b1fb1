"""Heavy work as the handlers call it: a write that ends as if the registry had done it, and answers
in other forms.

An ordinary request never comes here; one that does is the user's only one at that time
(``HeavyTurns``): some users' are worked on together, users in turn, and there is an end to how many
wait. A user who sends ten waits for nine; another who sends one waits for at most one of each that
came before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Final, TypeVar, cast

from sliceplane.api.errors import STALE_WRITE, StatusError, conflict, internal
from sliceplane.kit.metrics import Metrics
from sliceplane.server.io.heavy.jobs import HeavyJob, HeavyWrite, Rehearse
from sliceplane.server.io.heavy.pool import Pool, WorkerDied, Workers
from sliceplane.server.io.requests.limits import TooMany
from sliceplane.server.io.requests.response import PLAIN_JSON, Representation
from sliceplane.server.io.storage.committing import Durability
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.rehearsal import Collection, Rehearsed, Stale, labelled
from sliceplane.server.registry.types import Outcome, User
from sliceplane.server.store.types import Key

T = TypeVar("T")

#: what is larger is not for the loop: the worst bodies of this size take it about 40 ms
HEAVY_BYTES: Final = 40 * 1024
#: what is stored was found good once, so that it takes less: this share of it counts besides the
#: body
STORED_SHARE: Final = 2
#: heavy requests together, and waiting
TOGETHER: Final = 2
WAITING_OF_USER_MAX: Final = 8
WAITING_MAX: Final = 64
#: how often a write is worked out anew since another write was first (upstream's patches do it five
#: times)
ATTEMPTS_MAX: Final = 6


class Heavy:
    """Owned by the server.  Made without processes; the first heavy request starts one."""

    def __init__(self, workers: Workers | None = None, *, heavy_bytes: int = HEAVY_BYTES) -> None:
        self.workers: Workers = workers if workers is not None else Pool()
        self.turns = HeavyTurns(
            together=TOGETHER, waiting_of_user_max=WAITING_OF_USER_MAX, waiting_max=WAITING_MAX
        )
        self.heavy_bytes = heavy_bytes
        self.metrics = Metrics()
        self.metrics.include(self.turns.metrics.families)
        self.requests = self.metrics.counter(
            "sliceplane_heavy_requests_total", "Worked on outside of the event loop."
        )
        self.stale = self.metrics.counter(
            "sliceplane_heavy_stale_attempts_total",
            "Worked out for nothing, since somebody else was first.",
        )
        self._deaths = self.metrics.counter(
            "sliceplane_heavy_worker_deaths_total",
            "Processes that ended in the middle of a request.",
        )

    def is_heavy(self, size: int) -> bool:
        return size > self.heavy_bytes

    @asynccontextmanager
    async def turn(self, user: User) -> AsyncIterator[None]:
        """The user's turn.  Raises ``TooMany``."""
        async with self.turns.admit(user.name):
            self.requests.value += 1
            yield

    async def run(self, job: HeavyJob) -> object:
        """Within a turn.  Raises what the job raises, ``TimeoutError``, and 500 ``StatusError``."""
        try:
            return cast(object, await self.workers.run(job))
        except WorkerDied as error:
            self._deaths.value += 1
            raise internal("the process that worked on the request ended") from error

    async def write(
        self,
        write: HeavyWrite,
        registry: Registry,
        writer: Durability,
        errors_in: Representation = PLAIN_JSON,
    ) -> Outcome:
        """Within a turn: work it out, commit it, and again if another write was first.  Raises
        ``StatusError``.
        """
        target = write.target
        keys = frozenset[Key]()
        collections = frozenset[Collection]()
        for _ in range(ATTEMPTS_MAX):
            extracted = registry.extract(write.context, target, keys, collections)
            job = Rehearse(write=write, found=extracted, errors_in=errors_in)
            done = await _finished(labelled(cast(Rehearsed, await self.run(job))))

            def step() -> Outcome:
                # called in this turn
                return registry.perform(
                    write.context,
                    extracted,  # noqa: B023
                    done,  # noqa: B023
                    target,
                    dry_run=write.dry_run,
                )

            try:
                return await writer.write(step, lambda outcome: outcome.revision)
            except Stale as stale:
                self.stale.value += 1
                keys = keys | stale.keys
                collections = collections | stale.collections
        raise conflict(target.resource.plural, target.resource.group, target.name, STALE_WRITE)

    async def delete(self, write: HeavyWrite, registry: Registry, writer: Durability) -> None:
        """Within a turn: as ``write``, but what is gone by then was to be deleted anyway."""
        try:
            await self.write(write, registry, writer)
        except StatusError as error:
            if error.code != 404:
                raise

    async def render(self, job: HeavyJob, user: User | None) -> bytes:
        """An answer in another form; in a turn of *user*, ``None``: they have it already."""
        if user is None:
            return cast(bytes, await self.run(job))
        async with self.turn(user):
            return cast(bytes, await self.run(job))

    async def close(self) -> None:
        await self.workers.close()


async def _finished(steps: Generator[None, None, T]) -> T:
    """What *steps* return, with the turns of all others between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        await asyncio.sleep(0)


class HeavyTurns:
    """Owned by the server's ``Heavy``; used in one loop."""

    def __init__(self, *, together: int, waiting_of_user_max: int, waiting_max: int) -> None:
        self._free = together
        self._waiting_of_user_max = waiting_of_user_max
        self._waiting_max = waiting_max
        #: users with work under way
        self._busy: set[str] = set()
        #: by user, in the order in which the users' turns come
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting = 0
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_heavy_running_requests",
            "Worked on outside of the event loop.",
            lambda: len(self._busy),
        )
        self.metrics.computed(
            "gauge", "sliceplane_heavy_waiting_requests", "Waiting for that.", lambda: self.waiting
        )
        self.refused = self.metrics.counter(
            "sliceplane_heavy_refused_requests_total", "Answered with 429: too many wait."
        )

    @asynccontextmanager
    async def admit(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the block.  Raises ``TooMany`` at once if too many wait
        already.
        """
        if not self._free or user in self._busy:
            await self._wait(user)
        else:
            self._take(user)
        try:
            yield
        finally:
            self._free += 1
            self._busy.discard(user)
            self._call_next()

    def _take(self, user: str) -> None:
        assert self._free > 0, f"there is no room for {user}"
        assert user not in self._busy, f"{user} has a turn"
        self._free -= 1
        self._busy.add(user)

    async def _wait(self, user: str) -> None:
        if (
            self.waiting >= self._waiting_max
            or len(self._queues.get(user, ())) >= self._waiting_of_user_max
        ):
            self.refused.value += 1
            raise TooMany("heavy requests")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(user, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was called in the same moment: the turn goes to the next.
                self._free += 1
                self._busy.discard(user)
                self._call_next()
            else:
                self._drop(user, turn)
            raise

    def _drop(self, user: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[user]
        queue.remove(turn)
        self.waiting -= 1
        if not queue:
            del self._queues[user]

    def _call_next(self) -> None:
        while self._free:
            user = next((name for name in self._queues if name not in self._busy), None)
            if user is None:
                return
            queue = self._queues.pop(user)
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                # Behind all others.
                self._queues[user] = queue
            if turn.cancelled():
                continue
            self._take(user)
            turn.set_result(None)

    def check(self) -> None:
        assert self.waiting == sum(map(len, self._queues.values())), f"{self.waiting} are counted"
        assert all(self._queues.values()), "a user who waits for nothing is remembered"
        idle = [user for user in self._queues if user not in self._busy]
        assert not (self._free and idle), f"{idle} wait although there is room"
