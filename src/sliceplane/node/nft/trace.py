"""Traces packets through a table: the first packet of a connection, and all its possible outcomes.

``trace`` walks the hooks in the order in which the kernel calls them and follows every branch of
``numgen``, so a test can say "from A to B:80: half to each of these two, masqueraded". ``trails``
also returns the chains of each way. An unknown statement is an error, never skipped.

Routing is minimal: a packet to one of the host's own addresses is for the host, any other is sent
out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import msgspec
from msgspec.structs import replace

from sliceplane.node.nft import statements
from sliceplane.node.nft.objects import DnatTarget, Key, NftVerdict, TableContents

#: from a process of the host, or from outside
Path = Literal["local", "forwarded"]
_Point = Literal["prerouting", "input", "forward", "output", "postrouting"]
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a connection; ``iif`` is its input interface. ``dnat``, ``mark`` and
    ``masquerade`` are set once a rule has done that.
    """

    saddr: str
    daddr: str
    proto: str
    dport: int
    dnat: bool = False
    masquerade: bool = False
    iif: str = ""
    mark: bool = False
    #: the chains that it entered, in order
    chains: tuple[str, ...] = ()

    def key(self, fields: tuple[statements.Field, ...]) -> Key:
        values: dict[statements.Field, str | int] = {
            "saddr": self.saddr,
            "daddr": self.daddr,
            "proto": self.proto,
            "dport": self.dport,
        }
        return tuple(values[field] for field in fields)


class PacketOutcome(msgspec.Struct, frozen=True, order=True):
    """``to`` is where an accepted packet goes, as "ip port"."""

    verdict: Literal["accept", "drop", "reject"]
    to: str = ""
    masquerade: bool = False


class Trail(msgspec.Struct, frozen=True):
    """One possible way of a packet: its probability, its outcome, and the packet at its end."""

    share: Fraction
    outcome: PacketOutcome
    packet: Packet


#: results of the evaluation of a chain or rule
_Flow = Literal["continue", "break", "return", "drop", "reject", "done"]
_Branch = tuple[Fraction, Packet, _Flow]
_ONE = Fraction(1)


def trace(
    table: TableContents, first: Packet, path: Path = "local", own: frozenset[str] = frozenset()
) -> dict[PacketOutcome, Fraction]:
    """Returns the possible outcomes for the first packet of a new connection on a host with the
    addresses *own*, with probabilities that sum to 1.
    """
    outcomes: dict[PacketOutcome, Fraction] = {}
    for trail in trails(table, first, path, own):
        outcomes[trail.outcome] = outcomes.get(trail.outcome, Fraction(0)) + trail.share
    return dict(sorted(outcomes.items()))


def trails(
    table: TableContents, first: Packet, path: Path = "local", own: frozenset[str] = frozenset()
) -> tuple[Trail, ...]:
    """Returns every way that ``trace`` counts, in the order of outcomes and chains."""
    walk = _Walk(table, own)
    trails: list[Trail] = []
    waiting: list[tuple[Fraction, Packet, _Point]] = [
        (_ONE, first, "output" if path == "local" else "prerouting")
    ]
    while waiting:
        weight, packet, point = waiting.pop()
        for share, after, flow in walk.hook(point, packet):
            if flow in {"drop", "reject"}:
                trails.append(
                    Trail(
                        weight * share, PacketOutcome("drop" if flow == "drop" else "reject"), after
                    )
                )
                continue
            following = walk.route(point, after)
            if following is not None:
                waiting.append((weight * share, after, following))
            else:
                outcome = PacketOutcome("accept", f"{after.daddr} {after.dport}", after.masquerade)
                trails.append(Trail(weight * share, outcome, after))
    assert sum(trail.share for trail in trails) == 1, f"probabilities {trails}"
    return tuple(sorted(trails, key=lambda trail: (trail.outcome, trail.packet.chains)))


