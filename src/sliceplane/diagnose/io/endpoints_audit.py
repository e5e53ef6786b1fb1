"""The reading side of ``sliceplane endpoints audit``: pages of lists, a second look, the file of an
audit log.

Only ``get`` and ``list`` reach the server. A page of 500 objects is in memory at a time; the core
keeps a few dozen bytes of each object. Where a list's continue token has expired (410: the server
compacts every five minutes) the list begins anew, a few times at most.

What a first look finds may be a change on its way: lists are of different moments, and controllers
take theirs. So names with such findings are looked at again after a pause, one by one where they
are few, else by all lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource, Services
from sliceplane.diagnose.audit.audit import AUDITED, Auditor, confirmed
from sliceplane.diagnose.audit.judge import FLEETING, key_of
from sliceplane.diagnose.audit.usage import AuditLogUsage
from sliceplane.diagnose.audit.verdict import Report, report
from sliceplane.diagnose.io.lists import LISTS_MAX, PAGE_OBJECTS, checked_page
from sliceplane.kit.io.files import opened_lines
from sliceplane.watch.io.base import Client, ListPage, Unreachable
from sliceplane.watch.paging import ListBounds

#: for a page that the server could not give (429, 5xx) or that did not come
PAGE_TRIES_MAX: Final = 3
RETRY_PAUSE_S: Final = 1.0
RETRY_PAUSE_MAX_S: Final = 10.0
#: beyond so many names all lists are read again instead
NAMES_MAX: Final = 300
NAMES_AT_ONCE: Final = 8
LINES_PER_TURN: Final = 2000


async def audit(
    client: Client, namespace: str, *, log: AuditLogUsage | None, second_look_s: float
) -> Report:
    """*namespace*: "" for all. Raises ``StatusError`` and ``watch.io.base.Unreachable`` if the
    server cannot be read.
    """
    auditor = await _look(client, namespace)
    findings = auditor.findings()
    names = sorted({key_of(finding) for finding in findings if finding.code in FLEETING})
    if names:
        await asyncio.sleep(second_look_s)
        again = (
            await _look_at(client, names)
            if len(names) <= NAMES_MAX
            else await _look(client, namespace)
        )
        findings = confirmed(findings, again.findings())
    return report(auditor, findings, log)


async def read_log(paths: Sequence[Path]) -> AuditLogUsage:
    """Raises ``OSError``."""
    log = AuditLogUsage()
    for path in paths:
        with opened_lines(path) as lines:
            for number, line in enumerate(lines):
                log.on_line(line)
                if number % LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
    return log


async def _look(client: Client, namespace: str) -> Auditor:
    auditor = Auditor()
    for resource in AUDITED:
        await _list(client, Selection(resource, namespace), auditor)
    return auditor


async def _list(client: Client, selection: Selection, auditor: Auditor) -> None:
    for attempt in range(1, LISTS_MAX + 1):
        auditor.forget(selection.resource.plural)
        bounds = ListBounds()
        token = ""
        try:
            while True:
                page = await _page(client, selection, token)
                checked_page(bounds, selection, page)
                for body in page.items:
                    auditor.on_object(selection.resource.plural, body)
                token = page.continue_token
                if not token:
                    return
        except StatusError as error:
            if error.code != 410 or attempt == LISTS_MAX:
                raise


async def _page(client: Client, selection: Selection, token: str) -> ListPage:
    """A list of a large cluster is hundreds of pages: one that fails is asked for again."""
    for attempt in range(1, PAGE_TRIES_MAX + 1):
        try:
            return await client.list(selection, limit=PAGE_OBJECTS, continue_token=token)
        except StatusError as error:
            if attempt == PAGE_TRIES_MAX or not (error.code == 429 or error.code >= 500):
                raise
            await asyncio.sleep(
                min(max(RETRY_PAUSE_S, error.retry_after_s or 0), RETRY_PAUSE_MAX_S)
            )
        except Unreachable:
            if attempt == PAGE_TRIES_MAX or not token:
                raise
            await asyncio.sleep(RETRY_PAUSE_S)
    raise AssertionError(
        f"{selection.resource.plural}: {PAGE_TRIES_MAX} tries are over without an error"
    )


async def _look_at(client: Client, names: list[str]) -> Auditor:
    """The objects of *names* (``namespace/name``) alone."""
    auditor = Auditor()
    turn = asyncio.Semaphore(NAMES_AT_ONCE)

    async def look(key: str) -> None:
        namespace, _, name = key.partition("/")
        async with turn:
            await _get(client, EndpointsObjects, namespace, name, auditor)
            selector = f"{LABEL_SERVICE_NAME}={name}"
            listed = await client.list(Selection(EndpointSlices, namespace, selector))
            for body in listed.items:
                auditor.on_object(EndpointSlices.plural, body)
            await _get(client, Services, namespace, name, auditor)

    async with asyncio.TaskGroup() as group:
        for key in names:
            group.create_task(look(key))
    return auditor


async def _get(
    client: Client, resource: Resource, namespace: str, name: str, auditor: Auditor
) -> None:
    try:
        auditor.on_object(resource.plural, await client.get(resource, namespace, name))
    except StatusError as error:
        if error.code != 404:
            raise
