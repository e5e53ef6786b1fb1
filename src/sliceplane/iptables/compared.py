"""Rules in the kernel against those that we wrote, one by one.

Our rules are spelled as ``iptables-save`` spells them (``iptables.text``), so lines are compared as they are, but for
the digits of a probability, of which the kernel keeps 31 bits.  In a chain that Services share the order says nothing:
each rule is for a destination of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sliceplane.iptables.found import ListedRules
from sliceplane.iptables.layout import JUMPS, TABLES, Chain
from sliceplane.iptables.names import OF_SERVICES

_PROBABILITY = re.compile(r"(?<=--probability )\S+")


def rules_of(text: str) -> dict[Chain, list[str]]:
    """Of restore text, or of what ``iptables-save`` prints: the rules of each chain, in order."""
    rules: dict[Chain, list[str]] = {}
    table = next(iter(TABLES))
    for line in text.splitlines():
        if line.startswith("*"):
            table = next((known for known in TABLES if known == line[1:].strip()), table)
        elif line.startswith(":"):
            rules.setdefault((table, line[1:].partition(" ")[0]), [])
        elif line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            rules.setdefault((table, chain), []).append(
                _PROBABILITY.sub(lambda found: f"{float(found[0]):.6f}", rule.strip())
            )
    return rules


def differences(
    kernel: Mapping[Chain, list[str]], listed: ListedRules, wanted: Mapping[Chain, list[str]]
) -> tuple[str, ...]:
    """A phrase for each chain that is not as *wanted*, by name.  *listed*: which chains and jumps of *kernel* are
    ours."""
    return tuple(_phrases(kernel, listed, wanted))


def _phrases(
    kernel: Mapping[Chain, list[str]], listed: ListedRules, wanted: Mapping[Chain, list[str]]
) -> Iterator[str]:
    ours = set(listed.chains)
    for chain in sorted(ours | wanted.keys()):
        name = f"chain {chain[1]} of {chain[0]}"
        if chain not in ours:
            yield f"{name} is missing"
        elif chain not in wanted:
            yield f"{name} is of another"
        else:
            in_order = chain[1].startswith(OF_SERVICES)
            yield from (f"{name} {phrase}" for phrase in _unlike(kernel[chain], wanted[chain], in_order=in_order))
    for chain, jumps in JUMPS.items():
        there = [line for of, line in listed.jumps if of == chain]
        yield from (f"chain {chain[1]} of {chain[0]} {phrase}" for phrase in _unlike(there, jumps, in_order=True))


def _unlike(there: Iterable[str], wanted: Iterable[str], *, in_order: bool) -> Iterator[str]:
    """The first difference alone: what follows in a chain often follows from it."""
    there, wanted = list(there), list(wanted)
    lacking, strange = Counter(wanted) - Counter(there), Counter(there) - Counter(wanted)
    if lacking:
        yield f"lacks the rule {next(rule for rule in wanted if rule in lacking)}"
    elif strange:
        yield f"has the rule {next(rule for rule in there if rule in strange)}, which is not ours"
    elif in_order and there != wanted:
        place = next(at for at, pair in enumerate(zip(there, wanted, strict=True), 1) if pair[0] != pair[1])
        yield f"has its rules in another order from rule {place} on"
