"""Containers that the standard library lacks: a sorted mapping, batches of an iterable, and a cache
of answers that untrusted input cannot fill.
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
    """Caches at most *most* answers of a pure function of a text. Answers for texts longer than
    *text_max* characters or beyond ASCII (which take four times the memory) are not cached.

    A limit of entries does not bound a cache if clients choose the entries: a few thousand labels
    of 3 MiB each exceed a machine's memory. So answers for texts longer than any name are computed
    each time. An answer must not be larger than a small multiple of its text.
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
    """At most *most* values that passed a check whose result never changes. Each write of an object
    repeats all its values, of which few changed, so a check of all of them must be cheap.
    """

    def __init__(self, most: int, passes: Callable[[V], bool]) -> None:
        """A value that passes must not be longer than a name, because any value may be cached."""
        self._most = most
        self._passes = passes
        self._passed: set[V] = set()

    def have(self, values: set[V]) -> bool:
        """Returns True if all of *values* pass."""
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
