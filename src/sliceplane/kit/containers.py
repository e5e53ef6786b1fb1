"""Containers that the standard library lacks: a sorted mapping, and a memory of answers that strangers cannot fill."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

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

__all__ = ["SortedDict", "remembered"]

P = ParamSpec("P")
R = TypeVar("R")

#: characters of one argument; qualified names have 317 at most
TEXT_MAX: Final = 512


def remembered(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Remember at most *most* answers of a pure function of texts (or ``None``), those of long texts not at all.

    A cache bounded by its number of entries is not bounded if strangers choose the entries: a few thousand labels of
    3 MiB each are more than a machine has.  So texts longer than a name can be are worked out anew each time.
    What the answers hold must not be longer than some small multiple of the texts.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        quick = cast("Callable[..., R]", lru_cache(most)(function))

        @wraps(function)
        def answer(*arguments: P.args, **keywords: P.kwargs) -> R:
            for argument in arguments:
                if argument is not None and len(cast(str, argument)) > TEXT_MAX:
                    return function(*arguments, **keywords)
            return quick(*cast("tuple[Hashable, ...]", arguments), **keywords)

        return answer

    return decorate
