"""Faults between a client and an API server, on request, inside the server.

``Faults`` is a layer between the connections and the application. A request is identified by its
line, ``GET /api/v1/pods?watch=1``, and a fault may apply only to lines that contain a text.
Connections of watches are tracked, because the worst faults occur after the answer has begun.
Clients in the plane's process (its controllers) bypass this layer: the cluster continues while its
clients see faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from sliceplane.api.errors import StatusError
    from sliceplane.api.users import User
    from sliceplane.server.io.connections.listener import App
    from sliceplane.server.io.requests.request import Receive, Send, StreamConnection

T = TypeVar("T")
#: runs a coroutine in the loop of the connections
Call = Callable[[Coroutine[Any, Any, int]], int]

#: seconds until a delayed request notices that its fault was ended
POLL_S: Final = 0.02

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Fault:
    """One fault, active until ``end``, or until it was applied *times*. As a ``with`` block it ends
    with the block.
    """

    def __init__(
        self,
        where: str,
        times: int | None,
        *,
        delay_s: float = 0.0,
        error: StatusError | None = None,
        cut: bool = False,
    ) -> None:
        self.where = where
        #: number of requests it was applied to
        self.hits = 0
        self._remaining = times
        self._over = False
        self.delay_s = delay_s
        self.error = error
        self.cut = cut

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def over(self) -> bool:
        """Returns True if it affects no more requests."""
        return self._over or self._remaining == 0

    async def wait(self) -> None:
        """Delays a request, unless the fault is ended first: nothing may delay the end of the
        plane.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.delay_s
        while not self._over and (remaining_s := ends - loop.time()) > 0:
            await asyncio.sleep(min(remaining_s, POLL_S))

    def end(self) -> None:
        """Idempotent."""
        self._over = True

    def meets(self, line: str) -> bool:
        """Returns True, and counts it, if the fault affects this request."""
        if self.over or self.where not in line:
            return False
        self.hits += 1
        if self._remaining is not None:
            self._remaining -= 1
        return True


class Faults:
    """The faults of one plane. Methods may be called from any thread; each returns when it has
    taken effect.

    *where* in all of them: a text that the request's line contains, such as ``"watch="``, ``"POST
    "`` or ``"/endpointslices"``; "" is every request.
    """

    def __init__(self) -> None:
        self._faults: tuple[Fault, ...] = ()
        self._watches: dict[_Wire, str] = {}
        #: set by ``attach``
        self._call: Call
        self._forget: Callable[[], Coroutine[Any, Any, None]]
        self._bookmark: Callable[[], Coroutine[Any, Any, int]]

    def attach(
        self,
        call: Call,
        forget_history: Callable[[], Coroutine[Any, Any, None]],
        send_bookmarks: Callable[[], Coroutine[Any, Any, int]],
    ) -> None:
        """Connects the faults to a plane. *call* runs a coroutine in the plane's loop."""
        self._call = call
        self._forget = forget_history
        self._bookmark = send_bookmarks

    # The interface for tests

    def refuse(
        self,
        code: int = 429,
        *,
        retry_after: int | None = None,
        times: int | None = None,
        where: str = "",
    ) -> Fault:
        """Answers requests with a ``Status`` of *code* instead of executing them; 429 requests a
        retry after a second.
        """
        from sliceplane.api.errors import StatusError

        seconds = 1 if retry_after is None and code == 429 else retry_after
        message = f"sliceplane.testing: {code} on request"
        return self._add(
            Fault(
                where,
                times,
                error=StatusError(code, _REASONS.get(code, ""), message, retry_after_s=seconds),
            )
        )

    def delay(self, seconds: float, *, times: int | None = None, where: str = "") -> Fault:
        """Delays requests before they are executed."""
        return self._add(Fault(where, times, delay_s=seconds))

    def outage(self, *, where: str = "") -> Fault:
        """Cuts every connection that sends a request, and the open watches: the server is
        unreachable.
        """
        fault = self._add(Fault(where, None, cut=True))
        self.cut_watches(where=where)
        return fault

    def cut_watches(self, *, where: str = "") -> int:
        """Cuts the connections of open watches in the middle of their answer; returns their number."""

        async def cut() -> int:
            return self._cut(where)

        return self._call(cut())

    def silence_watches(self, *, where: str = "") -> int:
        """Drops all further data of open watches while their connections stay open, as after a
        firewall forgot them; returns their number. Only a client that abandons a silent stream
        receives events again.
        """

        async def silence() -> int:
            wires = self._open(where)
            for wire in wires:
                wire.silent = True
            return len(wires)

        return self._call(silence())

    def expire(self) -> int:
        """Compacts the history and cuts the watches: a client that resumes from an earlier version
        gets 410 Gone, and must list. Returns the number of watches.
        """

        async def expire() -> int:
            await self._forget()
            return self._cut("")

        return self._call(expire())

    def bookmark(self) -> int:
        """Sends the bookmarks of the next minute now to every watch that requests them, including
        the plane's own. Returns their number.
        """
        return self._call(self._bookmark())

    def clear(self) -> None:
        """Ends every active fault, delays included."""
        for fault in self._faults:
            fault.end()
        self._faults = ()

    @property
    def watches(self) -> tuple[str, ...]:
        """The request lines of the open watches, sorted."""
        lines = tuple(self._watches.values())  # at once: the plane's thread adds and removes
        return tuple(sorted(lines))

    def _add(self, fault: Fault) -> Fault:
        # Ended faults are kept for ``clear``: a request may still wait for one.
        self._faults = (*self._faults, fault)
        return fault

    def _open(self, where: str) -> list[_Wire]:
        return [wire for wire, line in self._watches.items() if where in line]

    def _cut(self, where: str) -> int:
        wires = self._open(where)
        for wire in wires:
            wire.abort()
        return len(wires)

    # The interface for the server

    def around(self, app: App) -> App:
        """Wraps *app* with the faults."""

        async def application(
            scope: MutableMapping[str, Any], receive: Receive, send: Send
        ) -> None:
            wire = scope["state"]["connection"] = _Wire(scope["state"]["connection"])
            line = _line(scope)
            for fault in self._faults:
                if not fault.meets(line):
                    continue
                if fault.delay_s:
                    await fault.wait()
                elif fault.cut:
                    wire.abort()
                    while (await receive())["type"] != "http.disconnect":
                        pass  # an earlier return would produce an answer
                    return
                elif fault.error is not None:
                    await _answer(send, fault.error)
                    return
            if "watch=" in line:
                self._watches[wire] = line
            try:
                await app(scope, receive, send)
            finally:
                self._watches.pop(wire, None)

        return application


class _Wire:
    """A ``request.StreamConnection`` that can be silenced. Each request has its own, which
    identifies a watch.
    """

    def __init__(self, connection: StreamConnection) -> None:
        self._connection = connection
        self.silent = False

    @property
    def write_paused(self) -> bool:
        return self._connection.write_paused

    def write(self, data: bytes) -> None:
        if not self.silent:
            self._connection.write(data)

    def attach(self, on_resumed: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._connection.attach(on_resumed, on_lost)

    def detach(self) -> None:
        self._connection.detach()

    def abort(self) -> None:
        self._connection.abort()

    def authenticated(self, user: User) -> bool:
        return self._connection.authenticated(user)


def _line(scope: MutableMapping[str, Any]) -> str:
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{scope['method']} {path}?{query}" if query else f"{scope['method']} {path}"


async def _answer(send: Send, error: StatusError) -> None:
    from sliceplane.api.codec import encode

    body = encode(error.status())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    await send({"type": "http.response.start", "status": error.code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


__all__ = ["Fault", "Faults"]
