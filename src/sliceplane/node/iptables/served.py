"""Reads the targets of Services' cluster IPs from ``iptables-save``: of our own rules, and of any
kube-proxy's.

Both use kube-proxy's chains (``pkg/proxy/iptables/proxier.go``): PREROUTING and OUTPUT of the table
nat jump to KUBE-SERVICES, which jumps by destination to the chain of a Service port, and from there
through the chain of an endpoint to a DNAT. KUBE-SERVICES of the table filter refuses the ports
without endpoints.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from sliceplane.consume.served import ClusterDestination, Served, ServedTarget

_SERVICES: Final = "KUBE-SERVICES"
_MARKING: Final = "KUBE-MARK-MASQ"
_MASQUERADING: Final = "KUBE-POSTROUTING"
_HOOKS: Final = ("PREROUTING", "OUTPUT")
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


def served(saved: str) -> Served:
    """Returns the destinations in *saved*, the output of ``iptables-save`` for nat and filter."""
    return _served(_chains(saved))


def _chains(saved: str) -> dict[tuple[str, str], list[SavedRule]]:
    """Returns the rules by table and chain."""
    chains: dict[tuple[str, str], list[SavedRule]] = defaultdict(list)
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif (rule := parse_rule(line)) is not None:
            chains[table, rule.chain].append(rule)
    return chains


def _served(chains: dict[tuple[str, str], list[SavedRule]]) -> Served:
    result: Served = {}
    for rule in chains["filter", _SERVICES]:
        if rule.destination is not None:
            result[rule.destination] = frozenset()
    if all(any(rule.next == _SERVICES for rule in chains["nat", hook]) for hook in _HOOKS):
        for rule in chains["nat", _SERVICES]:
            if rule.destination is not None and rule.next.startswith("KUBE-"):
                targets = frozenset(_targets(chains, rule.next, set()))
                result[rule.destination] = result.get(rule.destination, frozenset()) | targets
    return result


def hairpins(saved: str) -> Served:
    """Returns by destination the targets that reach themselves by it: the chain of the target marks
    their connections to themselves, and what is marked is masqueraded.
    """
    chains = _chains(saved)
    marks = any(rule.next == "MARK" for rule in chains["nat", _MARKING])
    masquerades = any(rule.next == "MASQUERADE" for rule in chains["nat", _MASQUERADING])
    hook = any(rule.next == _MASQUERADING for rule in chains["nat", "POSTROUTING"])
    if not (marks and masquerades and hook):
        return {}
    marked = {
        name: [rule for rule in rules if rule.target is None or _marks(rules, rule.target)]
        for name, rules in chains.items()
    }
    return _served(defaultdict(list, marked))


def _marks(rules: list[SavedRule], target: ServedTarget) -> bool:
    return any(rule.next == _MARKING and rule.source == target.address for rule in rules)


def _targets(
    chains: dict[tuple[str, str], list[SavedRule]], chain: str, visited: set[str]
) -> Iterator[ServedTarget]:
    visited.add(chain)
    for rule in chains.get(("nat", chain), ()):
        if rule.target is not None:
            yield rule.target
        elif rule.next.startswith("KUBE-") and rule.next not in visited:
            yield from _targets(chains, rule.next, visited)
