"""Returns free memory of the C library's heap to the system.

A burst of writes fragments the heap: a compaction frees the history's memory, but glibc keeps the
pages because small allocations remain above them. One ``malloc_trim`` returns the free pages in
between. It takes some milliseconds per 100 MB, so it runs when the burst's history was compacted,
and not while much is written.

Lists and answers are large blocks that exist for milliseconds. glibc maps the first few of them
separately and takes later ones from the heap, and each thread has its own heap (mallopt(3)). Memory
that is freed there is not returned. ``bound_heap`` sets one heap for all threads, which hold the
interpreter's lock when they allocate, and a separate mapping for each large block.
"""

from __future__ import annotations

from typing import Final

#: bytes from which a block is mapped separately, and maximum free bytes at the end of the heap
LARGE_BYTES: Final = 128 * 1024
#: mallopt(3), as malloc.h of glibc numbers them
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

#: minimum revisions of compacted history for a trim
WORTHWHILE_REVISIONS = 2_000
#: revisions between two ticks that count as quiet: Leases are always renewed
QUIET_REVISIONS = 100


class FreeMemory:
    """Decides when to trim; the owner of the store calls ``on_tick`` every few seconds."""

    def __init__(self, compacted: int) -> None:
        #: compacted revision at the last trim, and at the last tick
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
    """Configures the heap so that freed memory returns to the system, if the C library is glibc.
    Call it before threads start.
    """
    import ctypes

    library = ctypes.CDLL(None)
    # Other C libraries have no malloc_trim, and other numbers for the options of mallopt.
    if hasattr(library, "malloc_trim"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, LARGE_BYTES)


def trim() -> None:
    """Returns free pages to the system, if the C library is glibc."""
    import ctypes

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
