"""The I/O of ``sliceplane explain`` and ``lint``: reads the lists that an investigation requests,
and nothing else.

Only ``list`` reaches the server. The investigation goes on without lists that are forbidden or not
served; any other error ends the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.findings.finding import Finding
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import NOT_TO_BE_HAD
from sliceplane.diagnose.explain.investigation import FORBIDDEN, Investigation
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.diagnose.io.lists import list_decoded
from sliceplane.watch.io.base import Reader, Unreachable, connect
from sliceplane.watch.io.http.client import HttpClient

WRITES_PATH: Final = "/sliceplane/writes"
#: the page has four writes of one object
WRITES_BYTES_MAX: Final = 1 << 20
#: concurrent lists: each has a connection, and bodies in decoding
CONCURRENT_LISTS: Final = 8
NOT_SERVED: Final = "not served by this cluster"


async def explain(
    client: Reader,
    question: ExplainQuestion,
    wall_clock: Callable[[], float],
    kernel: KernelFacts | None = None,
    *,
    probe: bool = False,
    shadow: Iterable[Finding] = (),
    concurrent_lists: int = CONCURRENT_LISTS,
) -> Explanation:
    """*wall_clock*: seconds since the epoch. *kernel*: of this machine, which then is a node.
    *probe*: try connections from here. *shadow*: findings of shadow mode. Raises ``StatusError``,
    ``watch.io.base.Unreachable`` and ``msgspec.DecodeError``.
    """
    investigation = await investigated(
        client, Investigation(question, wall_clock(), kernel, shadow), concurrent_lists
    )
    if probe:
        targets = investigation.to_try()
        investigation.on_tried(
            dict(zip(targets, await asyncio.gather(*map(connect, targets)), strict=True))
        )
        await investigated(client, investigation, concurrent_lists)
    if isinstance(client, HttpClient):
        await _read_last_writers(client, investigation)
    return investigation.answer()


async def _read_last_writers(client: HttpClient, investigation: Investigation) -> None:
    """Reads the last writers from our own server, if it is ours and the reader may read
    the page.
    """
    for name in investigation.named_objects():
        path = f"{WRITES_PATH}/{name.plural}/{name.namespace or '-'}/{name.name}"
        try:
            page = await client.page(path, bytes_max=WRITES_BYTES_MAX)
        except (StatusError, Unreachable):
            return
        investigation.on_noted(name, page)


async def investigated(
    client: Reader, investigation: Investigation, concurrent_lists: int = CONCURRENT_LISTS
) -> Investigation:
    """Reads until *investigation* requests nothing more, and returns it."""
    slots = asyncio.Semaphore(concurrent_lists)

    async def read(selection: Selection) -> None:
        async with slots:
            try:
                items = await list_decoded(
                    client, selection, partial(investigation.decoded, selection)
                )
            except StatusError as error:
                if error.code not in NOT_TO_BE_HAD:
                    raise
                investigation.on_refused(selection, FORBIDDEN if error.code == 403 else NOT_SERVED)
            else:
                investigation.on_list(selection, items)

    while pending := investigation.pending_reads():
        async with asyncio.TaskGroup() as group:
            for selection in pending:
                group.create_task(read(selection))
    return investigation
