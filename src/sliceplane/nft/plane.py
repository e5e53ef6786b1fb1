"""The data plane of one IP family as a core: events in, transactions out.

``proxy.tracker`` knows what changed, ``build`` what that means, ``table`` how the kernel gets there,
``proxy.schedule`` when.  This is their composition; a shell (or a test, or a simulator) owns it and runs what it
gives out::

    plane.on_service(old, new, now) ...      # and on_slice, on_node, on_synced
    if plane.due(now):
        transaction = plane.take_transaction(now)
        if transaction is not None: run it, then plane.on_success(now) or plane.on_failure(now)

Nothing is written before ``on_synced``: half a list of Services would take the other half's rules away.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import Family, networks
from sliceplane.nft.build import NodeFacts, build_service, node_port_addresses
from sliceplane.nft.names import TABLE
from sliceplane.nft.objects import Memory, TableRef, Transaction
from sliceplane.nft.statements import NftFamily
from sliceplane.nft.surroundings import NodeNetwork, RulesConfig, own_address, surroundings
from sliceplane.nft.surroundings import node_port_addresses as addresses_of_node_ports
from sliceplane.nft.table import TableState
from sliceplane.proxy.aftermath import Aftermath
from sliceplane.proxy.conntrack import Expected
from sliceplane.proxy.model import ServiceKey, ServicePort
from sliceplane.proxy.schedule import Freshness, Schedule
from sliceplane.proxy.tracker import ServiceTracker, node_ip

NFT_FAMILIES: dict[Family, NftFamily] = {"IPv4": "ip", "IPv6": "ip6"}
#: whose objects the node's own are; no Service has an empty name
_NODE = ServiceKey("", "")


@dataclass(frozen=True, slots=True)
class PlaneConfig:
    """``node_name``: whose zone and local endpoints count.  ``min_period_s``: the pause between two writes."""

    node_name: str
    table: str = TABLE
    min_period_s: float = 0.0
    rules: RulesConfig = field(default_factory=RulesConfig)
    #: trigger times before it (the start of the process) are not measured
    since: float = 0.0


class FamilyPlane:
    """See the module.  One transaction at a time."""

    def __init__(self, family: Family, config: PlaneConfig) -> None:
        self.family: Family = family
        self._config = config.rules
        self._node = NodeNetwork()
        self._service_cidrs: dict[str, tuple[str, ...]] = {}
        around = surroundings(config.rules, family, self._node)
        self._facts = NodeFacts("", around.detector)
        self._tracker = ServiceTracker(family, config.node_name, since=config.since)
        self._table = TableState(TableRef(NFT_FAMILIES[family], config.table), around)
        self._schedule = Schedule(min_period_s=config.min_period_s)
        self._synced = False
        self._writes = 0
        self._table_written_at: float | None = None
        self._in_flight_is_full = False
        #: what follows from what the kernel has; the shell tells it
        self.aftermath = Aftermath()
        self._on_network(NodeNetwork(ip=own_address(config.rules, family, "")), now=0.0)

    @property
    def freshness(self) -> Freshness:
        return self._schedule.freshness

    @property
    def services(self) -> int:
        """How many Services this family serves."""
        return len(self._tracker.services())

    @property
    def tracker(self) -> ServiceTracker:
        """What is known of Services and endpoints; to look at, not to change."""
        return self._tracker

    @property
    def facts(self) -> NodeFacts:
        return self._facts

    @property
    def writes(self) -> int:
        """How many transactions the kernel has taken."""
        return self._writes

    @property
    def table(self) -> TableRef:
        return self._table.table

    @property
    def table_written_at(self) -> float | None:
        """When the kernel last took the whole table; ``None``: not yet."""
        return self._table_written_at

    def on_service(self, old: Service | None, new: Service | None, now: float) -> None:
        self._note(self._tracker.on_service(old, new), now)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        self._note(self._tracker.on_slice(old, new), now)

    def on_node(self, node: Node | None, now: float) -> None:
        """This node; ``None``: it was deleted, which changes nothing here."""
        self._note(self._tracker.on_node(node), now)
        if node is not None:
            ranges = (*(node.spec.pod_cidrs or ()), *([node.spec.pod_cidr] if node.spec.pod_cidr else []))
            own = own_address(self._config, self.family, node_ip(node, self.family))
            self._on_network(replace(self._node, ip=own, pod_networks=networks(ranges[:2], self.family)), now)

    def on_service_cidr(self, name: str, new: ServiceCIDR | None, now: float) -> None:
        """A range of cluster IPs came, changed or went."""
        if new is None:
            self._service_cidrs.pop(name, None)
        else:
            self._service_cidrs[name] = new.spec.cidrs or ()
        found = [text for name in sorted(self._service_cidrs) for text in self._service_cidrs[name]]
        self._on_network(replace(self._node, service_networks=networks(found, self.family)), now)

    def on_interfaces(self, addresses: tuple[str, ...], now: float) -> None:
        """The host's own addresses of this family, in canonical form."""
        self._on_network(replace(self._node, interface_addresses=addresses), now)

    def _on_network(self, node: NodeNetwork, now: float) -> None:
        if node == self._node:
            return
        self._node = node
        around = surroundings(self._config, self.family, node)
        changed = self._table.set_surroundings(around)
        listed = addresses_of_node_ports(self._config, self.family, node) or ()
        changed = self._table.set_service(_NODE, node_port_addresses(listed)) or changed
        facts = NodeFacts(node.ip, around.detector)
        if facts != self._facts:
            self._facts = facts
            changed = bool(self._tracker.mark_all()) or changed
        if changed and self._synced:
            self._schedule.on_change(now)

    def on_synced(self, now: float) -> None:
        """Services and EndpointSlices were listed; the first write is due.  A second call changes nothing."""
        if not self._synced:
            self._synced = True
            self._schedule.on_change(now)

    def expected_flows(self, services: tuple[ServiceKey, ...], gone: tuple[ServicePort, ...] = ()) -> Expected:
        """Who may answer UDP flows to *services*, and to the ports *gone*: nobody, unless *services* have their
        addresses."""
        return self._tracker.expected_flows(services, gone)

    @property
    def node_port_addresses(self) -> tuple[str, ...] | None:
        """Where node ports are served; ``None``: on all of the host's addresses but loopback ones."""
        return addresses_of_node_ports(self._config, self.family, self._node)

    def next_deadline(self) -> float | None:
        """When ``take_transaction`` may have something; ``None``: after the next event, or while one runs."""
        return self._schedule.next_deadline() if self._synced else None

    def due(self, now: float) -> bool:
        return self._synced and self._schedule.due(now)

    @property
    def wants_memory(self) -> bool:
        """The next write replaces the table, and there are clients whose endpoints should be remembered over it."""
        return self._table.needs_full and self._tracker.has_affinity()

    def take_transaction(self, now: float, memory: Memory | None = None) -> Transaction | None:
        """The next write.  ``None``: the changes meant nothing to the kernel, and count as written.  *memory*: what the
        dynamic sets of the table have, where it is wanted."""
        assert self._synced, "nothing may be written before the first lists are complete"
        self._schedule.on_start()
        for change in self._tracker.take_changes():
            self._table.set_service(change.service, build_service(change.ports, self._facts))
            self.aftermath.note(change)
        self.aftermath.note_triggers(self._tracker.take_triggers())
        transaction = self._table.take_transaction(now, memory)
        self._in_flight_is_full = transaction is not None and transaction.full
        if transaction is None:
            self.aftermath.on_success(now)
            self._schedule.on_success(now)
            self._arm_retirement()
        return transaction

    def on_success(self, now: float) -> None:
        """The kernel took the transaction."""
        self._writes += 1
        if self._in_flight_is_full:
            self._table_written_at = now
        self._table.on_success(now)
        self.aftermath.on_success(now)
        self._schedule.on_success(now)
        self._arm_retirement()

    def on_failure(self, now: float) -> None:
        """The kernel refused it; the next one, after the back-off or with the next change, is full."""
        self._table.on_failure()
        self._schedule.on_failure(now)

    def on_doubt(self, now: float) -> None:
        """Somebody else may have changed the table: write all of it anew.  Nothing is done while a write runs: it shows
        by itself whether the table is there."""
        if self._synced and not self._schedule.running:
            self._table.force_full()
            self._schedule.on_change(now)

    def _note(self, changed: tuple[ServiceKey, ...], now: float) -> None:
        if changed and self._synced:
            self._schedule.on_change(now)

    def _arm_retirement(self) -> None:
        deadline = self._table.next_deadline()
        if deadline is not None:
            self._schedule.on_idle_work(deadline)

    def check(self) -> None:
        """Every invariant of the parts.  O(state)."""
        self._tracker.check()
        self._table.check()
        self.aftermath.check()
