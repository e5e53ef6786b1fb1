"""Values that nobody expects where they turn up, and documents bent with them by what their schema
says.
"""

# tables of hostile values, one thing beside the other
from __future__ import annotations

import copy
from random import Random
from typing import Any

from sliceplane.api.schema import Struct, Type, struct

NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    80,
    443,
    65535,
    65536,
    -65536,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e308,
    5e-324,
    1.0,
    3e9,
    float("nan"),
    float("inf"),
)
STRINGS = (
    "",
    " ",
    "a",
    "A",
    "-",
    ".",
    "..",
    "a.b",
    "a-",
    "_",
    "a" * 63,
    "a" * 64,
    "a" * 253,
    "a" * 254,
    "x" * 5000,
    "a/b",
    "/",
    "a/b/c",
    "../x",
    "%2F",
    "%",
    "\x00",
    "a\x00b",
    "\n",
    "\t",
    "a\r\nb",
    "\u200b",
    "\u202e",
    "é",
    "ß",
    "İ",
    "ﬁ",
    "٣",
    "８０",
    "²",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U0001f600",
    "\U0010ffff",
    "\\",
    '"',
    "'",
    "{}",
    "[]",
    "null",
    "true",
    "None",
    "0",
    "-1",
    "1e3",
    "0x10",
    "08",
    "1_000",
    "+1",
    "80",
    "http",
    "65536",
    "100%",
    "101%",
    "-5%",
    "50 %",
    "1Ki",
    "1e9999",
    "-0",
    "0.1n",
    "1E",
    "1Ee3",
    "9" * 400,
    "1." + "0" * 300 + "1",
    "1e-400",
    "1e2147483648",
    "5u",
    "1970-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "10000-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
    "2026-01-01T24:00:00Z",
    "2026-01-01T23:59:60Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01t00:00:00z",
    "2026-01-01T00:00:00.1234567890Z",
    "2026-01-01T00:00:00.123456Z",
    "1677-01-01T00:00:00Z",
    "2026-01-01",
    "٢٠٢٦-01-01T00:00:00Z",
    "10.0.0.1",
    "010.0.0.1",
    "10.0.0.256",
    "10.0.0.1/8",
    "0.0.0.0",
    "127.0.0.1",
    "169.254.0.1",
    "224.0.0.1",
    "::",
    "::1",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:10.0.0.1",
    "10.96.0.1",
    "10.96.0.77",
    "fd00:10:96::5",
    "1.2.3",
    "٠.0.0.1",
    "IPv4",
    "IPv6",
    "FQDN",
    "IP",
    "TCP",
    "UDP",
    "SCTP",
    "tcp",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "None",
    "Always",
    "Foreground",
    "PreferClose",
    "PreferSameZone",
    "PreferSameNode",
    "Terminating",
    "Running",
    "kubernetes.io/service-name",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "orphan",
    "foregroundDeletion",
    "kubernetes",
    "default",
    "kube-system",
    "endpoints.kubernetes.io/over-capacity",
    "service.kubernetes.io/topology-mode",
    "Auto",
    "*",
    "system:masters",
    "v1",
    "apps/v1",
    "Pod",
    "Service",
    "Namespace",
)
_LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [None],
    [[]],
    {"": ""},
    {"a": None},
    [{}],
    [1, "a", None],
)
DIRECTIVES: tuple[tuple[str, Any], ...] = (
    ("$patch", "delete"),
    ("$patch", "replace"),
    ("$patch", "merge"),
    ("$patch", "x"),
    ("$patch", []),
    ("$retainKeys", ["a", 1]),
    ("$retainKeys", {}),
    ("$retainKeys", ["type"]),
    ("$setElementOrder/ports", [{"port": 80}]),
    ("$setElementOrder/ports", "x"),
    ("$setElementOrder/finalizers", ["b", "a", None]),
    ("$setElementOrder", []),
    ("$deleteFromPrimitiveList/finalizers", ["a"]),
    ("$deleteFromPrimitiveList/finalizers", {}),
    ("$", 1),
    ("$unknown", 1),
    ("$setElementOrder/endpoints", [1, {}]),
    ("$deleteFromPrimitiveList/ports", [1]),
)


def text(rng: Random) -> str:
    """A string: mostly one of ``STRINGS``, sometimes two in one, sometimes random characters."""
    choice = rng.random()
    if choice < 0.7:
        return rng.choice(STRINGS)
    if choice < 0.85:
        return (rng.choice(STRINGS) + rng.choice(STRINGS))[:6000]
    return "".join(
        chr(rng.choice((rng.randrange(128), rng.randrange(0xD800))))
        for _ in range(rng.randrange(12))
    )


def deep(rng: Random) -> Any:
    """Nesting around every limit."""
    value: Any = 1
    in_lists = rng.random() < 0.5
    for _ in range(rng.choice((5, 50, 190, 195, 199, 200, 201, 300))):
        value = [value] if in_lists else {"a": value}
    return value


