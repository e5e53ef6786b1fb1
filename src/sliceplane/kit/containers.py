"""Containers that the standard library lacks: a sorted mapping, parts of an iterable, and a memory
of answers that strangers cannot fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast

V = TypeVar("V")

if TYPE_CHECKING:
    K = TypeVar("K")

    class SortedDict(dict[K, V]):
        """A mapping whose iteration follows its keys; ``irange`` walks a part of it in O(log n +
        k).
        """

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

__all__ = ["Passed", "SortedDict", "adjust_count", "batched", "remembered"]

C = TypeVar("C")


def adjust_count(counts: dict[C, int], key: C, step: int) -> int:
    """Adds *step* to the count of *key* and returns it; a count of 0 is not kept."""
    count = counts.get(key, 0) + step
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
    return count


P = ParamSpec("P")
R = TypeVar("R")

#: characters of one argument, a byte each; qualified names have 317 at most
TEXT_MAX: Final = 512


def batched(items: Iterable[V], size: int) -> Iterator[tuple[V, ...]]:
    """Yields *items* in tuples of *size*, the last of them maybe shorter (``itertools.batched`` of
    Python 3.12).
    """
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


def remembered(most: int, text_max: int = TEXT_MAX) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Remember at most *most* answers of a pure function of a text, those to texts beyond
    *text_max* characters or ASCII (which take four times the memory) not at all.

    A cache bounded by its number of entries is not bounded if strangers choose the entries: a few
    thousand labels of 3 MiB each are more than a machine has. So texts longer than a name can be
    are worked out anew each time. What the answers hold must not be longer than some small multiple
    of the texts.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        slow: Callable[..., R] = function
        quick = cast("Callable[..., R]", lru_cache(most)(function))

        def answer(text: str, **keywords: Any) -> R:
            return (
                quick(text, **keywords)
                if len(text) <= text_max and text.isascii()
                else slow(text, **keywords)
            )

        return cast("Callable[P, R]", wraps(function)(answer))

    return decorate


class Passed(Generic[V]):
    """Values that passed a check which they will always pass, *most* of them: of a thousand
    addresses of an object one changes, and all come with each write, so that asking for all of them
    at once must cost little.
    """

    def __init__(self, most: int, passes: Callable[[V], bool]) -> None:
        """A value that passes must not be longer than a name, as a cache has room for any value."""
        self._most = most
        self._passes = passes
        self._passed: set[V] = set()

    def have(self, values: set[V]) -> bool:
        """All of *values* pass."""
        passed = self._passed
        if values <= passed:
            return True
        if len(passed) + len(values) > self._most:
            passed.clear()
        for value in values - passed:
            if not self._passes(value):
                return False
            passed.add(value)
        return True
