"""A job's writes over a client: in order, stopping at the first error."""

from __future__ import annotations

import asyncio

from sliceplane.api.errors import StatusError, internal
from sliceplane.controllers.base import Done, Job
from sliceplane.controllers.failed_writes import as_told
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.transport.base import Client, Unreachable, no_answer, send

#: servers answer within 34 s; whoever has not answered by then is not going to
WRITE_TIMEOUT_S = 40.0

_log = get_logger("host")


async def perform(client: Client, job: Job) -> Done:
    """Never raises but for cancellation.

    No answer is the error ``api.errors.unreachable``: the write may have happened or not, and the controller finds out
    from its informers.
    """
    results: list[bytes] = []
    for write in job.writes:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                results.append(await send(client, write))
        except StatusError as error:
            if error.reason not in write.tolerate:
                return Done(job, tuple(results), as_told(write, error))
            results.append(b"")
        except (Unreachable, TimeoutError) as error:
            return Done(job, tuple(results), no_answer(error))
        except Exception as error:
            # A fault in a client must not leave the controller waiting for this job for ever.
            values = {"key": job.key, "verb": write.verb, "resource": write.resource.key}
            _log.error("a client failed in a write", **values, exc_info=error)
            return Done(job, tuple(results), internal(f"{type(error).__name__}: {error}"))
    return Done(job, tuple(results))
