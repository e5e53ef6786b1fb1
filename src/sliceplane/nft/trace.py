"""Packets through the fake kernel: the first packet of a connection, and everything that may become of it.

``trace`` walks the hooks in the order in which the kernel calls them and follows every branch of ``numgen``, so a
test can say "from A to B:80: half to each of these two, masqueraded".  A statement that it does not know is an
error, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from sliceplane.nft.fake import FakeTable
from sliceplane.nft.objects import Key, Target, Verdict
from sliceplane.nft.statements import (
    Balance,
    CtStateNew,
    CtStatusDnat,
    Field,
    InSet,
    Jump,
    Masquerade,
    Reject,
    ResetTcp,
    Statement,
    Vmap,
)

Path = Literal["local", "forwarded"]
_HOOKS: dict[Path, tuple[str, ...]] = {
    "local": ("output", "postrouting"),
    "forwarded": ("prerouting", "forward", "postrouting"),
}


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection; ``dnat`` and ``masquerade`` say what happened to it."""

    saddr: str
    daddr: str
    proto: str
    dport: int
    dnat: bool = False
    masquerade: bool = False

    def key(self, fields: tuple[Field, ...]) -> Key:
        values: dict[Field, str | int] = {
            "saddr": self.saddr,
            "daddr": self.daddr,
            "proto": self.proto,
            "dport": self.dport,
        }
        return tuple(values[field] for field in fields)


@dataclass(frozen=True, slots=True, order=True)
class Outcome:
    """``to`` is where an accepted packet goes, as "ip port"."""

    verdict: Literal["accept", "drop", "reject"]
    to: str = ""
    masquerade: bool = False


#: how the evaluation of a chain or rule ends, apart from a final verdict
_Flow = Literal["continue", "break", "return", "drop", "reject", "done"]
_Branch = tuple[Fraction, Packet, _Flow]


def trace(table: FakeTable, first: Packet, path: Path = "local") -> dict[Outcome, Fraction]:
    """What may become of a new connection's first packet, with probabilities that sum to 1."""
    outcomes: dict[Outcome, Fraction] = {}
    branches: list[tuple[Fraction, Packet]] = [(Fraction(1), first)]
    for point in _HOOKS[path]:
        base = [(chain.hook, name) for name, chain in table.chains.items() if chain.hook is not None]
        hooked = sorted((hook.priority, name) for hook, name in base if hook.point == point)
        for _, name in hooked:
            survivors: list[tuple[Fraction, Packet]] = []
            for weight, packet in branches:
                for share, after, flow in _run_chain(table, name, packet):
                    if flow in {"drop", "reject"}:
                        outcome = Outcome("drop" if flow == "drop" else "reject")
                        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight * share
                    else:
                        survivors.append((weight * share, after))
            branches = survivors
    for weight, packet in branches:
        outcome = Outcome("accept", f"{packet.daddr} {packet.dport}", packet.masquerade)
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight
    assert sum(outcomes.values()) == 1, f"probabilities {outcomes}"
    return dict(sorted(outcomes.items()))


def _run_chain(table: FakeTable, name: str, packet: Packet) -> Iterator[_Branch]:
    """Every way through a chain; "continue" at its end (base chains then accept)."""
    chain = table.chains.get(name)
    assert chain is not None, f"no chain {name}"
    branches: list[tuple[Fraction, Packet]] = [(Fraction(1), packet)]
    for rule in chain.rules:
        following: list[tuple[Fraction, Packet]] = []
        for weight, current in branches:
            for share, after, flow in _run_rule(table, rule.statements, current):
                if flow in {"continue", "break"}:
                    following.append((weight * share, after))
                elif flow == "return":
                    yield weight * share, after, "continue"
                else:
                    yield weight * share, after, flow
        branches = following
    for weight, current in branches:
        yield weight, current, "continue"


def _run_rule(table: FakeTable, statements: tuple[Statement, ...], packet: Packet) -> Iterator[_Branch]:
    if not statements:
        yield Fraction(1), packet, "continue"
        return
    for share, after, flow in _run_statement(table, statements[0], packet):
        if flow == "continue":
            for rest, final, end in _run_rule(table, statements[1:], after):
                yield share * rest, final, end
        else:
            yield share, after, flow


def _run_statement(table: FakeTable, statement: Statement, packet: Packet) -> Iterator[_Branch]:
    one = Fraction(1)
    match statement:
        case CtStateNew():
            yield one, packet, "continue"
        case CtStatusDnat():
            yield one, packet, "continue" if packet.dnat else "break"
        case InSet(fields, name):
            yield one, packet, "continue" if packet.key(fields) in table.containers[name].elements else "break"
        case Reject():
            yield one, packet, "reject"
        case ResetTcp():
            yield one, packet, "reject" if packet.proto == "tcp" else "break"
        case Masquerade():
            yield one, replace(packet, masquerade=True), "done"
        case Jump(chain):
            yield from _run_chain(table, chain, packet)
        case Vmap(fields, name):
            verdict = table.containers[name].elements.get(packet.key(fields))
            if verdict is None:
                yield one, packet, "break"
                return
            assert isinstance(verdict, Verdict), f"{name} answers {verdict}"
            if verdict.kind == "drop":
                yield one, packet, "drop"
                return
            # goto: who comes to the end of that chain goes on where *this* chain was jumped from
            for share, after, flow in _run_chain(table, verdict.chain, packet):
                yield share, after, "return" if flow == "continue" else flow
        case Balance():
            yield from _run_balance(table, statement, packet)


def _run_balance(table: FakeTable, statement: Balance, packet: Packet) -> Iterator[_Branch]:
    if packet.proto != statement.protocol:
        yield Fraction(1), packet, "break"
        return
    elements = table.containers[statement.container].elements
    for number in range(statement.offset, statement.offset + statement.count):
        target = elements.get((number,))
        assert isinstance(target, Target), f"{statement.container} has no target {number}"
        translated = replace(packet, daddr=target.ip, dport=target.port, dnat=True)
        yield Fraction(1, statement.count), translated, "done"
