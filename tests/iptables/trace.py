"""Packets through rules as ``iptables-save`` lists them: the first packet of a connection, and what
may become of it.

Every branch of a random choice is followed, so a test can say "half to each of these two,
masqueraded". A match or target that it does not know is an error, never skipped.

Routing is as simple as it can be: a packet to one of the host's own addresses is for the host, any
other goes out. All lists of ``recent`` are empty: this is the first packet of its sender.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Final, Literal

#: from a process of the host, or from outside
Path = Literal["local", "forwarded"]
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_ONE = Fraction(1)
#: probabilities have ten digits (eleven when listed), and are one in some number of endpoints
_ONE_IN_MAX: Final = 30_000

Tables = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection; ``iif`` is the interface that it came in through."""

    saddr: str
    daddr: str
    proto: str
    dport: int
    iif: str = ""
    mark: int = 0
    dnat: bool = False
    masquerade: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Outcome:
    """``to`` is where an accepted packet goes, as "ip port"."""

    verdict: Literal["accept", "drop", "reject"]
    to: str = ""
    masquerade: bool = False


#: how a chain ends: at its end or by RETURN ("continue"), with a verdict of this table alone, or
#: with a final one
_Flow = Literal["continue", "accept", "drop", "reject"]
_Branch = tuple[Fraction, Packet, _Flow]
#: before the routing decision, and after it for what is for the host and for what is not
_PREROUTING = (("nat", "PREROUTING"),)
_INPUT = (("filter", "INPUT"), ("nat", "INPUT"))
_OUTPUT = (("nat", "OUTPUT"), ("filter", "OUTPUT"))
_FORWARD = (("filter", "FORWARD"), ("nat", "POSTROUTING"))


def trace(
    tables: Tables, first: Packet, path: Path = "local", own: frozenset[str] = frozenset()
) -> dict[Outcome, Fraction]:
    """What may become of a new connection's first packet on a host with the addresses *own*, with
    probabilities that sum to 1.
    """
    walk = _Walk(tables, own)
    outcomes: dict[Outcome, Fraction] = {}

    def count(outcome: Outcome, weight: Fraction) -> None:
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight

    for share, packet, flow in walk.host(first, path):
        if flow in {"drop", "reject"}:
            count(Outcome("drop" if flow == "drop" else "reject"), share)
        else:
            count(Outcome("accept", f"{packet.daddr} {packet.dport}", packet.masquerade), share)
    assert sum(outcomes.values()) == 1, f"probabilities {outcomes}"
    return dict(sorted(outcomes.items()))


