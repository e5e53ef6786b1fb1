"""Memory that is free inside the C library's heap goes back to the system after a burst.

A burst of writes leaves the heap full of holes: what history held is freed when it is compacted, and glibc keeps the
pages because something small lives above them.  One ``malloc_trim`` returns the pages between.  It takes some
milliseconds per 100 MB, so it is done when the burst's history is gone, and not while much is written.
"""

from __future__ import annotations

#: history of fewer revisions is not worth the look
WORTHWHILE_REVISIONS = 2_000
#: of writes, and of history that goes, between two ticks: Leases are renewed at all times
QUIET_REVISIONS = 100


class FreeMemory:
    """Says when: ``on_tick`` is called every few seconds by the owner of the store."""

    def __init__(self, compacted: int) -> None:
        #: as of the last trim, and of the last tick
        self._trimmed = self._compacted = compacted
        self._revision = compacted

    def on_tick(self, compacted: int, revision: int) -> bool:
        """Whether to trim: enough history is gone since the last time, and little happened since the last tick."""
        quiet = max(compacted - self._compacted, revision - self._revision) < QUIET_REVISIONS
        self._compacted = compacted
        self._revision = revision
        if not quiet or compacted - self._trimmed < WORTHWHILE_REVISIONS:
            return False
        self._trimmed = compacted
        return True


def trim() -> None:
    """Give free pages back, where the C library knows how (glibc)."""
    import ctypes

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
