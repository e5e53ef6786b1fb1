"""What two controllers of one process tell each other.  Where only one of them runs, the other does without."""

from __future__ import annotations


class FirstSync:
    """Whether the Endpoints controller of this process has been through all Services once since it began.

    That controller alone changes it.  The mirroring controller waits for it (KEP-0752, "Controller Start Up"), so that
    it mirrors nothing that is about to be the Endpoints controller's.
    """

    def __init__(self) -> None:
        self._under_way = False

    @property
    def over(self) -> bool:
        return not self._under_way

    def begin(self) -> None:
        """An Endpoints controller was made, and will run."""
        self._under_way = True

    def end(self) -> None:
        self._under_way = False


class HintProblems:
    """Why Services have no hints: slices show that there are none and not why.

    Written by one ``EndpointSliceController`` (the latest life of it), read by the controller of conditions.  Where
    these run in two processes a condition says what slices show, and the Event has the reason.
    """

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
