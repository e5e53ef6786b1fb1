"""Which controller has a Service's endpoints when its selector comes or goes, and how one
controller follows another.

A Service with a selector has slices by the EndpointSlice controller. One without has what its user
makes, and Endpoints that the user makes are mirrored into slices by another controller. When a
selector is removed, or added, the one takes over from the other, and neither knows of the other but
by the slices that it sees:

- a selector is removed: the Endpoints controller hands its object over to the user (it takes its
  labels away), so that it is mirrored; the EndpointSlice controller deletes its slices of an
  address type when it sees others of that type;
- a selector is added: the EndpointSlice controller makes slices, the mirroring controller deletes
  its own type by type likewise, and the Endpoints controller makes the object its own;
- the Service becomes a name elsewhere (ExternalName): no client reads its endpoints; what
  controllers made goes at once.

A controller waits for its successor for ``HAND_OVER_TIMEOUT_S`` at most: there may be none.
Upstream leaves slices and Endpoints behind that no controller looks after
(kubernetes/kubernetes#103804, #105987, #118376), and deletes mirrored ones before others exist.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

#: seconds that slices wait for their successors
HAND_OVER_TIMEOUT_S: Final = 30.0


class SelectorChanges(Enum):
    """The fate of Endpoints and slices when their Service gets or loses its selector: see above, or
    as upstream.
    """

    HAND_OVER = "hand-over"
    UPSTREAM = "upstream"


class HandOver:
    """The slices of one Service that no longer belong to their controller, from its first plan
    until they are deleted.
    """

    __slots__ = ("_succeeded", "_until", "_waits")

    def __init__(self) -> None:
        #: address types of which the other controller has endpoints
        self._succeeded: frozenset[str] = frozenset()
        self._until: float | None = None
        self._waits = False

    def restart(self) -> None:
        """The Service changed its selector; the successor's slices are still there."""
        self._until = None
        self._waits = False

    def on_successor(self, address_type: str) -> bool:
        """The other controller has endpoints of *address_type*. False: that was known."""
        if address_type in self._succeeded:
            return False
        self._succeeded |= {address_type}
        return True

    def on_successor_gone(self, address_type: str) -> None:
        self._succeeded -= {address_type}

    def advance(self, now: float, *, timeout_s: float = HAND_OVER_TIMEOUT_S) -> None:
        """Begins with the first call: slices wait for *timeout_s*."""
        if self._until is None:
            self._until = now + timeout_s
        self._waits = now < self._until

    def is_over(self, address_type: str) -> bool:
        """Returns True if slices of *address_type* may be deleted, as of the last ``advance``."""
        return not self._waits or address_type in self._succeeded

    @property
    def deadline(self) -> float | None:
        """When all slices may be deleted; ``None``: they may be now, or it has not begun."""
        return self._until if self._waits else None
