"""The fake refuses what the kernel refuses, and a refused transaction leaves no trace."""

from __future__ import annotations

import pytest

from sliceplane.nft.fake import FakeError, FakeKernel
from sliceplane.nft.layout import SERVICE_IPS, static_commands
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
    Transaction,
    goto,
)
from sliceplane.nft.statements import Balance, Jump, Vmap

REF = TableRef("ip", "sliceplane")
KEY = ("172.30.0.1", "tcp", 80)
MAP = Container("endpoints-0", ("numgen",), "target")
BALANCE = Rule((Balance("tcp", 1, 0, MAP.name),))


def run(kernel: FakeKernel, *commands: Command) -> None:
    kernel.run(Transaction(REF, commands))


@pytest.fixture
def kernel() -> FakeKernel:
    """A chain that the verdict map leads to, with a rule over a map."""
    made = FakeKernel()
    run(
        made,
        AddTable(),
        *static_commands(),
        AddContainer(MAP),
        AddChain("c"),
        AddElements(MAP.name, (((0,), Target("10.0.0.1", 80)),)),
        AddElements(SERVICE_IPS.name, ((KEY, goto("c")),)),
        AddRule("c", BALANCE),
    )
    return made


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
    ("nothing to draw from", "EINVAL", (AddRule("c", Rule((Balance("tcp", 0, 0, MAP.name),))),)),
    ("name too long", "EINVAL", (AddChain("x" * 256),)),
]


@pytest.mark.parametrize(("errno", "commands"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_whole(kernel: FakeKernel, errno: str, commands: tuple[Command, ...]) -> None:
    before = kernel.tables
    with pytest.raises(FakeError) as caught:
        run(kernel, AddChain("first"), *commands)
    assert caught.value.errno == errno
    assert kernel.tables is before
    assert "first" not in before[REF].chains


def test_what_exists_already_may_be_added_again(kernel: FakeKernel) -> None:
    run(
        kernel,
        AddTable(),
        *(command for command in static_commands() if not isinstance(command, AddRule)),
        AddElements(SERVICE_IPS.name, ((KEY, goto("c")),)),
    )


def test_an_unused_chain_and_its_map_go(kernel: FakeKernel) -> None:
    run(kernel, DeleteElements(SERVICE_IPS.name, (KEY,)), FlushChain("c"))
    run(kernel, DeleteElements(MAP.name, ((0,),)), DeleteChain("c"), DeleteContainer(MAP))
    assert "c" not in kernel.tables[REF].chains


def test_a_table_replaced_in_one_transaction_forgets_all_uses(kernel: FakeKernel) -> None:
    run(kernel, AddTable(), DeleteTable(), AddTable(), AddChain("c"), DeleteChain("c"))
    assert kernel.tables[REF].chains == {}
