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

#: how long slices wait for those that follow them, at most
HAND_OVER_TIMEOUT_S: Final = 30.0


class SelectorChanges(Enum):
    """What becomes of Endpoints and slices when their Service gets or loses its selector: see
    above, or as upstream.
    """

    HAND_OVER = "hand-over"
    UPSTREAM = "upstream"
