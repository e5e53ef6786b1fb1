"""Picks for callers: a core picker, its view's lock, and leases that count requests in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sliceplane.balancing import pickers
from sliceplane.balancing.model import Endpoint
from sliceplane.balancing.view import ServiceView


class NoEndpoint(Exception):
    """At this moment no endpoint may be used.  The text says why."""


class Picker:
    """One way to pick, made by a view.  Keep it: making one costs O(endpoints), a pick costs O(1).

    ``pick`` never gives an endpoint that the view has already told to be gone.
    """

    def __init__(
        self,
        view: ServiceView,
        picker: pickers.Picker,
        lock: AbstractContextManager[object],
        why_none: Callable[[], str],
    ) -> None:
        self._view = view
        self._picker = picker
        self._lock = lock
        self._why_none = why_none
        with lock:
            view.attach(picker)

    def pick(self, key: str | bytes = b"") -> Endpoint:
        """An endpoint for one request; *key* matters to consistent hashing only.  Raises ``NoEndpoint``."""
        with self._lock:
            return self._choose(key)

    @contextmanager
    def lease(self, key: str | bytes = b"") -> Iterator[Endpoint]:
        """The same, counted as a request in flight until the block is left.  Raises ``NoEndpoint``.

        Works around ``await`` too.  ``least_outstanding``, ``zone_first`` and the bound of ``consistent_hash`` know of
        leases only, those of all pickers of the view.
        """
        with self._lock:
            endpoint = self._choose(key)
            self._view.load.acquire(endpoint.id)
        try:
            yield endpoint
        finally:
            with self._lock:
                self._view.load.release(endpoint.id)

    def close(self) -> None:
        """Let go of a picker that is not needed while its view lives on."""
        with self._lock:
            self._view.detach(self._picker)

    def _choose(self, key: str | bytes) -> Endpoint:
        endpoint = self._picker.pick(key.encode() if isinstance(key, str) else key)
        if endpoint is None:
            raise NoEndpoint(self._why_none())
        return endpoint
