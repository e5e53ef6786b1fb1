"""Lists for tools that read a cluster once: in pages, begun anew where the continue token has
expired (410).

A list that has no end, or is larger than ``watch.paging`` lets it be, raises ``Unreachable``: the
server does not answer the question.
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
K = TypeVar("K", bound=Object)


async def list_whole(client: Reader, selection: Selection) -> list[bytes]:
    """Returns the bodies of *selection*.  Raises ``StatusError`` and
    ``watch.io.base.Unreachable``.
    """
    return await list_decoded(client, selection, list)


async def list_of(client: Reader, selection: Selection, kind: type[K]) -> tuple[K, ...]:
    """Returns the objects of *selection*.  Raises as ``list_whole``, and ``msgspec.DecodeError``."""
    return tuple(
        await list_decoded(client, selection, lambda page: [decode(body, kind) for body in page])
    )


async def list_decoded(
    client: Reader, selection: Selection, decode_page: Callable[[Sequence[bytes]], Iterable[T]]
) -> list[T]:
    """Returns what *decode_page* makes of the bodies of each page, so that one page of them is kept
    at a time. Raises as ``list_whole``, and what *decode_page* raises.
    """
    for attempt in range(1, LISTS_MAX + 1):
        items: list[T] = []
        try:
            async for page in list_pages(client, selection):
                items += decode_page(page.items)
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
    """The pages of one list, which ends with a 410 where its token expires. *resource_version*: of
    the first page. Raises as ``list_whole``.
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
