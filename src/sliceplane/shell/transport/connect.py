"""Whether a port takes connections, asked from here: one is opened and closed at once, and nothing is sent."""

from __future__ import annotations

import asyncio
from typing import Final

from sliceplane.api.requests import ProbedPort
from sliceplane.explain.facts import Outcome, ProbedAddress

CONNECT_TIMEOUT_S: Final = 1.0


async def connect(target: ProbedAddress | ProbedPort, timeout_s: float = CONNECT_TIMEOUT_S) -> Outcome:
    """ "silent": no answer in time, or no way there, which says nothing of the port."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(target.ip, target.port)
    except ConnectionRefusedError:
        return "refused"
    except (OSError, TimeoutError):
        return "silent"
    writer.transport.abort()
    return "open"
