"""The static part of the rules: fixed chains, their constant rules, and the jumps to them.

```
nat     PREROUTING, OUTPUT  -> KUBE-SERVICES: one rule for each destination -> the chain of a port -> DNAT
                               at its end, for addresses of the node, -> KUBE-NODEPORTS
nat     POSTROUTING         -> KUBE-POSTROUTING: marked connections are masqueraded
filter  INPUT, FORWARD, OUTPUT, new connections only
                            -> KUBE-PROXY-FIREWALL: load balancers' addresses with source ranges ->
                            KUBE-FW-... -> KUBE-EXTERNAL-SERVICES: from outside, and no endpoint ->
                            drop or reject
filter  FORWARD, OUTPUT     -> KUBE-SERVICES: cluster IPs without endpoints -> drop or reject
                               at its end -> KUBE-CLUSTER-IPS: ports that a Service does not have ->
                               reject, other addresses of the ranges of cluster IPs -> drop
filter  FORWARD             -> KUBE-FORWARD: our connections pass, whatever the policy of FORWARD is
```

All of ``filter`` comes after the translation, so it only sees untranslated packets. The kernel
searches a chain of destinations from its start. Therefore no translated packet passes
``KUBE-CLUSTER-IPS``, as long as the ranges of cluster IPs are known.

A ``NodeContext`` has all that depends on the node or on flags; a change of it requires a full write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sliceplane.kit.ip import Family
from sliceplane.node.context import Detector, NodeContext
from sliceplane.node.iptables.text import (
    CANARY,
    CLUSTER_IPS,
    EXTERNAL_SERVICES,
    FORWARD,
    MARK_MASQ,
    MASQUERADE_MARK,
    NODE_PORTS,
    POSTROUTING,
    PROXY_FIREWALL,
    REJECT,
    SERVICES,
    comment,
    jump,
    one,
    rule,
)

Table = Literal["filter", "nat"]
Chain = tuple[Table, str]

#: order of writes: refusals come first, for destinations that the other table does not translate yet
TABLES: Final[tuple[Table, ...]] = ("filter", "nat")

_LOOPBACK: dict[Family, str] = {"IPv4": "127.0.0.0/8", "IPv6": "::1/128"}
_UNREACHABLE: dict[Family, str] = {
    "IPv4": "icmp-port-unreachable",
    "IPv6": "icmp6-port-unreachable",
}
_NEW = "-m conntrack --ctstate NEW"
_MARKED = f"-m mark --mark {MASQUERADE_MARK}"

_FIREWALL_JUMP = rule(_NEW, comment("kubernetes load balancer firewall"), jump(PROXY_FIREWALL))
_EXTERNAL_JUMP = rule(
    _NEW, comment("kubernetes externally-visible services"), jump(EXTERNAL_SERVICES)
)
_SERVICES_JUMP = rule(_NEW, comment("kubernetes service portals"), jump(SERVICES))
_NAT_JUMP = rule(comment("kubernetes service portals"), jump(SERVICES))

#: our jumps at the start of the kernel's own chains, in this order
JUMPS: Final[Mapping[Chain, tuple[str, ...]]] = {
    ("filter", "INPUT"): (_FIREWALL_JUMP, _EXTERNAL_JUMP),
    ("filter", "FORWARD"): (
        _FIREWALL_JUMP,
        _EXTERNAL_JUMP,
        _SERVICES_JUMP,
        rule(comment("kubernetes forwarding rules"), jump(FORWARD)),
    ),
    ("filter", "OUTPUT"): (_FIREWALL_JUMP, _EXTERNAL_JUMP, _SERVICES_JUMP),
    ("nat", "PREROUTING"): (_NAT_JUMP,),
    ("nat", "OUTPUT"): (_NAT_JUMP,),
    ("nat", "POSTROUTING"): (rule(comment("kubernetes postrouting rules"), jump(POSTROUTING)),),
}

CANARY_RULE: Final = "-j RETURN"


def match_local(detector: Detector, *, local: bool) -> str:
    """Matches traffic of this node's Pods, or all other traffic."""
    detector.check()
    no = "" if local else "! "
    if detector.network:
        return f"{no}-s {detector.network}"
    return f"{no}-i {detector.interface.replace('*', '+')}"


def static_chains(
    family: Family, context: NodeContext, node_ports: tuple[str, ...]
) -> dict[Chain, tuple[str, ...]]:
    """Returns the fixed chains with the rules at their end, after those of Services. *node_ports*:
    the addresses of node ports, if they are listed.
    """
    if context.node_ports_listed:
        to_node = [rule("-d", one(ip), jump(NODE_PORTS)) for ip in node_ports]
    else:
        to_node = [
            rule("! -d", _LOOPBACK[family], "-m addrtype --dst-type LOCAL", jump(NODE_PORTS))
        ]
    ranges = context.service_networks
    return {
        ("filter", CANARY): (CANARY_RULE,),
        ("filter", CLUSTER_IPS): tuple(rule("-d", network, jump("DROP")) for network in ranges),
        ("filter", EXTERNAL_SERVICES): tuple(to_node),
        ("filter", FORWARD): (
            rule("-m conntrack --ctstate INVALID", jump("DROP")),
            rule(_MARKED, jump("ACCEPT")),
            rule("-m conntrack --ctstate RELATED,ESTABLISHED", jump("ACCEPT")),
        ),
        ("filter", NODE_PORTS): (),
        ("filter", PROXY_FIREWALL): (),
        ("filter", REJECT): (
            "-p tcp -j REJECT --reject-with tcp-reset",
            f"-j REJECT --reject-with {_UNREACHABLE[family]}",
        ),
        ("filter", SERVICES): (
            tuple(rule("-d", network, jump(CLUSTER_IPS)) for network in ranges)
            or (jump(CLUSTER_IPS),)
        ),
        ("nat", CANARY): (CANARY_RULE,),
        ("nat", MARK_MASQ): (f"-j MARK --set-xmark {MASQUERADE_MARK}",),
        ("nat", NODE_PORTS): (),
        ("nat", POSTROUTING): (
            f"-m mark ! --mark {MASQUERADE_MARK} -j RETURN",
            # A packet that passes here again (through a tunnel, say) is not masqueraded twice.
            "-j MARK --set-xmark 0x4000/0x0",
            "-j MASQUERADE --random-fully",
        ),
        ("nat", SERVICES): tuple(to_node),
    }
