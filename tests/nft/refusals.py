"""Transactions that the kernel refuses, shared by the fake's own tests and its comparison with the
real kernel.
"""

from __future__ import annotations

from sliceplane.node.nft.layout import (
    CLUSTER_IPS,
    SERVICE_IPS,
    SINGLE_ENDPOINTS,
    NodeContext,
    static_commands,
)
from sliceplane.node.nft.objects import (
    DROP,
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    Command,
    DeleteChain,
    DeleteContainer,
    DeleteElements,
    DeleteTable,
    DnatTarget,
    FlushChain,
    FlushContainer,
    Hook,
    NftContainer,
    NftRule,
    RemainingTime,
    TableRef,
    goto,
    jump,
)
from sliceplane.node.nft.statements import (
    AddressIn,
    Balance,
    Dnat,
    DnatMap,
    Goto,
    GotoOneOf,
    Jump,
    Remember,
    Vmap,
)

REF = TableRef("ip", "sliceplane")
KEY, OTHER = ("172.30.0.1", "tcp", 80), ("172.30.0.2", "tcp", 80)
MAP = NftContainer("endpoints-tcp-0", ("numgen",), "target", "tcp")
CLIENTS = NftContainer("affinity-x", ("addr",), timeout_s=60)
BALANCE = NftRule((Balance("tcp", 1, 0, MAP.name),))


#: a chain that the verdict map leads to, with a rule over a map
SETUP: tuple[Command, ...] = (
    AddTable(),
    DeleteTable(),
    AddTable(),
    *static_commands("ip", NodeContext()),
    AddContainer(MAP),
    AddChain("c"),
    AddElements(MAP.name, (((0,), DnatTarget("10.0.0.1", 80)),)),
    AddElements(SERVICE_IPS.name, ((KEY, goto("c")),)),
    AddRule("c", BALANCE),
    AddContainer(CLIENTS),
    AddChain("d"),
    AddRule("d", NftRule((Remember(CLIENTS.name),))),
    AddRule("d", NftRule((Dnat("tcp", "10.0.0.1", 80),))),
)

