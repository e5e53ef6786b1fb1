"""Decodes netlink messages of nftables into a ``RuleGraph``: dumps, and the events that the kernel
multicasts for each transaction.

A dump and an event have the same form. Events state what is there afterwards, so that applying one
twice, or to a graph that already has it, changes nothing. A transaction's events end with its
generation. Sources: linux/netfilter/nf_tables.h, net/netfilter/nf_tables_api.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.nft.netlink.messages import HEADER, message, parse_attributes, text
from sliceplane.node.observing.graph import (
    ADDRESS_BYTES,
    RuleEffects,
    RuleGraph,
    UnreadableRules,
    is_anonymous,
)

#: the table that kube-proxy writes, in both families (pkg/proxy/nftables/proxier.go)
TABLE: Final = "kube-proxy"
#: multicast group of nftables (NFNLGRP_NFTABLES)
GROUP: Final = 7
_NFPROTO: Final[dict[Family, int]] = {"IPv4": 2, "IPv6": 10}
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
_IMMEDIATE_REGISTER, _IMMEDIATE_DATA = 1, 2
_LOOKUP_SET, _LOOKUP_REGISTER = 1, 3
_VERDICT_REGISTER: Final = 0
_PAYLOAD_SOURCE: Final = 5
_NAT_TYPE, _NAT_ADDRESS, _NAT_PORT = 1, 3, 5
_NAT_DESTINATION: Final = 1
#: expressions that neither change a packet's destination nor pass it on
_HARMLESS: Final = frozenset(
    (
        *("meta", "ct", "cmp", "bitwise", "byteorder", "range", "counter", "limit", "log", "fib"),
        *("numgen", "hash", "masq", "reject", "dynset", "last", "quota", "notrack", "exthdr"),
        *("socket", "rt", "osf", "connlimit", "objref", "lookup"),
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


class ReadPart:
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
        self.tables: set[str] = set()
        #: the last message ended a transaction
        self.ends_transaction = False


class Decoder:
    """Applies messages to the graphs of both families.  Rules that many chains have in common are
    shared.
    """

    def __init__(self, graphs: Mapping[Family, RuleGraph]) -> None:
        self._graphs = {_NFPROTO[family]: graph for family, graph in graphs.items()}
        self._shared: dict[RuleEffects, RuleEffects] = {}
        self._names: dict[str, str] = {}

    def apply(self, data: bytes) -> ReadPart:
        """Applies one read of the socket.  Raises ``UnreadableRules``."""
        part = ReadPart()
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

    def _message(self, kind: int, family: int, body: bytes, part: ReadPart) -> None:
        attributes = dict(parse_attributes(body))
        part.ends_transaction = kind == NEW_GENERATION
        if kind == NEW_GENERATION:
            part.generation = _number(attributes.get(1, b""))
            return
        table = _name(attributes.get(_TABLE, b""))
        part.tables.add(table)
        graph = self._graphs.get(family)
        if graph is None or table != TABLE:
            return
        if kind == DELETE_TABLE:
            graph.clear()
        elif kind in (NEW_CHAIN, DELETE_CHAIN):
            self._chain(graph, kind, attributes, part)
        elif kind in (NEW_RULE, DELETE_RULE):
            chain = self._intern(_name(attributes[_RULE_CHAIN]))
            handle = _number(attributes[_RULE_HANDLE])
            if kind == DELETE_RULE:
                graph.remove_rule(chain, handle)
            else:
                graph.set_rule(chain, handle, self._rule(attributes, graph))
        elif kind == NEW_SET:
            if _number(attributes.get(_SET_FLAGS, b"")) & _IS_MAP:
                part.sets.append(_name(attributes[_NAME]))
        elif kind == DELETE_SET:
            graph.remove_map(_name(attributes[_NAME]))
        elif kind in (NEW_ELEMENTS, DELETE_ELEMENTS):
            self._elements(graph, kind, attributes)

    def _chain(self, graph: RuleGraph, kind: int, attributes: Attributes, part: ReadPart) -> None:
        name = self._intern(_name(attributes[_CHAIN_NAME]))
        if kind == DELETE_CHAIN:
            graph.remove_chain(name)
            self._names.pop(name, None)
            return
        hook = None
        if _name(attributes.get(_CHAIN_TYPE, b"")) == "nat":
            hook = _number(dict(parse_attributes(attributes[_CHAIN_HOOK])).get(_HOOK_NUMBER, b""))
        graph.add_chain(name, hook)
        part.chains.append(name)

    def _elements(self, graph: RuleGraph, kind: int, attributes: Attributes) -> None:
        name = _name(attributes[_ELEMENTS_SET])
        if kind == DELETE_ELEMENTS and _ELEMENTS_LIST not in attributes:
            graph.remove_map(name)
            return
        targets: list[bytes] = []
        for _, element in parse_attributes(attributes.get(_ELEMENTS_LIST, b"")):
            members = dict(parse_attributes(element))
            key = _destination(
                dict(parse_attributes(members.get(_ELEMENT_KEY, b""))).get(_VALUE, b""), graph
            )
            if kind == DELETE_ELEMENTS:
                graph.remove_element(name, key)
                continue
            data = dict(parse_attributes(members.get(_ELEMENT_DATA, b"")))
            if _VALUE in data:
                target = _target(data[_VALUE], ADDRESS_BYTES[graph.family])
                if is_anonymous(name):
                    targets.append(target)
                else:
                    graph.set_element(name, key, target)
                continue
            chain = dict(parse_attributes(data.get(_VERDICT, b""))).get(_VERDICT_CHAIN)
            if chain is not None:
                graph.set_element(name, key, self._intern(_name(chain)))
        if targets:
            graph.add_targets(name, b"".join(targets))

    def _rule(self, attributes: Attributes, graph: RuleGraph) -> RuleEffects:
        rule = _decode_rule(attributes.get(_RULE_EXPRESSIONS, b""), ADDRESS_BYTES[graph.family])
        if rule.targets or rule.target_maps or rule.maps:
            return rule
        rule = RuleEffects(tuple(map(self._intern, rule.chains)))
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(rule, rule)

    def _intern(self, name: str) -> str:
        return self._names.setdefault(name, name)


def _decode_rule(expressions: bytes, address_bytes: int) -> RuleEffects:
    #: constants, and the names of maps whose values were loaded
    registers: dict[int, bytes | str] = {}
    chains: list[str] = []
    maps: list[str] = []
    targets: list[bytes] = []
    target_maps: list[str] = []
    for _, expression in parse_attributes(expressions):
        parts = dict(parse_attributes(expression))
        name = _name(parts[1])
        data = dict(parse_attributes(parts.get(2, b"")))
        if name == "immediate":
            value = dict(parse_attributes(data[_IMMEDIATE_DATA]))
            if _VERDICT in value:
                chain = dict(parse_attributes(value[_VERDICT])).get(_VERDICT_CHAIN)
                chains += [_name(chain)] if chain is not None else []
            else:
                registers[_number(data[_IMMEDIATE_REGISTER])] = value[_VALUE]
        elif name == "lookup" and _LOOKUP_REGISTER in data:
            register = _number(data[_LOOKUP_REGISTER])
            if register == _VERDICT_REGISTER:
                maps.append(_name(data[_LOOKUP_SET]))
            else:
                registers[register] = _name(data[_LOOKUP_SET])
        elif name == "nat":
            if _number(data[_NAT_TYPE]) == _NAT_DESTINATION:
                match _translation(registers, data):
                    case str(target_map):
                        target_maps.append(target_map)
                    case target:
                        targets.append(_target(target, address_bytes))
        elif name == "payload" and _PAYLOAD_SOURCE not in data:
            registers.pop(_number(data.get(1, b"")), None)
        elif name not in _HARMLESS:
            raise UnreadableRules(f"a rule of the table {TABLE} has the statement {name}")
    return RuleEffects(tuple(chains), tuple(maps), tuple(targets), tuple(target_maps))


def _translation(registers: dict[int, bytes | str], data: Attributes) -> bytes | str:
    """Returns the bytes of address and port that a nat statement writes, as a map has them, or the
    name of the map that has them.  Raises ``UnreadableRules``.
    """
    address = registers.get(_number(data.get(_NAT_ADDRESS, b"")))
    if isinstance(address, str):
        return address
    port = registers.get(_number(data.get(_NAT_PORT, b"")))
    if isinstance(address, bytes) and isinstance(port, bytes):
        return address + port
    raise UnreadableRules(
        f"a rule of the table {TABLE} translates to an address that is not constant"
    )


def _target(value: bytes, address_bytes: int) -> bytes:
    """Returns address and port without padding.  Raises ``UnreadableRules`` if there is no port."""
    if len(value) < address_bytes + 2:
        raise UnreadableRules(f"a map of the table {TABLE} has values without a port")
    return value[: address_bytes + 2]


def _destination(key: bytes, graph: RuleGraph) -> bytes:
    """Returns a map's key without the padding of its fields, if it is that of a destination."""
    length = ADDRESS_BYTES[graph.family]
    if len(key) == length + 8:
        return key[: length + 1] + key[length + 4 : length + 6]
    if len(key) == 8:
        return key[:1] + key[4:6]
    return key


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _name(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
