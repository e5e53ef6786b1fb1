"""The static part of the table: base chains, sets, maps and the rules that lead into them.

```
prerouting, output  -110  filter  -> firewall-check: vmap firewall-ips -> the chain of a VIP with source ranges
prerouting, output  -100  nat     -> services: vmap service-ips -> the chain of a port -> DNAT
                                               cluster-ip-endpoints, twice: map single-endpoints ->
                                               DNAT
                                                                            buckets -> DNAT
                                                                            (``node.nft.buckets``)
                                               vmap service-nodeports -> the chain of a port -> DNAT
input, forward, output 0  filter  -> service-endpoints-check: vmap no-endpoint-services -> reject or drop
input                  0  filter  -> nodeport-endpoints-check: vmap no-endpoint-nodeports -> reject or drop
forward, output        0  filter  -> cluster-ips-check: an untranslated Service's cluster IP -> reject,
                                     another address of the ranges of cluster IPs -> drop
postrouting          100  nat     -> masquerading: marked connections; connections to oneself through a service
```

The firewall comes *before* the translation, where the load balancer's address is still the
destination. The checks come *after* it, so they only see untranslated packets: ports that the
Service does not have, or Services without endpoints. All match new connections only, so established
ones outlive every change here.

**A cluster IP has no chain**, unless the Service has affinity, or is reachable from outside and has
several endpoints. For each new rule or element of a verdict map, the kernel walks every chain behind
every verdict map, from each base chain. With 44,000 Services of one endpoint, that was nearly all of
a change's 50 ms. The walk does not include maps of targets, so the elements of most Services cost
the others nothing. These maps are looked up after service-ips, which takes precedence while a
destination moves from one to the other (``node.nft.elements``). They are looked up twice, so that a
destination that moves between them matches.

A ``node.context.NodeContext`` has all that depends on the node or on flags; a change of it requires
a new table.

**A full transaction replaces the table** while packets are in flight. It is written in two steps, so
that no packet is refused. The kernel evaluates a packet against the rules of the moment at which it
entered a hook, but looks elements up in the newest version of a map (``node.nft.table``,
"Retirement"). So a packet that is overtaken in the chain ``services`` matches no element and is not
translated. The new table's check of cluster IPs would then reject a legitimate connection: one in
some 20,000 connections when tables are replaced at the maximum rate. Therefore the check of the
first step drops. A dropped packet creates no connection, and its sender tries again, with TCP a
second later. The second step writes the final check, when no such packet is in flight any more.
"""

from __future__ import annotations

from typing import Final, TypeGuard

from sliceplane.node.context import Detector, NodeContext
from sliceplane.node.nft.buckets import DIRECT
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddRule,
    Command,
    FlushChain,
    Hook,
    NftContainer,
    NftRule,
    Transaction,
)
from sliceplane.node.nft.statements import (
    DESTINATION,
    AddressIn,
    ClearMark,
    CtStateNew,
    CtStatusDnat,
    DnatMap,
    Drop,
    Field,
    FromInterface,
    InSet,
    IsOwnAddress,
    Jump,
    Masquerade,
    NftFamily,
    Reject,
    ResetTcp,
    SetMark,
    Statement,
    Vmap,
)

#: seconds between the steps: a packet takes less from one hook to the next, unless its CPU is
#: preempted
PAUSE_S: Final = 0.002
_PRIORITY_DSTNAT = -100
_PRIORITY_BEFORE_DSTNAT = _PRIORITY_DSTNAT - 10
_PRIORITY_FILTER = 0
_PRIORITY_SRCNAT = 100

REJECT_CHAIN = "reject-chain"
_SERVICES = "services"
FIREWALL_CHECK = "firewall-check"
ENDPOINTS_CHECK = "service-endpoints-check"
NODE_PORTS_CHECK = "nodeport-endpoints-check"
CLUSTER_IPS_CHECK = "cluster-ips-check"
_MASQUERADING = "masquerading"
_WRITER = "writer-"

