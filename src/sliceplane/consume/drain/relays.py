"""The reports of relays about themselves, in the Leases that aggregate their nodes (``relayed``).

Relays form trees. A relay whose parent aggregates reports, too, has no Lease at the API server: its
parent keeps it. So the annotation ``sliceplane.dev/relays`` has a report of the relay that writes
the Lease, and of each relay below it that reports through it.

A report is of one process, since two processes may write one name. It has no secret and names no
client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.core import Lease
from sliceplane.consume.drain.relayed import RELAY_PREFIX, is_relay_lease

ANNOTATION_RELAYS: Final = "sliceplane.dev/relays"
#: seconds of two bookmarks, which servers send each minute: a parent that is silent for longer may
#: be lost
SILENT_S: Final = 120.0


class RelayReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process of the relay *name*, ``up_s`` seconds after its start.

    ``heard``: seconds since the epoch by the clock of the relay that wrote the Lease. ``parent``:
    the URL of the parent in use. ``below``: the name of the relay that it reports through; "": it
    writes its own Lease. ``trouble``: why it is not ready. ``watches``: open ones of clients.
    ``nodes``: nodes whose reports it aggregates. ``silence``: by resource that was listed, seconds
    since memory was last known to have all that the parent has. ``is_late``: the relay above it
    vouches that no report came in time.
    """

    name: str
    process: str
    heard: float
    up_s: float
    parent: str
    release: str
    below: str = ""
    zone: str = ""
    trouble: str = ""
    watches: int = 0
    nodes: int = 0
    silence: dict[str, float] = {}
    is_late: bool = False

    @property
    def started(self) -> float:
        """Seconds since the epoch, by the clock of ``heard``."""
        return self.heard - self.up_s

    @property
    def silence_s(self) -> float:
        """The longest silence of a resource."""
        return max(self.silence.values(), default=0.0)


_decoder = msgspec.json.Decoder(tuple[RelayReport, ...])


def relays_of(lease: Lease) -> tuple[RelayReport, ...]:
    """Returns the reports in *lease*; none if it is no relay's, or of an older release."""
    text = (lease.metadata.annotations or {}).get(ANNOTATION_RELAYS, "")
    try:
        return _decoder.decode(text) if text and is_relay_lease(lease) else ()
    except msgspec.DecodeError:
        return ()


def relay_name(lease: str) -> str:
    """Returns the name of the relay that writes the Lease of that name."""
    return lease.removeprefix(RELAY_PREFIX)
