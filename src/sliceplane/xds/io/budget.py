"""Memory that clients of the xDS port occupy in the server, bounded by account and by process.

A call is charged for the memory of its stream (names, versions, waiting requests:
``AdsStream.memory_bytes``) and for responses that its client has not received; a connection is
charged for its buffers. Charges estimate memory, not octets on the wire, and are updated after each
request, not after each response. A call whose charge is refused ends with RESOURCE_EXHAUSTED; other
calls are unaffected.

After much memory was freed, its pages return to the system within seconds (``free_memory.trim``).
"""

from __future__ import annotations

import asyncio
from typing import Final

from sliceplane.api.users import User, standing_of
from sliceplane.kit.io.process.free_memory import trim
from sliceplane.kit.shares import Shares
from sliceplane.xds.streams.requests import forget_shared

#: bytes of all clients together
PROCESS_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
#: bytes of one account: a user, or the Pod to which its token is bound; more if
#: ``--streams-per-user`` allows more calls than the default
ACCOUNT_BYTES_MAX: Final = 128 * 1024 * 1024
#: bytes of one stream
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024
#: bytes of an idle connection with TLS
CONNECTION_BYTES: Final = 24 * 1024
#: freed bytes after which the heap is trimmed, and the delay in seconds
TRIM_BYTES: Final = 16 * 1024 * 1024
TRIM_S: Final = 1.0

_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


def account_of(user: User) -> str:
    """Returns the account of *user*: its name, and the Pod to which its token is bound, if any."""
    pod = next((values[0] for name, values in user.extra if name == _POD_UID and values), "")
    return f"{user.name}\0{pod}" if pod else user.name


class Charge:
    """The charge for one call or connection.  Call ``close`` once."""

    __slots__ = ("_account", "_budget", "_priority", "amount")

    def __init__(self, budget: Budget, user: User) -> None:
        self._budget = budget
        self._account = account_of(user)
        self._priority = standing_of(user)
        self.amount = 0

    def set(self, amount: int) -> bool:
        """Replaces the charge by *amount*; returns False, and leaves the charge, if a bound is
        exceeded.
        """
        more = amount - self.amount
        if more > 0 and not self._budget.shares.take(self._account, more, self._priority):
            return False
        if more < 0:
            self._budget.release(self._account, -more)
        self.amount = amount
        return True

    def close(self) -> None:
        self.set(0)


class Budget:
    """Charges by account.  Owned by one listener; used only from the thread of its loop."""

    def __init__(
        self, account_bytes_max: int = ACCOUNT_BYTES_MAX, process_bytes_max: int = PROCESS_BYTES_MAX
    ) -> None:
        self.shares: Final = Shares(process_bytes_max, most_each=account_bytes_max)
        self._freed_bytes = 0
        self._trimming: asyncio.Task[None] | None = None

    def open(self, user: User) -> Charge:
        return Charge(self, user)

    def release(self, account: str, amount: int) -> None:
        self.shares.release(account, amount)
        self._freed_bytes += amount
        if self._freed_bytes >= TRIM_BYTES and self._trimming is None:
            self._trimming = asyncio.get_running_loop().create_task(
                self._trim(), name="xds: free memory"
            )

    async def _trim(self) -> None:
        await asyncio.sleep(TRIM_S)
        self._freed_bytes = 0
        forget_shared()
        await asyncio.to_thread(trim)
        self._trimming = None

    async def stop(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.gather(self._trimming, return_exceptions=True)
