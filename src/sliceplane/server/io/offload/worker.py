"""The process that runs jobs one at a time: ``python -m sliceplane.server.io.offload.worker``.

It has no state, no sockets and no files but its pipe; it ends when the pipe does, and when the
server is killed it ends at once, in the middle of a job too (``kit.io.process.lifeline``). If a body ends
it (too much memory, too deep a recursion, a signal), the next job gets a new process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
from typing import BinaryIO

from sliceplane.kit.io.process.free_memory import trim
from sliceplane.kit.io.process.lifeline import end_with_parent
from sliceplane.server.io.offload import jobs

#: the server and its other children go first
NICENESS = 5
MEMORY_BYTES_MAX = 2 << 30
#: of answers and bodies together, after which free memory goes back to the system
_TRIM_BYTES = 1 << 20


def main() -> None:
    end_with_parent()
    # A ^C at the terminal is for the server, which ends this process by its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    # Output of print() must not get among the answers.
    os.dup2(2, 1)
    # A job leaves hardly a cycle, and a collection visits millions of objects that are all in use.
    gc.disable()
    while (data := _read(source)) is not None:
        answer = _answer(data)
        sink.write(jobs.LENGTH.pack(len(answer)))
        sink.write(answer)
        sink.flush()
        size = len(data) + len(answer)
        del data, answer
        gc.collect()
        if size > _TRIM_BYTES:
            trim()


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(jobs.LENGTH.size)
    if len(head) < jobs.LENGTH.size:
        return None
    size: int = jobs.LENGTH.unpack(head)[0]
    data = source.read(size)
    return data if len(data) == size else None


def _answer(data: bytes) -> bytes:
    """Returns the pickled pair of success and the result or error."""
    try:
        return jobs.dump((True, jobs.load(data)()))
    except Exception as error:  # reported to the caller
        try:
            return jobs.dump((False, error))
        except Exception:  # an error that cannot be sent
            return jobs.dump((False, RuntimeError(repr(error))))


if __name__ == "__main__":
    main()
