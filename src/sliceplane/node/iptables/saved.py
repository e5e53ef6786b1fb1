"""Rules in the kernel: parses ``iptables-save`` for our rules and those of a kube-proxy, which a
full write or a clean-up needs; and compares our rules with those that we wrote, one by one.

``iptables-restore --noflush`` can replace a chain, but it cannot add a jump only if it is missing,
nor remove all obsolete chains. So a full write lists the rules first; a change never does.

Our rules have the spelling of ``iptables-save`` (``node.iptables.text``), so lines are compared
literally, except for the digits of a probability, of which the kernel keeps 31 bits. In a chain that
Services share the order does not matter: each rule matches another destination.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from sliceplane.node.iptables.layout import JUMPS, TABLES, Chain, Table
from sliceplane.node.iptables.text import (
    CANARY,
    CLUSTER_IPS,
    EXTERNAL_SERVICES,
    FORWARD,
    MARK_MASQ,
    NODE_PORTS,
    OF_SERVICES,
    POSTROUTING,
    PROXY_FIREWALL,
    REJECT,
    SERVICES,
    target_of,
)

_FIXED: Final = frozenset(
    {
        CANARY,
        CLUSTER_IPS,
        EXTERNAL_SERVICES,
        FORWARD,
        MARK_MASQ,
        NODE_PORTS,
        POSTROUTING,
        PROXY_FIREWALL,
        REJECT,
        SERVICES,
    }
)


class ListedRules(msgspec.Struct, frozen=True):
    """Our chains and jumps in the kernel, sorted, as listed."""

    #: fixed chains and those of service ports
    chains: tuple[Chain, ...] = ()
    #: jumps from the kernel's own chains to ours: the chain, and the rule as listed
    jumps: tuple[tuple[Chain, str], ...] = ()

    def stale(self, table: Table, desired: frozenset[str]) -> tuple[str, ...]:
        """Returns the chains of service ports that are not desired."""
        return tuple(
            name
            for of, name in self.chains
            if of == table and name.startswith(OF_SERVICES) and name not in desired
        )

    def missing_jumps(self, table: Table) -> tuple[str, ...]:
        """Returns commands that add missing jumps from the kernel's own chains to ours, in our
        order.
        """
        commands: list[str] = []
        for chain, desired in JUMPS.items():
            actual = tuple(line for of, line in self.jumps if of == chain)
            if chain[0] != table or actual == desired:
                continue
            commands += [f"-D {chain[1]} {line}" for line in actual]
            commands += [
                f"-I {chain[1]} {position} {line}" for position, line in enumerate(desired, 1)
            ]
        return tuple(commands)


NO_RULES: Final = ListedRules()


def parse_saved(text: str) -> ListedRules:
    """Parses *text*, the output of ``iptables-save`` for one or more tables.  Ignores other tables
    than ours.
    """
    chains: list[Chain] = []
    jumps: list[tuple[Chain, str]] = []
    table: Table | None = None
    for line in text.splitlines():
        if line.startswith("*"):
            table = next((each for each in TABLES if each == line[1:].strip()), None)
        elif table is None:
            continue
        elif line.startswith(":"):
            name = line[1:].partition(" ")[0]
            if name in _FIXED or name.startswith(OF_SERVICES):
                chains.append((table, name))
        elif line.startswith("-A "):
            chain, _, rest = line[3:].partition(" ")
            if (table, chain) in JUMPS and target_of(rest) in _FIXED:
                jumps.append(((table, chain), rest.strip()))
    return ListedRules(tuple(sorted(chains)), tuple(jumps))


def removal(listed: ListedRules) -> str:
    """Returns restore text that removes all *listed* rules; "" if there are none."""
    parts: list[str] = []
    for table in TABLES:
        chains = [name for of, name in listed.chains if of == table]
        jumps = [f"-D {chain} {line}" for (of, chain), line in listed.jumps if of == table]
        if chains or jumps:
            emptied = [f":{name} - [0:0]" for name in chains]
            parts += [f"*{table}", *emptied, *jumps, *(f"-X {name}" for name in chains), "COMMIT"]
    return "".join(f"{part}\n" for part in parts)


_PROBABILITY = re.compile(r"(?<=--probability )\S+")


def rules_of(text: str) -> dict[Chain, list[str]]:
    """Returns the rules by chain, in order, from restore text or the output of ``iptables-save``."""
    rules: dict[Chain, list[str]] = {}
    table = next(iter(TABLES))
    for line in text.splitlines():
        if line.startswith("*"):
            table = next((each for each in TABLES if each == line[1:].strip()), table)
        elif line.startswith(":"):
            rules.setdefault((table, line[1:].partition(" ")[0]), [])
        elif line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            rules.setdefault((table, chain), []).append(
                _PROBABILITY.sub(lambda match: f"{float(match[0]):.6f}", rule.strip())
            )
    return rules


def differences(
    kernel: Mapping[Chain, list[str]], listed: ListedRules, desired: Mapping[Chain, list[str]]
) -> tuple[str, ...]:
    """Returns a phrase for each chain that differs from *desired*, sorted by name. *listed*: our
    chains and jumps in *kernel*.
    """
    return tuple(_phrases(kernel, listed, desired))


def _phrases(
    kernel: Mapping[Chain, list[str]], listed: ListedRules, desired: Mapping[Chain, list[str]]
) -> Iterator[str]:
    ours = set(listed.chains)
    for chain in sorted(ours | desired.keys()):
        name = f"chain {chain[1]} of {chain[0]}"
        if chain not in ours:
            yield f"{name} is missing"
        elif chain not in desired:
            yield f"{name} is of another"
        else:
            in_order = chain[1].startswith(OF_SERVICES)
            yield from (
                f"{name} {phrase}"
                for phrase in _unlike(kernel[chain], desired[chain], in_order=in_order)
            )
    for chain, jumps in JUMPS.items():
        actual = [line for of, line in listed.jumps if of == chain]
        yield from (
            f"chain {chain[1]} of {chain[0]} {phrase}"
            for phrase in _unlike(actual, jumps, in_order=True)
        )


def _unlike(actual: Iterable[str], desired: Iterable[str], *, in_order: bool) -> Iterator[str]:
    """Yields the first difference only: later ones in a chain often follow from it."""
    actual, desired = list(actual), list(desired)
    missing, extra = Counter(desired) - Counter(actual), Counter(actual) - Counter(desired)
    if missing:
        yield f"lacks the rule {next(rule for rule in desired if rule in missing)}"
    elif extra:
        yield f"has the rule {next(rule for rule in actual if rule in extra)}, which is not ours"
    elif in_order and actual != desired:
        position = next(
            at for at, pair in enumerate(zip(actual, desired, strict=True), 1) if pair[0] != pair[1]
        )
        yield f"has its rules in another order from rule {position} on"