REFUSED: list[tuple[str, str, tuple[Command, ...]]] = [
    ("no table", "ENOENT", (DeleteTable(), DeleteTable())),
    ("no chain to flush", "ENOENT", (FlushChain("x"),)),
    ("no chain to delete", "ENOENT", (DeleteChain("x"),)),
    ("no chain for the rule", "ENOENT", (AddRule("x", BALANCE),)),
    ("no chain to jump to", "ENOENT", (AddRule("c", NftRule((Jump("x"),))),)),
    ("no map for the rule", "ENOENT", (AddRule("c", NftRule((Balance("tcp", 1, 0, "x"),))),)),
    ("no map for the element", "ENOENT", (AddElements("x", (((0,), None),)),)),
    (
        "no chain for the verdict",
        "ENOENT",
        (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 1), goto("x")),)),),
    ),
    ("no element to delete", "ENOENT", (DeleteElements(MAP.name, ((9,),)),)),
    ("no map to delete", "ENOENT", (DeleteContainer(NftContainer("x", ("addr",))),)),
    ("element with another value", "EEXIST", (AddElements(SERVICE_IPS.name, ((KEY, DROP),)),)),
    ("chain with a hook now", "EEXIST", (AddChain("c", Hook("nat", "output", -100)),)),
    ("map of another type", "EEXIST", (AddContainer(NftContainer(MAP.name, ("addr",))),)),
    ("chain in use", "EBUSY", (DeleteChain("c"),)),
    (
        "chain used until this transaction",
        "EBUSY",
        (DeleteElements(SERVICE_IPS.name, (KEY,)), FlushChain("c"), DeleteChain("c")),
    ),
    ("map in use", "EBUSY", (DeleteContainer(MAP),)),
    ("key too short", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1",), DROP),)),)),
    (
        "key of another family",
        "EINVAL",
        (AddElements(SERVICE_IPS.name, ((("fd00::1", "tcp", 1), DROP),)),),
    ),
    (
        "address that is not canonical",
        "EINVAL",
        (AddElements(SERVICE_IPS.name, ((("1.1.1.01", "tcp", 1), DROP),)),),
    ),
    (
        "port too big",
        "EINVAL",
        (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 65536), DROP),)),),
    ),
    (
        "protocol unknown",
        "EINVAL",
        (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "TCP", 1), DROP),)),),
    ),
    ("value missing", "EINVAL", (AddElements(SERVICE_IPS.name, ((("1.1.1.1", "tcp", 1), None),)),)),
    (
        "target of another family",
        "EINVAL",
        (AddElements(MAP.name, (((1,), DnatTarget("fd00::1", 1)),)),),
    ),
    ("no elements", "EINVAL", (AddElements(MAP.name, ()),)),
    ("no keys", "EINVAL", (DeleteElements(MAP.name, ()),)),
    (
        "map of the wrong kind for the rule",
        "EINVAL",
        (AddRule("c", NftRule((Vmap(("daddr",), MAP.name),))),),
    ),
    (
        "map of verdicts for a translation",
        "EINVAL",
        (AddRule("c", NftRule((DnatMap(("daddr", "proto", "dport"), SERVICE_IPS.name),))),),
    ),
    (
        "map of numbers for a translation",
        "EINVAL",
        (AddRule("c", NftRule((DnatMap(("daddr", "dport"), MAP.name),))),),
    ),
    (
        "map by address to draw from",
        "EINVAL",
        (AddRule("c", NftRule((Balance("tcp", 1, 0, SINGLE_ENDPOINTS.name),))),),
    ),
    ("no map for a translation", "ENOENT", (AddRule("c", NftRule((DnatMap(("daddr",), "x"),))),)),
    ("a verdict among targets", "EINVAL", (AddElements(SINGLE_ENDPOINTS.name, ((KEY, DROP),)),)),
    (
        "a target among verdicts",
        "EINVAL",
        (AddElements(SERVICE_IPS.name, ((KEY, DnatTarget("10.0.0.1", 80)),)),),
    ),
    (
        "an only target of another family",
        "EINVAL",
        (AddElements(SINGLE_ENDPOINTS.name, ((KEY, DnatTarget("fd00::1", 1)),)),),
    ),
    (
        "no chain to jump to by a verdict",
        "ENOENT",
        (AddElements(SERVICE_IPS.name, ((OTHER, jump("x")),)),),
    ),
    (
        "map of another protocol for the rule",
        "EINVAL",
        (AddRule("c", NftRule((Balance("udp", 1, 0, MAP.name),))),),
    ),
    ("nothing to draw from", "EINVAL", (AddRule("c", NftRule((Balance("tcp", 0, 0, MAP.name),))),)),
    ("no chain to go to", "ENOENT", (AddRule("c", NftRule((Goto("x"),))),)),
    ("no chain to choose", "ENOENT", (AddRule("c", NftRule((GotoOneOf(("d", "x")),))),)),
    ("nothing to choose from", "EINVAL", (AddRule("c", NftRule((GotoOneOf(()),))),)),
    ("no set to remember in", "ENOENT", (AddRule("c", NftRule((Remember("x"),))),)),
    (
        "a set that packets may not fill",
        "EINVAL",
        (AddRule("c", NftRule((Remember(CLUSTER_IPS.name),))),),
    ),
    ("no set to flush", "ENOENT", (FlushContainer(NftContainer("x", ("addr",))),)),
    ("set in use", "EBUSY", (DeleteContainer(CLIENTS),)),
    (
        "target of another family in a rule",
        "EINVAL",
        (AddRule("c", NftRule((Dnat("tcp", "fd00::1", 80),))),),
    ),
    (
        "networks that overlap",
        "EINVAL",
        (AddRule("c", NftRule((AddressIn("saddr", ("10.0.0.0/8", "10.1.0.0/16")),))),),
    ),
    (
        "networks of another family",
        "EINVAL",
        (AddRule("c", NftRule((AddressIn("saddr", ("fd00::/8",)),))),),
    ),
    ("no networks", "EINVAL", (AddRule("c", NftRule((AddressIn("saddr", ()),))),)),
    (
        "an element with a time in a set without",
        "EINVAL",
        (AddElements(CLUSTER_IPS.name, ((("1.1.1.1",), RemainingTime(9)),)),),
    ),
    ("name too long", "EINVAL", (AddChain("x" * 256),)),
]
