"""Compares the rules of another proxy with the API, Service by Service, for one IP family.

A Service *agrees* if, for each of its destinations, the rules lead to the endpoints that kube-proxy
would use (``consume.usable``): exactly these at the cluster IP; at external addresses and the node
port at least those of its external policy, and none that no policy uses (clients on this node may
reach the cluster's endpoints there). Former destinations must lead nowhere.

**Which revision is applied.**  A check has a number. A Service that changed is pending from the check
that first has the change to the one at which it agrees; everything that was observed before the first
pending one's check is applied. So a revision is never reported early, and late by one check.

**A change that is undone** while the proxy is behind (A, B, then A again) agrees at once, and yet the
proxy may still apply B for a moment. So a Service that changed more than once and agrees although its
rules are those of its last agreement counts ``SETTLE_S`` later: kube-proxy's pause between two writes
and a margin.

Owned by one observer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import (
    NodeEndpoint,
    PortState,
    ServedPort,
    ServiceKey,
    ServicePortName,
)
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_time
from sliceplane.node.observing.graph import (
    RuleGraph,
    destination_key,
    packed_target,
    read_destination,
    read_target,
    split_targets,
)
from sliceplane.node.tracker import ServiceTracker

#: seconds; minSyncPeriod of kube-proxy is 1 s
SETTLE_S: Final = 2.0
#: seconds after which a Service that does not agree is a problem
LATE_S: Final = 30.0
#: sentences about one node, and addresses in each
_SENTENCES_MAX: Final = 10
_ADDRESSES_MAX: Final = 3


class RuleDifference(NamedTuple):
    """One destination whose rules differ; ``obsolete`` targets have no place there, ``missing`` ones
    are not led to.
    """

    name: str
    destination: str
    obsolete: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class ExpectedPort(msgspec.Struct, frozen=True, gc=False):
    """The rules that one port of a Service should have.  Targets are packed, sorted, and stand one
    after the other: a start has those of all Services at once.
    """

    name: ServicePortName
    #: the destination at the cluster IP, and the others
    cluster_key: bytes
    outside_keys: tuple[bytes, ...]
    #: targets of the internal policy, of the external policy, and of either
    inside: bytes
    outside: bytes
    reachable: bytes


class _Pending(msgspec.Struct):
    """A Service that changed: the check that first had it, when (seconds since the epoch), and its
    newest state.
    """

    number: int
    since: float
    ports: tuple[ExpectedPort, ...]
    #: when it came to agree although its rules had not changed; ``None``: it did not
    agrees_since: float | None = None
    #: version of the rules that differed from this state; 0: none were compared
    differs_at: int = 0


class Agreement:
    """See the module.  Times are seconds since the epoch."""

    def __init__(self, family: Family, node_name: str) -> None:
        self.family: Final[Family] = family
        self._tracker = ServiceTracker(family, node_name)
        #: destinations of Services as of their last agreement, and their owners
        self._keys: dict[ServiceKey, tuple[bytes, ...]] = {}
        self._owners: dict[bytes, ServiceKey] = {}
        self._pending: dict[ServiceKey, _Pending] = {}
        #: numbers of changes since the last agreement, and a hash of the targets that agreed
        self._changes: dict[ServiceKey, int] = {}
        self._agreed: dict[ServiceKey, int] = {}
        #: number of the last check
        self.number = 0

    def on_service(self, old: Service | None, new: Service | None) -> None:
        self._count(self._tracker.on_service(old, new))

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._count(self._tracker.on_slice(old, new))

    def on_node(self, node: Node | None) -> None:
        """Notes this node; its zone decides which hints count."""
        self._count(self._tracker.on_node(node))

    def _count(self, changed: tuple[ServiceKey, ...]) -> None:
        for key in changed:
            self._changes[key] = self._changes.get(key, 0) + 1

    @property
    def services(self) -> int:
        return self._tracker.service_count

    @property
    def pending(self) -> int:
        """Returns the number of Services whose rules do not agree yet."""
        return len(self._pending)

    @property
    def has_changes(self) -> bool:
        """Returns True if a Service changed since the last check."""
        return bool(self._tracker.pending)

    def begin_check(self, now: float) -> int:
        """Takes the changes since the last check; returns the number of the new one."""
        self.number += 1
        for change in self._tracker.take_changes(whole=True):
            pending = self._pending.get(change.service)
            ports = _expected_ports(change.ports)
            if pending is None:
                self._pending[change.service] = _Pending(self.number, now, ports)
            else:
                pending.ports = ports
                pending.differs_at = 0
        return self.number

    def check_rules(self, graph: RuleGraph, now: float) -> int:
        """Compares the pending Services with *graph*, which was read after ``begin_check``; those
        that differed from the same rules before still do. Returns the number of the newest check
        whose Services all agree.
        """
        if graph.is_hooked:
            for key in sorted(self._pending):
                pending = self._pending[key]
                if pending.differs_at == graph.version:
                    continue
                if self._agrees(key, pending, graph, now):
                    self._finish(key, pending.ports, graph)
        if not graph.is_hooked and self.services:
            return 0
        return (
            min((pending.number for pending in self._pending.values()), default=self.number + 1) - 1
        )

    def _agrees(self, key: ServiceKey, pending: _Pending, graph: RuleGraph, now: float) -> bool:
        if next(self._differences(key, pending.ports, graph), None) is not None:
            pending.agrees_since = None
            pending.differs_at = graph.version
            return False
        targets = _hash_targets(_keys_of(pending.ports), graph)
        is_unchanged = self._agreed.get(key, _NO_TARGETS) == targets
        if self._changes.get(key, 0) <= 1 or not is_unchanged:
            return True
        if pending.agrees_since is None:
            pending.agrees_since = now
        return now - pending.agrees_since >= SETTLE_S

    def _finish(self, key: ServiceKey, ports: tuple[ExpectedPort, ...], graph: RuleGraph) -> None:
        del self._pending[key]
        self._changes.pop(key, None)
        self._agreed.pop(key, None)
        for former in self._keys.pop(key, ()):
            if self._owners.get(former) == key:
                del self._owners[former]
        keys = _keys_of(ports)
        if keys:
            self._keys[key] = keys
            self._owners.update(dict.fromkeys(keys, key))
            self._agreed[key] = _hash_targets(keys, graph)

    def next_deadline(self) -> float | None:
        """Returns when a Service that agrees without a change of its rules counts; ``None``: there is
        none.
        """
        since = [
            pending.agrees_since
            for pending in self._pending.values()
            if pending.agrees_since is not None
        ]
        return min(since) + SETTLE_S if since else None

    def _differences(
        self, key: ServiceKey, ports: tuple[ExpectedPort, ...], graph: RuleGraph
    ) -> Iterator[RuleDifference]:
        for port in ports:
            yield from _port_differences(port, graph)
        current = set(_keys_of(ports))
        for former in self._keys.get(key, ()):
            if former not in current and self._owners.get(former) == key:
                obsolete = graph.targets(former)
                if obsolete and not self._is_claimed(former, key):
                    yield RuleDifference(str(key), read_destination(former), _texts(obsolete))

    def _is_claimed(self, destination: bytes, other: ServiceKey) -> bool:
        """Returns True if another Service that is pending has this destination now."""
        return any(
            destination in _keys_of(pending.ports)
            for key, pending in self._pending.items()
            if key != other
        )

    def late(self, graph: RuleGraph, now: float) -> tuple[str, ...]:
        """Returns a sentence for each difference that has lasted for ``LATE_S``, oldest first."""
        late = sorted(
            (pending.since, key)
            for key, pending in self._pending.items()
            if now - pending.since >= LATE_S
        )
        sentences = []
        for since, key in late[:_SENTENCES_MAX]:
            for found in self._differences(key, self._pending[key].ports, graph):
                sentences.append(_sentence(found, since))
                break
        return tuple(sentences)

    def service_keys(self) -> tuple[ServiceKey, ...]:
        """Returns all Services, sorted.  O(Services)."""
        return self._tracker.services()

    def compare(self, key: ServiceKey, graph: RuleGraph, now: float) -> None:
        """Compares a Service that agreed before: somebody may have edited its rules. If it differs,
        it is pending from now on, which takes back no report.
        """
        if key in self._pending or key in self._changes:
            return
        ports = _expected_ports(self._tracker.state(key))
        if next(self._differences(key, ports, graph), None) is not None:
            self._pending[key] = _Pending(self.number, now, ports)

    def unowned(self, graph: RuleGraph) -> tuple[str, ...]:
        """Returns the destinations with targets that no Service has had."""
        claimed = {key for pending in self._pending.values() for key in _keys_of(pending.ports)}
        return tuple(
            read_destination(key)
            for key in graph.destinations()
            if key not in self._owners and key not in claimed and graph.targets(key)
        )

    def check(self) -> None:
        for destination, key in self._owners.items():
            assert destination in self._keys[key], f"{key} owns {destination.hex()} no more"


def _expected_ports(states: tuple[PortState, ...]) -> tuple[ExpectedPort, ...]:
    return tuple([_expected_port(state) for state in states])


def _expected_port(state: PortState) -> ExpectedPort:
    port = state.port
    inside, outside, reachable = state.inside, state.outside, state.categories.reachable
    targets = _packed(inside)
    return ExpectedPort(
        port.name,
        destination_key(port.cluster_ip, port.name.protocol, port.port),
        tuple(_outside_keys(port)),
        targets,
        targets if outside is inside else _packed(outside),
        targets if reachable is inside else _packed(reachable),
    )


def _outside_keys(port: ServedPort) -> Iterator[bytes]:
    for address in (*port.vips, *port.external_ips):
        yield destination_key(address, port.name.protocol, port.port)
    if port.node_port:
        yield destination_key("", port.name.protocol, port.node_port)


def _packed(endpoints: tuple[NodeEndpoint, ...]) -> bytes:
    return _joined([packed_target(endpoint.ip, endpoint.port) for endpoint in endpoints])


def _joined(targets: Iterable[bytes]) -> bytes:
    return b"".join(sorted(targets))


def _keys_of(ports: tuple[ExpectedPort, ...]) -> tuple[bytes, ...]:
    """Returns the destinations of a Service in the rules, each once."""
    keys: dict[bytes, None] = {}
    for port in ports:
        keys[port.cluster_key] = None
        keys |= dict.fromkeys(port.outside_keys)
    return tuple(keys)


def _hash_targets(keys: tuple[bytes, ...], graph: RuleGraph) -> int:
    return hash(tuple(graph.targets(key) for key in keys))


#: of a Service without a destination
_NO_TARGETS: Final = hash(())


def _port_differences(port: ExpectedPort, graph: RuleGraph) -> Iterator[RuleDifference]:
    yield from _difference(port, graph, port.cluster_key, port.inside, port.inside)
    for key in port.outside_keys:
        yield from _difference(port, graph, key, port.outside, port.reachable)


def _difference(
    port: ExpectedPort, graph: RuleGraph, key: bytes, required: bytes, allowed: bytes
) -> Iterator[RuleDifference]:
    targets = graph.targets(key)
    if _joined(targets) == required:
        return
    obsolete = targets.difference(split_targets(allowed, graph.family))
    missing = frozenset(split_targets(required, graph.family)) - targets
    if obsolete or missing:
        yield RuleDifference(
            str(port.name), read_destination(key), _texts(obsolete), _texts(missing)
        )


def _texts(targets: frozenset[bytes]) -> tuple[str, ...]:
    return tuple(str(read_target(target)) for target in sorted(targets)[:_ADDRESSES_MAX])


def _sentence(found: RuleDifference, since: float) -> str:
    """Returns a sentence that stays the same, so that it is reported once."""
    if found.obsolete:
        return (
            f"its proxy still sends {found.name} ({found.destination}) to "
            f"{', '.join(found.obsolete)}, removed at {format_time(since)}"
        )
    return (
        f"its proxy does not send {found.name} ({found.destination}) to "
        f"{', '.join(found.missing)}, added at {format_time(since)}"
    )
