"""A whole table takes another's place while packets are under way: in two steps, so that none is refused.

The kernel evaluates a packet against the rules that were there when it entered a hook, but looks elements up in the
newest version of a map (``nft.table``, "Retirement").  So a packet that is overtaken in the chain ``services`` finds
the maps empty, is not translated, and comes to the new table's check of cluster IPs, which would reject a connection
that has every right: once in some 20,000 connections when tables follow one another as fast as they can.

The first step therefore has a check that drops.  A dropped packet leaves no connection behind, and its sender tries
again, a second later with TCP.  The second step makes the check what it shall be, when nothing is under way any more.
"""

from __future__ import annotations

from typing import Final, TypeGuard

from sliceplane.nft.layout import CLUSTER_IPS_CHECK, is_writer
from sliceplane.nft.objects import AddChain, AddRule, Command, FlushChain, Rule, Transaction
from sliceplane.nft.statements import Drop, Jump

#: between the steps: no packet needs so long from one hook to the next, unless its processor is taken away
PAUSE_S: Final = 0.002


def steps(transaction: Transaction) -> tuple[Transaction, ...]:
    """*transaction* in the steps that it is to be written in; any but a full one is one step."""
    if not transaction.full:
        return (transaction,)
    commands = transaction.commands
    checks = tuple(each for each in commands if _is_check(each))
    # As every change does, it begins by seeing whose table it is.
    writer = tuple(FlushChain(each.name) for each in commands if isinstance(each, AddChain) and is_writer(each))
    return (
        Transaction(transaction.table, tuple(_dropping(each) if _is_check(each) else each for each in commands), True),
        Transaction(transaction.table, (*writer, FlushChain(CLUSTER_IPS_CHECK), *checks)),
    )


def _is_check(command: Command) -> TypeGuard[AddRule]:
    return isinstance(command, AddRule) and command.chain == CLUSTER_IPS_CHECK


def _dropping(check: AddRule) -> AddRule:
    statements = (Drop() if isinstance(part, Jump) else part for part in check.rule.statements)
    return AddRule(check.chain, Rule(tuple(statements)))
