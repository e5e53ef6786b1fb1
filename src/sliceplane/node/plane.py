"""The data plane of one IP family as a core (events in, transactions out), and the interface of a
back end's rules.

A back end is a core and a shell. The core is a ``Ruleset`` of one IP family: the desired state, a
shadow of the kernel's, and transactions from one to the other (``node.nft.table``,
``node.iptables.table``). ``NodePlane`` owns it and reports changes to it; the shell
(``node.io.kernel.backend``) executes its transactions.

``node.tracker`` has the changes, and ``node.schedule`` decides when to write. A back end's
``Ruleset`` computes the difference between the desired rules and the kernel's. A shell (or a test,
or a simulator) owns the plane and executes its transactions::

    plane.on_service(old, new, now) ...      # and on_slice, on_node, on_synced
    if plane.schedule.due(now):
        transaction = plane.take_transaction(now)
        if transaction is not None: run it, then plane.on_success(now) or plane.on_failure(now)

Nothing is written before ``on_synced``: an incomplete list of Services would remove the rules of the
others.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.grounds import Ground
from sliceplane.consume.model import ServedPort, ServiceChange, ServiceKey, canonical_of
from sliceplane.kit.ip import Family, family, networks
from sliceplane.node.context import (
    LocalNode,
    NodeContext,
    NodeNetwork,
    RulesConfig,
    build_context,
    node_port_addresses,
    own_address,
)
from sliceplane.node.post_sync import PostSync
from sliceplane.node.schedule import Schedule
from sliceplane.node.tracker import ServiceTracker, node_ground, node_ip


class RulesTransaction(Protocol):
    """The common interface of the transactions of back ends."""

    @property
    def full(self) -> bool:
        """Returns True if the transaction replaces all rules, whatever the kernel has."""

    @property
    def size(self) -> int:
        """Returns the number of commands, for logs."""

    def render(self) -> str:
        """Returns the text for the back end's program."""


T_co = TypeVar("T_co", bound=RulesTransaction, covariant=True)


class Ruleset(Protocol[T_co]):
    """The rules of one IP family in one back end.

    ``set_*`` set the desired state, ``take_transaction`` returns the difference; then the caller
    calls exactly one of ``on_success`` and ``on_failure``. After a failure the shadow is invalid, and
    the next write is full.
    """

    #: the next transaction replaces all rules, whatever the shadow has; the caller may set it, too
    needs_full: bool

    @property
    def chain_per_target(self) -> bool:
        """Returns True if each target of a Service is a chain, so that the bound of targets is
        lower.
        """

    def set_context(self, context: NodeContext, node_ports: tuple[str, ...]) -> bool:
        """Sets the node context of the rules; returns True if that requires a write.  *node_ports*:
        the addresses of node ports, if they are listed.
        """

    def set_service(self, change: ServiceChange, node: LocalNode) -> bool:
        """Sets the newest state of a Service; returns True if its rules change.  O(the Service)."""

    def take_transaction(self, now: float) -> T_co | None:
        """Returns the transaction that brings the kernel up to date; ``None`` if it already is."""

    def on_success(self, now: float) -> None:
        """Notes that the kernel has applied the transaction."""

    def on_failure(self) -> None:
        """Notes that the kernel refused the transaction, or that its result is unknown."""

    def next_deadline(self) -> float | None:
        """Returns when retired objects may be removed; ``None``: there are none."""

    def check(self) -> None:
        """Asserts every invariant.  O(state)."""


K = TypeVar("K")
V = TypeVar("V")


class KernelClaims(Generic[K, V]):
    """The values that Services claim for entries in the kernel. If several Services claim the same
    entry, the first by namespace and name wins, on every node.
    """

    def __init__(self) -> None:
        #: Services and their values by entry, sorted by key. Tuples, since nearly every entry has
        #: one Service, and there are as many entries as rules
        self._shares: dict[K, tuple[tuple[ServiceKey, V], ...]] = {}
        #: entries whose claims have changed
        self.marked: set[K] = set()

    def __iter__(self) -> Iterator[K]:
        return iter(self._shares)

    def set(self, entry: K, key: ServiceKey, value: tuple[V] | None) -> None:
        """Sets the value that *key* claims for *entry*; ``None`` removes the claim. Costs little
        more than a copy of the claims: thousands of Services may claim the entry of one endpoint.
        """
        shares = self._shares.get(entry, ())
        at = bisect_left(shares, key, key=itemgetter(0))
        end = at + 1 if at < len(shares) and shares[at][0] == key else at
        claim = () if value is None else ((key, value[0]),)
        shares = (*shares[:at], *claim, *shares[end:])
        if shares:
            self._shares[entry] = shares
        else:
            del self._shares[entry]
        self.marked.add(entry)

    def winner(self, entry: K) -> tuple[V] | None:
        """Returns the desired value of *entry*, as a tuple; ``None``: no Service claims it."""
        shares = self._shares.get(entry)
        return None if shares is None else (shares[0][1],)

    def check(self, expected: Iterable[tuple[ServiceKey, K, V]]) -> None:
        """Asserts that the claims are *expected*, sorted by Service.  O(state)."""
        shares: dict[K, tuple[tuple[ServiceKey, V], ...]] = {}
        for key, entry, value in expected:
            shares[entry] = (*shares.get(entry, ()), (key, value))
        assert shares == self._shares, f"claims {self._shares} should be {shares}"


