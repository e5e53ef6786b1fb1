"""Bounds of a list over all its pages, and of a cache: the server says how many pages there are,
and may never end.

A list fails when its objects together are too large, when a page repeats the continue token of the
page before, and after some pages without an object. A failed list changes nothing: what the cache
has stays. Each object is charged its bytes and ``OBJECT_BYTES``, the mean of what a decoded one
costs beyond them; so a million empty objects count, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

#: one list, or one cache that has a bound; 300,000 Pods of 5 kB
LIST_BYTES_MAX: Final = 2 << 30
#: one cache of a program that follows a stranger's server: the client library, and the page
CACHE_BYTES_MAX: Final = 1 << 30
OBJECT_BYTES: Final = 1024
#: a server that filters may send a few
EMPTY_PAGES_MAX: Final = 16
#: etcd's are numbers of at most 20 digits; further ones come from translators, and go into URLs
VERSION_CHARACTERS_MAX: Final = 256


class BadList(Exception):
    """A list that has no end, or objects that are too many.  The text is a sentence."""


class ListBounds:
    """One list, from its first page to its last."""

    def __init__(self, bytes_max: int = LIST_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._empty_pages = 0
        self._token = ""

    def on_page(self, items: Sequence[bytes], continue_token: str) -> None:
        """Raises ``BadList``."""
        self._bytes += sum(map(len, items)) + len(items) * OBJECT_BYTES
        if self._bytes > self._bytes_max:
            raise BadList(
                f"the list has more than {self._bytes_max:,} bytes, which is the most that is read"
            )
        if not continue_token:
            return
        if continue_token == self._token:
            raise BadList("the list does not go on: two pages have the same continue token")
        self._token = continue_token
        self._empty_pages = 0 if items else self._empty_pages + 1
        if self._empty_pages > EMPTY_PAGES_MAX:
            raise BadList(
                f"the list does not go on: {self._empty_pages} pages in a row have no object"
            )


class CacheSize:
    """The charge of the objects in one cache, by key, and of the list that is to replace them."""

    def __init__(self, bytes_max: int | None) -> None:
        """``None``: the cache has no bound, and nothing is charged."""
        self._bytes_max = bytes_max
        self.total = 0
        self._charges: dict[str, int] = {}
        self._listed: dict[str, int] = {}

    def bounds_of_list(self) -> ListBounds:
        """Begins a list."""
        self._listed = {}
        return ListBounds(LIST_BYTES_MAX if self._bytes_max is None else self._bytes_max)

    def on_page(self, keys: Iterable[str], items: Sequence[bytes]) -> None:
        if self._bytes_max is not None:
            self._listed.update(
                (key, len(item) + OBJECT_BYTES) for key, item in zip(keys, items, strict=True)
            )

    def on_list(self) -> None:
        """The objects of all pages have replaced those of the cache."""
        self._charges, self._listed = self._listed, {}
        self.total = sum(self._charges.values())

    def on_event(self, kind: str, key: str, size: int) -> None:
        """Charges an object of *size* bytes in the place of the one before.  Raises ``BadList`` if
        it does not fit.
        """
        if kind == "DELETED":
            self.total -= self._charges.pop(key, 0)
            return
        charge = size + OBJECT_BYTES
        total = self.total + charge - self._charges.get(key, 0)
        if self._bytes_max is not None and total > self._bytes_max:
            bound = f"{self._bytes_max:,} bytes"
            raise BadList(
                f"the objects together have more than {bound}, which is the most that is kept"
            )
        self._charges[key] = charge
        self.total = total
