"""The workers: started when there is work, ended when they are idle, or when a job has no time
left.

A job that is given up (its client's time is over, or ``JOB_S_MAX`` is) cannot be interrupted, so
its process is killed. A process that ends by itself takes its job with it, as an internal error,
and the next job gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Protocol

from sliceplane.kit.io.lifeline import lifeline
from sliceplane.server.io.heavy import jobs
from sliceplane.server.io.heavy.jobs import HeavyJob

#: of one job; a request has 34 s for all it does
JOB_S_MAX = 30.0
#: a worker without work ends
IDLE_S = 60.0
_MODULE = "sliceplane.server.io.heavy.worker"
#: answers come in portions of this size, so that none keeps the loop
_PORTION_BYTES = 256 * 1024


class WorkerDied(Exception):
    """The process ended in the middle of a job."""


class Workers(Protocol):
    """Whatever runs jobs."""

    async def run(self, job: HeavyJob) -> Any:
        """What the job returns.  Raises what it raises, ``TimeoutError`` and ``WorkerDied``."""

    async def close(self) -> None: ...


class Inline:
    """Runs jobs at once, where they are asked for: for tests, on the same values as a worker
    gets.
    """

    async def run(self, job: HeavyJob) -> Any:
        return jobs.load(jobs.dump(jobs.load(jobs.dump(job)).run()))

    async def close(self) -> None:
        """Nothing runs."""


class Pool:
    """Owned by the server; ``close`` ends every process.  No more run than jobs are asked for at a
    time.
    """

    def __init__(self, *, job_s: float = JOB_S_MAX, idle_s: float = IDLE_S) -> None:
        #: of each job from now on
        self.job_s = job_s
        self._idle_s = idle_s
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.started = 0

    async def run(self, job: HeavyJob) -> Any:
        data = jobs.dump(job)
        worker = self._idle.pop() if self._idle else await self._start()
        worker.busy()
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
            self._idle.append(worker)
            worker.idle(self._idle_s, lambda: self._retire(worker))
        if not good:
            raise result
        return result

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
        self._idle.remove(worker)
        worker.leave()
        task = asyncio.get_running_loop().create_task(self._forget(worker), name="a worker leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _forget(self, worker: _Worker) -> None:
        await worker.gone()
        self._all.discard(worker)

    async def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        await worker.kill()

    async def close(self) -> None:
        self._closed = True
        self._idle.clear()
        for worker in tuple(self._all):
            await self._end(worker)
        await asyncio.gather(*self._leaving)


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None

    def idle(self, seconds: float, retire: Any) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, retire)

    def busy(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def work(self, data: bytes) -> tuple[bool, Any]:
        sink = self._process.stdin
        source = self._process.stdout
        assert sink is not None, "it is a pipe"
        assert source is not None, "it is a pipe"
        sink.write(jobs.LENGTH.pack(len(data)))
        # In portions: a pipe takes little at a time, and what is left of a large write would be
        # copied every time.
        portions = memoryview(data)
        while portions:
            sink.write(bytes(portions[:_PORTION_BYTES]))
            portions = portions[_PORTION_BYTES:]
            await sink.drain()
        left: int = jobs.LENGTH.unpack(await source.readexactly(jobs.LENGTH.size))[0]
        parts = []
        while left:
            part = await source.read(min(left, _PORTION_BYTES))
            if not part:
                raise WorkerDied("the worker ended while it answered")
            parts.append(part)
            left -= len(part)
        # Joining large parts is done without the interpreter's lock.
        whole = parts[0] if len(parts) == 1 else await asyncio.to_thread(b"".join, parts)
        answer: tuple[bool, Any] = jobs.load(whole)
        # What follows is a step of its own: an object may have hundreds of thousands of labels to
        # be made.
        await asyncio.sleep(0)
        return answer

    def leave(self) -> None:
        """End by itself, as its pipe does."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def gone(self) -> None:
        await self._process.wait()

    async def kill(self) -> None:
        self.busy()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
