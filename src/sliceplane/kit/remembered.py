"""Answers that are remembered for texts that come again and again, and that nobody can fill memory with.

A cache bounded by its number of entries is not bounded at all if strangers choose the entries: a few thousand labels of
3 MiB each are more than a machine has.  So texts longer than a name can be are worked out anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

#: characters of one argument; qualified names have 317 at most
TEXT_MAX: Final = 512


def remembered(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Remember at most *most* answers of a pure function of texts (or ``None``), those of long texts not at all.

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
