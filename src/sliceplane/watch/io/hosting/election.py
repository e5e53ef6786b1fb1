"""Leader election for a process: performs what ``watch.controller.election`` asks, and runs the
work while it leads.

Terms begin and end with an Event about the Lease, as upstream's do (``kubectl describe lease``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Leases
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.tasks import ends_within
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.controller.election import Election, ElectionConfig
from sliceplane.watch.io.base import Client, Unreachable, no_answer, send

#: an end of the process waits so long for the Lease to be released
RELEASE_TIMEOUT_S = 3.0
#: who reports, in Events
COMPONENT = "sliceplane-controllers"

_log = get_logger("election")


class LeaseCandidate:
    """One of several instances.  ``run`` lasts as long as the instance; everything else may be read
    at any time.

    *clock* gives seconds since the epoch and must go on steadily when the machine's is set. *note*
    takes the text of an Event; it must not block.
    """

    def __init__(
        self,
        client: Client,
        config: ElectionConfig,
        *,
        rng: Rng,
        clock: Callable[[], float],
        note: Callable[[EventNote], None] | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._core = Election(config, rng)
        self._work: asyncio.Task[None] | None = None
        self._reported_holder = ""
        self._note = note
        #: how often it came to lead
        self.terms = 0

    @property
    def leading(self) -> bool:
        return self._core.leading(self._clock())

    @property
    def holder(self) -> str:
        return self._core.holder

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until cancelled, or until *work* ends by itself or raises.

        *work* begins anew with each term; it is cancelled when the term ends, and must have stopped
        writing when its cancellation is over.
        """
        try:
            while True:
                if self._work is not None and not self._work.done() and not self.leading:
                    await (
                        self._end_term()
                    )  # first of all: after a sleep of the process others may lead already
                await self._request()
                if self.leading and self._work is None:
                    self.terms += 1
                    _log.info(
                        "became leader", lease=self._config.name, identity=self._config.identity
                    )
                    self._note_event("became leader", "Acquire")
                    self._work = asyncio.get_running_loop().create_task(
                        work(), name="the leader's work"
                    )
                elif self._work is not None and self._work.done():
                    await self._work
                    return
                elif not self.leading and self._work is not None:
                    await self._end_term()
                self._log_new_holder()
                await self._until_due()
        finally:
            await self._end_work()
            await self._release()

    async def _request(self) -> None:
        request = self._core.take_request(self._clock())
        if request is not None:
            # A server that does not answer must not keep us from noticing that our term is over.
            term_ends = self._core.next_deadline()
            timeout_s = (
                self._config.renew_deadline_s
                if term_ends is None
                else max(0.0, term_ends - self._clock())
            )
            await self._send(request, timeout_s)

    async def _send(self, request: Write, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                body = await send(self._client, request)
        except StatusError as error:
            self._failed(request, error)
        except (Unreachable, TimeoutError) as error:
            self._failed(request, no_answer(error))
        except asyncio.CancelledError:
            self._core.on_error(no_answer(TimeoutError("cancelled")), self._clock())
            raise
        else:
            self._core.on_answer(body, self._clock())

    def _failed(self, request: Write, error: StatusError) -> None:
        if error.reason not in ("NotFound", "Conflict", "AlreadyExists"):
            _log.warning(
                "the lease cannot be reached",
                lease=self._config.name,
                verb=request.verb,
                error=str(error),
            )
        self._core.on_error(error, self._clock())

    async def _until_due(self) -> None:
        """Until the next request, the end of the term by the clock, or the end of the work."""
        due = self._core.next_deadline()
        delay = 0.0 if due is None else max(0.0, due - self._clock())
        if self._work is None:
            await asyncio.sleep(delay)
        else:
            await asyncio.wait({self._work}, timeout=delay)

    async def _end_term(self) -> None:
        _log.error(
            "stopped leading: the lease could not be renewed in time", lease=self._config.name
        )
        await self._end_work()

    async def _end_work(self) -> None:
        work = self._work
        self._work = None
        if work is None:
            return
        self._note_event("stopped leading", "Release")
        work.cancel()
        (ended,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(ended, Exception):
            _log.error("the leader's work ended badly", exc_info=ended)

    async def _release(self) -> None:
        """Releases the Lease, so that another instance need not wait until it expires."""
        self._core.stop()
        if not await ends_within(RELEASE_TIMEOUT_S, self._last_requests()):
            _log.warning("the lease was not released in time", lease=self._config.name)

    async def _last_requests(self) -> None:
        while not self._core.ended:
            request = self._core.take_request(self._clock())
            if request is None:
                return
            await self._send(request, RELEASE_TIMEOUT_S)

    def _note_event(self, what: str, action: str) -> None:
        lease = self._core.lease
        if self._note is None or lease is None:
            return
        self._note(
            EventNote(
                regarding=Object(metadata=lease),
                regarding_resource=Leases,
                type="Normal",
                reason="LeaderElection",
                note=f"{self._config.identity} {what}",
                component=COMPONENT,
                action=action,
            )
        )

    def _log_new_holder(self) -> None:
        holder = self._core.holder
        if holder and holder not in (self._reported_holder, self._config.identity):
            _log.info("another instance leads", lease=self._config.name, holder=holder)
        self._reported_holder = holder
