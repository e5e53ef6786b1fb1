"""The controller of a Service's endpoints when its selector is added or removed, and how one
controller succeeds another.

The EndpointSlice controller makes the slices of a Service with a selector. The user makes the
slices or Endpoints of a Service without one, and the mirroring controller mirrors these Endpoints
into slices. When the selector is removed or added, one controller succeeds the other; each observes
the other only by its slices:

- a selector is removed: the Endpoints controller hands its object over to the user by removing its
  labels, so that it is mirrored; the EndpointSlice controller deletes its slices of an address type
  when it observes others of that type;
- a selector is added: the EndpointSlice controller makes slices, the mirroring controller deletes
  its own likewise, type by type, and the Endpoints controller takes over the object;
- the Service becomes an ExternalName: no client reads its endpoints, so controllers delete their
  slices and Endpoints at once.

A controller waits at most ``HAND_OVER_TIMEOUT_S`` for its successor, since there may be none.
Upstream leaves slices and Endpoints behind that no controller manages
(kubernetes/kubernetes#103804, #105987, #118376), and deletes mirrored ones before others exist.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

#: seconds that slices wait for their successors
HAND_OVER_TIMEOUT_S: Final = 30.0


class SelectorChanges(Enum):
    """The treatment of Endpoints and slices when their Service gains or loses its selector: as
    above, or as upstream.
    """

    HAND_OVER = "hand-over"
    UPSTREAM = "upstream"


class HandOver:
    """The slices of one Service that no longer belong to their controller, from its first plan
    until they are deleted.
    """

    __slots__ = ("_succeeded", "_until", "_waits")

    def __init__(self) -> None:
        #: address types for which the other controller has endpoints
        self._succeeded: frozenset[str] = frozenset()
        self._until: float | None = None
        self._waits = False

    def restart(self) -> None:
        """Restarts the wait after a change of the selector; the successor's slices stay known."""
        self._until = None
        self._waits = False

    def on_successor(self, address_type: str) -> bool:
        """Records that the other controller has endpoints of *address_type*. Returns False if that
        was known.
        """
        if address_type in self._succeeded:
            return False
        self._succeeded |= {address_type}
        return True

    def on_successor_gone(self, address_type: str) -> None:
        self._succeeded -= {address_type}

    def advance(self, now: float, *, timeout_s: float = HAND_OVER_TIMEOUT_S) -> None:
        """Updates the state to *now*. The first call begins the wait of *timeout_s*."""
        if self._until is None:
            self._until = now + timeout_s
        self._waits = now < self._until

    def is_over(self, address_type: str) -> bool:
        """Returns True if slices of *address_type* may be deleted, as of the last ``advance``."""
        return not self._waits or address_type in self._succeeded

    @property
    def deadline(self) -> float | None:
        """The time at which all slices may be deleted; ``None`` if they already may, or before the
        first ``advance``.
        """
        return self._until if self._waits else None