CLUSTER_IPS = NftContainer("cluster-ips", ("addr",))
NODE_PORT_IPS = NftContainer("nodeport-ips", ("addr",))
HAIRPIN = NftContainer("hairpin-connections", ("addr", "addr", "proto", "port"))
SERVICE_IPS = NftContainer("service-ips", ("addr", "proto", "port"), "verdict")
SINGLE_ENDPOINTS = NftContainer("single-endpoints", SERVICE_IPS.key, "target")
SERVICE_NODE_PORTS = NftContainer("service-nodeports", ("proto", "port"), "verdict")
NO_ENDPOINTS = NftContainer("no-endpoint-services", ("addr", "proto", "port"), "verdict")
NO_ENDPOINT_NODE_PORTS = NftContainer("no-endpoint-nodeports", ("proto", "port"), "verdict")
FIREWALL_IPS = NftContainer("firewall-ips", ("addr", "proto", "port"), "verdict")
CONTAINERS = (
    CLUSTER_IPS,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINTS,
    NODE_PORT_IPS,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    SINGLE_ENDPOINTS,
)

_PORT: tuple[Field, ...] = ("proto", "dport")
_LOOPBACK: dict[NftFamily, str] = {"ip": "127.0.0.0/8", "ip6": "::1/128"}

BASE_CHAINS = (
    AddChain("filter-prerouting-pre-dnat", Hook("filter", "prerouting", _PRIORITY_BEFORE_DSTNAT)),
    AddChain("filter-output-pre-dnat", Hook("filter", "output", _PRIORITY_BEFORE_DSTNAT)),
    AddChain("filter-input", Hook("filter", "input", _PRIORITY_FILTER)),
    AddChain("filter-forward", Hook("filter", "forward", _PRIORITY_FILTER)),
    AddChain("filter-output", Hook("filter", "output", _PRIORITY_FILTER)),
    AddChain("nat-prerouting", Hook("nat", "prerouting", _PRIORITY_DSTNAT)),
    AddChain("nat-output", Hook("nat", "output", _PRIORITY_DSTNAT)),
    AddChain("nat-postrouting", Hook("nat", "postrouting", _PRIORITY_SRCNAT)),
)
_CHAINS = tuple(
    AddChain(name)
    for name in (
        CLUSTER_IPS_CHECK,
        DIRECT,
        FIREWALL_CHECK,
        _MASQUERADING,
        NODE_PORTS_CHECK,
        REJECT_CHAIN,
        ENDPOINTS_CHECK,
        _SERVICES,
    )
)


def match_local(detector: Detector, *, local: bool) -> Statement:
    """Matches traffic of this node's Pods, or all other traffic."""
    detector.check()
    if detector.network:
        return AddressIn("saddr", (detector.network,), local)
    return FromInterface(detector.interface, local)


def writer_chain(writer: str) -> AddChain:
    """Returns the empty chain that identifies the writer of the table."""
    return AddChain(f"{_WRITER}{writer}")


def is_writer(chain: AddChain) -> bool:
    """Returns True for the chain of a writer."""
    return chain.name.startswith(_WRITER)


def static_commands(family: NftFamily, context: NodeContext) -> tuple[Command, ...]:
    """Returns everything but the Services' objects, for an empty table."""
    return (
        *BASE_CHAINS,
        *_CHAINS,
        *(AddContainer(container) for container in CONTAINERS),
        *(AddRule(chain, NftRule(statements)) for chain, statements in _rules(family, context)),
    )


