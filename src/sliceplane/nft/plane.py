"""The data plane of one IP family over nftables: ``proxy.plane`` with ``build`` and ``table`` for its rules.

A full transaction would lose what packets have put into dynamic sets; who takes one asks ``wants_memory`` first, and
gives what the kernel has.
"""

from __future__ import annotations

from sliceplane.kit.ip import Family
from sliceplane.nft.build import build_service, node_port_addresses
from sliceplane.nft.names import TABLE
from sliceplane.nft.objects import Memory, TableRef, Transaction
from sliceplane.nft.statements import NftFamily
from sliceplane.nft.table import TableState
from sliceplane.proxy.model import ServiceChange, ServiceKey
from sliceplane.proxy.plane import Plane, PlaneConfig
from sliceplane.proxy.surroundings import NodeFacts, Surroundings

__all__ = ["NFT_FAMILIES", "FamilyPlane", "PlaneConfig"]

NFT_FAMILIES: dict[Family, NftFamily] = {"IPv4": "ip", "IPv6": "ip6"}
#: whose objects the node's own are; no Service has an empty name
_NODE = ServiceKey("", "")


class _Rules:
    """A ``proxy.plane.Ruleset`` of one table."""

    def __init__(self, table: TableState) -> None:
        self._table = table
        self.on_success = table.on_success
        self.on_failure = table.on_failure
        self.force_full = table.force_full
        self.next_deadline = table.next_deadline
        self.check = table.check

    @property
    def needs_full(self) -> bool:
        return self._table.needs_full

    def set_surroundings(self, around: Surroundings, node_ports: tuple[str, ...]) -> bool:
        changed = self._table.set_surroundings(around)
        return self._table.set_service(_NODE, node_port_addresses(node_ports)) or changed

    def set_service(self, change: ServiceChange, node: NodeFacts) -> bool:
        return self._table.set_service(change.service, build_service(change.ports, node))


class FamilyPlane(Plane):
    """See ``proxy.plane``."""

    def __init__(self, family: Family, config: PlaneConfig, table: str = TABLE, writer: str = "0") -> None:
        """*writer*: a word that no other process has which might write this table."""
        self._table = TableState(TableRef(NFT_FAMILIES[family], table), writer=writer)
        super().__init__(family, config, _Rules(self._table))

    @property
    def busy(self) -> bool:
        """A write runs, or the last one failed: nobody can say what the kernel holds."""
        return self._schedule.running or self._table.needs_full

    @property
    def table(self) -> TableRef:
        return self._table.table

    @property
    def wants_memory(self) -> bool:
        """The next write replaces the table, and there are clients whose endpoints should be remembered over it."""
        return self._table.needs_full and self._tracker.has_affinity()

    def take_transaction(self, now: float, memory: Memory | None = None) -> Transaction | None:
        """The next write.  ``None``: the changes meant nothing to the kernel, and count as written.  *memory*: what the
        dynamic sets of the table have, where it is wanted."""
        self._take_up()
        return self._taken(self._table.take_transaction(now, memory), now)

    def shadow(self) -> Transaction:
        """What the kernel is thought to hold (``TableState.shadow``)."""
        return self._table.shadow()
