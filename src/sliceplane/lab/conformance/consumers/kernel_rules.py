"""Resolves the destinations of a new connection from a process on a node, from the output of ``nft
-j list ruleset``.

It walks the ``nat`` chains at ``output`` as the kernel does, and takes every branch of a random
choice. It does not depend on any proxy's names, only on statements; an unknown statement is an
error and never skipped.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sliceplane.lab.conformance.model import Belief, authority

#: values of a plain first packet for properties that rules may match
_PLAIN: Final = {"state": "new", "mark": 0, "l4proto": "tcp"}
_HARMLESS: Final = frozenset(("counter", "mangle", "log", "set"))
_ENDS: Final = frozenset(("accept", "drop", "reject"))
_RANDOM: Final = object()


class UnknownStatement(ValueError):
    """The rules contain an unsupported statement."""


@dataclass(slots=True)
class _Table:
    hooks: list[tuple[int, str]] = field(default_factory=list)
    chains: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    #: elements of maps and sets as nft lists them
    elements: dict[str, list[Any]] = field(default_factory=dict)


def destinations(listing: str, address: str, port: int, source: str) -> Belief | None:
    """Returns every ``ADDRESS:PORT`` to which rules may redirect a TCP connection from *source*,
    the node, to *address* and *port*; ``None``: there are no rules for that family. Raises
    ``UnknownStatement``.
    """
    tables = _tables(json.loads(listing)["nftables"], "ip6" if ":" in address else "ip")
    hooks = sorted(
        (priority, name, table) for table, rules in tables.items() for priority, name in rules.hooks
    )
    if not hooks:
        return None
    ends: set[str] = set()
    for _, name, table in hooks:
        walk = _Walk(tables[table], address, port, source, ends)
        if walk.chain(name):
            break
    return frozenset(ends)


def _tables(entries: Iterable[dict[str, Any]], family: str) -> dict[str, _Table]:
    tables: dict[str, _Table] = {}
    for entry in entries:
        ((kind, body),) = entry.items()
        if body.get("family") != family:
            continue
        if kind == "table":
            tables[body["name"]] = _Table()
            continue
        table = tables[body["table"]]
        match kind:
            case "chain":
                table.chains[body["name"]] = []
                if body.get("type") == "nat" and body.get("hook") == "output":
                    table.hooks.append((body["prio"], body["name"]))
            case "rule":
                table.chains[body["chain"]].append(body["expr"])
            case "map" | "set":
                table.elements[body["name"]] = body.get("elem", [])
    return tables


class _Walk:
    """The walk of one packet through one table; destinations are added to *ends*."""

    def __init__(self, table: _Table, address: str, port: int, source: str, ends: set[str]) -> None:
        self._table = table
        self._address = address
        self._port = port
        self._source = source
        self._ends = ends

    def chain(self, name: str) -> bool:
        """Returns True if the packet certainly ends in this chain."""
        for statements in self._table.chains[name]:
            flow = self._rule(statements)
            if flow != "next":
                return flow == "done"
        return False

    def _rule(self, statements: list[dict[str, Any]]) -> str:
        """ "next" rule, "return" to the chain that jumped here, or "done"."""
        for statement in statements:
            ((kind, body),) = statement.items()
            match kind:
                case "match":
                    if not self._matches(body):
                        return "next"
                case "vmap":
                    flows = {
                        self._verdict(verdict)
                        for verdict in self._lookup(body["key"], body["data"])
                    }
                    if flow := _one_of(flows):
                        return flow
                case "dnat":
                    targets = list(self._targets(body))
                    self._ends.update(targets)
                    return "done" if targets else "next"
                case _ if kind not in _HARMLESS:
                    if flow := _one_of({self._verdict(statement)}):
                        return flow
        return "next"

    def _verdict(self, verdict: dict[str, Any]) -> str:
        ((kind, body),) = verdict.items()
        if kind == "jump":
            return "done" if self.chain(body["target"]) else "next"
        if kind == "goto":
            return "done" if self.chain(body["target"]) else "return"
        if kind in _ENDS:
            return "done"
        if kind in ("return", "continue"):
            return "return" if kind == "return" else "next"
        raise UnknownStatement(f"cannot follow {verdict}")

    def _targets(self, dnat: dict[str, Any]) -> Iterator[str]:
        match dnat.get("addr"):
            case {"map": {"key": key, "data": data}}:
                targets = list(self._lookup(key, data))
            case target:
                targets = [target]
        for target in targets:
            match target:
                case {"concat": [str(ip), int(port)]}:
                    yield authority(ip, port)
                case str(ip):
                    yield authority(ip, dnat.get("port", self._port))
                case _:
                    raise UnknownStatement(f"cannot follow dnat to {target}")

    def _lookup(self, key: Any, data: Any) -> Iterator[Any]:
        """Yields the values that a map has for the packet: for a random key, all of them."""
        packet_value = self._value(key)
        for element in self._elements(data):
            at, value = element
            if _contains(_bare(at), packet_value):
                yield value

    def _elements(self, data: Any) -> Iterable[Any]:
        match data:
            case {"set": elements}:
                return list(elements)
            case str() if data.startswith("@"):
                return self._table.elements[data[1:]]
        return [data]

    def _matches(self, match: dict[str, Any]) -> bool:
        value = self._value(match["left"])
        inside = any(_contains(_bare(element), value) for element in self._elements(match["right"]))
        return inside is not (match["op"] == "!=")

    def _value(self, expression: Any) -> Any:
        match expression:
            case {"concat": parts}:
                return tuple(self._value(part) for part in parts)
            case {"numgen": _}:
                return _RANDOM
            case {"payload": {"protocol": "ip" | "ip6", "field": "daddr"}}:
                return self._address
            case {"payload": {"protocol": "ip" | "ip6", "field": "saddr"}}:
                return self._source
            case {"payload": {"protocol": "th" | "tcp", "field": "dport"}}:
                return self._port
            case {"fib": {"result": "type", "flags": ["daddr"]}}:
                return "unicast"
            case {"meta": {"key": key}} | {"ct": {"key": key}} if key in _PLAIN:
                return _PLAIN[key]
        raise UnknownStatement(f"cannot follow {expression}")


def _one_of(flows: set[str]) -> str:
    """Returns "" to continue: a packet that may continue is followed."""
    return "" if not flows or "next" in flows else "return" if "return" in flows else "done"


def _bare(element: Any) -> Any:
    """Returns an element without its comment or timeout."""
    return element["elem"]["val"] if isinstance(element, dict) and "elem" in element else element


def _contains(element: Any, value: Any) -> bool:
    if value is _RANDOM:
        return True
    match element:
        case {"concat": parts}:
            return isinstance(value, tuple) and all(map(_contains, parts, value))
        case {"prefix": {"addr": str(address), "len": int(length)}}:
            return ipaddress.ip_address(value) in ipaddress.ip_network(f"{address}/{length}")
        case {"range": [low, high]}:
            return bool(low <= value <= high)
        case dict():
            raise UnknownStatement(f"cannot follow {element}")
    return bool(element == value)
