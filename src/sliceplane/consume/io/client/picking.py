"""Picks for callers: a core picker, its view's lock, leases that count requests in flight, and what
failed lately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from sliceplane.consume.balancing import pickers
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.view import BalancedService


class NoEndpoint(Exception):
    """At this moment no endpoint may be used.  The text says why."""


class Picker:
    """One way to pick, made by a view.  Keep it: making one costs O(endpoints), a pick costs O(1).

    ``pick`` never gives an endpoint that the view has already told to be gone. One that ``failed``
    is passed over for a second, longer when it fails again, by all pickers of the view; but never
    more than half of them are.
    """

    def __init__(
        self,
        view: BalancedService,
        picker: pickers.PickStrategy,
        lock: AbstractContextManager[object],
        why_none: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._picker = picker
        self._lock = lock
        self._why_none = why_none
        self._clock = clock
        with lock:
            view.attach(picker)

    def pick(self, key: str | bytes = b"", *, exclude: Collection[Endpoint] = ()) -> Endpoint:
        """An endpoint for one request, none of *exclude*: those that this request has tried. *key*
        matters to consistent hashing only. Raises ``NoEndpoint``.
        """
        with self._lock:
            return self._choose(key, exclude)

    @contextmanager
    def lease(
        self, key: str | bytes = b"", *, exclude: Collection[Endpoint] = ()
    ) -> Iterator[Endpoint]:
        """The same, counted as a request in flight until the block is left.  Raises ``NoEndpoint``.

        Works around ``await`` too. ``least_outstanding``, ``zone_first`` and the bound of
        ``consistent_hash`` know of leases only, those of all pickers of the view. A block that is
        left without an error and without ``failed`` says that the endpoint is well.
        """
        ejections = self._view.ejections
        with self._lock:
            endpoint = self._choose(key, exclude)
            self._view.load.acquire(endpoint.id)
            failures = ejections.failures(endpoint.id)
        went_well = False
        try:
            yield endpoint
            went_well = True
        finally:
            with self._lock:
                self._view.load.release(endpoint.id)
                if went_well and failures == ejections.failures(endpoint.id):
                    ejections.on_success(endpoint.id)

    def failed(self, endpoint: Endpoint) -> None:
        """No connection to *endpoint*, or no answer in time: the next picks pass it over for a
        while.
        """
        with self._lock:
            self._view.ejections.on_failure(endpoint.id, self._clock())

    def close(self) -> None:
        """Let go of a picker that is not needed while its view lives on."""
        with self._lock:
            self._view.detach(self._picker)

    def _choose(self, key: str | bytes, exclude: Collection[Endpoint]) -> Endpoint:
        tried = frozenset(endpoint.id for endpoint in exclude)
        raw_key = key.encode() if isinstance(key, str) else key
        endpoint = self._view.pick(self._picker, raw_key, tried, self._clock())
        if endpoint is None:
            count = self._view.usable_count
            raise NoEndpoint(
                f"all {count} usable endpoints were tried" if tried and count else self._why_none()
            )
        return endpoint