class _Walk:
    """The evaluation on one host, with a table and its own addresses."""

    def __init__(self, table: TableContents, own: frozenset[str]) -> None:
        self._table = table
        self._own = own

    def route(self, point: _Point, packet: Packet) -> _Point | None:
        """Returns the hook after *point*; ``None``: the packet is delivered, or sent out."""
        match point:
            case "prerouting":
                return "input" if self._is_own(packet.daddr) else "forward"
            case "forward" | "output":
                return "postrouting"
            case "postrouting" if self._is_own(packet.daddr):
                return "input"  # through the loopback interface; its prerouting has nothing to add
        return None

    def hook(self, point: _Point, packet: Packet) -> list[_Branch]:
        """Returns every way through the base chains of a hook, in the order of their priorities."""
        base = [
            (chain.hook, name)
            for name, chain in self._table.chains.items()
            if chain.hook is not None
        ]
        branches: list[_Branch] = [(_ONE, packet, "continue")]
        for _, name in sorted((hook.priority, name) for hook, name in base if hook.point == point):
            following: list[_Branch] = []
            for weight, current, flow in branches:
                if flow in {"drop", "reject"}:
                    following.append((weight, current, flow))
                else:
                    following += [
                        (weight * share, after, end)
                        for share, after, end in self._chain(name, current)
                    ]
            branches = following
        return branches

    def _chain(self, name: str, packet: Packet) -> Iterator[_Branch]:
        """Yields every way through a chain; "continue" at its end (base chains then accept)."""
        chain = self._table.chains.get(name)
        assert chain is not None, f"no chain {name}"
        branches: list[tuple[Fraction, Packet]] = [
            (_ONE, replace(packet, chains=(*packet.chains, name)))
        ]
        for rule in chain.rules:
            following: list[tuple[Fraction, Packet]] = []
            for weight, current in branches:
                for share, after, flow in self._rule(rule.statements, current):
                    if flow in {"continue", "break"}:
                        following.append((weight * share, after))
                    elif flow == "return":
                        yield weight * share, after, "continue"
                    else:
                        yield weight * share, after, flow
            branches = following
        for weight, current in branches:
            yield weight, current, "continue"

    def _rule(self, parts: tuple[statements.Statement, ...], packet: Packet) -> Iterator[_Branch]:
        if not parts:
            yield _ONE, packet, "continue"
            return
        for share, after, flow in self._statement(parts[0], packet):
            if flow == "continue":
                for rest, final, end in self._rule(parts[1:], after):
                    yield share * rest, final, end
            else:
                yield share, after, flow

    def _statement(self, statement: statements.Statement, packet: Packet) -> Iterator[_Branch]:
        match statement:
            case statements.Jump(chain):
                yield from self._chain(chain, packet)
            case statements.Goto(chain):
                yield from self._goto(chain, packet)
            case statements.GotoOneOf(chains):
                for chain in chains:
                    for share, after, flow in self._goto(chain, packet):
                        yield share / len(chains), after, flow
            case statements.Vmap(fields, name):
                verdict = self._table.containers[name].elements.get(packet.key(fields))
                if verdict is None:
                    yield _ONE, packet, "break"
                    return
                assert isinstance(verdict, NftVerdict), f"{name} answers {verdict}"
                match verdict.kind:
                    case "drop":
                        yield _ONE, packet, "drop"
                    case "jump":
                        yield from self._chain(verdict.chain, packet)
                    case "goto":
                        yield from self._goto(verdict.chain, packet)
            case statements.Balance():
                yield from self._balance(statement, packet)
            case statements.DnatBucket(fields, count, name):
                yield from self._bucket_branches(packet, packet.key(fields), count, name)
            case _:
                after, flow = self._simple(statement, packet)
                yield _ONE, after, flow

    def _simple(self, statement: statements.Statement, packet: Packet) -> tuple[Packet, _Flow]:
        """Evaluates a statement with one outcome."""
        match statement:
            case statements.CtStateNew() | statements.Remember():
                return packet, "continue"
            case statements.CtStatusDnat():
                return packet, _matched(packet.dnat)
            case statements.InSet(fields, name):
                return packet, _matched(packet.key(fields) in self._table.containers[name].elements)
            case statements.AddressIn(field, networks, inside):
                address = ipaddress.ip_address(packet.saddr if field == "saddr" else packet.daddr)
                return packet, _matched(
                    any(address in ipaddress.ip_network(network) for network in networks) == inside
                )
            case statements.FromInterface(name, inside):
                prefix, star, _ = name.partition("*")
                return packet, _matched(
                    (packet.iif.startswith(prefix) if star else packet.iif == name) == inside
                )
            case statements.IsOwnAddress(field):
                return packet, _matched(
                    self._is_own(packet.saddr if field == "saddr" else packet.daddr)
                )
            case statements.SetMark():
                return replace(packet, mark=True), "continue"
            case statements.ClearMark():
                return replace(packet, mark=False), _matched(packet.mark)
            case statements.Dnat(protocol, ip, port) if packet.proto == protocol:
                return replace(packet, daddr=ip, dport=port, dnat=True), "done"
            case statements.Dnat():
                return packet, "break"
            case statements.DnatMap(fields, name):
                target = self._table.containers[name].elements.get(packet.key(fields))
                if target is None:
                    return packet, "break"
                assert isinstance(target, DnatTarget), f"{name} answers {target}"
                return replace(packet, daddr=target.ip, dport=target.port, dnat=True), "done"
            case statements.Masquerade():
                return replace(packet, masquerade=True), "done"
            case statements.Reject():
                return packet, "reject"
            case statements.ResetTcp():
                return packet, "reject" if packet.proto == "tcp" else "break"
            case statements.Drop():
                return packet, "drop"
        raise AssertionError(f"the tracer does not know {statement}")

    def _goto(self, chain: str, packet: Packet) -> Iterator[_Branch]:
        """Evaluates a ``goto``: at the end of that chain, the packet continues after the jump to
        *this* one.
        """
        for share, after, flow in self._chain(chain, packet):
            yield share, after, "return" if flow == "continue" else flow

    def _balance(self, statement: statements.Balance, packet: Packet) -> Iterator[_Branch]:
        if packet.proto != statement.protocol:
            yield _ONE, packet, "break"
            return
        elements = self._table.containers[statement.container].elements
        for number in range(statement.offset, statement.offset + statement.count):
            target = elements.get((number,))
            assert isinstance(target, DnatTarget), f"{statement.container} has no target {number}"
            translated = replace(packet, daddr=target.ip, dport=target.port, dnat=True)
            yield Fraction(1, statement.count), translated, "done"

    def _bucket_branches(
        self, packet: Packet, key: Key, count: int, name: str
    ) -> Iterator[_Branch]:
        """Yields each full bucket, equally likely: the rules repeat the draw until one is full
        (``node.nft.buckets``)."""
        elements = self._table.containers[name].elements
        targets = [elements[*key, number] for number in range(count) if (*key, number) in elements]
        if not targets:
            yield _ONE, packet, "break"
        for target in targets:
            assert isinstance(target, DnatTarget), f"{name} answers {target}"
            yield (
                Fraction(1, len(targets)),
                replace(packet, daddr=target.ip, dport=target.port, dnat=True),
                "done",
            )

    def _is_own(self, address: str) -> bool:
        return address in self._own or any(
            ipaddress.ip_address(address) in network for network in _LOOPBACK
        )


def _matched(matches: bool) -> _Flow:
    return "continue" if matches else "break"
