"""Offloaded work for the request handlers: a write with the result that the registry itself would
have, and answers in other forms.

Ordinary requests never come here. A user has one offloaded request at a time (``OffloadQueue``): a
few users' run together, users are served round-robin, and the number of waiting requests is
bounded. A user who sends ten waits for nine; another who sends one waits for at most one of each
user before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

from sliceplane.api.errors import STALE_WRITE, StatusError, conflict, internal
from sliceplane.api.users import User
from sliceplane.kit.metrics import Metrics
from sliceplane.server.io.offload.jobs import Job, T, WriteRequest, work_out_write
from sliceplane.server.io.offload.pool import Pool, WorkerDied, Workers
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.response import PLAIN_JSON, Representation
from sliceplane.server.io.storage.committing import Durability
from sliceplane.server.registry.offload import Collection, StaleInput, attach_labels
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Outcome
from sliceplane.server.store.types import Key

#: larger bodies are offloaded: the worst bodies of this size keep the loop for about 40 ms
OFFLOAD_BYTES: Final = 40 * 1024
#: a stored object was validated once and costs less: this share of it counts beside the body
STORED_SHARE: Final = 2
#: offloaded requests that run together
TOGETHER: Final = 2
WAITING_OF_USER_MAX: Final = 8
WAITING_MAX: Final = 64
#: attempts of a write whose input another write changed (upstream's patches have five)
ATTEMPTS_MAX: Final = 6


class OffloadService:
    """Owned by the server.  Made without processes; the first heavy request starts one."""

    def __init__(
        self, workers: Workers | None = None, *, offload_bytes: int = OFFLOAD_BYTES
    ) -> None:
        self.workers: Workers = workers if workers is not None else Pool()
        self.queue = OffloadQueue(
            together=TOGETHER, waiting_of_user_max=WAITING_OF_USER_MAX, waiting_max=WAITING_MAX
        )
        self.offload_bytes = offload_bytes
        self.metrics = Metrics()
        self.metrics.include(self.queue.metrics.families)
        self.requests = self.metrics.counter(
            "sliceplane_heavy_requests_total", "Requests worked on outside of the event loop."
        )
        self.stale = self.metrics.counter(
            "sliceplane_heavy_stale_attempts_total",
            "Writes worked out again because another write changed their input.",
        )
        self._deaths = self.metrics.counter(
            "sliceplane_heavy_worker_deaths_total",
            "Processes that ended in the middle of a request.",
        )

    def needs_offload(self, size: int) -> bool:
        return size > self.offload_bytes

    @asynccontextmanager
    async def slot(self, user: User) -> AsyncIterator[None]:
        """Waits for a slot of *user*, held by the block.  Raises ``OverCapacity``."""
        async with self.queue.admit(user.name):
            self.requests.value += 1
            yield

    async def run(self, job: Job[T]) -> T:
        """Within a slot.  Raises what the job raises, ``TimeoutError``, and 500 ``StatusError``."""
        try:
            return await self.workers.run(job)
        except WorkerDied as error:
            self._deaths.value += 1
            raise internal("the process that worked on the request ended") from error

    async def write(
        self,
        write: WriteRequest,
        registry: Registry,
        writer: Durability,
        errors_in: Representation = PLAIN_JSON,
    ) -> Outcome:
        """Within a slot: works the write out and commits it; retries if another write was first.
        Raises ``StatusError``.
        """
        target = write.target
        keys = frozenset[Key]()
        collections = frozenset[Collection]()
        for _ in range(ATTEMPTS_MAX):
            basis = registry.gather_input(write.context, target, keys, collections)
            result = await self.run(partial(work_out_write, write, basis, errors_in))
            result = await _finished(attach_labels(result))
            step = partial(
                registry.apply_result, write.context, basis, result, target, dry_run=write.dry_run
            )
            try:
                return await writer.write(step, lambda outcome: outcome.revision)
            except StaleInput as stale:
                self.stale.value += 1
                keys |= stale.keys
                collections |= stale.collections
        raise conflict(target.resource.plural, target.resource.group, target.name, STALE_WRITE)

    async def delete(self, write: WriteRequest, registry: Registry, writer: Durability) -> None:
        """Within a slot: as ``write``, but an object that is gone by then is no error."""
        try:
            await self.write(write, registry, writer)
        except StatusError as error:
            if error.code != 404:
                raise

    async def render(self, job: Job[bytes], user: User | None) -> bytes:
        """Renders an answer in another form, in a slot of *user*; ``None``: the caller has one."""
        if user is None:
            return await self.run(job)
        async with self.slot(user):
            return await self.run(job)

    async def close(self) -> None:
        await self.workers.close()


async def _finished(steps: Generator[None, None, T]) -> T:
    """Returns what *steps* return; other tasks run between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        await asyncio.sleep(0)


class OffloadQueue:
    """A fair queue of users.  Owned by the server's ``OffloadService``; used in one loop."""

    def __init__(self, *, together: int, waiting_of_user_max: int, waiting_max: int) -> None:
        self._free = together
        self._waiting_of_user_max = waiting_of_user_max
        self._waiting_max = waiting_max
        #: users with work under way
        self._busy: set[str] = set()
        #: by user, in the order in which users are served
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting = 0
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_heavy_running_requests",
            "Requests that run outside of the event loop.",
            lambda: len(self._busy),
        )
        self.metrics.computed(
            "gauge",
            "sliceplane_heavy_waiting_requests",
            "Requests that wait for that.",
            lambda: self.waiting,
        )
        self.refused = self.metrics.counter(
            "sliceplane_heavy_refused_requests_total", "Answered with 429: too many wait."
        )

    @asynccontextmanager
    async def admit(self, user: str) -> AsyncIterator[None]:
        """Waits for a slot, held by the block.  Raises ``OverCapacity`` immediately if too many
        requests wait already.
        """
        if not self._free or user in self._busy:
            await self._wait(user)
        else:
            self._take(user)
        try:
            yield
        finally:
            self._release(user)

    def _take(self, user: str) -> None:
        assert self._free > 0, f"there is no room for {user}"
        assert user not in self._busy, f"{user} has a slot"
        self._free -= 1
        self._busy.add(user)

    async def _wait(self, user: str) -> None:
        if (
            self.waiting >= self._waiting_max
            or len(self._queues.get(user, ())) >= self._waiting_of_user_max
        ):
            self.refused.value += 1
            raise OverCapacity("heavy requests")
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(user, deque()).append(slot)
        self.waiting += 1
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                # The slot was assigned in the same moment: pass it on.
                self._release(user)
            else:
                self._queues[user].remove(slot)
                self.waiting -= 1
                if not self._queues[user]:
                    del self._queues[user]
            raise

    def _release(self, user: str) -> None:
        self._free += 1
        self._busy.discard(user)
        while self._free:
            following = next((name for name in self._queues if name not in self._busy), None)
            if following is None:
                return
            queue = self._queues.pop(following)
            slot = queue.popleft()
            self.waiting -= 1
            if queue:
                # Behind all others.
                self._queues[following] = queue
            if slot.cancelled():
                continue
            self._take(following)
            slot.set_result(None)

    def check(self) -> None:
        assert self.waiting == sum(map(len, self._queues.values())), f"{self.waiting} are counted"
        assert all(self._queues.values()), "a user who waits for nothing is remembered"
        idle = [user for user in self._queues if user not in self._busy]
        assert not (self._free and idle), f"{idle} wait although there is room"
