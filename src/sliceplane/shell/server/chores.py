"""What a server does now and then as long as it runs: each chore is a task of the plane, which ends it.

None of them may end by itself: what could not be done is told once and due again the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sliceplane.api.errors import StatusError
from sliceplane.shell.process.free_memory import FreeMemory, trim
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.server.connections.tls import ServerTls
from sliceplane.shell.server.datadir import write_private
from sliceplane.shell.server.keys import pki

if TYPE_CHECKING:
    from sliceplane.shell.server.plane import Plane
    from sliceplane.store.types import Record

RETENTION_TICK_SECONDS = 5.0
EXPIRY_TICK_SECONDS = 5.0
TEND_SECONDS = 1.0
#: often, although certificates live long: new addresses are to be reached soon, and a clock that is set right may leave
#: every certificate in its future, or years behind
CERTIFICATE_CHECK_SECONDS = 10.0
#: a clock that is slewed, or a loop that is held up, moves less than this from one check to the next
CLOCK_STEP_SECONDS_MIN = 30.0
#: who takes an authority out of a file wants that what it signed counts no more
AUTHORITY_CHECK_SECONDS = 5.0

_log = get_logger("plane")


async def tell_committer_the_time(plane: Plane) -> None:
    steady = asyncio.get_running_loop().time
    memory = FreeMemory(plane.store.compacted)
    while True:
        plane.committer.tick(steady())
        if memory.on_tick(plane.store.compacted, plane.store.revision):
            trim()
        await asyncio.sleep(min(RETENTION_TICK_SECONDS, max(plane.config.history_keep_s / 2, 0.1)))


async def forget_events(plane: Plane) -> None:
    """Events live for an hour.  What could not be stored is due again next time."""
    expired = plane.metrics.counter("sliceplane_expired_events_total", "Events removed because their time was over.")
    while True:
        await asyncio.sleep(EXPIRY_TICK_SECONDS)
        try:
            gone = await plane.committer.write(lambda: plane.registry.expire(plane.clock()), _newest_revision)
        except StatusError as error:
            _log.error("expired Events are still there", error=str(error))
            continue
        expired.value += len(gone)


async def keep_up(plane: Plane, step: Callable[[float], int], period_s: float) -> None:
    """Have the registry do *step* again and again.  What could not be stored is due again next time."""
    told = ""
    while True:
        await asyncio.sleep(period_s)
        try:
            await plane.committer.write(lambda: step(plane.clock()), int)
            told = ""
        except Exception as error:  # a fault here must not end the keeping for good
            if str(error) != told:
                told = str(error)
                cause = None if isinstance(error, StatusError) else error
                _log.error("what the server keeps itself is not kept", step=step.__name__, error=told, exc_info=cause)


async def keep_certificates_fresh(plane: Plane, tls: ServerTls) -> None:
    """Renew certificates that expire while the process runs, that are not valid at what the clock says now, or that
    lack a new address of this machine; open connections are not touched, unless they rest on an authority that somebody
    took away."""
    steady = asyncio.get_running_loop().time
    offset = plane.clock() - steady()
    while True:
        await asyncio.sleep(CERTIFICATE_CHECK_SECONDS)
        now = plane.clock()
        moved, offset = now - steady() - offset, now - steady()
        if abs(moved) > CLOCK_STEP_SECONDS_MIN:
            _log.warning("the machine's clock was set", seconds=round(moved))
        try:
            authority = plane.pki.ca_file
            before = authority.read_text(encoding="ascii") if authority.exists() else ""
            # In a thread: to make one loads a library, which takes longer than the loop may be held up.
            plane.pki, made = await asyncio.to_thread(pki.ensure, plane.data_dir.pki, plane.certificate_names(), now)
            if made:
                distrusting = tls.renew(before)
                plane.listener.use(tls.context, distrusting=distrusting)
                write_private(plane.data_dir.kubeconfig, pki.kubeconfig(plane.pki, plane.url))
                _log.info("certificates renewed")
        except Exception as error:  # tried again at the next check; the old ones last a month yet
            _log.error("cannot renew certificates", exc_info=error)


async def follow_authorities(plane: Plane, tls: ServerTls) -> None:
    """What is trusted is what the files hold now: an authority that is taken out of one is a revocation of all that it
    signed."""
    told = ""
    while True:
        await asyncio.sleep(AUTHORITY_CHECK_SECONDS)
        try:
            gone = tls.follow()
        except StartError as error:
            if str(error) != told:
                told = str(error)
                _log.error("what was trusted before still is", error=told)
            continue
        told = ""
        if gone is not None:
            plane.listener.use(tls.context, distrusting=gone)
            _log.info("the authorities of client certificates are others", some_are_gone=gone)


def _newest_revision(records: tuple[Record, ...]) -> int:
    return records[-1].revision if records else 0