class _Walk:
    """One host: rules and its own addresses."""

    def __init__(self, tables: Tables, own: frozenset[str]) -> None:
        self._tables = tables
        self._own = own

    def host(self, first: Packet, path: Path) -> Iterator[_Branch]:
        if path == "local":
            for share, packet, flow in self._hooks((*_OUTPUT, ("nat", "POSTROUTING")), first):
                if flow == "continue" and self._is_own(
                    packet.daddr
                ):  # through the loopback interface
                    yield from _scaled(share, self._hooks(_INPUT, packet))
                else:
                    yield share, packet, flow
            return
        for share, packet, flow in self._hooks(_PREROUTING, first):
            if flow == "continue":
                onwards = _INPUT if self._is_own(packet.daddr) else _FORWARD
                yield from _scaled(share, self._hooks(onwards, packet))
            else:
                yield share, packet, flow

    def _hooks(self, chains: tuple[tuple[str, str], ...], packet: Packet) -> list[_Branch]:
        branches: list[_Branch] = [(_ONE, packet, "continue")]
        for table, chain in chains:
            following: list[_Branch] = []
            for share, current, flow in branches:
                if flow == "continue":
                    ends = _scaled(share, self._chain(table, chain, current))
                    following += [
                        (part, after, "continue" if end == "accept" else end)
                        for part, after, end in ends
                    ]
                else:
                    following.append((share, current, flow))
            branches = following
        return branches

    def _chain(self, table: str, name: str, packet: Packet) -> Iterator[_Branch]:
        """Every way through a chain; "continue" goes on behind the jump to it."""
        branches: list[tuple[Fraction, Packet]] = [(_ONE, packet)]
        for line in self._tables[table][name]:
            following: list[tuple[Fraction, Packet]] = []
            for share, current in branches:
                matched, target, options = self._match(line, current)
                if matched < 1:
                    following.append((share * (1 - matched), current))
                if not matched:
                    continue
                for part, after, flow in self._target(table, target, options, current):
                    if flow == "continue" and target == "RETURN":
                        yield share * matched * part, after, "continue"
                    elif flow == "continue":
                        following.append((share * matched * part, after))
                    else:
                        yield share * matched * part, after, flow
            branches = following
        for share, current in branches:
            yield share, current, "continue"

    def _match(self, line: str, packet: Packet) -> tuple[Fraction, str, list[str]]:
        """The probability of a match; the target and its options."""
        words = _words(line)
        chance, no, options, at = _ONE, False, dict[str, str](), 0
        while at < len(words):
            word = words[at]
            if word == "!":
                no, at = True, at + 1
                continue
            if word in {"-j", "-g"}:
                assert word == "-j", f"the tracer does not know {line}"
                return chance, words[at + 1], words[at + 2 :]
            if word in _FLAGS:
                at, value = at + 1, ""
            else:
                value, at = words[at + 1], at + 2
            options[word] = value
            if word == "--probability":
                chance *= _one_in(value)
            elif self._test(word, value, packet) == no:
                chance = Fraction(0)
            no = False
        raise AssertionError(f"a rule without a target: {line}")

    def _test(self, word: str, value: str, packet: Packet) -> bool:
        match word:
            case "-s" | "-d":
                address = packet.saddr if word == "-s" else packet.daddr
                return _contains(value, address)
            case "-i":
                return (
                    packet.iif.startswith(value[:-1])
                    if value.endswith("+")
                    else packet.iif == value
                )
            case "-p":
                return packet.proto == value
            case "--dport":
                return packet.dport == int(value)
            case "--src-type" | "--dst-type":
                assert value == "LOCAL", f"addresses of type {value}"
                return self._is_own(packet.saddr if word == "--src-type" else packet.daddr)
            case "--ctstate":
                return "NEW" in value.split(",")
            case "--mark":
                wanted, _, mask = value.partition("/")
                return packet.mark & int(mask, 16) == int(wanted, 16)
            case "--rcheck":
                return False
            case (
                "-m"
                | "--comment"
                | "--mode"
                | "--seconds"
                | "--reap"
                | "--name"
                | "--mask"
                | "--rsource"
                | "--set"
            ):
                return True
        raise AssertionError(f"the tracer does not know {word}")

    def _target(
        self, table: str, target: str, options: list[str], packet: Packet
    ) -> Iterator[_Branch]:
        match target, options:
            case "ACCEPT", []:
                yield _ONE, packet, "accept"
            case "DROP", []:
                yield _ONE, packet, "drop"
            case "REJECT", ["--reject-with", _]:
                yield _ONE, packet, "reject"
            case "RETURN", []:
                yield _ONE, packet, "continue"
            case "MARK", ["--set-xmark", change]:
                value, _, mask = change.partition("/")
                yield (
                    _ONE,
                    replace(packet, mark=(packet.mark & ~int(mask, 16)) ^ int(value, 16)),
                    "continue",
                )
            case "MASQUERADE", ["--random-fully"]:
                yield _ONE, replace(packet, masquerade=True), "accept"
            case "DNAT", ["--to-destination", to]:
                ip, _, port = to.rpartition(":")
                yield (
                    _ONE,
                    replace(packet, daddr=ip.strip("[]"), dport=int(port), dnat=True),
                    "accept",
                )
            case _ if not options and target in self._tables[table]:
                yield from self._chain(table, target, packet)
            case _:
                raise AssertionError(f"the tracer does not know {target} {options}")

    def _is_own(self, address: str) -> bool:
        return address in self._own or any(
            ipaddress.ip_address(address) in network for network in _LOOPBACK
        )


#: words that no value follows
_FLAGS: Final = frozenset({"--rcheck", "--reap", "--rsource", "--set"})


@cache
def _contains(network: str, address: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)


@cache
def _words(line: str) -> list[str]:
    return shlex.split(line)


@cache
def _one_in(text: str) -> Fraction:
    exact = Fraction(text).limit_denominator(_ONE_IN_MAX)
    assert exact.numerator == 1, f"a probability of {text} is not one in a whole number"
    return exact


def _scaled(weight: Fraction, branches: Iterator[_Branch] | list[_Branch]) -> Iterator[_Branch]:
    for share, packet, flow in branches:
        yield weight * share, packet, flow
