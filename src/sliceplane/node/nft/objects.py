"""Objects and commands of an nftables table, and their text for ``nft -f``.

A ``Transaction`` is a tuple of commands that the kernel applies atomically. ``render`` returns
exactly the text that is sent. The module has the part of nftables that we use; the fake kernel
implements the same part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from sliceplane.node.nft.statements import NftFamily, Statement

#: a concatenation: addresses and protocol names as text, ports and indexes as numbers
Key = tuple[str | int, ...]


class DnatTarget(msgspec.Struct, frozen=True, order=True, gc=False):
    """A destination of DNAT.  (The garbage collector does not track them: there may be hundreds of
    thousands.)
    """

    ip: str
    port: int


class NftVerdict(NamedTuple):
    """A value of a verdict map: ``drop``, or ``goto`` or ``jump`` to a chain.  A packet at the end
    of that chain continues after the calling chain, or after the rule, respectively.
    """

    kind: Literal["goto", "jump", "drop"]
    chain: str = ""


DROP = NftVerdict("drop")


def goto(chain: str) -> NftVerdict:
    return NftVerdict("goto", chain)


def jump(chain: str) -> NftVerdict:
    return NftVerdict("jump", chain)


class RemainingTime(NamedTuple):
    """The remaining time of an element of a dynamic set."""

    seconds: int


#: the elements of a table's dynamic sets, by name: addresses and the remaining seconds of each
DynamicSetContents = Mapping[str, tuple[tuple[str, int], ...]]


class BalancedTargets(NamedTuple):
    """The desired state of a destination that balances over ``targets``, at least two; see
    ``node.nft.buckets``.
    """

    targets: tuple[DnatTarget, ...]


Value = NftVerdict | DnatTarget | RemainingTime | None
DesiredValue = Value | BalancedTargets
Item = tuple[Key, Value]


class Hook(msgspec.Struct, frozen=True):
    """The hook of a base chain, whose policy is accept."""

    type: Literal["filter", "nat"]
    point: Literal["prerouting", "input", "forward", "output", "postrouting"]
    priority: int


class NftContainer(msgspec.Struct, frozen=True):
    """A set (``value`` none) or a map.  ``key`` names field types, joined as nft concatenates them.

    ``numgen`` keys are the numbers that ``numgen`` draws. nft has that type only by ``typeof``, and
    then needs the *protocol* of the targets' ports: it refuses a rule for another one ("conflicting
    protocols"). If the protocol is part of the key, it does not matter.
    """

    name: str
    key: tuple[Literal["addr", "proto", "port", "numgen"], ...]
    value: Literal["none", "verdict", "target"] = "none"
    protocol: str = ""
    #: timeout of the elements of a dynamic set, which packets fill; 0: the set is not dynamic
    timeout_s: int = 0
    #: capacity of a dynamic set; clients beyond it are served, but without affinity
    size: int = 0
    #: each element counts the packets whose lookup finds it (Linux 5.7)
    has_counters: bool = False

    def definition(self, family: NftFamily) -> str:
        if "numgen" in self.key:
            assert self.value == "target", (
                f"{self.name}: numbers are drawn for targets, not for {self.value}"
            )
            if self.by_number:
                return f"{{ typeof numgen random mod 2 : {family} daddr . {self.protocol} dport; }}"
            fields = {"addr": f"{family} daddr", "proto": "meta l4proto", "port": "th dport"}
            key = " . ".join(fields.get(part, "numgen random mod 2") for part in self.key)
            return f"{{ typeof {key} : {family} daddr . th dport; }}"
        types = {
            "addr": "ipv4_addr" if family == "ip" else "ipv6_addr",
            "proto": "inet_proto",
            "port": "inet_service",
        }
        suffixes = {
            "none": "",
            "verdict": " : verdict",
            "target": f" : {types['addr']} . {types['port']}",
        }
        suffix = suffixes[self.value]
        dynamic = f" flags dynamic,timeout; timeout {self.timeout_s}s;" if self.timeout_s else ""
        dynamic += f" size {self.size};" if self.size else ""
        dynamic += " counter;" if self.has_counters else ""
        return f"{{ type {' . '.join(types[part] for part in self.key)}{suffix};{dynamic} }}"

    @property
    def by_number(self) -> bool:
        """Returns True if its keys are only numbers that ``numgen`` draws."""
        return self.key == ("numgen",)

    @property
    def kind(self) -> str:
        return "set" if self.value == "none" else "map"


class NftRule(msgspec.Struct, frozen=True):
    """Statements from left to right; a match that fails ends the rule."""

    statements: tuple[Statement, ...]

    def render(self, family: NftFamily) -> str:
        return " ".join(statement.render(family) for statement in self.statements)


class TableRef(NamedTuple):
    """The identity of a table: its family and name."""

    family: NftFamily
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"


# Commands.  Each renders as one line.


class AddTable(msgspec.Struct, frozen=True):
    """Creates the table; no error if it exists."""

    def render(self, table: TableRef) -> str:
        return f"add table {table}"


class DeleteTable(msgspec.Struct, frozen=True):
    """Deletes the table with its contents; an error if it does not exist."""

    def render(self, table: TableRef) -> str:
        return f"delete table {table}"


class AddChain(msgspec.Struct, frozen=True):
    """Creates a chain; no error if the same one exists."""

    name: str
    hook: Hook | None = None

    def render(self, table: TableRef) -> str:
        if self.hook is None:
            return f"add chain {table} {self.name}"
        hook = self.hook
        return (
            f"add chain {table} {self.name} "
            f"{{ type {hook.type} hook {hook.point} priority {hook.priority}; }}"
        )


class FlushChain(msgspec.Struct, frozen=True):
    """Removes every rule of the chain."""

    name: str

    def render(self, table: TableRef) -> str:
        return f"flush chain {table} {self.name}"


class DeleteChain(msgspec.Struct, frozen=True):
    """Deletes a chain; an error if a rule or element still jumps to it."""

    name: str

    def render(self, table: TableRef) -> str:
        return f"delete chain {table} {self.name}"


class AddRule(msgspec.Struct, frozen=True):
    """Appends a rule."""

    chain: str
    rule: NftRule

    def render(self, table: TableRef) -> str:
        return f"add rule {table} {self.chain} {self.rule.render(table.family)}"


class AddContainer(msgspec.Struct, frozen=True):
    """Creates a set or map; no error if the same one exists."""

    container: NftContainer

    def render(self, table: TableRef) -> str:
        container = self.container
        return f"add {container.kind} {table} {container.name} {container.definition(table.family)}"


class DeleteContainer(msgspec.Struct, frozen=True):
    """Deletes a set or map; an error if a rule still uses it."""

    container: NftContainer

    def render(self, table: TableRef) -> str:
        return f"delete {self.container.kind} {table} {self.container.name}"


class FlushContainer(msgspec.Struct, frozen=True):
    """Removes every element."""

    container: NftContainer

    def render(self, table: TableRef) -> str:
        return f"flush {self.container.kind} {table} {self.container.name}"


class AddElements(msgspec.Struct, frozen=True):
    """Adds elements; an error if one exists with another value.  Never empty: nft has no such
    command.
    """

    container: str
    items: tuple[Item, ...]

    def render(self, table: TableRef) -> str:
        items = ", ".join(item_text(key, value) for key, value in self.items)
        return f"add element {table} {self.container} {{ {items} }}"


class DeleteElements(msgspec.Struct, frozen=True):
    """Removes elements; an error if one does not exist.  Never empty."""

    container: str
    keys: tuple[Key, ...]

    def render(self, table: TableRef) -> str:
        keys = ", ".join(item_text(key, None) for key in self.keys)
        return f"delete element {table} {self.container} {{ {keys} }}"


Command = (
    AddTable
    | DeleteTable
    | AddChain
    | FlushChain
    | DeleteChain
    | AddRule
    | AddContainer
    | DeleteContainer
    | FlushContainer
    | AddElements
    | DeleteElements
)


class Transaction(msgspec.Struct, frozen=True):
    """Commands for one table, applied atomically."""

    table: TableRef
    commands: tuple[Command, ...]
    #: the transaction replaces the whole table, whatever its contents were
    full: bool = False
    #: number of commands that must be applied before the rest; the first checks the table's writer
    ahead: int = 0

    @property
    def size(self) -> int:
        return len(self.commands)

    def render(self) -> str:
        return "".join(f"{command.render(self.table)}\n" for command in self.commands)


def deletion(table: TableRef) -> Transaction:
    """Removes *table*, whether it exists or not (nft 1.0.6 has no ``destroy``)."""
    return Transaction(table, (AddTable(), DeleteTable()))


def item_text(key: Key, value: Value) -> str:
    """An element as ``nft`` writes it."""
    text = str(key[0]) if len(key) == 1 else " . ".join(map(str, key))
    if value is None:
        return text
    if isinstance(value, DnatTarget):
        return f"{text} : {value.ip} . {value.port}"
    if isinstance(value, RemainingTime):
        return f"{text} expires {value.seconds}s"
    return f"{text} : {value.kind} {value.chain}" if value.chain else f"{text} : {value.kind}"


@dataclass(slots=True)
class ChainContents:
    hook: Hook | None
    rules: list[NftRule] = field(default_factory=list)


@dataclass(slots=True)
class ContainerContents:
    definition: NftContainer
    elements: dict[Key, Value] = field(default_factory=dict)


@dataclass(slots=True)
class TableContents:
    chains: dict[str, ChainContents] = field(default_factory=dict)
    containers: dict[str, ContainerContents] = field(default_factory=dict)


def contents_of(transaction: Transaction) -> TableContents:
    """Returns the table after *transaction*, a full one.  Checks only what it needs: the fake kernel
    of the tests implements the kernel's refusals.
    """
    assert transaction.full, "a change depends on what was there"
    table = TableContents()
    for command in transaction.commands:
        match command:
            case AddTable() | DeleteTable():
                assert not table.chains, "a full transaction begins with an empty table"
            case AddChain(name, hook):
                table.chains.setdefault(name, ChainContents(hook))
            case AddContainer(container):
                table.containers.setdefault(container.name, ContainerContents(container))
            case AddElements(name, items):
                table.containers[name].elements.update(items)
            case AddRule(name, rule):
                table.chains[name].rules.append(rule)
            case _:
                raise AssertionError(f"{command} in a full transaction")
    return table
