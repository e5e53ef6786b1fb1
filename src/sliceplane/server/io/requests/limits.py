"""How much the server takes on at a time; beyond it a request is told to come back (429).

``flowcontrol`` decides; here is what it needs of a process: the clock, and tasks that sleep until
it is their turn. What a request holds depends on where it is (``RequestPlace``):

- while its body arrives, and as long as it is needed: bytes, of which a user has a share; no seat
- while a version of the future is waited for: one of a user's waits; no seat
- while it is worked on, until storage has it: a seat, for which it may have to stand in line
- while a large answer is taken by its client: bytes; no seat.  A watch is one of a user's streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from sliceplane.kit.metrics import Metrics
from sliceplane.kit.shares import Shares
from sliceplane.server.fairness.control import FlowControl
from sliceplane.server.fairness.seats import SeatTicket
from sliceplane.server.fairness.types import Flow, Kind
from sliceplane.server.registry.types import User

#: who found no seat in this time is told to come back (upstream: a quarter of the time for a
#: request)
LINE_S_MAX = 15.0
#: what a request with a body counts for at least, however little of it has come
BODY_BYTES_LEAST = 16 * 1024
#: what a watch keeps of its request: for each header and each of its bytes, and for each byte of
#: selectors, parsed
HEADER_BYTES = 160
HEADER_BYTES_EACH = 1
QUERY_BYTES_EACH = 28


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``reads_max`` and ``writes_max``: requests being worked on (upstream's
    --max-requests-inflight and --max-mutating-requests-inflight), shared among priority levels;
    ``watches_max``: open streams; ``connections_max``: TCP connections; ``watch_bytes_max``: of the
    requests of open streams; ``bodies_bytes_max``: of requests that are arriving or not answered;
    ``future_reads_max``: reads that wait for a version of the future, and ``future_reads_of_user``;
    ``unsent_bytes_max``: of large responses whose clients have not taken them yet.
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


class TooMany(Exception):
    """There is no room for this request now."""


class InFlight:
    """What is being answered, and what that holds.  Owned by the server."""

    def __init__(self, limits: Limits) -> None:
        self.flows = FlowControl(reads=limits.reads_max, writes=limits.writes_max)
        self.bodies = Shares(limits.bodies_bytes_max)
        self.future_reads = Shares(limits.future_reads_max, most_each=limits.future_reads_of_user)
        self.watches = Shares(limits.watches_max)
        self.watch_bytes = Shares(limits.watch_bytes_max)
        self.unsent = Shares(limits.unsent_bytes_max)
        #: who stands in line
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
        shared = {
            ("body-bytes",): self.bodies,
            ("future-reads",): self.future_reads,
            ("unsent-bytes",): self.unsent,
            ("watch-bytes",): self.watch_bytes,
            ("watches",): self.watches,
        }
        self.metrics.computed(
            "gauge",
            "sliceplane_shared_held",
            "Held by requests now, of what users share: bytes of bodies, waits for future "
            "versions, bytes that clients "
            "have not taken, watches and the bytes of their requests.",
            lambda: [(labels, shares.total) for labels, shares in shared.items()],
            "what",
        )
        self.metrics.computed(
            "counter",
            "sliceplane_shared_refused_total",
            "Requests that got 429 since they would have taken more than their user's share.",
            lambda: [(labels, shares.refused) for labels, shares in shared.items()],
            "what",
        )

    @contextmanager
    def hold(self, shares: Shares, flow: Flow, user: User, amount: int = 1) -> Iterator[None]:
        """Raises ``TooMany`` instead of entering."""
        if not shares.take(user.name, amount, flow.level.standing):
            raise TooMany
        try:
            yield
        finally:
            shares.give(user.name, amount)

    @contextmanager
    def hold_stream(self, flow: Flow, user: User, size_bytes: int) -> Iterator[None]:
        """A watch, or a request that is held as one, of *size_bytes*.  Raises ``TooMany`` instead
        of entering.
        """
        standing = flow.level.standing
        if not self.watches.take(user.name, 1, standing):
            raise TooMany
        if not self.watch_bytes.take(user.name, size_bytes, standing):
            self.watches.give(user.name)
            raise TooMany
        try:
            yield
        finally:
            self.watches.give(user.name)
            self.watch_bytes.give(user.name, size_bytes)

    async def stand_in_line(self, kind: Kind, ticket: SeatTicket) -> None:
        """Return when *ticket* has a seat. Raises ``TooMany`` after ``LINE_S_MAX``; who does not
        wait any more is in no line.
        """
        seats = self.flows.seats[kind]
        woken = self._sleeping[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LINE_S_MAX):
                await woken
        except TimeoutError:
            if ticket.state == "waiting":
                seats.leave(ticket, time.monotonic(), reason="time-out")
                raise TooMany from None
        finally:
            del self._sleeping[ticket]
            if ticket.state == "waiting":
                seats.leave(ticket, time.monotonic(), reason="cancelled")

    def leave(self, kind: Kind, ticket: SeatTicket) -> None:
        for seated in self.flows.seats[kind].leave(ticket, time.monotonic()):
            woken = self._sleeping[seated]
            # It may just have been cancelled: then its task gives the seat back.
            if not woken.done():
                woken.set_result(None)


def kept_bytes(headers: Mapping[bytes, bytes], query: bytes) -> int:
    """What a request takes in memory for as long as it is answered; of what its client chose the
    size of.
    """
    heads = sum(
        HEADER_BYTES + HEADER_BYTES_EACH * (len(name) + len(value))
        for name, value in headers.items()
    )
    return heads + QUERY_BYTES_EACH * len(query)


class RequestPlace:
    """What one request holds, from its beginning until its answer is known.  Owned by the task that
    answers it.
    """

    __slots__ = ("_body_bytes", "_flow", "_in_flight", "_kind", "_ticket", "_user")

    def __init__(self, in_flight: InFlight, flow: Flow, user: User, kind: Kind) -> None:
        self._in_flight = in_flight
        self._flow = flow
        self._user = user
        self._kind = kind
        self._ticket: SeatTicket | None = None
        self._body_bytes = 0

    def hold_body(self, size: int) -> None:
        """So much of the body has come by now.  Raises ``TooMany``."""
        more = max(size, BODY_BYTES_LEAST) - self._body_bytes
        if more <= 0:
            return
        if not self._in_flight.bodies.take(self._user.name, more, self._flow.level.standing):
            raise TooMany
        self._body_bytes += more

    @contextmanager
    def awaiting_future(self) -> Iterator[None]:
        """A version of the future is waited for.  Raises ``TooMany`` instead of entering."""
        with self._in_flight.hold(self._in_flight.future_reads, self._flow, self._user):
            yield

    async def sit(self) -> None:
        """All that the client has to give is there: return when the request may be worked on.
        Raises ``TooMany``.
        """
        if self._ticket is not None:
            return
        ticket, refused = self._in_flight.flows.seats[self._kind].ask(self._flow, time.monotonic())
        if refused is not None:
            raise TooMany
        self._ticket = ticket
        if ticket.state == "waiting":
            await self._in_flight.stand_in_line(self._kind, ticket)

    def close(self) -> None:
        """The answer is known, or will never be."""
        if self._ticket is not None:
            self._in_flight.leave(self._kind, self._ticket)
            self._ticket = None
        if self._body_bytes:
            self._in_flight.bodies.give(self._user.name, self._body_bytes)
            self._body_bytes = 0
