"""The static part of the table: base chains, sets, maps and the rules that lead into them.

```
prerouting, output  -110  filter  -> firewall-check: vmap firewall-ips -> the chain of a VIP with source ranges
prerouting, output  -100  nat     -> services: vmap service-ips -> the chain of a port -> DNAT
                                               cluster-ip-endpoints, twice: map single-endpoints ->
                                               DNAT
                                                                            a room -> DNAT
                                                                            (``node.nft.buckets``)
                                               vmap service-nodeports -> the chain of a port -> DNAT
input, forward, output 0  filter  -> service-endpoints-check: vmap no-endpoint-services -> reject or drop
input                  0  filter  -> nodeport-endpoints-check: vmap no-endpoint-nodeports -> reject or drop
forward, output        0  filter  -> cluster-ips-check: a known cluster IP that nothing translated -> reject,
                                     another address of the ranges of cluster IPs -> drop
postrouting          100  nat     -> masquerading: marked connections; connections to oneself through a service
```

The firewall stands *before* the translation, where the load balancer's address is still the
destination. The checks stand *after* it, so they see only what was not translated: ports that the
Service does not have, or Services without endpoints. All look at new connections only, so
established ones outlive every change here.

**A cluster IP has no chain**, unless the Service has affinity, or is reachable from outside and has
several endpoints. Whenever a rule or an element of a verdict map comes, the kernel walks every
chain behind every verdict map, from each base chain: at 44,000 Services of one endpoint that was
nearly all of a change's 50 ms. Maps that answer with targets are no part of this walk, so what most
Services of a cluster need costs the others nothing. They are asked after service-ips, which has the
last word while a destination moves from one to the other (``node.nft.elements``), and twice, so
that who moves between them is found.

What depends on the node or on flags is a ``node.context.NodeContext``; a change of it means a
new table.

**A whole table takes another's place** while packets are under way: in two steps, so that none is
refused. The kernel evaluates a packet against the rules that were there when it entered a hook, but
looks elements up in the newest version of a map (``node.nft.table``, "Retirement"). So a packet
that is overtaken in the chain ``services`` finds the maps empty, is not translated, and comes to
the new table's check of cluster IPs, which would reject a connection that has every right: once in
some 20,000 connections when tables follow one another as fast as they can. The first step therefore
has a check that drops. A dropped packet leaves no connection behind, and its sender tries again, a
second later with TCP. The second step makes the check what it shall be, when nothing is under way
any more.
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

#: between the steps: no packet needs so long from one hook to the next, unless its processor is
#: taken away
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
    """Matches traffic of this node's pods, or all other."""
    detector.check()
    if detector.network:
        return AddressIn("saddr", (detector.network,), local)
    return FromInterface(detector.interface, local)


def writer_chain(writer: str) -> AddChain:
    """The empty chain that says whose table it is."""
    return AddChain(f"{_WRITER}{writer}")


def is_writer(chain: AddChain) -> bool:
    """Returns True for the chain of a writer."""
    return chain.name.startswith(_WRITER)


def static_commands(family: NftFamily, context: NodeContext) -> tuple[Command, ...]:
    """Everything but the services, for a table that is empty."""
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
    """*transaction* in the steps that it is to be written in: two, if it is a full one or has rules
    that must be in force before the rest.
    """
    commands = transaction.commands
    if not transaction.full:
        if not transaction.ahead:
            return (transaction,)
        first = Transaction(transaction.table, commands[: transaction.ahead])
        return first, Transaction(transaction.table, (commands[0], *commands[transaction.ahead :]))
    checks = tuple(command for command in commands if _is_check(command))
    # As every change does, it begins by seeing whose table it is.
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