def _rules(family: NftFamily, context: NodeContext) -> list[tuple[str, tuple[Statement, ...]]]:
    to_cluster_ip = InSet(("daddr",), CLUSTER_IPS.name)
    own_pods = context.detector
    rules: list[tuple[str, tuple[Statement, ...]]] = [
        (REJECT_CHAIN, (ResetTcp(),)),
        (REJECT_CHAIN, (Reject(),)),
        (FIREWALL_CHECK, (Vmap(DESTINATION, FIREWALL_IPS.name),)),
    ]
    if context.masquerade_all:
        rules.append((_SERVICES, (to_cluster_ip, SetMark())))
    elif own_pods is not None:
        rules.append((_SERVICES, (to_cluster_ip, match_local(own_pods, local=False), SetMark())))
    rules += [
        (_SERVICES, (Vmap(DESTINATION, SERVICE_IPS.name),)),
        *[(_SERVICES, (to_cluster_ip, Jump(DIRECT)))] * 2,
        (DIRECT, (DnatMap(DESTINATION, SINGLE_ENDPOINTS.name),)),
        (_SERVICES, (*_to_node(family, context), Vmap(_PORT, SERVICE_NODE_PORTS.name))),
        (ENDPOINTS_CHECK, (Vmap(DESTINATION, NO_ENDPOINTS.name),)),
        (NODE_PORTS_CHECK, (*_to_node(family, context), Vmap(_PORT, NO_ENDPOINT_NODE_PORTS.name))),
        (CLUSTER_IPS_CHECK, (to_cluster_ip, Jump(REJECT_CHAIN))),
    ]
    if context.service_networks:
        rules.append((CLUSTER_IPS_CHECK, (AddressIn("daddr", context.service_networks), Drop())))
    rules += [
        (_MASQUERADING, (ClearMark(), Masquerade())),
        (
            _MASQUERADING,
            (
                CtStatusDnat(),
                InSet(("saddr", "daddr", "proto", "dport"), HAIRPIN.name),
                Masquerade(),
            ),
        ),
        ("nat-prerouting", (Jump(_SERVICES),)),
        ("nat-output", (Jump(_SERVICES),)),
        ("nat-postrouting", (Jump(_MASQUERADING),)),
    ]
    checks = (
        ("filter-prerouting-pre-dnat", FIREWALL_CHECK),
        ("filter-output-pre-dnat", FIREWALL_CHECK),
        ("filter-input", NODE_PORTS_CHECK),
        ("filter-input", ENDPOINTS_CHECK),
        ("filter-forward", ENDPOINTS_CHECK),
        ("filter-forward", CLUSTER_IPS_CHECK),
        ("filter-output", ENDPOINTS_CHECK),
        ("filter-output", CLUSTER_IPS_CHECK),
    )
    return rules + [(base, (CtStateNew(), Jump(check))) for base, check in checks]


def _to_node(family: NftFamily, context: NodeContext) -> tuple[Statement, ...]:
    """Matches destinations that node ports are served on."""
    if context.node_ports_listed:
        return (InSet(("daddr",), NODE_PORT_IPS.name),)
    return (IsOwnAddress("daddr"), AddressIn("daddr", (_LOOPBACK[family],), inside=False))


def steps(transaction: Transaction) -> tuple[Transaction, ...]:
    """Splits *transaction* into the steps in which it is written: two if it is a full one, or has
    rules that must be in force before the rest.
    """
    commands = transaction.commands
    if not transaction.full:
        if not transaction.ahead:
            return (transaction,)
        first = Transaction(transaction.table, commands[: transaction.ahead])
        return first, Transaction(transaction.table, (commands[0], *commands[transaction.ahead :]))
    checks = tuple(command for command in commands if _is_check(command))
    # Like every change, the second step first checks the writer of the table.
    writer = tuple(
        FlushChain(command.name)
        for command in commands
        if isinstance(command, AddChain) and is_writer(command)
    )
    return (
        Transaction(
            transaction.table,
            tuple(_dropping(command) if _is_check(command) else command for command in commands),
            True,
        ),
        Transaction(transaction.table, (*writer, FlushChain(CLUSTER_IPS_CHECK), *checks)),
    )


def _is_check(command: Command) -> TypeGuard[AddRule]:
    return isinstance(command, AddRule) and command.chain == CLUSTER_IPS_CHECK


def _dropping(check: AddRule) -> AddRule:
    statements = (Drop() if isinstance(part, Jump) else part for part in check.rule.statements)
    return AddRule(check.chain, NftRule(tuple(statements)))
