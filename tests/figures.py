"""Long tests: what they have counted, for people (``tools/soak.py`` keeps it with the run's date),
and many seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

#: the file that gets the lines; not set: nobody keeps them
VARIABLE: Final = "SOAK_FIGURES"


def tell(line: str) -> None:
    print(line)
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def over_seeds(seeds: Iterable[int], run: Callable[[int], T]) -> list[T]:
    """What each run gives.  One that fails does not end a run of hours: all that failed are told at
    the end.
    """
    results: list[T] = []
    failed: dict[int, AssertionError] = {}
    for seed in seeds:
        try:
            results.append(run(seed))
        except AssertionError as error:
            failed[seed] = error
    if failed:
        first = next(iter(failed.values()))
        count = len(results) + len(failed)
        raise AssertionError(
            f"{len(failed)} of {count} failed: {', '.join(map(str, failed))}; {first}"
        ) from first
    return results
