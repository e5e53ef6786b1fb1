"""Lists for tools that read a cluster once: in pages, begun anew where the continue token has expired (410)."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.shell.transport.base import Reader

PAGE_OBJECTS: Final = 500
LISTS_MAX: Final = 3


async def list_whole(client: Reader, selection: Selection) -> list[bytes]:
    """The bodies of *selection*.  Raises ``StatusError`` and ``shell.transport.base.Unreachable``."""
    for attempt in range(1, LISTS_MAX + 1):
        bodies: list[bytes] = []
        token = ""
        try:
            while True:
                page = await client.list(selection, limit=PAGE_OBJECTS, continue_token=token)
                bodies += page.items
                token = page.continue_token
                if not token:
                    return bodies
        except StatusError as error:
            if error.code != 410 or attempt == LISTS_MAX:
                raise
    raise AssertionError(f"{selection.resource.plural}: {LISTS_MAX} tries are over without an error")
