"""A table in the kernel's listing (``nft -j list table``), and an expected table, in a common form
for comparison.

The common form is nft's JSON without handles: chains with their hook and their rules, sets and maps
with their type and their elements as text. It has every part of the rules.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from sliceplane.node.nft.objects import (
    DnatTarget,
    Key,
    NftContainer,
    NftVerdict,
    TableContents,
    Value,
)
from sliceplane.node.nft.statements import (
    MASQUERADE_MARK,
    AddressIn,
    Balance,
    ClearMark,
    CtStateNew,
    CtStatusDnat,
    Dnat,
    DnatBucket,
    DnatMap,
    Drop,
    FromInterface,
    Goto,
    GotoOneOf,
    InSet,
    IsOwnAddress,
    Jump,
    Masquerade,
    NftFamily,
    Reject,
    Remember,
    ResetTcp,
    SetMark,
    Statement,
    Vmap,
)

#: ``chain NAME`` -> [hook, rules ...], ``container NAME`` -> [kind, elements ...]
Form = dict[str, Any]


def listed(text: str) -> Form:
    """Parses the output of ``nft -j list table``."""
    form: Form = {}
    for entry in json.loads(text)["nftables"]:
        if "chain" in entry:
            chain = entry["chain"]
            hook = (
                [chain["type"], chain["hook"], chain["prio"], chain["policy"]]
                if "hook" in chain
                else None
            )
            form[f"chain {chain['name']}"] = [hook]
        elif "rule" in entry:
            form[f"chain {entry['rule']['chain']}"].append(entry["rule"]["expr"])
        elif "set" in entry or "map" in entry:
            container = entry.get("set") or entry["map"]
            texts = sorted(map(_element, container.get("elem", [])))
            kind = [container["type"], container.get("map"), container.get("timeout")]
            form[f"container {container['name']}"] = [kind, *texts]
    return form


def expected(table: TableContents, family: NftFamily) -> Form:
    """Returns the expected listing of *table*, without elements that packets add."""
    form: Form = {}
    for name, chain in table.chains.items():
        hook = chain.hook
        described = None if hook is None else [hook.type, hook.point, hook.priority, "accept"]
        rules = [
            [part for one in rule.statements for part in _expression(one, family)]
            for rule in chain.rules
        ]
        form[f"chain {name}"] = [described, *rules]
    for name, contents in table.containers.items():
        texts = sorted(_item(key, value) for key, value in contents.elements.items())
        form[f"container {name}"] = [_kind(contents.definition, family), *texts]
    return form


def differences(kernel: Form, desired: Form) -> tuple[str, ...]:
    """Returns a phrase for each difference between *kernel* and *desired*, sorted by name. Elements
    that packets added, and the chain of the table's writer, are ignored.
    """
    phrases: list[str] = []
    for name in sorted(kernel.keys() | desired.keys()):
        if name.startswith("chain writer-"):
            continue
        actual, target = kernel.get(name), desired.get(name)
        if actual is None or target is None:
            phrases.append(f"{name} is {'missing' if actual is None else 'of another'}")
        elif actual[0] != target[0]:
            phrases.append(f"{name} is of another kind")
        elif name.startswith("container "):
            if not target[0][2]:
                extra, missing = (
                    set(actual[1:]) - set(target[1:]),
                    set(target[1:]) - set(actual[1:]),
                )
                phrases += [f"element {item} of {name[10:]} is missing" for item in sorted(missing)]
                phrases += [
                    f"element {item} of {name[10:]} is of another" for item in sorted(extra)
                ]
        elif actual != target:
            phrases.append(
                f"{name} has {len(actual) - 1} rules of which some are of another, not "
                f"{len(target) - 1}"
            )
    return tuple(phrases)


def _element(element: Any) -> str:
    if isinstance(element, list):
        key, value = element
        return f"{_joined(key)} : {_joined(value)}"
    return _joined(element)


def _joined(value: Any) -> str:
    match value:
        case {"concat": parts}:
            return " . ".join(map(str, parts))
        case {"goto": {"target": chain}}:
            return f"goto {chain}"
        case {"jump": {"target": chain}}:
            return f"jump {chain}"
        case {"drop": None}:
            return "drop"
    return str(value)


def _item(key: Key, value: Value) -> str:
    text = " . ".join(map(str, key))
    match value:
        case DnatTarget(ip, port):
            return f"{text} : {ip} . {port}"
        case NftVerdict("drop"):
            return f"{text} : drop"
        case NftVerdict(kind, chain):
            return f"{text} : {kind} {chain}"
    return text


def _kind(definition: NftContainer, family: NftFamily) -> list[Any]:
    address = "ipv4_addr" if family == "ip" else "ipv6_addr"
    if definition.by_number:
        return ["integer", f"{address} . inet_service", None]
    types = [
        {"addr": address, "proto": "inet_proto", "port": "inet_service"}.get(part, "integer")
        for part in definition.key
    ]
    value = {"none": None, "verdict": "verdict", "target": f"{address} . inet_service"}[
        definition.value
    ]
    return [types if len(types) > 1 else types[0], value, definition.timeout_s or None]


def _match(left: Any, right: Any, op: str = "==") -> Any:
    return {"match": {"op": op, "left": left, "right": right}}


def _fields(fields: tuple[str, ...], family: NftFamily) -> Any:
    expressions = {
        "saddr": {"payload": {"protocol": family, "field": "saddr"}},
        "daddr": {"payload": {"protocol": family, "field": "daddr"}},
        "proto": {"meta": {"key": "l4proto"}},
        "dport": {"payload": {"protocol": "th", "field": "dport"}},
    }
    parts = [expressions[field] for field in fields]
    return parts[0] if len(parts) == 1 else {"concat": parts}


def _numgen(mod: int, offset: int) -> Any:
    return {"numgen": {"mode": "random", "mod": mod, "offset": offset}}


_MARK = {"meta": {"key": "mark"}}
_PROTOCOL = {"meta": {"key": "l4proto"}}


def _marked(op: str) -> Any:
    return {"mangle": {"key": _MARK, "value": {op: [_MARK, MASQUERADE_MARK]}}}


def _expression(statement: Statement, family: NftFamily) -> list[Any]:
    match statement:
        case CtStateNew():
            return [_match({"ct": {"key": "state"}}, "new", "in")]
        case CtStatusDnat():
            return [_match({"ct": {"key": "status"}}, "dnat", "in")]
        case InSet(fields, name):
            return [_match(_fields(fields, family), f"@{name}")]
        case Vmap(fields, name):
            return [{"vmap": {"key": _fields(fields, family), "data": f"@{name}"}}]
        case AddressIn(field, networks, inside):
            return [
                _match(_fields((field,), family), _networks(networks), "==" if inside else "!=")
            ]
        case FromInterface(name, inside):
            return [_match({"meta": {"key": "iifname"}}, name, "==" if inside else "!=")]
        case IsOwnAddress(field):
            return [_match({"fib": {"result": "type", "flags": [field]}}, "local")]
        case ClearMark():
            return [_match({"&": [_MARK, MASQUERADE_MARK]}, 0, "!="), _marked("^")]
    return _action(statement, family)


def _action(statement: Statement, family: NftFamily) -> list[Any]:
    match statement:
        case Jump(chain):
            return [{"jump": {"target": chain}}]
        case Goto(chain):
            return [{"goto": {"target": chain}}]
        case Reject():
            return [
                {
                    "reject": {
                        "type": "icmp" if family == "ip" else "icmpv6",
                        "expr": "port-unreachable",
                    }
                }
            ]
        case ResetTcp():
            return [{"reject": {"type": "tcp reset"}}]
        case Masquerade():
            return [{"masquerade": {"flags": "fully-random"}}]
        case Drop():
            return [{"drop": None}]
        case SetMark():
            return [_marked("|")]
        case Remember(name):
            return [
                {"set": {"op": "update", "elem": _fields(("saddr",), family), "set": f"@{name}"}}
            ]
        case Balance(protocol, count, offset, name):
            address = {"map": {"key": _numgen(count, offset), "data": f"@{name}"}}
            return [_match(_PROTOCOL, protocol), {"dnat": {"family": family, "addr": address}}]
        case DnatMap(fields, name):
            address = {"map": {"key": _fields(fields, family), "data": f"@{name}"}}
            return [{"dnat": {"family": family, "addr": address}}]
        case DnatBucket(fields, count, name):
            key = {"concat": [*_fields(fields, family)["concat"], _numgen(count, 0)]}
            return [{"dnat": {"family": family, "addr": {"map": {"key": key, "data": f"@{name}"}}}}]
        case Dnat(protocol, ip, port):
            return [_match(_PROTOCOL, protocol), {"dnat": {"addr": ip, "port": port}}]
        case GotoOneOf(chains):
            data = {
                "set": [
                    [number, {"goto": {"target": chain}}] for number, chain in enumerate(chains)
                ]
            }
            return [{"vmap": {"key": _numgen(len(chains), 0), "data": data}}]
    raise AssertionError(f"{statement} is not described")


def _networks(networks: tuple[str, ...]) -> Any:
    """Returns the networks in the kernel's order, by address."""
    parsed = sorted(
        (ipaddress.ip_network(text) for text in networks),
        key=lambda network: int(network.network_address),
    )
    parts = [
        str(network.network_address)
        if network.prefixlen == network.max_prefixlen
        else {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}
        for network in parsed
    ]
    return parts[0] if len(parts) == 1 else {"set": parts}
