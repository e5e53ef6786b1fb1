"""Make before break: new listeners and routes wait for the clusters that they may name.

A client that gets a listener before its cluster answers calls with errors. So listeners and routes
wait until the client has accepted the clusters, or ``GATE_S`` if it does not answer; removed
clusters wait for the listeners and routes that named them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.xds import names
from sliceplane.xds.streams.channel import XdsChannel

_GATED_TYPES: Final = frozenset({names.LISTENER, names.ROUTES})
#: seconds for which listeners and routes wait until clusters are accepted
GATE_S: Final = 2.0


class ClusterGate:
    """Owned by one stream; reads its *channels* (by type URL)."""

    __slots__ = ("_channels", "_is_forced", "_is_open", "_since")

    def __init__(self, channels: Mapping[str, XdsChannel]) -> None:
        self._channels = channels
        #: when listeners or routes began to wait; ``None``: none wait
        self._since: float | None = None
        #: the wait is over: in the next round of responses, and in the current one
        self._is_forced = False
        self._is_open = False

    @property
    def deadline(self) -> float | None:
        """The time at which the wait ends although the client did not answer."""
        return None if self._since is None else self._since + GATE_S

    def expire(self, now: float) -> bool:
        """Returns True if the deadline has passed; the next round sends what waits."""
        if self._since is None or now < self._since + GATE_S:
            return False
        self._since = None
        self._is_forced = True
        return True

    def on_clusters_answered(self) -> None:
        """Notes that the client accepted or refused the clusters in flight."""
        self._since = None

    def begin_round(self) -> None:
        """Begins a round of responses of all types."""
        self._is_open, self._is_forced = self._is_forced, False

    def end_round(self) -> None:
        self._is_open = False

    def must_wait(self, channel: XdsChannel, now: float) -> bool:
        """Returns True if new resources of *channel* must wait for clusters that the client has not
        accepted.
        """
        clusters = self._channels.get(names.CLUSTER)
        if (
            self._is_open
            or channel.type_url not in _GATED_TYPES
            or clusters is None
            or clusters.in_flight is None
            or not (clusters.in_flight or clusters.needs_response)
        ):
            return False
        if self._since is None:
            self._since = now
        return True

    def has_listener_updates(self) -> bool:
        """Returns True if listeners or routes are owed or in flight: removed clusters wait for
        them.
        """
        return any(
            channel.owed or channel.in_flight is not None
            for type_url, channel in self._channels.items()
            if type_url in _GATED_TYPES
        )
