"""Lists of tools: a page is decoded before the next is requested, and a list begins anew without
its first pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import ListPage, Selection
from sliceplane.api.scheme import Services
from sliceplane.diagnose.io.lists import LISTS_MAX, list_decoded

SELECTION = Selection(Services)


class TwoPages:
    """A server with two pages of Services, whose token has expired as often as *expired* says."""

    def __init__(self, expired: int = 0) -> None:
        self.events: list[str] = []
        self._expired = expired

    async def list(self, _: Selection, *, limit: int, continue_token: str = "") -> ListPage:
        self.events.append(f"page {continue_token or 'first'}")
        if not continue_token:
            return ListPage((b"a", b"b"), "7", "second", 1)
        if self._expired:
            self._expired -= 1
            raise StatusError(410, "Expired", "the token is too old")
        return ListPage((b"c",), "7", "", None)

    def decode(self, bodies: Sequence[bytes]) -> list[str]:
        self.events.append(f"decode {len(bodies)}")
        return [body.decode() for body in bodies]


async def listed(server: TwoPages) -> list[str]:
    client: Any = server
    return await list_decoded(client, SELECTION, server.decode)


async def test_a_page_is_decoded_before_the_next_is_asked_for() -> None:
    server = TwoPages()
    assert await listed(server) == ["a", "b", "c"]
    assert server.events == ["page first", "decode 2", "page second", "decode 1"]


async def test_a_list_whose_token_expires_begins_anew_with_nothing_of_before() -> None:
    assert await listed(TwoPages(expired=LISTS_MAX - 1)) == ["a", "b", "c"]
    with pytest.raises(StatusError, match="too old"):
        await listed(TwoPages(expired=LISTS_MAX))
