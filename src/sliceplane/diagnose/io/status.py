"""The I/O of ``sliceplane status`` and ``check``: three pages of the server, the Leases of two
namespaces, and the lists of ``lint``.

A part that is refused or missing is passed to the core as unavailable; only a server that does not
answer at all ends the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.investigation import FORBIDDEN, Investigation
from sliceplane.diagnose.explain.objects import LEASES, NODES, Readable
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.diagnose.explain.status import ReadPage, StatusFacts
from sliceplane.diagnose.explain.status_parts import LEADER_NAMESPACE, NODE_NAMESPACE
from sliceplane.diagnose.io.explaining import investigated
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.watch.io.bounds import AnswerTooLarge
from sliceplane.watch.io.http.client import HttpClient

#: larger than the metrics of any server
PAGE_BYTES_MAX: Final = 64 << 20
T = TypeVar("T", bound=Object)


async def read_status(
    client: HttpClient, namespace: str, wall_clock: Callable[[], float]
) -> StatusFacts:
    """*namespace*: of the Services to check; "": all. *wall_clock*: seconds since the epoch. Raises
    ``watch.io.base.Unreachable``, ``msgspec.DecodeError``, and ``StatusError`` for errors other
    than a refusal or a missing page.
    """
    investigation = Investigation(ExplainQuestion("everything", namespace=namespace), wall_clock())
    async with asyncio.TaskGroup() as group:
        pages = [
            group.create_task(_page(client, path))
            for path in ("/version", "/readyz?verbose", "/metrics")
        ]
        group.create_task(investigated(client, investigation))
    leases = {
        lease_namespace: await _objects(
            client, investigation, LEASES, LEASES.in_namespace(lease_namespace)
        )
        for lease_namespace in (LEADER_NAMESPACE, NODE_NAMESPACE)
    }
    version, readyz, metrics = (page.result() for page in pages)
    return StatusFacts(
        server=client.server,
        now=investigation.facts.now,
        version=version,
        readyz=readyz,
        metrics=metrics,
        leases=leases,
        nodes=await _objects(client, investigation, NODES, NODES.everywhere()),
        lint=investigation.answer(),
    )


async def _page(client: HttpClient, path: str) -> ReadPage:
    try:
        body = await client.page(path, bytes_max=PAGE_BYTES_MAX)
    except AnswerTooLarge as error:
        return ReadPage(why=str(error))
    except StatusError as error:
        return ReadPage(error.message, _reason(error, f"get {path}"), error.code)
    return ReadPage(body.decode(errors="replace"))


async def _objects(
    client: HttpClient, investigation: Investigation, readable: Readable[T], selection: Selection
) -> tuple[T, ...] | str:
    """Returns the objects, from lists already read or from the server; a sentence if neither has
    them.
    """
    if investigation.facts.was_read(selection):
        return investigation.facts.of(readable, selection.namespace)
    try:
        return await list_objects(client, selection, readable.projection)
    except StatusError as error:
        where = f" in namespace {selection.namespace}" if selection.namespace else ""
        return _reason(error, f"list {selection.resource.plural}{where}")


def _reason(error: StatusError, what: str) -> str:
    return f"{FORBIDDEN} {what}" if error.code in (401, 403) else f"the server answers {error.code}"
