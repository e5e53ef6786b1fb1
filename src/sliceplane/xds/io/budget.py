"""Memory that clients of the xDS port have the server keep, bounded by account and by process.

A call is charged with what its stream keeps (names, versions, requests that wait:
``AdsStream.memory_bytes``) and with what its client has not taken of our answers; a connection with
its buffers. Charges are estimates of memory, not of octets on the wire, and are made when a request
was read, not at each delta. A call whose charge is refused ends with RESOURCE_EXHAUSTED; others are
unaffected.

When much was returned, the pages go back to the system within seconds (``free_memory.trim``).
"""

from __future__ import annotations

import asyncio
from typing import Final

from sliceplane.api.users import User, standing_of
from sliceplane.kit.io.process.free_memory import trim
from sliceplane.kit.shares import Shares
from sliceplane.xds.streams.requests import forget_shared

#: of all clients together
PROCESS_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
#: of one account: a user, or the Pod to which its token is bound; more if it may have more calls
#: than usual
ACCOUNT_BYTES_MAX: Final = 128 * 1024 * 1024
#: of what one stream keeps
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024
#: of a connection with TLS, on which nothing waits
CONNECTION_BYTES: Final = 24 * 1024
#: so much is returned before the heap is trimmed, and so long afterwards
TRIM_BYTES: Final = 16 * 1024 * 1024
TRIM_S: Final = 1.0

_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


def account_of(user: User) -> str:
    """The user; for a token that is bound to a Pod, this Pod."""
    pod = next((values[0] for name, values in user.extra if name == _POD_UID and values), "")
    return f"{user.name}\0{pod}" if pod else user.name


class Charge:
    """The charge of one call or connection.  ``close`` once."""

    __slots__ = ("_account", "_budget", "_standing", "amount")

    def __init__(self, budget: Budget, user: User) -> None:
        self._budget = budget
        self._account = account_of(user)
        self._standing = standing_of(user)
        self.amount = 0

    def set(self, amount: int) -> bool:
        """Charges *amount* in place of what was charged; returns False, and charges as before, if
        that is too much.
        """
        more = amount - self.amount
        if more > 0 and not self._budget.shares.take(self._account, more, self._standing):
            return False
        if more < 0:
            self._budget.give(self._account, -more)
        self.amount = amount
        return True

    def close(self) -> None:
        self.set(0)


class Budget:
    """Owned by one listener; used from its loop's thread."""

    def __init__(
        self, account_bytes_max: int = ACCOUNT_BYTES_MAX, process_bytes_max: int = PROCESS_BYTES_MAX
    ) -> None:
        self.shares: Final = Shares(process_bytes_max, most_each=account_bytes_max)
        self._returned = 0
        self._trimming: asyncio.Task[None] | None = None

    def open(self, user: User) -> Charge:
        return Charge(self, user)

    def give(self, account: str, amount: int) -> None:
        self.shares.give(account, amount)
        self._returned += amount
        if self._returned >= TRIM_BYTES and self._trimming is None:
            self._trimming = asyncio.get_running_loop().create_task(
                self._trim(), name="xds: free memory"
            )

    async def _trim(self) -> None:
        await asyncio.sleep(TRIM_S)
        self._returned = 0
        forget_shared()
        await asyncio.to_thread(trim)
        self._trimming = None

    async def stop(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.gather(self._trimming, return_exceptions=True)
