"""Reads kube-proxy's iptables rules from the output of ``iptables-save`` for the table nat.

Its chains are those of ``pkg/proxy/iptables/proxier.go``: KUBE-SERVICES jumps by destination to the
chain of a Service port, KUBE-NODEPORTS by port. Chains that lost their references stay until the next
full sync; only those that these two lead to count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

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
)

#: every table has these rules' chains as soon as kube-proxy wrote it once
SERVICES: Final = "KUBE-SERVICES"
NODE_PORTS: Final = "KUBE-NODEPORTS"
_HOOKS: Final = {"PREROUTING": PREROUTING, "OUTPUT": OUTPUT}
_RULE: Final = re.compile(r"-A (\S+) (.*)")
_JUMP: Final = re.compile(r"(?:^| )-[jg] (\S+)(?: (.*))?$")
_ADDRESS: Final = re.compile(r"(?:^| )(?<!! )-d ([0-9a-fA-F.:]+)/(?:32|128)(?: |$)")
_PROTOCOL: Final = re.compile(r"(?:^| )-p (\w+)(?: |$)")
_PORT: Final = re.compile(r" --dport (\d+)(?: |$)")
_TRANSLATED: Final = re.compile(r"--to-destination \[?([0-9a-fA-F.:]+?)\]?:(\d+)(?: |$)")
#: targets of rules that neither translate a destination nor lead to another chain
_HARMLESS: Final = frozenset(("ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "LOG", "MASQUERADE"))
#: targets that may change a destination in a way that has no address in the rule
_OPAQUE: Final = frozenset(("REDIRECT", "NETMAP", "TPROXY"))


def read_saved(lines: Iterable[str], family: Family) -> RuleGraph:
    """Returns the graph of *lines*; it is not hooked without kube-proxy's chains.  Raises
    ``UnreadableRules``.
    """
    graph = RuleGraph(family)
    for number, line in enumerate(lines):
        match = _RULE.match(line)
        if match is None:
            if line.startswith(f":{SERVICES} "):  # it may be empty
                graph.set_rule(SERVICES, -1, RuleEffects(maps=(SERVICES,)))
            continue
        chain, text = match[1], match[2]
        if chain in _HOOKS:
            graph.add_chain(chain, _HOOKS[chain])
        if chain in (SERVICES, NODE_PORTS):
            _add_entry(graph, chain, text, number)
        elif chain.startswith("KUBE-") or SERVICES in text:
            graph.set_rule(chain, number, _rule(text))
    return graph


def _add_entry(graph: RuleGraph, chain: str, text: str, number: int) -> None:
    """Adds a rule of KUBE-SERVICES or KUBE-NODEPORTS: an entry of a verdict map, whose chain jumps
    to those of all rules with that key.
    """
    rule = _rule(text)
    key = _key(chain, text)
    if key is None:
        if rule.chains:
            graph.set_rule(chain, number, rule)
        return
    graph.set_rule(chain, -1, RuleEffects(maps=(chain,)))
    entry = f"{chain} {key.hex()}"
    graph.set_element(chain, key, entry)
    graph.set_rule(entry, number, rule)


def _key(chain: str, text: str) -> bytes | None:
    protocol, port = _PROTOCOL.search(text), _PORT.search(text)
    address = _ADDRESS.search(text)
    if protocol is None or port is None or (address is None and chain == SERVICES):
        return None
    name = protocol[1].upper()
    if name not in PROTOCOL_NUMBERS:
        return None
    return destination_key("" if address is None else address[1], name, int(port[1]))


def _rule(text: str) -> RuleEffects:
    jump = _JUMP.search(text)
    if jump is None:
        return RuleEffects()
    target = jump[1]
    if target == "DNAT":
        translated = _TRANSLATED.search(text)
        if translated is None:
            raise UnreadableRules(f'a rule translates to an address that is not constant: "{text}"')
        return RuleEffects(targets=(packed_target(translated[1], int(translated[2])),))
    if target in _OPAQUE:
        raise UnreadableRules(f'a rule of kube-proxy\'s chains has the target {target}: "{text}"')
    return RuleEffects() if target in _HARMLESS else RuleEffects(chains=(target,))
