"""Transactions that the kernel refuses, shared by the fake's own tests and its comparison with the real kernel."""

from __future__ import annotations

from sliceplane.nft.layout import SERVICE_IPS, Surroundings, static_commands
from sliceplane.nft.objects import (
    DROP,
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    Command,
    Container,
    DeleteChain,
    DeleteContainer,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Hook,
    Rule,
    TableRef,
    Target,
    goto,
)
from sliceplane.nft.statements import Balance, Jump, Vmap

REF = TableRef("ip", "sliceplane")
KEY = ("172.30.0.1", "tcp", 80)
MAP = Container("endpoints-tcp-0", ("numgen",), "target", "tcp")
BALANCE = Rule((Balance("tcp", 1, 0, MAP.name),))


#: a chain that the verdict map leads to, with a rule over a map
SETUP: tuple[Command, ...] = (
    AddTable(),
    DeleteTable(),
    AddTable(),
    *static_commands("ip", Surroundings()),
    AddContainer(MAP),
    AddChain("c"),
    AddElements(MAP.name, (((0,), Target("10.0.0.1", 80)),)),
    AddElements(SERVICE_IPS.name, ((KEY, goto("c")),)),
    AddRule("c", BALANCE),
)

REFUSED: list[tuple[str, str, tuple[Command, ...]]] = [
    ("no table", "ENOENT", (DeleteTable(), DeleteTable())),
    ("no chain to flush", "ENOENT", (FlushChain("x"),)),
    ("no chain to delete", "ENOENT", (DeleteChain("x"),)),
    ("no chain for the rule", "ENOENT", (AddRule("x", BALANCE),)),
    ("no chain to jump to", "ENOENT", (AddRule("c", Rule((Jump("x"),))),)),
    ("no map for the rule", "ENOENT", (AddRule("c", Rule((Balance("tcp", 1, 0, "x"),))),)),
    ("no map for the element", "ENOENT", (AddElements("x", (((0,), None),)),)),
    ("no chain for the verdict", "ENOENT", (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 1), goto("x")),)),)),
    ("no element to delete", "ENOENT", (DeleteElements(MAP.name, ((9,),)),)),
    ("no map to delete", "ENOENT", (DeleteContainer(Container("x", ("addr",))),)),
    ("element with another value", "EEXIST", (AddElements(SERVICE_IPS.name, ((KEY, DROP),)),)),
    ("chain with a hook now", "EEXIST", (AddChain("c", Hook("nat", "output", -100)),)),
    ("map of another type", "EEXIST", (AddContainer(Container(MAP.name, ("addr",))),)),
    ("chain in use", "EBUSY", (DeleteChain("c"),)),
    (
        "chain used until this transaction",
        "EBUSY",
        (DeleteElements(SERVICE_IPS.name, (KEY,)), FlushChain("c"), DeleteChain("c")),
    ),
    ("map in use", "EBUSY", (DeleteContainer(MAP),)),
    ("key too short", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1",), DROP),)),)),
    ("key of another family", "EINVAL", (AddElements(SERVICE_IPS.name, ((("fd00::1", "tcp", 1), DROP),)),)),
    ("address that is not canonical", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.01", "tcp", 1), DROP),)),)),
    ("port too big", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 65536), DROP),)),)),
    ("protocol unknown", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "TCP", 1), DROP),)),)),
    ("value missing", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 1), None),)),)),
    ("target of another family", "EINVAL", (AddElements(MAP.name, (((1,), Target("fd00::1", 1)),)),)),
    ("no elements", "EINVAL", (AddElements(MAP.name, ()),)),
    ("no keys", "EINVAL", (DeleteElements(MAP.name, ()),)),
    ("map of the wrong kind for the rule", "EINVAL", (AddRule("c", Rule((Vmap(("daddr",), MAP.name),))),)),
    ("map of another protocol for the rule", "EINVAL", (AddRule("c", Rule((Balance("udp", 1, 0, MAP.name),))),)),
    ("nothing to draw from", "EINVAL", (AddRule("c", Rule((Balance("tcp", 0, 0, MAP.name),))),)),
    ("name too long", "EINVAL", (AddChain("x" * 256),)),
]
