"""What every way of giving hints that looks beyond one endpoint has in common (``hints``,
``plugin_hints``).

One policy is there for one service and one address type. ``Members`` tells it where every ready
endpoint is and asks for the hints of each; before every plan it lets the policy settle, and makes
the endpoints anew that the policy names. A policy gives hints to all ready endpoints (``active``)
or, while there is a ``problem``, to none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NamedTuple

import msgspec

from sliceplane.slices.heuristics.types import EndpointPlace
from sliceplane.slices.packing.packer import SlicePacker

#: a problem that stays is told again by the next sync after this; servers keep Events for an hour
REPEAT_S: Final = 1800.0


class Notice(NamedTuple):
    """What an Event is to tell about a service."""

    warning: bool
    reason: str
    message: str


class HintPolicy(ABC):
    """Owned by ``Members``.  ``problem``: why there are no hints, in the words of the Event; "":
    there are.
    """

    reason_enabled: ClassVar[str]
    reason_disabled: ClassVar[str]
    enabled_message: ClassVar[str]

    def __init__(self, address_type: str, *, told_active: bool) -> None:
        self._address_type = address_type
        self.active = False
        self.problem = ""
        #: what people know
        self._told_active = told_active
        self._told_problem = ""
        self._told_at = 0.0

    @abstractmethod
    def set(self, pod: str, at: EndpointPlace | None) -> bytes:
        """The endpoint of *pod* is ready and there; ``None``: it is not ready, or no endpoint.
        Gives its hints' JSON piece. Costs O(zones) at most.
        """

    @property
    @abstractmethod
    def settled(self) -> bool:
        """What is given may stay as it is.  Costs O(zones), more only after a change of zones."""

    @abstractmethod
    def switch(self, packer: SlicePacker) -> tuple[str, ...]:
        """Begin or cease to give hints, if that has to change; gives the pods concerned."""

    @abstractmethod
    def rebalance(self, packer: SlicePacker) -> tuple[str, ...]:
        """Give as many other hints as must be; gives the pods concerned."""

    def inherit(self, earlier: HintPolicy) -> None:
        """*earlier* was there before this service changed: what it told is known."""
        if type(earlier) is type(self):
            self._told_active = earlier._told_active

    def take_notices(self, now: float) -> tuple[Notice, ...]:
        """Each state is told when it begins; a problem again when its words change, or the Event
        could be gone.
        """
        if self.active and not self._told_active:
            self._told_active = True
            self._told_problem = ""
            return (Notice(False, self.reason_enabled, self._worded(self.enabled_message)),)
        if self.problem and (self.problem != self._told_problem or now - self._told_at >= REPEAT_S):
            self._told_active = False
            self._told_problem = self.problem
            self._told_at = now
            return (Notice(True, self.reason_disabled, self._worded(self.problem)),)
        return ()

    def farewell(self) -> tuple[Notice, ...]:
        """The service asks for something else now."""
        return ()

    def _worded(self, message: str) -> str:
        return f"{message}, addressType: {self._address_type}"

    @abstractmethod
    def check(self) -> None:
        """Derived state follows from where endpoints are."""


class _Name(msgspec.Struct):
    name: str = ""


class _Hints(msgspec.Struct, rename="camel"):
    for_zones: list[_Name] = []


class _Hinted(msgspec.Struct):
    hints: _Hints = msgspec.field(default_factory=_Hints)


def zones_shown(endpoint: bytes) -> tuple[str, ...]:
    """The zones that an endpoint's JSON is hinted for."""
    if b'"hints"' not in endpoint:
        return ()
    return tuple(zone.name for zone in msgspec.json.decode(endpoint, type=_Hinted).hints.for_zones)
