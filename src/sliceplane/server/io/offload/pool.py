"""The pool of workers: started when there is work, ended when idle, or when a job runs out of time.

A job that is given up (its client's time is over, or ``JOB_S_MAX`` is) cannot be interrupted, so
its process is killed. A process that ends by itself takes its job with it, as an internal error,
and the next job gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Protocol, cast

from sliceplane.kit.io.process.lifeline import lifeline
from sliceplane.server.io.offload import jobs
from sliceplane.server.io.offload.jobs import Job, T

#: seconds of one job; a request has 34 s for all it does
JOB_S_MAX = 30.0
#: seconds after which a worker without work ends
IDLE_S = 60.0
_MODULE = "sliceplane.server.io.offload.worker"
#: answers come in portions of this size, so that none keeps the loop
_PORTION_BYTES = 256 * 1024


class WorkerDied(Exception):
    """The process ended in the middle of a job."""


class Workers(Protocol):
    """Runs jobs."""

    async def run(self, job: Job[T]) -> T:
        """Runs *job*.  Raises what it raises, ``TimeoutError`` and ``WorkerDied``."""

    async def close(self) -> None: ...


class Inline:
    """Runs jobs at once in this process, on copies as a worker gets them: for tests."""

    async def run(self, job: Job[T]) -> T:
        return cast(T, jobs.load(jobs.dump(jobs.load(jobs.dump(job))())))

    async def close(self) -> None:
        """Nothing runs."""


class Pool:
    """Owned by the server; ``close`` ends every process.  There are never more workers than jobs
    at a time.
    """

    def __init__(self, *, job_s: float = JOB_S_MAX, idle_s: float = IDLE_S) -> None:
        #: of each job from now on
        self.job_s = job_s
        self._idle_s = idle_s
        #: idle workers, with the timers that retire them
        self._idle: dict[_Worker, asyncio.TimerHandle] = {}
        self._all: set[_Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.started = 0

    async def run(self, job: Job[T]) -> T:
        data = jobs.dump(job)
        if self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
        else:
            worker = await self._start()
        try:
            async with asyncio.timeout(self.job_s):
                good, result = await worker.work(data)
        except BaseException as error:
            await self._end(worker)
            # A TimeoutError is an OSError, but not of the pipe.
            if isinstance(error, OSError | EOFError) and not isinstance(error, TimeoutError):
                raise WorkerDied(str(error)) from error
            raise
        if self._closed:
            await self._end(worker)
        else:
            loop = asyncio.get_running_loop()
            self._idle[worker] = loop.call_later(self._idle_s, self._retire, worker)
        if not good:
            raise result
        return cast(T, result)

    async def _start(self) -> _Worker:
        environment, descriptors, _ = lifeline()
        worker = _Worker(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                env=environment,
                pass_fds=descriptors,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2 * _PORTION_BYTES,
            )
        )
        self._all.add(worker)
        self.started += 1
        return worker

    def _retire(self, worker: _Worker) -> None:
        """The worker ends by itself, as its pipe does."""
        del self._idle[worker]
        worker.sink.close()
        task = asyncio.get_running_loop().create_task(self._forget(worker), name="a worker leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _forget(self, worker: _Worker) -> None:
        await worker.process.wait()
        self._all.discard(worker)

    async def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()
        await worker.process.wait()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.popitem()[1].cancel()
        for worker in tuple(self._all):
            await self._end(worker)
        await asyncio.gather(*self._leaving)


class _Worker:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        self.process = process
        self.sink = process.stdin
        self._source = process.stdout

    async def work(self, data: bytes) -> tuple[bool, Any]:
        """Returns whether the job succeeded, and its result or error."""
        self.sink.write(jobs.LENGTH.pack(len(data)))
        # In portions: a pipe takes little at a time, and what is left of a large write would be
        # copied every time.
        portions = memoryview(data)
        while portions:
            self.sink.write(bytes(portions[:_PORTION_BYTES]))
            portions = portions[_PORTION_BYTES:]
            await self.sink.drain()
        remaining: int = jobs.LENGTH.unpack(await self._source.readexactly(jobs.LENGTH.size))[0]
        parts = []
        while remaining:
            part = await self._source.read(min(remaining, _PORTION_BYTES))
            if not part:
                raise WorkerDied("the worker ended while it answered")
            parts.append(part)
            remaining -= len(part)
        # Joining large parts is done without the interpreter's lock.
        whole = parts[0] if len(parts) == 1 else await asyncio.to_thread(b"".join, parts)
        answer: tuple[bool, Any] = jobs.load(whole)
        # What follows is a step of its own: an object may have hundreds of thousands of labels.
        await asyncio.sleep(0)
        return answer
