"""What a table consists of: chains with their rules, sets and maps with their elements.

``contents_of`` is what a whole transaction makes of nothing. It checks no more than it must: what
the kernel refuses is in the fake kernel of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sliceplane.node.nft import objects


@dataclass(slots=True)
class ChainContents:
    hook: objects.Hook | None
    rules: list[objects.NftRule] = field(default_factory=list)


@dataclass(slots=True)
class ContainerContents:
    definition: objects.NftContainer
    elements: dict[objects.Key, objects.Value] = field(default_factory=dict)


@dataclass(slots=True)
class TableContents:
    chains: dict[str, ChainContents] = field(default_factory=dict)
    containers: dict[str, ContainerContents] = field(default_factory=dict)


def contents_of(transaction: objects.Transaction) -> TableContents:
    """What is in the table of *transaction*, a full one, when the kernel has taken it."""
    assert transaction.full, "a change depends on what was there"
    table = TableContents()
    for command in transaction.commands:
        match command:
            case objects.AddTable() | objects.DeleteTable():
                assert not table.chains, "a full transaction begins with an empty table"
            case objects.AddChain(name, hook):
                table.chains.setdefault(name, ChainContents(hook))
            case objects.AddContainer(container):
                table.containers.setdefault(container.name, ContainerContents(container))
            case objects.AddElements(name, items):
                table.containers[name].elements.update(items)
            case objects.AddRule(name, rule):
                table.chains[name].rules.append(rule)
            case _:
                raise AssertionError(f"{command} in a full transaction")
    return table
