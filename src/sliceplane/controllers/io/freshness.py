"""Judges if a host's caches can be trusted, in sentences that name the caches, their age and the
reason.

A host is *ready* if every cache is filled and none is older than ``STALENESS_S_MAX``. *Alive*
requires less: a restart may repair a cache without events, but not a missing permission or API. So
refusals of the server itself (403, 404) make a process unready but never dead: a restart would lose
its caches and could not fill them again. 401 is different: a start reads credentials anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from sliceplane.api.scheme import NOT_TO_BE_HAD
from sliceplane.kit.times import format_time
from sliceplane.watch.io.hosting.host import HostStatus
from sliceplane.watch.io.hosting.informers import InformerStatus

#: age at which caches make their owner not ready: informers receive data from the server at least
#: every minute
STALENESS_S_MAX: Final = 120.0
#: age at which caches are a reason for a restart
DEAD_AFTER_S: Final = 2 * STALENESS_S_MAX
#: maximum number of caches that a sentence names
NAMED_MAX: Final = 3


def complaint(status: HostStatus) -> str:
    """Returns the reason why the controllers are not ready; "" if they are."""
    return unfilled(status) or stale(status)


def unfilled(status: HostStatus) -> str:
    """Returns the caches that have not been filled yet, with the reason; "" if all are filled."""
    behind = sorted(controller.name for controller in status.controllers if not controller.synced)
    if not behind:
        return ""
    reason = _listed(
        f"{_cache_name(informer)}: {_reason_of(informer)}"
        for informer in status.informers
        if not informer.synced and informer.error
    )
    return f"caches of {', '.join(behind)} are not filled{f' ({reason})' if reason else ''}"


def stale(status: HostStatus) -> str:
    """Returns the filled caches that are too old to be ready; "" if none is."""
    return _staleness_text(status, _older(status, STALENESS_S_MAX))


def stuck(status: HostStatus) -> str:
    """Returns the caches that are so old that the process should restart, for reasons that a
    restart may remove; "" if none is. It applies only after all were filled once, since the start
    of a large cluster takes time.
    """
    if not status.synced:
        return ""
    old = _older(status, DEAD_AFTER_S)
    curable = [
        informer
        for informer in old
        if informer.error is None or informer.error[0].code not in NOT_TO_BE_HAD
    ]
    return _staleness_text(status, curable)


def _older(status: HostStatus, seconds: float) -> list[InformerStatus]:
    """Returns the informers that are staler than *seconds*, the oldest first."""
    old = [informer for informer in status.informers if seconds < informer.staleness_s < math.inf]
    return sorted(old, key=lambda informer: (-informer.staleness_s, _cache_name(informer)))


def _staleness_text(status: HostStatus, informers: list[InformerStatus]) -> str:
    return _listed(
        f"the cache of {_cache_name(informer)} was last known current {informer.staleness_s:.0f} s ago,"
        f" at {format_time(status.at - informer.staleness_s)}: {_reason_of(informer)}"
        for informer in informers
    )


def _cache_name(informer: InformerStatus) -> str:
    watched = informer.watched
    scope = [
        part for part in (watched.namespace, watched.label_selector, watched.field_selector) if part
    ]
    return f"{watched.resource.key} ({', '.join(scope)})" if scope else watched.resource.key


def _reason_of(informer: InformerStatus) -> str:
    if informer.error is None:
        return "its watch is silent"
    error = informer.error[0]
    return f"{error} ({error.code}{f' {error.reason}' if error.reason else ''})"


def _listed(sentences: Iterable[str]) -> str:
    listed = list(sentences)
    more = len(listed) - NAMED_MAX
    return "; ".join(listed[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
