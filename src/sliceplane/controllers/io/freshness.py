"""Judges whether a host's caches can be trusted, in sentences that name them: which, since when,
and why.

*Ready* means that every cache is filled, and none older than ``STALENESS_S_MAX``. *Alive* asks for
less: a restart of the process may mend a cache to which no news come any more, and cannot mend a
right that is missing or an API that is gone. So what the server itself refuses (403, 404) makes a
process unready and never dead: its standing caches would be lost with it, and the next one would
get none. 401 is no such answer: credentials are read anew at the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from sliceplane.api.scheme import NOT_TO_BE_HAD
from sliceplane.kit.times import format_time
from sliceplane.watch.io.hosting.host import HostStatus
from sliceplane.watch.io.hosting.informers import InformerStatus

#: caches older than this make their owner not ready: informers hear from the server at least every
#: minute
STALENESS_S_MAX: Final = 120.0
#: and those that are older than this are a reason to start it anew
DEAD_AFTER_S: Final = 2 * STALENESS_S_MAX
#: caches that a sentence names
NAMED_MAX: Final = 3


def complaint(status: HostStatus) -> str:
    """Returns why the controllers are not ready; "" if they are."""
    return unfilled(status) or stale(status)


def unfilled(status: HostStatus) -> str:
    """Whose caches have not seen the whole state yet, and what keeps them from it; "" if all are
    filled.
    """
    behind = sorted(controller.name for controller in status.controllers if not controller.synced)
    if not behind:
        return ""
    why = _listed(
        f"{_name(informer)}: {_why(informer)}"
        for informer in status.informers
        if not informer.synced and informer.error
    )
    return f"caches of {', '.join(behind)} are not filled{f' ({why})' if why else ''}"


def stale(status: HostStatus) -> str:
    """Returns which filled caches are too old to be ready; "" if none is."""
    return _tell(status, _older(status, STALENESS_S_MAX))


def stuck(status: HostStatus) -> str:
    """Which caches are so old, for no reason that would outlive this process, that it should begin
    anew; "" if none is. Not before all were filled: the start of a large cluster takes its time.
    """
    if not status.synced:
        return ""
    old = _older(status, DEAD_AFTER_S)
    curable = [
        informer
        for informer in old
        if informer.error is None or informer.error[0].code not in NOT_TO_BE_HAD
    ]
    return _tell(status, curable)


def _older(status: HostStatus, seconds: float) -> list[InformerStatus]:
    """The oldest first."""
    old = [informer for informer in status.informers if seconds < informer.staleness_s < math.inf]
    return sorted(old, key=lambda informer: (-informer.staleness_s, _name(informer)))


def _tell(status: HostStatus, informers: list[InformerStatus]) -> str:
    return _listed(
        f"the cache of {_name(informer)} was last known current {informer.staleness_s:.0f} s ago,"
        f" at {format_time(status.at - informer.staleness_s)}: {_why(informer)}"
        for informer in informers
    )


def _name(informer: InformerStatus) -> str:
    watched = informer.watched
    scope = [
        part for part in (watched.namespace, watched.label_selector, watched.field_selector) if part
    ]
    return f"{watched.resource.key} ({', '.join(scope)})" if scope else watched.resource.key


def _why(informer: InformerStatus) -> str:
    if informer.error is None:
        return "its watch is silent"
    error = informer.error[0]
    return f"{error} ({error.code}{f' {error.reason}' if error.reason else ''})"


def _listed(sentences: Iterable[str]) -> str:
    listed = list(sentences)
    more = len(listed) - NAMED_MAX
    return "; ".join(listed[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
