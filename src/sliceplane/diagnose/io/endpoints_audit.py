"""The I/O of ``sliceplane endpoints audit``: pages of lists, a second check, the file of an audit
log.

Only ``get`` and ``list`` reach the server. A page of 500 objects is in memory at a time; the core
keeps a few dozen bytes of each object. If a list's continue token has expired (410: the server
compacts every five minutes), the list is restarted, a few times at most.

A finding of the first check may be a change under way: lists are of different moments, and
controllers need time. So names with such findings are checked again after a pause, one by one if
they are few, else by all lists.
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

#: tries for a page that failed (429, 5xx) or did not arrive
PAGE_TRIES_MAX: Final = 3
RETRY_PAUSE_S: Final = 1.0
RETRY_PAUSE_MAX_S: Final = 10.0
#: names that are checked one by one; for more all lists are read again
NAMES_MAX: Final = 300
CONCURRENT_NAMES: Final = 8
LINES_PER_YIELD: Final = 2000


async def audit(
    client: Client, namespace: str, *, log: AuditLogUsage | None, recheck_delay_s: float
) -> Report:
    """*namespace*: "" for all. Raises ``StatusError`` and ``watch.io.base.Unreachable`` if the
    server cannot be read.
    """
    auditor = await _audit_all(client, namespace)
    findings = auditor.findings()
    names = sorted({key_of(finding) for finding in findings if finding.code in FLEETING})
    if names:
        await asyncio.sleep(recheck_delay_s)
        second = (
            await _audit_names(client, names)
            if len(names) <= NAMES_MAX
            else await _audit_all(client, namespace)
        )
        findings = confirmed(findings, second.findings())
    return report(auditor, findings, log, namespace)


async def read_log(paths: Sequence[Path]) -> AuditLogUsage:
    """Raises ``OSError``."""
    log = AuditLogUsage()
    for path in paths:
        with opened_lines(path) as lines:
            for number, line in enumerate(lines):
                log.on_line(line)
                if number % LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)
    return log


async def _audit_all(client: Client, namespace: str) -> Auditor:
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
    """Reads one page, with retries: a list of a large cluster has hundreds of pages."""
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


async def _audit_names(client: Client, names: list[str]) -> Auditor:
    """Reads only the objects of *names* (``namespace/name``)."""
    auditor = Auditor()
    slots = asyncio.Semaphore(CONCURRENT_NAMES)

    async def audit_name(key: str) -> None:
        namespace, _, name = key.partition("/")
        async with slots:
            await _get(client, EndpointsObjects, namespace, name, auditor)
            selector = f"{LABEL_SERVICE_NAME}={name}"
            listed = await client.list(Selection(EndpointSlices, namespace, selector))
            for body in listed.items:
                auditor.on_object(EndpointSlices.plural, body)
            await _get(client, Services, namespace, name, auditor)

    async with asyncio.TaskGroup() as group:
        for key in names:
            group.create_task(audit_name(key))
    return auditor


async def _get(
    client: Client, resource: Resource, namespace: str, name: str, auditor: Auditor
) -> None:
    try:
        auditor.on_object(resource.plural, await client.get(resource, namespace, name))
    except StatusError as error:
        if error.code != 404:
            raise
