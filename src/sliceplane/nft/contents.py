"""What a table consists of: chains with their rules, sets and maps with their elements.

``contents_of`` is what a whole transaction makes of nothing.  It checks no more than it must: what the kernel refuses
is in the fake kernel of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sliceplane.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    DeleteTable,
    Hook,
    Key,
    NftContainer,
    NftRule,
    Transaction,
    Value,
)


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
    """What is in the table of *transaction*, a full one, when the kernel has taken it."""
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
