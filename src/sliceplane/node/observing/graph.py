"""The rules of one IP family as a graph, whichever program wrote them.

A rule is reduced to its effects: the chains that it may continue in, the verdict maps that it looks
packets up in, and the addresses that it translates a destination to, or the maps that have them.
Conditions are ignored, so the targets of a Service are a superset of those that one packet may reach:
an endpoint that is missing in them certainly receives no new connection.

A destination is a key of a verdict map: the bytes of address, protocol and port, or of protocol and
port for a node port. Only maps that both hooks lead to count (``prerouting`` for packets of Pods,
``output`` for those of the node): rules that no packet meets lead nowhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

import msgspec

from sliceplane.consume.served import ClusterDestination, Served, ServedTarget
from sliceplane.kit.ip import Family

PROTOCOL_NUMBERS: Final = {"TCP": 6, "UDP": 17, "SCTP": 132}
PROTOCOL_NAMES: Final = {number: name for name, number in PROTOCOL_NUMBERS.items()}
#: the hooks by which new connections enter, by their numbers in netfilter
PREROUTING, OUTPUT = 0, 3
#: bytes of an address, by IP family
ADDRESS_BYTES: Final[dict[Family, int]] = {"IPv4": 4, "IPv6": 16}
_PORT_BYTES: Final = 2
_VERSIONS: Final = count(1)


class UnreadableRules(ValueError):
    """The rules have a statement that may change a packet's destination in a way we cannot follow."""


class RuleEffects(msgspec.Struct, frozen=True, gc=False):
    """The effects of one rule.  A target is the bytes of an address and a port; ``target_maps`` have
    targets as values, ``maps`` have chains.
    """

    chains: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    targets: tuple[bytes, ...] = ()
    target_maps: tuple[str, ...] = ()


_NO_EFFECT: Final = RuleEffects()


def is_anonymous(name: str) -> bool:
    """Returns True if a map is a part of one rule: its elements never change."""
    return name.startswith("__")


def packed_target(address: str, port: int) -> bytes:
    """Returns the bytes of a canonical address and a port; the usual spelling without a parser."""
    if ":" in address:
        packed = ipaddress.IPv6Address(address).packed
    else:
        packed = bytes(map(int, address.split(".")))
    return packed + port.to_bytes(_PORT_BYTES, "big")


def split_targets(targets: bytes, family: Family) -> list[bytes]:
    """Splits packed targets that stand one after the other."""
    size = ADDRESS_BYTES[family] + _PORT_BYTES
    return [targets[at : at + size] for at in range(0, len(targets), size)]


def read_target(packed: bytes) -> ServedTarget:
    address = packed[:-_PORT_BYTES]
    return ServedTarget(
        str(ipaddress.ip_address(address)),
        int.from_bytes(packed[-_PORT_BYTES:], "big"),
    )


def destination_key(address: str, protocol: str, port: int) -> bytes:
    """Returns the key of a destination; *address* "" for a node port, on any address of the node."""
    number = PROTOCOL_NUMBERS[protocol].to_bytes(1, "big")
    if not address:
        return number + port.to_bytes(_PORT_BYTES, "big")
    packed = packed_target(address, port)
    return packed[:-_PORT_BYTES] + number + packed[-_PORT_BYTES:]


def read_destination(key: bytes) -> str:
    """Returns a destination as people write it: ``10.96.0.1:80/TCP``, ``node port 30080/TCP``."""
    protocol = PROTOCOL_NAMES.get(key[-3], str(key[-3]))
    if len(key) == 1 + _PORT_BYTES:
        return f"node port {int.from_bytes(key[-_PORT_BYTES:], 'big')}/{protocol}"
    return f"{read_target(key[:-3] + key[-_PORT_BYTES:])}/{protocol}"


def served(graph: RuleGraph) -> Served:
    """Returns the targets of each destination, as other readers of rules do; without node ports."""
    result: Served = {}
    for key in graph.destinations():
        if len(key) > 1 + _PORT_BYTES:
            address, port = read_target(key[:-3] + key[-_PORT_BYTES:])
            protocol = PROTOCOL_NAMES.get(key[-3], str(key[-3])).lower()
            targets = frozenset(map(read_target, graph.targets(key)))
            result[ClusterDestination(address, protocol, port)] = targets
    return result


