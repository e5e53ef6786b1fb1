"""Where in a document something is, spelled out only for a complaint, and complaints that are bounded together.

A walk passes far more places than it complains of, and a member may have a name of a megabyte: a walk that spelled each
place as it is passed would write that name for each of a hundred thousand elements below it.  So a place is a link to
the one above and one step, and ``Complaints`` pays for each text that is spelled out of a purse that empties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: the place above, and a step with its punctuation (``.name``), or the index of an element; the root is ``()``
Place = tuple["Place", str | int] | tuple[()]
ROOT: Final[Place] = ()

#: characters that complaints about one document may have together; the one that goes beyond is the last
CHARACTERS_MAX: Final = 1 << 20


def spelled(place: Place) -> str:
    """``.spec.ports[3].name``."""
    steps: list[str] = []
    while place:
        place, step = place
        steps.append(step if isinstance(step, str) else f"[{step}]")
    steps.reverse()
    return "".join(steps)


class Complaints:
    """Texts in order, at most *most* of them; *once*: each once.  Owned by one walk."""

    def __init__(self, most: int, *, once: bool) -> None:
        self._texts: list[str] = []
        self._told: set[str] | None = set() if once else None
        self._most = most
        self._left = CHARACTERS_MAX

    @property
    def full(self) -> bool:
        """No more are taken; there is no need to make them."""
        return len(self._texts) >= self._most or self._left <= 0

    def add(self, text: str) -> None:
        """Paid for also if it was told already: it had to be made."""
        if self.full:
            return
        self._left -= len(text)
        if self._told is not None:
            if text in self._told:
                return
            self._told.add(text)
        self._texts.append(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
