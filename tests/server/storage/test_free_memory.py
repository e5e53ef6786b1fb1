"""After a burst, memory goes back to the system once, when the burst's history is gone and little
is written.
"""

from __future__ import annotations

import subprocess
import sys

from sliceplane.kit.io.process.free_memory import (
    QUIET_REVISIONS,
    WORTHWHILE_REVISIONS,
    FreeMemory,
    trim,
)


def test_memory_is_given_back_once_after_a_burst() -> None:
    memory, burst = FreeMemory(1), 10 * WORTHWHILE_REVISIONS
    assert not memory.on_tick(1, 1)
    assert not memory.on_tick(1, burst), "written, and the history is there still"
    assert not memory.on_tick(burst // 2, burst), "history goes"
    assert not memory.on_tick(burst, burst)
    assert memory.on_tick(burst + 2, burst + 3), "a Lease or two are no burst"
    assert not any(memory.on_tick(burst + n, burst + n) for n in range(10)), "once is enough"


def test_memory_is_not_looked_at_while_there_are_writes_or_for_a_trifle() -> None:
    memory = FreeMemory(0)
    assert not any(
        memory.on_tick(n * QUIET_REVISIONS, n * QUIET_REVISIONS + 20_000) for n in range(100)
    )
    memory = FreeMemory(0)
    assert not any(memory.on_tick(WORTHWHILE_REVISIONS - 1, 20_000) for _ in range(10))


def test_trimming_does_no_harm() -> None:
    kept = [bytes(1000) for _ in range(1000)]
    trim()
    assert all(len(each) == 1000 for each in kept)


#: large blocks are freed while small ones stay between them, as lists and what is kept of them; a
#: thread does so, too
_BLOCKS = """
import re, threading
from pathlib import Path
from sliceplane.kit.io.process.free_memory import bound_heap
bound_heap()
resident = lambda: int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
bytearray(b"x") * (30 << 20)
kept = []
def work():
    for _ in range(10):
        large = []
        for _ in range(30):
            large.append(b"x" * (1 << 20))
            kept.append(b"y" * 2000)
        large.clear()
before = resident()
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resident() - before)
"""


def test_large_blocks_go_back_to_the_system_when_they_are_freed() -> None:
    """30 MB of lists stayed in the heap of each thread that had read them."""
    ended = subprocess.run(
        [sys.executable, "-c", _BLOCKS], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ended.stdout) < 10, f"{ended.stdout.strip()} MiB more than before"
