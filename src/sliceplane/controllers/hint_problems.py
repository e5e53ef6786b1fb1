"""Why Services have no hints: what the EndpointSlice controller knows, and conditions are to tell.

Slices show that there are no hints and not why.  Where both controllers run in one process, the one writes here and
the other reads; where they do not, a condition says what slices show, and the Event has the reason.
"""

from __future__ import annotations


class HintProblems:
    """Written by one ``EndpointSliceController`` (the latest life of it), read by others in the same thread."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def begin(self) -> None:
        """A new life of the writer."""
        self._problems.clear()

    def set(self, key: str, problems: tuple[str, ...]) -> None:
        """*key* is ``namespace/name``; without problems it is forgotten."""
        if problems:
            self._problems[key] = "; ".join(problems)
        else:
            self._problems.pop(key, None)

    def get(self, key: str) -> str:
        return self._problems.get(key, "")
