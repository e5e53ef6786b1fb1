"""The data plane of one IP family over iptables: ``proxy.plane`` with ``table`` for its rules."""

from __future__ import annotations

from sliceplane.iptables.table import RestoreState, Transaction
from sliceplane.kit.ip import Family
from sliceplane.proxy.plane import Plane, PlaneConfig


class FamilyPlane(Plane):
    """See ``proxy.plane``."""

    def __init__(self, family: Family, config: PlaneConfig) -> None:
        self._state = RestoreState(family, masquerade_all=config.rules.masquerade_all)
        super().__init__(family, config, self._state)

    def take_transaction(self, now: float) -> Transaction | None:
        """The next write.  ``None``: the changes meant nothing to the kernel, and count as written."""
        self._take_up()
        return self._taken(self._state.take_transaction(), now)
