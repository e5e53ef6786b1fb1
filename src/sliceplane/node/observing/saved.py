"""Reads iptables rules from the output of ``iptables-save``: kube-proxy's, and ours, which have the
same chains.

They are those of ``pkg/proxy/iptables/proxier.go``: PREROUTING and OUTPUT of the table nat jump to
KUBE-SERVICES, which jumps by destination to the chain of a Service port, as KUBE-NODEPORTS does by
port; and from there through the chain of an endpoint to a DNAT. Chains that lost their references stay
until the next full sync; only those that these two lead to count. KUBE-SERVICES of the table filter
refuses the ports without endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sliceplane.consume.served import ClusterDestination, Served, ServedTarget
from sliceplane.kit.ip import Family
from sliceplane.node.observing.graph import (
    OUTPUT,
    PREROUTING,
    PROTOCOL_NUMBERS,
    RuleEffects,
    RuleGraph,
    UnreadableRules,
    destination_key,
    packed_target,
    served,
)

#: every table has these rules' chains as soon as kube-proxy wrote it once
SERVICES: Final = "KUBE-SERVICES"
NODE_PORTS: Final = "KUBE-NODEPORTS"
_MARKING: Final = "KUBE-MARK-MASQ"
_MASQUERADING: Final = "KUBE-POSTROUTING"
_HOOKS: Final = {"PREROUTING": PREROUTING, "OUTPUT": OUTPUT}
#: targets of rules that neither translate a destination nor lead to another chain
_HARMLESS: Final = frozenset(("ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "LOG", "MASQUERADE"))
#: targets that may change a destination in a way that has no address in the rule
_OPAQUE: Final = frozenset(("DNAT", "REDIRECT", "NETMAP", "TPROXY"))


_RULE: Final = re.compile(r"-A (\S+) (.*)")
_ADDRESS: Final = re.compile(r"(?:^| )(?<!! )-d ([0-9a-fA-F.:]+)/(?:32|128)(?: |$)")
_SOURCE: Final = re.compile(r"(?:^| )(?<!! )-s ([0-9a-fA-F.:]+)/(?:32|128)(?: |$)")
_PROTOCOL: Final = re.compile(r"(?:^| )-p (\w+)(?: |$)")
_PORT: Final = re.compile(r" --dport (\d+)(?: |$)")
_NEXT: Final = re.compile(r"(?:^| )-[jg] (\S+)(?: |$)")
_TRANSLATED: Final = re.compile(r"--to-destination \[?([0-9a-fA-F.:]+?)\]?:(\d+)(?: |$)")


class SavedRule(NamedTuple):
    """One rule. ``address``, ``protocol`` (in lower case) and ``port`` of the destination, and
    ``source``, are those that it matches alone; "" and 0: others too. ``next``: a chain, or a target
    of iptables; ``target`` of a DNAT.
    """

    chain: str
    address: str
    protocol: str
    port: int
    source: str
    next: str
    target: ServedTarget | None

    @property
    def destination(self) -> ClusterDestination | None:
        """Returns the one destination that it matches; ``None``: it matches several."""
        if not (self.address and self.protocol and self.port):
            return None
        return ClusterDestination(self.address, self.protocol, self.port)


def parse_rule(line: str) -> SavedRule | None:
    """Returns the rule of a line of ``iptables-save``; ``None`` if it has none."""
    match = _RULE.match(line)
    if match is None:
        return None
    chain, text = match.groups()
    port, translated = _PORT.search(text), _TRANSLATED.search(text)
    return SavedRule(
        chain,
        _first(_ADDRESS, text),
        _first(_PROTOCOL, text),
        0 if port is None else int(port[1]),
        _first(_SOURCE, text),
        _first(_NEXT, text),
        None if translated is None else ServedTarget(translated[1], int(translated[2])),
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]


def read_saved(lines: Iterable[str], family: Family) -> RuleGraph:
    """Returns the graph of the table nat in *lines*; it is not hooked without the proxy's chains.
    Raises ``UnreadableRules``.
    """
    graph = RuleGraph(family)
    for number, line in enumerate(_lines_of("nat", lines)):
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


def _lines_of(table: str, lines: Iterable[str]) -> Iterator[str]:
    current = ""
    for line in lines:
        if line.startswith("*"):
            current = line[1:].strip()
        elif current == table:
            yield line


def _rules_of(table: str, lines: Iterable[str]) -> Iterator[SavedRule]:
    return (rule for line in _lines_of(table, lines) if (rule := parse_rule(line)) is not None)


def read_served(lines: Sequence[str], family: Family) -> Served:
    """Returns the destinations in *lines*, of nat and filter.  Raises ``UnreadableRules``."""
    refused: Served = {
        rule.destination: frozenset()
        for rule in _rules_of("filter", lines)
        if rule.chain == SERVICES and rule.destination is not None
    }
    return refused | served(read_saved(lines, family))


def read_hairpins(lines: Sequence[str], family: Family) -> Served:
    """Returns by destination the targets that reach themselves by it: the chain of the target marks
    their connections to themselves, and what is marked is masqueraded.  Raises ``UnreadableRules``.
    """
    rules = list(_rules_of("nat", lines))
    effects = {(rule.chain, rule.next) for rule in rules}
    required = {(_MARKING, "MARK"), (_MASQUERADING, "MASQUERADE"), ("POSTROUTING", _MASQUERADING)}
    if not required <= effects:
        return {}
    marked = {(rule.chain, rule.source) for rule in rules if rule.next == _MARKING and rule.source}
    leading = (
        line
        for line in lines
        if (rule := parse_rule(line)) is None
        or rule.target is None
        or (rule.chain, rule.target.address) in marked
    )
    return served(read_saved(leading, family))


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