def allowed_sources(port: ServedPort, node_ip: str) -> tuple[str, ...]:
    """Returns the networks whose clients may use a load balancer's addresses
    (``loadBalancerSourceRanges``), disjoint and in canonical form; empty: all clients.  *node_ip*
    is "" if it is not known.

    If the node itself is allowed, so are those addresses: a node that is a client may use one of them
    as its source.
    """
    ranges = port.source_ranges
    address = ipaddress.ip_address(node_ip) if node_ip and ranges else None
    if address is None or not any(address in ipaddress.ip_network(network) for network in ranges):
        return ranges
    return networks(
        (*ranges, *(f"{ip}/{address.max_prefixlen}" for ip in port.vips)), family(address)
    )


class NodePlaneConfig(msgspec.Struct, frozen=True):
    """``node_name``: the node of local endpoints and of the zone.  ``min_period_s``: the pause
    between two writes.
    """

    node_name: str
    min_period_s: float = 0.0
    rules: RulesConfig = msgspec.field(default_factory=RulesConfig)
    #: trigger times before it (the start of the process) are not measured
    since: float = 0.0
    #: TCP ports that the proxy itself listens on: no Service gets them as node ports
    own_ports: tuple[int, ...] = ()


R = TypeVar("R", bound=Ruleset[Any])
T = TypeVar("T", bound=RulesTransaction)


