"""Lists for tools that read a cluster once: in pages, restarted if the continue token has expired
(410).

A list without an end, or larger than the bounds of ``watch.paging``, raises ``Unreachable``: the
server does not answer the query.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import ListPage, Selection
from sliceplane.watch.io.base import Reader, Unreachable
from sliceplane.watch.paging import BadList, ListBounds

PAGE_OBJECTS: Final = 500
LISTS_MAX: Final = 3
T = TypeVar("T")
_O = TypeVar("_O", bound=Object)


async def list_whole(client: Reader, selection: Selection) -> list[bytes]:
    """Returns the bodies of *selection*.  Raises ``StatusError`` and
    ``watch.io.base.Unreachable``.
    """
    return await list_decoded(client, selection, list)


async def list_objects(client: Reader, selection: Selection, kind: type[_O]) -> tuple[_O, ...]:
    """Returns the objects of *selection* as *kind*.  Raises as ``list_whole``."""

    def objects(bodies: Sequence[bytes]) -> list[_O]:
        return [decode(body, kind) for body in bodies]

    return tuple(await list_decoded(client, selection, objects))


async def list_decoded(
    client: Reader, selection: Selection, make: Callable[[Sequence[bytes]], Iterable[T]]
) -> list[T]:
    """Returns the results of *make* for the bodies of each page; only one page of bodies is in
    memory. Raises as ``list_whole``, and what *make* raises.
    """
    for attempt in range(1, LISTS_MAX + 1):
        items: list[T] = []
        try:
            async for page in list_pages(client, selection):
                items += make(page.items)
        except StatusError as error:
            if error.code != 410 or attempt == LISTS_MAX:
                raise
        else:
            return items
    raise AssertionError(
        f"{selection.resource.plural}: {LISTS_MAX} tries are over without an error"
    )


async def list_pages(
    client: Reader, selection: Selection, resource_version: str | None = None
) -> AsyncIterator[ListPage]:
    """Yields the pages of one list, which ends with a 410 if its token expires. *resource_version*:
    of the first page. Raises as ``list_whole``.
    """
    bounds = ListBounds()
    token = ""
    while True:
        at = {"resource_version": resource_version} if resource_version and not token else {}
        page = await client.list(selection, limit=PAGE_OBJECTS, continue_token=token, **at)
        checked_page(bounds, selection, page)
        yield page
        token = page.continue_token
        if not token:
            return


def checked_page(bounds: ListBounds, selection: Selection, page: ListPage) -> None:
    """Raises ``Unreachable`` if the list of *selection* goes beyond *bounds* with *page*."""
    try:
        bounds.on_page(page.items, page.continue_token)
    except BadList as error:
        raise Unreachable(f"list of {selection.resource.plural}: {error}") from error
