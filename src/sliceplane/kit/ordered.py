"""Sorted containers behind one import, so that the library can be changed in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

    class SortedDict(dict[K, V]):
        """A mapping whose iteration follows its keys; ``irange`` walks a part of it in O(log n + k)."""

        def irange(
            self,
            minimum: K | None = None,
            maximum: K | None = None,
            inclusive: tuple[bool, bool] = (True, True),
            reverse: bool = False,
        ) -> Iterator[K]: ...
        def peekitem(self, index: int = -1) -> tuple[K, V]: ...
        def bisect_left(self, key: K) -> int: ...
        def bisect_right(self, key: K) -> int: ...

else:
    from sortedcontainers import SortedDict

__all__ = ["SortedDict"]
