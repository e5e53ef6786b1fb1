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
_RULE: Final = re.compile(r"-A (?P<chain>\S+) (?P<rest>.*)")
_DESTINATION: Final = re.compile(
    r"(?:^|\s)(?<!! )-d (?P<address>[0-9a-fA-F.:]+)/(?:32|128)\s.*?-p (?P<protocol>\w+)\s"
)
_SOURCE: Final = re.compile(r"(?:^|\s)(?<!! )-s ([0-9a-fA-F.:]+)/(?:32|128)(?:\s|$)")
_PORT: Final = re.compile(r"--dport (\d+)(?:\s|$)")
_NEXT: Final = re.compile(r"-[jg] (\S+)")
_TRANSLATED: Final = re.compile(
    r"--to-destination \[?(?P<address>[0-9a-fA-F.:]+?)\]?:(?P<port>\d+)(?:\s|$)"
)


class _SavedRule(NamedTuple):
    """One rule.  ``destination`` None: it matches more than one destination; ``source``: the
    address that it matches alone.
    """

    destination: ClusterDestination | None
    next: str
    target: ServedTarget | None
    source: str = ""


def served(saved: str) -> Served:
    """Returns the destinations in *saved*, the output of ``iptables-save`` for nat and filter."""
    return _served(_chains(saved))


def _chains(saved: str) -> dict[tuple[str, str], list[_SavedRule]]:
    """Returns the rules by table and chain."""
    chains: dict[tuple[str, str], list[_SavedRule]] = defaultdict(list)
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif (match := _RULE.match(line)) is not None:
            chains[table, match["chain"]].append(_rule(match["rest"]))
    return chains


def _served(chains: dict[tuple[str, str], list[_SavedRule]]) -> Served:
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


def _marks(rules: list[_SavedRule], target: ServedTarget) -> bool:
    return any(rule.next == _MARKING and rule.source == target.address for rule in rules)


def _rule(text: str) -> _SavedRule:
    destination, port = _DESTINATION.search(f"{text} "), _PORT.search(text)
    step, translated = _NEXT.search(text), _TRANSLATED.search(text)
    source = _SOURCE.search(text)
    return _SavedRule(
        None
        if destination is None or port is None
        else ClusterDestination(destination["address"], destination["protocol"], int(port[1])),
        step[1] if step is not None else "",
        None
        if translated is None
        else ServedTarget(translated["address"], int(translated["port"])),
        source[1] if source is not None else "",
    )


def _targets(
    chains: dict[tuple[str, str], list[_SavedRule]], chain: str, visited: set[str]
) -> Iterator[ServedTarget]:
    visited.add(chain)
    for rule in chains.get(("nat", chain), ()):
        if rule.target is not None:
            yield rule.target
        elif rule.next.startswith("KUBE-") and rule.next not in visited:
            yield from _targets(chains, rule.next, visited)
