"""New connections of this node's clients to the Services that ask for ``sliceplane.dev/Measured``:
the destinations that the kernel counts, the transactions that replace its table when they change, and
the total of each Service.

```
prerouting, output  -110  nat  -> a set of destinations, each with a counter of packets
```

The table ``sliceplane-demand`` of a family exists while a Service asks, beside any node proxy. Its
chains decide nothing. They are **nat chains**, which the kernel evaluates once for a connection: a
tracked flow has its translation afterwards. A filter chain with ``ct state new`` would count each
packet until the first answer: all datagrams of a flow that is never answered, and each SYN. The
priority is before that of node proxies, so the destination is still a cluster IP. Packets of
established connections cost nothing.

A flow that this node itself drops (a network policy, a Service without endpoints) is not tracked,
so each of its packets counts. With TCP these are the SYNs, at most 11 in two minutes by Linux's
defaults (net.ipv4.tcp_syn_retries, tcp_syn_linear_timeouts). Not counted: node ports, external
addresses, and connections that a socket-level load balancer (Cilium) translates before any hook.

**Totals** only grow while the process runs, also if the table is replaced, which is when destinations
change; connections of the milliseconds between the last read and that are lost. A new process begins
at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.consume.demand import COUNT_MAX, UID_LENGTH, count_since, is_measured
from sliceplane.kit.ip import Family, parse_lenient
from sliceplane.node.nft.netlink.containers import PROTOCOLS, pack_key
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    DeleteTable,
    Hook,
    Key,
    NftContainer,
    NftRule,
    TableRef,
    Transaction,
    deletion,
)
from sliceplane.node.nft.statements import DESTINATION, CtStateNew, InSet
from sliceplane.node.nft.table import NFT_FAMILIES

TABLE: Final = "sliceplane-demand"
#: destinations counted in a family; further ones are not counted until others are removed
DESTINATIONS_MAX: Final = 4096
SERVICES: Final = NftContainer(
    "services", ("addr", "proto", "port"), size=DESTINATIONS_MAX, has_counters=True
)
_PRIORITY: Final = -110
#: in a nat chain all packets are new; the statement makes the kernel track connections
_RULE: Final = NftRule((CtStateNew(), InSet(DESTINATION, SERVICES.name)))
_CHAINS: Final = (
    AddChain("prerouting", Hook("nat", "prerouting", _PRIORITY)),
    AddChain("output", Hook("nat", "output", _PRIORITY)),
)
_PORT_MAX: Final = 65535


def demand_table(family: Family) -> TableRef:
    return TableRef(NFT_FAMILIES[family], TABLE)


class _Destination(NamedTuple):
    """``packed``: the ``key`` in the kernel. ``uid``: the first characters of its Service's UID."""

    family: Family
    packed: bytes
    key: Key
    uid: str


class ServiceDemand:
    """For each family in turn: ``on_counts``, ``take_transaction``, and ``on_failed`` if the kernel
    did not apply the transaction.
    """

    def __init__(self, families: tuple[Family, ...]) -> None:
        self.families: Final = families
        #: by key in the kernel
        self._desired: dict[Family, dict[bytes, _Destination]] = {family: {} for family in families}
        #: packets at the last read, by key in the kernel; ``None``: the table may have any contents
        self._read: dict[Family, dict[bytes, int] | None] = dict.fromkeys(families)
        #: connections since the Service asked, by the first characters of its UID
        self._connections: dict[str, int] = {}

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Notes a change of a Service."""
        before, after = _uid(old), _uid(new)
        if before != after:
            self._connections.pop(before, None)
        if after:
            self._connections.setdefault(after, 0)
        kept = dict.fromkeys(self._destinations(new))
        for destination in self._destinations(old):
            desired = self._desired[destination.family]
            # A Service that has taken over the address may have been observed before.
            if destination not in kept and desired.get(destination.packed) == destination:
                del desired[destination.packed]
        for destination in kept:
            self._desired[destination.family][destination.packed] = destination

    def _destinations(self, service: Service | None) -> Iterator[_Destination]:
        """Yields the destinations of a Service that asks."""
        uid = _uid(service)
        if service is None or not uid:
            return
        spec = service.spec
        for text in spec.cluster_ips or (spec.cluster_ip,):
            address = parse_lenient(text)
            family: Family = "IPv6" if address is not None and address.version == 6 else "IPv4"
            if address is None or family not in self.families:
                continue
            for port in spec.ports or ():
                protocol = port.protocol.lower()
                if protocol in PROTOCOLS and 0 < port.port <= _PORT_MAX:
                    key = (str(address), protocol, port.port)
                    yield _Destination(family, pack_key(key, NFT_FAMILIES[family]), key, uid)

    def is_table_possible(self, family: Family) -> bool:
        """Returns True if the kernel has, or may have, a table of *family*."""
        return self._read[family] is None or bool(self._read[family])

    def on_counts(self, family: Family, counts: Mapping[bytes, int] | None) -> None:
        """Notes the packets that the kernel has counted, by key; ``None``: there is no table. The
        first counts may be those of a former process, and are ignored.
        """
        read = self._read[family]
        if counts is None:
            self._read[family] = {}
        elif read is not None:
            for packed in read.keys() & counts.keys():
                before, count = read[packed], counts[packed]
                read[packed] = count
                destination = self._desired[family].get(packed)
                if destination is not None:
                    total = self._connections.get(destination.uid, 0)
                    self._connections[destination.uid] = total + count_since(before, count)

    def take_transaction(self, family: Family) -> Transaction | None:
        """Returns the transaction that makes the kernel count the desired destinations. It replaces
        the table, whose counts were read before.
        """
        table = demand_table(family)
        desired = dict(islice(self._desired[family].items(), DESTINATIONS_MAX))
        read = self._read[family]
        if read is not None and read.keys() == desired.keys():
            return None
        self._read[family] = dict.fromkeys(desired, 0)
        return _whole_table(table, desired.values()) if desired else deletion(table)

    def on_failed(self, family: Family) -> None:
        """Notes that the contents of the table are unknown."""
        self._read[family] = None

    @property
    def uncounted(self) -> int:
        """Returns the number of destinations beyond ``DESTINATIONS_MAX``."""
        return sum(max(0, len(keys) - DESTINATIONS_MAX) for keys in self._desired.values())

    def totals(self) -> dict[str, int]:
        """Returns the connections of each Service that asks, by the first characters of its UID."""
        return {uid: min(count, COUNT_MAX) for uid, count in self._connections.items()}


def _whole_table(table: TableRef, desired: Iterable[_Destination]) -> Transaction:
    elements = tuple((destination.key, None) for destination in desired)
    rules = tuple(AddRule(chain.name, _RULE) for chain in _CHAINS)
    commands = (AddTable(), DeleteTable(), AddTable(), *_CHAINS, AddContainer(SERVICES))
    return Transaction(table, (*commands, AddElements(SERVICES.name, elements), *rules), full=True)


def _uid(service: Service | None) -> str:
    """Returns the first characters of the UID; "" if the Service does not ask."""
    if service is None or not is_measured(service):
        return ""
    uid = service.metadata.uid[:UID_LENGTH]
    return uid if len(uid) == UID_LENGTH and uid.isascii() and uid.isalnum() else ""