class NodePlane(Generic[R, T]):
    """See the module.  It has one transaction at a time; *rules* are those of the back end, with
    transactions of type ``T``.
    """

    def __init__(self, family: Family, config: NodePlaneConfig, rules: R) -> None:
        self.family: Family = family
        self.rules = rules
        self._config = config.rules
        self._node = NodeNetwork()
        self._node_name = config.node_name
        self._service_cidrs: dict[str, tuple[str, ...]] = {}
        #: inputs of the rules besides Services
        self.context = build_context(config.rules, family, self._node)
        self.facts = LocalNode("", self.context.detector)
        #: addresses of node ports; ``None``: all of the host's addresses but loopback ones
        self.node_port_addresses = node_port_addresses(config.rules, family, self._node)
        #: observed Services and endpoints; read-only for others
        self.tracker = ServiceTracker(
            family, config.node_name, since=config.since, chains=rules.chain_per_target
        )
        self.tracker.reserve_ports("the node proxy", [("TCP", port) for port in config.own_ports])
        rules.set_context(self.context, ())
        #: time of the next write, and results of the last ones; read-only for others
        self.schedule = Schedule(min_period_s=config.min_period_s)
        self._synced = False
        #: number of transactions that the kernel has applied
        self.writes = 0
        #: time of the last full write; ``None``: none yet
        self.written_whole_at: float | None = None
        self._in_flight_is_full = False
        self._began = 0.0
        #: effects of applied writes, for the shell
        self.post_sync = PostSync()
        self._on_network(NodeNetwork(ip=own_address(config.rules, family, "")), now=0.0)
        own = (self._node.ip,) if self._node.ip else ()
        self.tracker.on_ground("this node (--bind-address)", Ground(own))
        self.tracker.on_ground(
            "Pods (--cluster-cidr)", Ground((), networks(config.rules.cluster_cidrs, family))
        )

    def on_service(self, old: Service | None, new: Service | None, now: float) -> None:
        self._note(self.tracker.on_service(old, new), now)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        self._note(self.tracker.on_slice(old, new), now)

    def on_node(self, node: Node | None, now: float) -> None:
        """Notes a change of this node's Node; ``None``: it was deleted, which changes nothing here."""
        self._note(self.tracker.on_node(node), now)
        if node is not None:
            self.on_any_node(node.metadata.name, node, now)
            own = own_address(self._config, self.family, node_ip(node, self.family))
            pods = node_ground(node, self.family).networks
            self._on_network(replace(self._node, ip=own, pod_networks=pods), now)

    def on_any_node(self, name: str, node: Node | None, now: float) -> None:
        """Notes that a Node of the cluster was added, changed or removed: no Service may have its
        addresses. After a removal of this node's Node its last state stays.
        """
        if node is not None or name != self._node_name:
            ground = Ground() if node is None else node_ground(node, self.family)
            self._note(self.tracker.on_ground(f"Node {name}", ground), now)

    def on_all_nodes(self, complete: bool, now: float) -> None:
        """Notes whether all Nodes were reported.  Until then no external IP is served.  Without a
        call, the plane treats the reported Nodes as all.
        """
        self._note(self.tracker.on_withheld(not complete), now)

    def on_api_server(self, addresses: Iterable[str], now: float) -> None:
        """Notes the addresses at which this process reaches the API server."""
        own = [ip for text in addresses if (ip := canonical_of(text, self.family)) is not None]
        self._note(
            self.tracker.on_ground("the API server as this node reaches it", Ground(tuple(own))),
            now,
        )

    def on_service_cidr(self, name: str, new: ServiceCIDR | None, now: float) -> None:
        """Notes that a range of cluster IPs was added, changed or removed."""
        if new is None:
            self._service_cidrs.pop(name, None)
        else:
            self._service_cidrs[name] = new.spec.cidrs or ()
        own = networks(self._service_cidrs.get(name, ()), self.family)
        self._note(self.tracker.on_ground(f"ServiceCIDR {name}", Ground((), own)), now)
        cidrs = [text for name in sorted(self._service_cidrs) for text in self._service_cidrs[name]]
        self._on_network(replace(self._node, service_networks=networks(cidrs, self.family)), now)

    def on_interfaces(self, addresses: tuple[str, ...], now: float) -> None:
        """Notes the host's own addresses of this family, in canonical form."""
        self._on_network(replace(self._node, interface_addresses=addresses), now)

    def _on_network(self, node: NodeNetwork, now: float) -> None:
        if node == self._node:
            return
        self._node = node
        self.context = build_context(self._config, self.family, node)
        self.node_port_addresses = node_port_addresses(self._config, self.family, node)
        changed = self.rules.set_context(self.context, self.node_port_addresses or ())
        facts = LocalNode(node.ip, self.context.detector)
        if facts != self.facts:
            self.facts = facts
            changed = bool(self.tracker.mark_all()) or changed
        if changed and self._synced:
            self.schedule.on_change(now)

    def on_synced(self, now: float) -> None:
        """Notes that Services and EndpointSlices were listed: the first write is due.  A second call
        changes nothing.
        """
        if not self._synced:
            self._synced = True
            self.schedule.on_change(now)

    def take_transaction(self, now: float) -> T | None:
        """Returns the next write, with every change so far. ``None``: the changes do not affect the
        kernel's rules, and count as written.
        """
        assert self._synced, "nothing may be written before the first lists are complete"
        self.schedule.on_start()
        self._began = now
        for change in self.tracker.take_changes(now, whole=self.rules.needs_full):
            self.rules.set_service(change, self.facts)
            if change.complete:
                self.post_sync.note(change)
        self.post_sync.note_triggers(self.tracker.take_triggers())
        transaction: T | None = self.rules.take_transaction(now)
        self._in_flight_is_full = transaction is not None and transaction.full
        if transaction is None:
            self._finish(now)
        return transaction

    def on_success(self, now: float) -> None:
        """Notes that the kernel has applied the transaction."""
        self.writes += 1
        if self._in_flight_is_full:
            self.written_whole_at = now
        self.rules.on_success(now)
        self._finish(now)

    def _finish(self, now: float) -> None:
        self.post_sync.on_success(now)
        self.schedule.on_success(now)
        resume = self.tracker.on_written(self._began, now)
        if resume is not None:
            self.schedule.on_remaining(now, resume)
        deadline = self.rules.next_deadline()
        if deadline is not None:
            self.schedule.request_write(deadline)

    def on_failure(self, now: float) -> None:
        """Notes that the kernel refused it; the next one, after the back-off or with the next change,
        is full.
        """
        self.rules.on_failure()
        self.schedule.on_failure(now)

    def request_full_write(self, now: float) -> bool:
        """Schedules a full write, since another program may have changed our rules. Returns False and
        does nothing while a write runs: its result shows if our rules exist.
        """
        if not self._synced or self.schedule.running:
            return False
        self.rules.needs_full = True
        self.schedule.on_change(now)
        return True

    def _note(self, changed: tuple[ServiceKey, ...], now: float) -> None:
        if changed and self._synced:
            self.schedule.on_change(now)

    def check(self) -> None:
        """Asserts every invariant of the parts.  O(state)."""
        self.tracker.check()
        self.rules.check()
        self.post_sync.check()


AnyNodePlane = NodePlane[Any, Any]