def anything(rng: Random) -> Any:
    choice = rng.random()
    if choice < 0.35:
        return rng.choice(NUMBERS)
    if choice < 0.7:
        return text(rng)
    if choice < 0.95:
        return copy.deepcopy(rng.choice(_LEAVES))
    if choice < 0.97:
        return deep(rng)
    return [text(rng) for _ in range(rng.randrange(20))]


def fitting(rng: Random, wanted: Type, depth: int = 0) -> Any:
    """A value of a type that could be meant, with extremes."""
    match wanted.kind:
        case "list":
            size = rng.choice((0, 1, 1, 2, 3)) if depth < 4 else 0
            return [fitting(rng, wanted.element, depth + 1) for _ in range(size)]
        case "map":
            size = rng.choice((0, 1, 2)) if depth < 4 else 0
            return {text(rng): fitting(rng, wanted.element, depth + 1) for _ in range(size)}
        case "struct":
            return members(rng, struct(wanted.name), depth + 1)
        case "bool":
            return rng.random() < 0.5
        case "int32" | "int64":
            return rng.choice([number for number in NUMBERS if isinstance(number, int)])
        case "intOrString":
            return rng.choice((rng.choice(NUMBERS), text(rng)))
        case "any":
            return anything(rng)
        case "bytes":
            return rng.choice(("", "YQ==", "YQ", "Y", "====", "YQ==\n", "é", "-_", "A" * 1000))
    return text(rng)


def members(rng: Random, schema: Struct, depth: int = 0) -> dict[str, Any]:
    """A few members of a definition."""
    if depth > 5 or not schema.fields:
        return {}
    names = rng.sample(sorted(schema.fields), min(len(schema.fields), rng.choice((0, 1, 2, 3))))
    return {name: fitting(rng, schema.fields[name].type, depth) for name in names}


def bend(rng: Random, document: Any, schema: Struct | None) -> Any:
    """A copy of *document* with one to four changes, most of them where the schema has a field."""
    bent = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _bend_once(rng, bent, None if schema is None else Type("struct", name=schema.name))
    return bent


def _bend_once(rng: Random, value: Any, wanted: Type | None) -> None:
    """Walk down at random, then change what is there."""
    while True:
        if isinstance(value, dict):
            schema = struct(wanted.name) if wanted is not None and wanted.kind == "struct" else None
            below = [
                key for key, child in value.items() if isinstance(child, dict | list) and child
            ]
            if below and rng.random() < 0.7:
                key = rng.choice(below)
                wanted = _type_of(schema, wanted, key)
                value = value[key]
                continue
            _bend_map(rng, value, schema, wanted)
            return
        if isinstance(value, list):
            below_at = [
                index
                for index, child in enumerate(value)
                if isinstance(child, dict | list) and child
            ]
            wanted = wanted.item if wanted is not None and wanted.kind == "list" else None
            if below_at and rng.random() < 0.7:
                value = value[rng.choice(below_at)]
                continue
            _bend_list(rng, value, wanted)
        return


def _type_of(schema: Struct | None, wanted: Type | None, key: str) -> Type | None:
    if schema is not None:
        found = schema.fields.get(key)
        return found.type if found is not None else None
    return wanted.item if wanted is not None and wanted.kind == "map" else None


def _bend_map(
    rng: Random, value: dict[str, Any], schema: Struct | None, wanted: Type | None
) -> None:
    choice = rng.random()
    if choice < 0.15 and value:
        del value[rng.choice(list(value))]
    elif choice < 0.35 and value:
        value[rng.choice(list(value))] = anything(rng)
    elif choice < 0.75 and schema is not None and schema.fields:
        name = rng.choice(sorted(schema.fields))
        value[name] = fitting(rng, schema.fields[name].type)
    elif choice < 0.8:
        name, directive = rng.choice(DIRECTIVES)
        value[name] = copy.deepcopy(directive)
    elif choice < 0.81:
        value.update({f"k{number}": "v" for number in range(rng.choice((100, 3000, 20000)))})
    else:
        item = (
            wanted.item
            if wanted is not None and wanted.kind == "map" and wanted.item is not None
            else None
        )
        value[text(rng)] = (
            fitting(rng, item) if item is not None and rng.random() < 0.8 else anything(rng)
        )


def _bend_list(rng: Random, value: list[Any], item: Type | None) -> None:
    choice = rng.random()
    if choice < 0.2 and value:
        value.append(copy.deepcopy(rng.choice(value)))
    elif choice < 0.35 and value:
        del value[rng.randrange(len(value))]
    elif choice < 0.5 and value:
        value[rng.randrange(len(value))] = anything(rng)
    elif choice < 0.52 and value:
        value.extend(copy.deepcopy(value[0]) for _ in range(rng.choice((99, 101, 999, 1000))))
    else:
        value.append(
            fitting(rng, item) if item is not None and rng.random() < 0.8 else anything(rng)
        )
