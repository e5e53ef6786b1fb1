"""Heavy work as the handlers call it: a write that ends as if the registry had done it, and answers in other forms.

An ordinary request never comes here; one that does is the user's only one at that time (``turns``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar, cast

from sliceplane.api.errors import STALE_WRITE, StatusError, conflict, internal
from sliceplane.kit.metrics import Metrics
from sliceplane.registry.registry import Registry
from sliceplane.registry.rehearsal import Collection, Rehearsed, Stale, labelled
from sliceplane.registry.types import Outcome, User
from sliceplane.shell.server.heavy.jobs import HeavyJob, HeavyWrite, Rehearse
from sliceplane.shell.server.heavy.pool import Pool, WorkerDied, Workers
from sliceplane.shell.server.heavy.turns import HeavyTurns
from sliceplane.shell.server.requests.negotiate import PLAIN_JSON, Representation
from sliceplane.store.types import Key

T = TypeVar("T")

#: what is larger is not for the loop: the worst bodies of this size take it about 40 ms
HEAVY_BYTES: Final = 40 * 1024
#: what is stored was found good once, so that it takes less: this share of it counts besides the body
STORED_SHARE: Final = 2
#: heavy requests together, and waiting
TOGETHER: Final = 2
WAITING_OF_USER_MAX: Final = 8
WAITING_MAX: Final = 64
#: how often a write is worked out anew since another write was first (upstream's patches do it five times)
ATTEMPTS_MAX: Final = 6


class Writer(Protocol):
    """The committer, as far as heavy writes need it."""

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T: ...


class Heavy:
    """Owned by the server.  Made without processes; the first heavy request starts one."""

    def __init__(self, workers: Workers | None = None, *, heavy_bytes: int = HEAVY_BYTES) -> None:
        self.workers: Workers = workers if workers is not None else Pool()
        self.turns = HeavyTurns(together=TOGETHER, waiting_of_user_max=WAITING_OF_USER_MAX, waiting_max=WAITING_MAX)
        self.heavy_bytes = heavy_bytes
        self.metrics = Metrics()
        self.metrics.include(self.turns.metrics.families)
        self.requests = self.metrics.counter("sliceplane_heavy_requests_total", "Worked on outside of the event loop.")
        self.stale = self.metrics.counter(
            "sliceplane_heavy_stale_attempts_total", "Worked out for nothing, since somebody else was first."
        )
        self._deaths = self.metrics.counter(
            "sliceplane_heavy_worker_deaths_total", "Processes that ended in the middle of a request."
        )

    def is_heavy(self, size: int) -> bool:
        return size > self.heavy_bytes

    def is_heavy_write(self, body: int, stored: int) -> bool:
        return self.is_heavy(body + stored // STORED_SHARE)

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
        self, write: HeavyWrite, registry: Registry, writer: Writer, errors_in: Representation = PLAIN_JSON
    ) -> Outcome:
        """Within a turn: work it out, commit it, and again if another write was first.  Raises ``StatusError``."""
        target = write.target
        keys = frozenset[Key]()
        collections = frozenset[Collection]()
        for _ in range(ATTEMPTS_MAX):
            extracted = registry.extract(write.context, target, keys, collections)
            job = Rehearse(write=write, found=extracted, errors_in=errors_in)
            done = await _finished(labelled(cast(Rehearsed, await self.run(job))))

            def step() -> Outcome:
                return registry.perform(extracted, done, target, dry_run=write.dry_run)  # noqa: B023  # called in this turn

            try:
                return await writer.write(step, lambda outcome: outcome.revision)
            except Stale as stale:
                self.stale.value += 1
                keys, collections = keys | stale.keys, collections | stale.collections
        raise conflict(target.resource.plural, target.resource.group, target.name, STALE_WRITE)

    async def delete(self, write: HeavyWrite, registry: Registry, writer: Writer) -> None:
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
