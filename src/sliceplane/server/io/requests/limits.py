"""Bounds on the work that a server takes on at a time; a request beyond one gets 429.

``server.fairness`` decides about seats and ``kit.shares`` about everything else; this module adds
the clock, and tasks that sleep until they have a seat. ``RequestCharges`` is what one request
holds, which depends on its phase:

- while its body arrives, and as long as the body is needed: bytes, shared by users; no seat
- while it waits for a future version: one of its user's waits; no seat
- while it is executed, until storage has it: a seat, which it may have to queue for
- while its client takes a large answer: bytes; no seat. A watch is one of its user's streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import asdict

from sliceplane.api.users import User
from sliceplane.kit.io.tls.unauthenticated import BYTES_MAX
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.server.fairness.control import FlowControl
from sliceplane.server.fairness.seats import SeatTicket
from sliceplane.server.fairness.types import Flow, Kind

#: seconds in a queue after which a request gets 429 (upstream: a quarter of a request's time)
QUEUE_S_MAX = 15.0
#: minimum charge of a request with a body, however little of it has come
BODY_BYTES_LEAST = 16 * 1024
#: memory that a watch keeps of its request: for each header and each of its bytes, and for each
#: byte of parsed selectors
HEADER_BYTES = 160
HEADER_BYTES_EACH = 1
QUERY_BYTES_EACH = 28

#: an amount that users share; also the label of its metrics
Budget = Literal["body-bytes", "future-reads", "unsent-bytes", "watch-bytes", "watches"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``reads_max`` and ``writes_max``: requests being executed (upstream's
    --max-requests-inflight and --max-mutating-requests-inflight), shared by priority levels;
    ``watches_max``: open streams; ``connections_max``: TCP connections; ``watch_bytes_max``: of the
    requests of open streams; ``bodies_bytes_max``: of requests that arrive or are not answered yet;
    ``future_reads_max``: reads that wait for a future version, and ``future_reads_of_user``;
    ``unsent_bytes_max``: of large responses that clients have not taken yet;
    ``unauthenticated_bytes_max``: of connections without an authenticated user.
    """

    reads_max: int = 400
    writes_max: int = 200
    watches_max: int = 20_000
    watch_bytes_max: int = 512 * 1024 * 1024
    connections_max: int = 30_000
    bodies_bytes_max: int = 256 * 1024 * 1024
    future_reads_max: int = 1_000
    future_reads_of_user: int = 100
    unsent_bytes_max: int = 512 * 1024 * 1024
    unauthenticated_bytes_max: int = BYTES_MAX

    def share(self, count: int) -> Limits:
        """Returns the part of each of *count* processes that serve one port."""
        return Limits(**{name: max(value // count, 1) for name, value in asdict(self).items()})


class OverCapacity(Exception):
    """The server has no capacity for this request now."""


class InFlight:
    """The seats and budgets of all requests.  Owned by the server."""

    def __init__(self, limits: Limits) -> None:
        self.flows = FlowControl(reads=limits.reads_max, writes=limits.writes_max)
        self.budgets: dict[Budget, Shares] = {
            "body-bytes": Shares(limits.bodies_bytes_max),
            "future-reads": Shares(limits.future_reads_max, most_each=limits.future_reads_of_user),
            "unsent-bytes": Shares(limits.unsent_bytes_max),
            "watch-bytes": Shares(limits.watch_bytes_max),
            "watches": Shares(limits.watches_max),
        }
        #: requests in a queue
        self._sleeping: dict[SeatTicket, asyncio.Future[None]] = {}
        self.metrics = Metrics()
        self.metrics.include(self.flows.metrics.families)
        seats = self.flows.seats
        self.metrics.computed(
            "gauge",
            "apiserver_current_inflight_requests",
            "Requests that have a seat.",
            lambda: ((("mutating",), seats["write"].in_use), (("readOnly",), seats["read"].in_use)),
            "request_kind",
        )
        self.metrics.computed(
            "gauge",
            "sliceplane_shared_held",
            "Held by requests now, of what users share: bytes of bodies, waits for future "
            "versions, bytes that clients have not taken, watches and the bytes of their requests.",
            lambda: [((budget,), shares.total) for budget, shares in self.budgets.items()],
            "what",
        )
        self.metrics.computed(
            "counter",
            "sliceplane_shared_refused_total",
            "Requests that got 429 since they would have taken more than their user's share.",
            lambda: [((budget,), shares.refused) for budget, shares in self.budgets.items()],
            "what",
        )

    async def wait_in_queue(self, kind: Kind, ticket: SeatTicket) -> None:
        """Returns when *ticket* has a seat. Raises ``OverCapacity`` after ``QUEUE_S_MAX``; a request
        that does not wait any more is in no queue.
        """
        woken = self._sleeping[ticket] = asyncio.get_running_loop().create_future()
        reason: Literal["cancelled", "time-out"] = "cancelled"
        try:
            async with asyncio.timeout(QUEUE_S_MAX):
                await woken
        except TimeoutError:
            if ticket.state == "waiting":
                reason = "time-out"
                raise OverCapacity from None
        finally:
            del self._sleeping[ticket]
            if ticket.state == "waiting":
                self.flows.seats[kind].release(ticket, time.monotonic(), reason=reason)

    def release(self, kind: Kind, ticket: SeatTicket) -> None:
        for seated in self.flows.seats[kind].release(ticket, time.monotonic()):
            woken = self._sleeping[seated]
            # It may just have been cancelled: then its task gives the seat back.
            if not woken.done():
                woken.set_result(None)


def kept_bytes(headers: Mapping[bytes, bytes], query: bytes) -> int:
    """Returns the memory of the parts of a request whose size its client chose, while it is
    answered.
    """
    heads = sum(
        HEADER_BYTES + HEADER_BYTES_EACH * (len(name) + len(value))
        for name, value in headers.items()
    )
    return heads + QUERY_BYTES_EACH * len(query)


class RequestCharges:
    """The seat and the amounts that one request holds.  Owned by the task that answers it."""

    __slots__ = ("_amounts", "_flow", "_in_flight", "_kind", "_ticket", "_user")

    def __init__(self, in_flight: InFlight, flow: Flow, user: User, kind: Kind) -> None:
        self._in_flight = in_flight
        self._flow = flow
        self._user = user
        self._kind = kind
        self._ticket: SeatTicket | None = None
        self._amounts: dict[Budget, int] = {}

    def raise_to(self, budget: Budget, amount: int) -> None:
        """Holds *amount* of *budget* at least.  Raises ``OverCapacity``."""
        more = amount - self._amounts.get(budget, 0)
        if more <= 0:
            return
        shares = self._in_flight.budgets[budget]
        if not shares.take(self._user.name, more, self._flow.level.standing):
            raise OverCapacity
        self._amounts[budget] = amount

    def on_body(self, size: int) -> None:
        """Charges *size* bytes of the body, which have arrived by now. Raises ``OverCapacity``."""
        self.raise_to("body-bytes", max(size, BODY_BYTES_LEAST))

    def open_stream(self, size_bytes: int) -> None:
        """A watch, or a request that is held as one, of *size_bytes*.  Raises ``OverCapacity``."""
        self.raise_to("watches", 1)
        self.raise_to("watch-bytes", size_bytes)

    def release(self, budget: Budget) -> None:
        """Idempotent."""
        amount = self._amounts.pop(budget, 0)
        if amount:
            self._in_flight.budgets[budget].release(self._user.name, amount)

    async def take_seat(self) -> None:
        """Returns when the request, which is there as a whole, may be executed.  Raises
        ``OverCapacity``.
        """
        if self._ticket is not None:
            return
        ticket, refused = self._in_flight.flows.seats[self._kind].acquire(
            self._flow, time.monotonic()
        )
        if refused is not None:
            raise OverCapacity
        self._ticket = ticket
        if ticket.state == "waiting":
            await self._in_flight.wait_in_queue(self._kind, ticket)

    def finish_work(self) -> None:
        """The answer is ready, or will never be: nothing is executed, and the body is not needed.
        Idempotent.
        """
        if self._ticket is not None:
            self._in_flight.release(self._kind, self._ticket)
            self._ticket = None
        self.release("body-bytes")

    def close(self) -> None:
        """Idempotent."""
        self.finish_work()
        for budget in tuple(self._amounts):
            self.release(budget)
