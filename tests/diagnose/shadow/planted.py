"""The EndpointSlice controller with a bug: it is told something else than what is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.meta import Object
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Job, Work

replace = msgspec.structs.replace

#: an object as the buggy controller sees it; ``None``: as if there were none
Distort = Callable[[Object], Object | None]


class Planted:
    """A ``Controller``.  *distort* is asked for every version of every object."""

    def __init__(self, distort: Distort, *, never_lose: type[Object] | None = None) -> None:
        self._inner = EndpointSliceController()
        self._distort = distort
        self._never_lose = never_lose

    @property
    def info(self) -> ControllerInfo:
        return self._inner.info

    def on_change(self, change: Change[Object], now: float) -> None:
        if (
            change.new is None
            and self._never_lose is not None
            and isinstance(change.old, self._never_lose)
        ):
            return
        old = None if change.old is None else self._distort(change.old)
        new = None if change.new is None else self._distort(change.new)
        if old is not None or new is not None:
            self._inner.on_change(Change(change.resource, old, new), now)

    def on_synced(self, now: float) -> None:
        self._inner.on_synced(now)

    def take_work(self, now: float, max_jobs: int) -> Work:
        return self._inner.take_work(now, max_jobs)

    def on_done(self, done: Done, now: float) -> None:
        self._inner.on_done(done, now)

    def next_deadline(self) -> float | None:
        return self._inner.next_deadline()

    def check(self) -> None:
        self._inner.check()


def job_keys(jobs: tuple[Job, ...]) -> list[str]:
    return [job.key for job in jobs]


# The bugs


def sound(found: Object) -> Object:
    return found


def terminating_stay_ready(found: Object) -> Object:
    return (
        replace(found, metadata=replace(found.metadata, deletion_timestamp=None))
        if isinstance(found, Pod)
        else found
    )


def wrong_zone(found: Object) -> Object:
    """Every node is in the zone of its neighbour."""
    labels: dict[str, Any] = found.metadata.labels or {}
    if not isinstance(found, Node) or labels.get(LABEL_ZONE) != "a":
        return found
    return replace(found, metadata=replace(found.metadata, labels={**labels, LABEL_ZONE: "b"}))


def no_hints(found: Object) -> Object:
    return (
        replace(found, spec=replace(found.spec, traffic_distribution=None))
        if isinstance(found, Service)
        else found
    )


def last_port_dropped(found: Object) -> Object:
    if not isinstance(found, Service):
        return found
    return replace(found, spec=replace(found.spec, ports=(found.spec.ports or ())[:-1]))


def labels_forgotten(found: Object) -> Object:
    return (
        replace(found, metadata=replace(found.metadata, labels=None))
        if isinstance(found, Service)
        else found
    )


def one_family(found: Object) -> Object:
    return (
        replace(found, spec=replace(found.spec, ip_families=("IPv4",)))
        if isinstance(found, Service)
        else found
    )
