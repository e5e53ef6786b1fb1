"""Whether the Endpoints controller of this process has been through all Services once since it began.

The mirroring controller waits for it (KEP-0752, "Controller Start Up"), so that it mirrors nothing that is about to be
the Endpoints controller's.  Where no Endpoints controller runs there is nothing to wait for.
"""

from __future__ import annotations


class FirstSync:
    """Shared by one Endpoints controller, which alone changes it, and one mirroring controller, which reads it."""

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
