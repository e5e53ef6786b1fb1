"""Memory that is free inside the C library's heap goes back to the system.

A burst of writes leaves the heap full of holes: what history held is freed when it is compacted,
and glibc keeps the pages because something small lives above them. One ``malloc_trim`` returns the
pages between. It takes some milliseconds per 100 MB, so it is done when the burst's history is
gone, and not while much is written.

Lists and answers are large blocks that live for milliseconds. glibc gives the first few of them
pages of their own and takes later ones from the heap, and each thread has a heap of its own
(mallopt(3)). Memory that is freed there stays. ``bound_heap`` has one heap for all threads, which
hold the interpreter's lock when they allocate, and pages of its own for each large block.
"""

from __future__ import annotations

from typing import Final

#: blocks of so many bytes have pages of their own, and so much may be free at the end of the heap
LARGE_BYTES: Final = 128 * 1024
#: mallopt(3), as malloc.h of glibc numbers them
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

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
        """Returns True if it is time to trim: enough history was freed since the last trim, and
        little happened since the last tick.
        """
        quiet = max(compacted - self._compacted, revision - self._revision) < QUIET_REVISIONS
        self._compacted = compacted
        self._revision = revision
        if not quiet or compacted - self._trimmed < WORTHWHILE_REVISIONS:
            return False
        self._trimmed = compacted
        return True


def bound_heap() -> None:
    """Has freed memory go back to the system, where the C library knows how (glibc).  Call it
    before threads start.
    """
    import ctypes

    library = ctypes.CDLL(None)
    # Other C libraries have no malloc_trim, and number the options of mallopt in other ways.
    if hasattr(library, "malloc_trim"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, LARGE_BYTES)


def trim() -> None:
    """Give free pages back, where the C library knows how (glibc)."""
    import ctypes

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
