"""Reads kube-proxy's iptables rules from the output of ``iptables-save`` for the table nat.

Its chains are those of ``pkg/proxy/iptables/proxier.go``: KUBE-SERVICES jumps by destination to the
chain of a Service port, KUBE-NODEPORTS by port. Chains that lost their references stay until the next
full sync; only those that these two lead to count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.iptables.served import SavedRule, parse_rule
from sliceplane.node.observing.graph import (
    OUTPUT,
    PREROUTING,
    PROTOCOL_NUMBERS,
    RuleEffects,
    RuleGraph,
    UnreadableRules,
    destination_key,
    packed_target,
)

#: every table has these rules' chains as soon as kube-proxy wrote it once
SERVICES: Final = "KUBE-SERVICES"
NODE_PORTS: Final = "KUBE-NODEPORTS"
_HOOKS: Final = {"PREROUTING": PREROUTING, "OUTPUT": OUTPUT}
#: targets of rules that neither translate a destination nor lead to another chain
_HARMLESS: Final = frozenset(("ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "LOG", "MASQUERADE"))
#: targets that may change a destination in a way that has no address in the rule
_OPAQUE: Final = frozenset(("DNAT", "REDIRECT", "NETMAP", "TPROXY"))


def read_saved(lines: Iterable[str], family: Family) -> RuleGraph:
    """Returns the graph of *lines*; it is not hooked without kube-proxy's chains.  Raises
    ``UnreadableRules``.
    """
    graph = RuleGraph(family)
    for number, line in enumerate(lines):
        rule = parse_rule(line)
        if rule is None:
            if line.startswith(f":{SERVICES} "):  # it may be empty
                graph.set_rule(SERVICES, -1, RuleEffects(maps=(SERVICES,)))
            continue
        if rule.chain in _HOOKS:
            graph.add_chain(rule.chain, _HOOKS[rule.chain])
        if rule.chain in (SERVICES, NODE_PORTS):
            _add_entry(graph, rule, number)
        elif rule.chain.startswith("KUBE-") or rule.next == SERVICES:
            graph.set_rule(rule.chain, number, _effects(rule))
    return graph


def _add_entry(graph: RuleGraph, rule: SavedRule, number: int) -> None:
    """Adds a rule of KUBE-SERVICES or KUBE-NODEPORTS: an entry of a verdict map, whose chain jumps
    to those of all rules with that key.
    """
    effects = _effects(rule)
    key = _key(rule)
    if key is None:
        if effects.chains:
            graph.set_rule(rule.chain, number, effects)
        return
    graph.set_rule(rule.chain, -1, RuleEffects(maps=(rule.chain,)))
    entry = f"{rule.chain} {key.hex()}"
    graph.set_element(rule.chain, key, entry)
    graph.set_rule(entry, number, effects)


def _key(rule: SavedRule) -> bytes | None:
    protocol = rule.protocol.upper()
    is_any = not rule.address and rule.chain == SERVICES
    if not rule.port or protocol not in PROTOCOL_NUMBERS or is_any:
        return None
    return destination_key(rule.address, protocol, rule.port)


def _effects(rule: SavedRule) -> RuleEffects:
    if rule.target is not None:
        return RuleEffects(targets=(packed_target(*rule.target),))
    if rule.next in _OPAQUE:
        raise UnreadableRules(
            f"a rule of {rule.chain} translates by {rule.next}, to an address that is not constant"
        )
    is_end = not rule.next or rule.next in _HARMLESS
    return RuleEffects() if is_end else RuleEffects(chains=(rule.next,))
