"""The network between controllers and server: requests that are lost, doubled, late or refused.

A request takes a few milliseconds each way. A sender without an answer gives up after
``WRITE_TIMEOUT_S`` and gets the production host's error: ``Unreachable``, with an unknown outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError, internal, unreachable
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Leases
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.collection import check_deletion
from sliceplane.lab.sim.faults import FaultPlan
from sliceplane.lab.sim.scheduler import Callback, Scheduler, Trace
from sliceplane.lab.sim.server import Server, described
from sliceplane.watch.controller.base import Write

#: seconds; as in the production host
WRITE_TIMEOUT_S: Final = 40.0
#: one way, in seconds
LATENCY_MIN_S: Final = 0.0005
LATENCY_MAX_S: Final = 0.02
RETRY_AFTER_MAX_S: Final = 10

Answer = Callable[[bytes | StatusError], None]


class Network:
    """The network. Owned by one simulation; its processes reach the server only through it."""

    def __init__(
        self, scheduler: Scheduler, server: Server, faults: FaultPlan, trace: Trace, rng: Rng
    ) -> None:
        self.scheduler = scheduler
        self.server = server
        self.faults = faults
        self.trace = trace
        self._rng = rng
        #: writes of controllers that reached the server
        self.writes = 0

    def latency(self) -> float:
        return self._rng.uniform(LATENCY_MIN_S, LATENCY_MAX_S)

    def send(self, actor: str, write: Write, answer: Answer) -> None:
        """Sends *write*. *answer* is called exactly once."""
        faults = self.faults
        scheduler = self.scheduler
        if faults.strikes("request-lost"):
            self.trace.note(scheduler.now, actor, write.verb, named(write), "request-lost")
            scheduler.after(WRITE_TIMEOUT_S, lambda: answer(unreachable("timeout")))
        elif faults.strikes("request-late"):
            late = WRITE_TIMEOUT_S + faults.sample("request-late", 0.0, 60.0)
            self.trace.note(scheduler.now, actor, write.verb, named(write), "request-late")
            scheduler.after(
                late, lambda: void(self._execute(actor, write))
            )  # its sender waits no more
            scheduler.after(WRITE_TIMEOUT_S, lambda: answer(unreachable("timeout")))
        else:
            scheduler.after(self.latency(), lambda: self._arrive(actor, write, answer))

    def _arrive(self, actor: str, write: Write, answer: Answer) -> None:
        faults = self.faults
        scheduler = self.scheduler
        refusal = self.refusal()
        if refusal is not None:
            self.trace.note(scheduler.now, actor, write.verb, named(write), described(refusal))
            scheduler.after(self.latency(), lambda: answer(refusal))
            return
        result = self._execute(actor, write)
        if faults.strikes("request-twice"):
            result = self._execute(f"{actor}(again)", write)
        if faults.strikes("response-lost"):
            self.trace.note(scheduler.now, actor, write.verb, named(write), "response-lost")
            scheduler.after(WRITE_TIMEOUT_S, lambda: answer(unreachable("timeout")))
            return
        scheduler.after(self.latency(), lambda: answer(result))

    def refusal(self) -> StatusError | None:
        """Returns the error of a server in trouble, for any request; ``None`` if there is none."""
        if self.faults.strikes("server-error"):
            return internal("etcdserver: request timed out")
        if self.faults.strikes("throttled"):
            seconds = 1 + self.faults.choose("throttled", RETRY_AFTER_MAX_S)
            details = {"retryAfterSeconds": seconds}
            message = "Too many requests, please try again later."
            return StatusError(429, "TooManyRequests", message, details, retry_after_s=seconds)
        return None

    def _execute(self, actor: str, write: Write) -> bytes | StatusError:
        renewal = write.resource is Leases  # renewals never end
        self.writes += write.verb not in ("get", "list", "probe") and not renewal
        check_deletion(self.server, actor, write)
        try:
            answer = self.server.execute(write)
        except StatusError as error:
            self.trace.note(self.scheduler.now, actor, write.verb, named(write), described(error))
            return error
        name = write.name
        if write.verb == "create" and not write.subresource:
            name = decode(answer, Object).metadata.name
        if not renewal:
            self.trace.note(
                self.scheduler.now,
                actor,
                write.verb,
                named(write, name),
                "ok",
                revision=self.server.store.revision,
            )
        return answer


def named(write: Write, name: str = "") -> str:
    """Returns ``resource/namespace/name[/subresource]``, for the trace."""
    parts = (write.resource.plural, write.namespace, name or write.name, write.subresource)
    return "/".join(part for part in parts if part)


def void(_: object) -> None:
    """Discards the result of a call."""


class Actor:
    """The base of simulated processes, which have a name and can be paused.

    A paused process (a paused machine, SIGSTOP) handles nothing; afterwards it handles everything
    in the order of arrival.
    """

    def __init__(self, actor: str, network: Network) -> None:
        self.actor = actor
        self.alive = True
        self._network = network
        self._scheduler = network.scheduler
        self._trace = network.trace
        self._paused_until = 0.0
        self._deferred: deque[Callback] = deque()

    def pause(self, seconds: float) -> None:
        """Pauses the process: it handles nothing before the end."""
        until = self._paused_until = max(self._paused_until, self._scheduler.now + seconds)
        self._scheduler.at(until, self._resume)

    def wake(self) -> None:
        """Ends the pause now."""
        self._paused_until = self._scheduler.now
        self._resume()

    def _receive(self, callback: Callback) -> None:
        if not self.alive:
            return
        if self._deferred or self._scheduler.now < self._paused_until:
            self._deferred.append(callback)
        else:
            callback()

    def _resume(self) -> None:
        """Handles what arrived during the pause, in order."""
        while self.alive and self._deferred and self._scheduler.now >= self._paused_until:
            self._deferred.popleft()()
