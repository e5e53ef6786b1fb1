"""The fake refuses what the kernel refuses, and a refused transaction leaves no trace."""

from __future__ import annotations

import pytest
from tests.nft.fake import FakeError, FakeKernel
from tests.nft.refusals import KEY, MAP, REF, REFUSED, SETUP

from sliceplane.node.nft.layout import SERVICE_IPS, NodeContext, static_commands
from sliceplane.node.nft.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddTable,
    Command,
    DeleteChain,
    DeleteContainer,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Transaction,
    goto,
)


def run(kernel: FakeKernel, *commands: Command) -> None:
    kernel.run(Transaction(REF, commands))


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    run(made, *SETUP)
    return made


@pytest.mark.parametrize(
    ("errno", "commands"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_whole(kernel: FakeKernel, errno: str, commands: tuple[Command, ...]) -> None:
    before = kernel.tables
    with pytest.raises(FakeError) as caught:
        run(kernel, AddChain("first"), *commands)
    assert caught.value.errno == errno
    assert kernel.tables is before
    assert "first" not in before[REF].chains


def test_what_exists_already_may_be_added_again(kernel: FakeKernel) -> None:
    before = kernel.tables
    run(
        kernel,
        AddTable(),
        *(
            command
            for command in static_commands("ip", NodeContext())
            if not isinstance(command, AddRule)
        ),
        AddElements(SERVICE_IPS.name, ((KEY, goto("c")),)),
    )
    assert kernel.tables == before


def test_an_unused_chain_and_its_map_go(kernel: FakeKernel) -> None:
    run(kernel, DeleteElements(SERVICE_IPS.name, (KEY,)), FlushChain("c"))
    run(kernel, DeleteElements(MAP.name, ((0,),)), DeleteChain("c"), DeleteContainer(MAP))
    assert "c" not in kernel.tables[REF].chains


def test_a_table_replaced_in_one_transaction_forgets_all_uses(kernel: FakeKernel) -> None:
    run(kernel, AddTable(), DeleteTable(), AddTable(), AddChain("c"), DeleteChain("c"))
    assert kernel.tables[REF].chains == {}
