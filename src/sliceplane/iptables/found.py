"""What a whole write, or a clean-up, has to know of the kernel: ``iptables-save`` read for what is ours, or was a
kube-proxy's.

``iptables-restore --noflush`` can replace a chain, but it cannot say "make this jump unless it is there" nor "remove
whatever chains are too many".  So a whole write looks first; a change never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sliceplane.iptables import names
from sliceplane.iptables.layout import JUMPS, TABLES, Chain, Table
from sliceplane.iptables.text import target_of

_FIXED: Final = frozenset({
    names.CANARY, names.CLUSTER_IPS, names.EXTERNAL_SERVICES, names.FORWARD, names.MARK_MASQ, names.NODE_PORTS,
    names.POSTROUTING, names.PROXY_FIREWALL, names.REJECT, names.SERVICES,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ListedRules:
    """Sorted, as listed."""

    #: ours, fixed ones and those of service ports
    chains: tuple[Chain, ...] = ()
    #: in the kernel's own chains, what leads to ours: the chain, and the rule as it is listed
    jumps: tuple[tuple[Chain, str], ...] = ()

    def stale(self, table: Table, wanted: frozenset[str]) -> tuple[str, ...]:
        """Chains of service ports that no Service wants."""
        return tuple(
            name
            for of, name in self.chains
            if of == table and name.startswith(names.OF_SERVICES) and name not in wanted
        )

    def missing_jumps(self, table: Table) -> tuple[str, ...]:
        """Commands after which the kernel's own chains lead to ours, each once and in our order."""
        commands: list[str] = []
        for chain, wanted in JUMPS.items():
            there = tuple(line for of, line in self.jumps if of == chain)
            if chain[0] != table or there == wanted:
                continue
            commands += [f"-D {chain[1]} {line}" for line in there]
            commands += [f"-I {chain[1]} {place} {line}" for place, line in enumerate(wanted, 1)]
        return tuple(commands)


NOTHING: Final = ListedRules()


def parse_saved(text: str) -> ListedRules:
    """*text* is what ``iptables-save`` prints, of one or more tables.  Other tables than ours are left alone."""
    chains: list[Chain] = []
    jumps: list[tuple[Chain, str]] = []
    table: Table | None = None
    for line in text.splitlines():
        if line.startswith("*"):
            table = next((known for known in TABLES if known == line[1:].strip()), None)
        elif table is None:
            continue
        elif line.startswith(":"):
            name = line[1:].partition(" ")[0]
            if name in _FIXED or name.startswith(names.OF_SERVICES):
                chains.append((table, name))
        elif line.startswith("-A "):
            chain, _, rest = line[3:].partition(" ")
            if (table, chain) in JUMPS and target_of(rest) in _FIXED:
                jumps.append(((table, chain), rest.strip()))
    return ListedRules(tuple(sorted(chains)), tuple(jumps))


def removal(found: ListedRules) -> str:
    """Restore text that takes away all that was found; "" if that is nothing."""
    parts: list[str] = []
    for table in TABLES:
        chains = [name for of, name in found.chains if of == table]
        jumps = [f"-D {chain} {line}" for (of, chain), line in found.jumps if of == table]
        if chains or jumps:
            emptied = [f":{name} - [0:0]" for name in chains]
            parts += [f"*{table}", *emptied, *jumps, *(f"-X {name}" for name in chains), "COMMIT"]
    return "".join(f"{part}\n" for part in parts)
