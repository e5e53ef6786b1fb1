"""Decodes netlink messages of nftables into a ``RuleGraph``: dumps, and the events that the kernel
multicasts for each transaction.

A dump and an event have the same form. Events state what is there afterwards, so that applying one
twice, or to a graph that already has it, changes nothing. A transaction's events end with its
generation. Sources: linux/netfilter/nf_tables.h, net/netfilter/nf_tables_api.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from sliceplane.node.nft.netlink.messages import HEADER, message, text
from sliceplane.node.observing.graph import ADDRESS_BYTES, Rule, RuleGraph, UnreadableRules

#: the table that kube-proxy writes, in both families (pkg/proxy/nftables/proxier.go)
TABLE: Final = "kube-proxy"
#: multicast group of nftables (NFNLGRP_NFTABLES)
GROUP: Final = 7
_NFPROTO: Final = {"IPv4": 2, "IPv6": 10}
_SUBSYSTEM: Final = 10
(
    NEW_TABLE,
    _,
    DELETE_TABLE,
    NEW_CHAIN,
    _GET_CHAIN,
    DELETE_CHAIN,
    NEW_RULE,
    _GET_RULE,
    DELETE_RULE,
    NEW_SET,
    _GET_SET,
    DELETE_SET,
    NEW_ELEMENTS,
    _GET_ELEMENTS,
    DELETE_ELEMENTS,
    NEW_GENERATION,
) = range(16)
_DUMP: Final = 0x300
_ERROR, _DONE = 2, 3
_INTERRUPTED: Final = 0x10  # NLM_F_DUMP_INTR
_PAIR = struct.Struct("=HH")
#: NFTA_*_TABLE is the first attribute of every object
_TABLE, _NAME = 1, 2
_CHAIN_NAME, _CHAIN_HOOK, _CHAIN_TYPE = 3, 4, 7
_HOOK_NUMBER: Final = 1
_RULE_CHAIN, _RULE_HANDLE, _RULE_EXPRESSIONS = 2, 3, 4
_SET_FLAGS: Final = 3
_IS_MAP: Final = 0x8  # NFT_SET_MAP
_ELEMENTS_SET, _ELEMENTS_LIST = 2, 3
_ELEMENT_KEY, _ELEMENT_DATA = 1, 2
_VALUE, _VERDICT = 1, 2
_VERDICT_CHAIN: Final = 2
_NAT_DESTINATION: Final = 1
#: expressions that neither change a packet's destination nor pass it on
_HARMLESS: Final = frozenset(
    (
        *("meta", "ct", "cmp", "bitwise", "byteorder", "range", "counter", "limit", "log", "fib"),
        *("numgen", "hash", "masq", "reject", "dynset", "last", "quota", "notrack", "exthdr"),
        *("socket", "rt", "osf", "connlimit", "objref"),
    )
)

#: rules that are shared; the bound exceeds the number of those that many chains have
_SHARED_MAX: Final = 10_000

Attributes = dict[int, bytes]


def chains_request(graph: RuleGraph) -> bytes:
    """Returns the request for all chains of the family; the kernel does not filter them by table."""
    return message(_SUBSYSTEM << 8 | _GET_CHAIN, _DUMP, 1, _NFPROTO[graph.family], b"")


def sets_request(graph: RuleGraph) -> bytes:
    return message(
        _SUBSYSTEM << 8 | _GET_SET, _DUMP, 1, _NFPROTO[graph.family], text(_TABLE, TABLE)
    )


def rules_request(graph: RuleGraph, chain: str) -> bytes:
    """Returns the request for the rules of one chain: a dump of all would last too long to be
    consistent.
    """
    body = text(_TABLE, TABLE) + text(_RULE_CHAIN, chain)
    return message(_SUBSYSTEM << 8 | _GET_RULE, _DUMP, 1, _NFPROTO[graph.family], body)


def elements_request(graph: RuleGraph, name: str) -> bytes:
    body = text(_TABLE, TABLE) + text(_ELEMENTS_SET, name)
    return message(_SUBSYSTEM << 8 | _GET_ELEMENTS, _DUMP, 1, _NFPROTO[graph.family], body)


class Part:
    """One read of the socket, applied.  *done*: a dump is complete; *interrupted*: the rules changed
    while the kernel dumped them; *generation* of the last transaction that ended here; *tables* that
    events named, ours or not.
    """

    def __init__(self) -> None:
        self.done = False
        self.interrupted = False
        self.generation = 0
        self.chains: list[str] = []
        self.sets: list[str] = []
        self.tables: set[tuple[int, str]] = set()
        #: the last message ended a transaction
        self.ends_transaction = False


class Decoder:
    """Applies messages to the graphs of both families.  Rules that many chains have in common are
    shared.
    """

    def __init__(self, graphs: dict[str, RuleGraph]) -> None:
        self._graphs = {_NFPROTO[family]: graph for family, graph in graphs.items()}
        self._shared: dict[Rule, Rule] = {}
        self._names: dict[str, str] = {}

    def apply(self, data: bytes) -> Part:
        """Applies one read of the socket.  Raises ``UnreadableRules``."""
        part = Part()
        at = 0
        while at + HEADER.size <= len(data):
            length, kind, flags, *_ = HEADER.unpack_from(data, at)
            if length < HEADER.size:
                break
            if kind in (_ERROR, _DONE):
                part.done = True
            part.interrupted |= bool(flags & _INTERRUPTED)
            if kind >> 8 == _SUBSYSTEM:
                family = data[at + HEADER.size]
                self._message(kind & 0xFF, family, data[at + HEADER.size + 4 : at + length], part)
            at += length + 3 & ~3
        return part

    def _message(self, kind: int, family: int, body: bytes, part: Part) -> None:
        attributes = dict(_attributes(body))
        part.ends_transaction = kind == NEW_GENERATION
        if kind == NEW_GENERATION:
            part.generation = int.from_bytes(attributes.get(1, b""), "big")
            return
        table = _name(attributes.get(_TABLE, b""))
        part.tables.add((family, table))
        graph = self._graphs.get(family)
        if graph is None or table != TABLE:
            return
        if kind == DELETE_TABLE:
            graph.clear()
        elif kind in (NEW_CHAIN, DELETE_CHAIN):
            self._chain(graph, kind, attributes, part)
        elif kind in (NEW_RULE, DELETE_RULE):
            chain = self._intern(_name(attributes[_RULE_CHAIN]))
            handle = int.from_bytes(attributes[_RULE_HANDLE], "big")
            if kind == DELETE_RULE:
                graph.remove_rule(chain, handle)
            else:
                graph.set_rule(chain, handle, self._rule(attributes, graph))
        elif kind == NEW_SET:
            if int.from_bytes(attributes.get(_SET_FLAGS, b""), "big") & _IS_MAP:
                part.sets.append(_name(attributes[_NAME]))
        elif kind == DELETE_SET:
            graph.remove_map(_name(attributes[_NAME]))
        elif kind in (NEW_ELEMENTS, DELETE_ELEMENTS):
            self._elements(graph, kind, attributes)

    def _chain(self, graph: RuleGraph, kind: int, attributes: Attributes, part: Part) -> None:
        name = self._intern(_name(attributes[_CHAIN_NAME]))
        if kind == DELETE_CHAIN:
            graph.remove_chain(name)
            self._names.pop(name, None)
            return
        hook = None
        if _name(attributes.get(_CHAIN_TYPE, b"")) == "nat":
            hook = int.from_bytes(
                dict(_attributes(attributes[_CHAIN_HOOK])).get(_HOOK_NUMBER, b""), "big"
            )
        graph.add_chain(name, hook)
        part.chains.append(name)

    def _elements(self, graph: RuleGraph, kind: int, attributes: Attributes) -> None:
        name = _name(attributes[_ELEMENTS_SET])
        if kind == DELETE_ELEMENTS and _ELEMENTS_LIST not in attributes:
            graph.remove_map(name)
            return
        for _, element in _attributes(attributes.get(_ELEMENTS_LIST, b"")):
            members = dict(_attributes(element))
            key = _destination(
                dict(_attributes(members.get(_ELEMENT_KEY, b""))).get(_VALUE, b""), graph
            )
            if kind == DELETE_ELEMENTS:
                graph.remove_element(name, key)
                continue
            verdict = dict(_attributes(members.get(_ELEMENT_DATA, b""))).get(_VERDICT)
            if verdict is not None:
                chain = dict(_attributes(verdict)).get(_VERDICT_CHAIN)
                if chain is not None:
                    graph.set_element(name, key, self._intern(_name(chain)))

    def _rule(self, attributes: Attributes, graph: RuleGraph) -> Rule:
        rule = _decode_rule(attributes.get(_RULE_EXPRESSIONS, b""), ADDRESS_BYTES[graph.family])
        if rule.targets:
            return rule
        rule = Rule(tuple(map(self._intern, rule.chains)), rule.maps)
        if any(name.startswith("__") for name in rule.maps):
            return rule
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(rule, rule)

    def _intern(self, name: str) -> str:
        return self._names.setdefault(name, name)


def _decode_rule(expressions: bytes, address_bytes: int) -> Rule:
    registers: dict[int, bytes] = {}
    chains: list[str] = []
    maps: list[str] = []
    targets: list[bytes] = []
    for _, expression in _attributes(expressions):
        parts = dict(_attributes(expression))
        name = _name(parts[1])
        data = dict(_attributes(parts.get(2, b"")))
        if name == "immediate":
            value = dict(_attributes(data[2]))
            if _VERDICT in value:
                chain = dict(_attributes(value[_VERDICT])).get(_VERDICT_CHAIN)
                if chain is not None:
                    chains.append(_name(chain))
            else:
                registers[int.from_bytes(data[1], "big")] = value[_VALUE]
        elif name == "lookup":
            if data.get(3) == b"\0\0\0\0":  # the verdict register: a verdict map
                maps.append(_name(data[1]))
            elif 3 in data:
                registers.pop(int.from_bytes(data[3], "big"), None)
        elif name == "nat":
            if int.from_bytes(data[1], "big") == _NAT_DESTINATION:
                targets.append(_translated(registers, data, address_bytes))
        elif name == "payload" and 5 not in data:
            registers.pop(int.from_bytes(data.get(1, b""), "big"), None)
        elif name not in _HARMLESS:
            raise UnreadableRules(f"a rule of the table {TABLE} has the statement {name}")
    return Rule(tuple(chains), tuple(maps), tuple(targets))


def _translated(registers: dict[int, bytes], data: Attributes, address_bytes: int) -> bytes:
    try:
        address = registers[int.from_bytes(data[3], "big")]
        port = registers[int.from_bytes(data[5], "big")]
    except KeyError:
        raise UnreadableRules(
            f"a rule of the table {TABLE} translates to an address that is not constant"
        ) from None
    return address[:address_bytes] + port[:2]


def _destination(key: bytes, graph: RuleGraph) -> bytes:
    """Returns a map's key without the padding of its fields, if it is that of a destination."""
    length = ADDRESS_BYTES[graph.family]
    if len(key) == length + 8:
        return key[: length + 1] + key[length + 4 : length + 6]
    if len(key) == 8:
        return key[:1] + key[4:6]
    return key


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at, end = 0, len(body)
    while at + 4 <= end:
        length, kind = _PAIR.unpack_from(body, at)
        if length < 4:
            return
        yield kind & 0x3FFF, body[at + 4 : at + length]
        at += length + 3 & ~3


def _name(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
