"""Tables as they were when every destination had a chain, and a goto that leads to it."""

from __future__ import annotations

from sliceplane.consume.model import ServiceKey
from sliceplane.node.nft.build import BalancedChain, ServiceObjects
from sliceplane.node.nft.layout import SERVICE_IPS, SINGLE_ENDPOINTS
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    Command,
    DnatTarget,
    Item,
    TableRef,
    Transaction,
    goto,
)
from sliceplane.node.nft.statements import DnatMap
from sliceplane.node.nft.table import NftRules


def in_the_older_layout(transaction: Transaction) -> Transaction:
    """What *transaction*, a full one of Services with one endpoint each, would have been."""
    commands: list[Command] = []
    for command in transaction.commands:
        match command:
            case AddContainer(container) if container == SINGLE_ENDPOINTS:
                continue
            case AddRule(_, rule) if any(isinstance(part, DnatMap) for part in rule.statements):
                continue
            case AddElements(name, items) if name == SINGLE_ENDPOINTS.name:
                commands += _chains(transaction.table, items)
            case _:
                commands.append(command)
    return Transaction(transaction.table, tuple(commands), full=True)


def _chains(table: TableRef, items: tuple[Item, ...]) -> list[Command]:
    chains = []
    for number, (key, value) in enumerate(items):
        assert isinstance(value, DnatTarget), f"{key} leads to {value}"
        chains.append(BalancedChain(f"service-{number}", str(key[1]), (value,)))
    ways = tuple((key, goto(chain.name)) for (key, _), chain in zip(items, chains, strict=True))
    state = NftRules(table)
    state.set_objects(ServiceKey("ns", "old"), ServiceObjects(tuple(chains)))
    full = state.take_transaction(0.0)
    assert full is not None
    return [
        *(command for command in full.commands if _is_of_chains(command)),
        AddElements(SERVICE_IPS.name, ways),
    ]


def _is_of_chains(command: Command) -> bool:
    match command:
        case AddContainer(container):
            return container.by_number
        case AddChain(name) | AddRule(name):
            return name.startswith("service-") and name[len("service-") :].isdigit()
        case AddElements(name):
            return name.startswith("endpoints-")
    return False
