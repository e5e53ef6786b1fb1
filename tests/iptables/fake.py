"""A kernel with iptables in it, for tests: ``iptables-restore --noflush`` and ``iptables-save`` of
one family.

It reads the text that the real program would read, and refuses what that one refuses: an unknown
table or chain, a rule to delete that is not there, a chain to remove that has rules or that
something leads to, a name that is too long. As with the real one, a table is replaced at once, at
``COMMIT``, and tables before a refused one stay written.
"""

from __future__ import annotations

import re
from typing import Final

from sliceplane.node.iptables.text import NAME_LENGTH_MAX, target_of

BUILT_IN: Final = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}
#: targets that are not chains
_TARGETS: Final = frozenset({"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "MASQUERADE", "DNAT"})
_COMMAND = re.compile(r"-(?P<verb>[ADI]) (?P<chain>\S+) (?:(?P<place>\d+) )?(?P<rule>.+)")

Rules = dict[str, list[str]]


class FakeError(Exception):
    """A table was refused; nothing of it was done."""


class FakeTables:
    """``tables``: table -> chain -> rules, without their ``-A CHAIN``."""

    def __init__(self) -> None:
        self.tables: dict[str, Rules] = {
            table: {chain: [] for chain in chains} for table, chains in BUILT_IN.items()
        }

    def restore(self, text: str) -> None:
        """Raises ``FakeError``."""
        name, table = "", Rules()
        for line in text.splitlines():
            if line.startswith("*"):
                name = line[1:]
                if name not in self.tables:
                    raise FakeError(f"no table {name}")
                table = {chain: list(rules) for chain, rules in self.tables[name].items()}
            elif line == "COMMIT":
                _check(table)
                self.tables[name] = table
                name = ""
            elif not name:
                raise FakeError(f"outside of a table: {line}")
            else:
                _perform(name, table, line)
        if name:
            raise FakeError(f"{name} is not committed")

    def save(self) -> str:
        lines = []
        for name, table in self.tables.items():
            lines.append(f"*{name}")
            lines += [
                f":{chain} {'ACCEPT' if chain in BUILT_IN[name] else '-'} [0:0]" for chain in table
            ]
            lines += [f"-A {chain} {rule}" for chain, rules in table.items() for rule in rules]
            lines.append("COMMIT")
        return "".join(f"{line}\n" for line in lines)


def _perform(name: str, table: Rules, line: str) -> None:
    if line.startswith(":"):
        chain = line[1:].partition(" ")[0]
        if len(chain) > NAME_LENGTH_MAX or chain in BUILT_IN[name]:
            raise FakeError(f"bad chain: {line}")
        table[chain] = []
        return
    if line.startswith("-X "):
        chain = line[3:]
        if chain in BUILT_IN[name] or table.get(chain) != []:
            raise FakeError(f"not there, or not empty: {line}")
        if any(target_of(rule) == chain for rules in table.values() for rule in rules):
            raise FakeError(f"in use: {line}")
        del table[chain]
        return
    found = _COMMAND.fullmatch(line)
    if found is None or found["chain"] not in table:
        raise FakeError(f"no such command or chain: {line}")
    rules = table[found["chain"]]
    match found["verb"]:
        case "A":
            rules.append(found["rule"])
        case "I":
            rules.insert(int(found["place"] or 1) - 1, found["rule"])
        case _ if found["rule"] in rules:
            rules.remove(found["rule"])
        case _:
            raise FakeError(f"no such rule: {line}")


def _check(table: Rules) -> None:
    for chain, rules in table.items():
        for rule in rules:
            target = target_of(rule)
            if target not in table and target not in _TARGETS:
                raise FakeError(f"{chain} leads to {target}, which is not there: {rule}")
