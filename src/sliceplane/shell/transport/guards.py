"""Clients that stand before another and let fewer writes through."""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.shell.transport.base import Client, Reader, Unreachable, Verbs


class FencedClient(Verbs):
    """A ``Client`` that writes only while its owner may: for work that belongs to a term of leadership.

    A process that was stopped (SIGSTOP, a paused machine) wakes after its term, and its tasks may run before the one
    that ends them does.  So *allowed* is asked before every write, last before it is sent; the write raises
    ``Unreachable`` where it says no.  Reads are passed on.
    """

    def __init__(self, client: Client, allowed: Callable[[], bool]) -> None:
        self._client = client
        self._allowed = allowed
        self.get, self.list, self.watch, self.close = client.get, client.list, client.watch, client.close

    async def perform(self, write: Write) -> bytes:
        if not self._allowed():
            raise Unreachable("the term of leadership is over")
        return await self._client.perform(write)


class ReadOnlyClient(Verbs):
    """A ``Client`` that raises ``StatusError`` 405 for every write and does nothing else: for a run that computes
    everything and must change nothing.

    It is made of a ``Reader``, which has no way to write, so there is nothing behind it; and an ``HttpClient`` made
    with ``read_only`` sends no request but GET.  A fault that gets past the one stands before the other.
    """

    def __init__(self, reader: Reader) -> None:
        self.get, self.list, self.watch, self.close = reader.get, reader.list, reader.watch, reader.close
        #: how many writes were tried; a fault of ours, which tests look for
        self.refused = 0

    async def perform(self, write: Write) -> bytes:
        self.refused += 1
        message = f"{write.verb} of {write.resource.plural}: this client only reads"
        raise StatusError(405, "MethodNotAllowed", message)
