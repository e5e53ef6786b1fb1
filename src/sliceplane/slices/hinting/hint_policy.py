"""The common base of hints that depend on more than one endpoint (``hints``, ``plugin_hints``).

A policy belongs to one Service and one address type. ``SliceMembers`` passes it the location of
every ready endpoint and gets the endpoint's hints. Before every plan the policy may change hints,
and ``SliceMembers`` rebuilds the endpoints that it returns. A policy gives hints to all ready
endpoints (``active``) or, while it has a ``problem``, to none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NamedTuple

import msgspec

from sliceplane.slices.heuristics.types import EndpointLocation, ServiceView
from sliceplane.slices.packing.packer import SlicePacker

#: seconds after which a sync reports a lasting problem again; servers keep Events for an hour
REPEAT_S: Final = 1800.0


class Notice(NamedTuple):
    """The content of an Event about a Service."""

    warning: bool
    reason: str
    message: str


class HintPolicy(ABC):
    """A way of giving hints. Owned by ``SliceMembers``. ``problem``: the reason for giving no
    hints, as the Event states it; "" if there is none.
    """

    reason_enabled: ClassVar[str]
    reason_disabled: ClassVar[str]
    enabled_message: ClassVar[str]

    def __init__(self, address_type: str, *, reported_active: bool) -> None:
        self._address_type = address_type
        self.active = False
        self.problem = ""
        #: the time at which the next hints of a gradual change move
        self.next_step: float | None = None
        #: the state that Events reported last
        self._reported_active = reported_active
        self._reported_problem = ""
        self._reported_at = 0.0

    @abstractmethod
    def set(self, pod: str, location: EndpointLocation | None) -> bytes:
        """Sets the location of the endpoint of *pod*; ``None`` if it is not ready or no endpoint.
        Returns the JSON piece of its hints. Costs at most O(zones).
        """

    @property
    @abstractmethod
    def is_converged(self) -> bool:
        """True if all hints may stay. Costs O(zones), more only after a change of zones."""

    @abstractmethod
    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        """Starts or stops giving hints if necessary. Returns the Pods concerned."""

    @abstractmethod
    def rebalance(self, packer: SlicePacker, now: float) -> tuple[str, ...]:
        """Changes as many hints as necessary, or a part of them until ``next_step``. Returns the
        Pods concerned.
        """

    def set_service(self, service: ServiceView) -> None:  # noqa: B027  # optional
        """Replaces the Service after a change of its annotations."""

    def inherit(self, earlier: HintPolicy) -> None:
        """Takes over the reported state of *earlier*, the policy before the Service changed."""
        if type(earlier) is type(self):
            self._reported_active = earlier._reported_active

    def take_notices(self, now: float) -> tuple[Notice, ...]:
        """Returns notices of a new state, or of a problem whose text changed or whose Event may
        have expired.
        """
        if self.active and not self._reported_active:
            self._reported_active = True
            self._reported_problem = ""
            return (Notice(False, self.reason_enabled, self._message(self.enabled_message)),)
        if self.problem and (
            self.problem != self._reported_problem or now - self._reported_at >= REPEAT_S
        ):
            self._reported_active = False
            self._reported_problem = self.problem
            self._reported_at = now
            return (Notice(True, self.reason_disabled, self._message(self.problem)),)
        return ()

    def final_notices(self) -> tuple[Notice, ...]:
        """Returns notices for the end of the policy, when the Service requests another."""
        return ()

    def _message(self, message: str) -> str:
        return f"{message}, addressType: {self._address_type}"

    @abstractmethod
    def check(self) -> None:
        """Asserts that derived state follows from the locations of endpoints."""


class _Name(msgspec.Struct):
    name: str = ""


class _Hints(msgspec.Struct, rename="camel"):
    for_zones: list[_Name] = []


class _Hinted(msgspec.Struct):
    hints: _Hints = msgspec.field(default_factory=_Hints)


def hinted_zones(endpoint: bytes) -> tuple[str, ...]:
    """Returns the zones that an endpoint's JSON is hinted for."""
    if b'"hints"' not in endpoint:
        return ()
    return tuple(zone.name for zone in msgspec.json.decode(endpoint, type=_Hinted).hints.for_zones)