class RuleGraph:
    """Owned by one reader of rules; others only ask.  O(1) for each change."""

    def __init__(self, family: Family) -> None:
        self.family: Final[Family] = family
        #: rules with effects by chain, as (handle, rule, handle, rule, ...)
        self._chains: dict[str, tuple[object, ...]] = {}
        #: chains by key, of verdict maps; targets by key, of others
        self._maps: dict[str, dict[bytes, str | bytes]] = {}
        #: targets of anonymous maps, whose elements never change: one after the other, as they came
        self._targets: dict[str, tuple[bytes, ...]] = {}
        #: nat chains at a hook, and the hook's number
        self._base_chains: dict[str, int] = {}
        self._entry_maps: tuple[str, ...] | None = None
        #: another number after each change, which no other graph of the process has
        self.version = next(_VERSIONS)

    def clear(self) -> None:
        self._chains.clear()
        self._maps.clear()
        self._targets.clear()
        self._base_chains.clear()
        self._changed()

    def _changed(self) -> None:
        self._entry_maps = None
        self.version = next(_VERSIONS)

    def add_chain(self, name: str, hook: int | None = None) -> None:
        """Adds a chain; *hook*: where the kernel enters it, for a base chain of type nat."""
        if hook is not None:
            self._base_chains[name] = hook
        if name not in self._chains:
            self._chains[name] = ()
            self._changed()

    def remove_chain(self, name: str) -> None:
        self._base_chains.pop(name, None)
        for _, rule in self._rules(name):
            self._remove_anonymous(rule)
        if self._chains.pop(name, None) is not None:
            self._changed()

    def set_rule(self, chain: str, handle: int, rule: RuleEffects) -> None:
        """Adds or replaces a rule; one without effects is not kept."""
        self.remove_rule(chain, handle)
        if rule != _NO_EFFECT:
            self._chains[chain] = (*self._chains.get(chain, ()), handle, rule)
            self._changed()

    def remove_rule(self, chain: str, handle: int) -> None:
        """Removes a rule; an unknown handle is that of a rule without effects."""
        entries = self._chains.get(chain, ())
        for at in range(0, len(entries), 2):
            if entries[at] == handle:
                removed = entries[at + 1]
                assert isinstance(removed, RuleEffects), removed
                self._remove_anonymous(removed)
                self._chains[chain] = (*entries[:at], *entries[at + 2 :])
                self._changed()
                return

    def _remove_anonymous(self, rule: RuleEffects) -> None:
        """Removes the anonymous maps of a removed rule: their names are used again."""
        for name in (*rule.maps, *rule.target_maps):
            if is_anonymous(name):
                self._remove(name)

    def set_element(self, name: str, key: bytes, value: str | bytes) -> None:
        """Sets the chain or the target of *key* in the map *name*."""
        self._maps.setdefault(name, {})[key] = value
        self.version = next(_VERSIONS)

    def add_targets(self, name: str, targets: bytes) -> None:
        """Adds *targets*, one after the other, to the anonymous map *name*.  A repeated call has no
        effect.
        """
        parts = self._targets.get(name, ())
        if targets not in parts:
            self._targets[name] = (*parts, targets)
        self.version = next(_VERSIONS)

    def remove_element(self, name: str, key: bytes) -> None:
        self._maps.get(name, {}).pop(key, None)
        self.version = next(_VERSIONS)

    def remove_map(self, name: str) -> None:
        if self._remove(name):
            self._changed()

    def _remove(self, name: str) -> bool:
        removed = self._maps.pop(name, None), self._targets.pop(name, None)
        return removed != (None, None)

    def _rules(self, chain: str) -> Iterator[tuple[object, RuleEffects]]:
        entries = self._chains.get(chain, ())
        for at in range(0, len(entries), 2):
            rule = entries[at + 1]
            assert isinstance(rule, RuleEffects), rule
            yield entries[at], rule

    @property
    def is_hooked(self) -> bool:
        """Returns True if new connections of Pods and of the node meet these rules."""
        return bool(self.entry_maps())

    def entry_maps(self) -> tuple[str, ...]:
        """Returns the verdict maps that packets of both hooks are looked up in, sorted."""
        if self._entry_maps is None:
            found = [self._maps_from(hook) for hook in (PREROUTING, OUTPUT)]
            self._entry_maps = tuple(sorted(found[0] & found[1]))
        return self._entry_maps

    def _maps_from(self, hook: int) -> set[str]:
        pending = [name for name, at in self._base_chains.items() if at == hook]
        visited, found = set(pending), set[str]()
        while pending:
            for _, rule in self._rules(pending.pop()):
                found.update(rule.maps)
                pending += [name for name in rule.chains if name not in visited]
                visited.update(rule.chains)
        return found

    def destinations(self) -> Iterator[bytes]:
        """Yields the key of each destination that has rules, sorted.  O(destinations)."""
        keys = {key for name in self.entry_maps() for key in self._maps.get(name, ())}
        yield from sorted(keys)

    def targets(self, key: bytes) -> frozenset[bytes]:
        """Returns every target to which rules may lead a new connection to *key*; none: it is
        refused, dropped or not served.
        """
        pending = self._chains_of([self._maps.get(name, {}).get(key) for name in self.entry_maps()])
        visited, found = set(pending), set[bytes]()
        while pending:
            for _, rule in self._rules(pending.pop()):
                found.update(rule.targets)
                for name in rule.target_maps:
                    found.update(self._targets_in(name))
                following = [*rule.chains]
                for name in rule.maps:
                    following += self._chains_of(self._maps.get(name, {}).values())
                pending += [name for name in following if name not in visited]
                visited.update(following)
        return frozenset(found)

    def _targets_in(self, name: str) -> Iterator[bytes]:
        for part in self._targets.get(name, ()):
            yield from split_targets(part, self.family)
        for value in self._maps.get(name, {}).values():
            if isinstance(value, bytes):
                yield value

    @staticmethod
    def _chains_of(values: Iterable[str | bytes | None]) -> list[str]:
        return [value for value in values if isinstance(value, str)]
