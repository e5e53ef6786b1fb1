"""The fake kernel against the real one: the same transactions, the same answers, the same ruleset.

What the fake claims of nftables is only worth something if nftables agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.listing import expected, listed
from tests.kernel.netns import Host, Net
from tests.nft.fake import FakeError, FakeKernel
from tests.nft.refusals import REF, REFUSED, SETUP

from sliceplane.consume.model import ServiceKey
from sliceplane.kit.rng import Rng
from sliceplane.node.nft.build import BalancedChain, Chain, RuleChain, ServiceObjects
from sliceplane.node.nft.layout import CLUSTER_IPS, HAIRPIN, SERVICE_IPS
from sliceplane.node.nft.objects import (
    BalancedTargets,
    Command,
    DnatTarget,
    NftContainer,
    NftRule,
    TableRef,
    Transaction,
    deletion,
    goto,
    jump,
)
from sliceplane.node.nft.statements import (
    AddressIn,
    Dnat,
    Drop,
    FromInterface,
    Goto,
    GotoOneOf,
    InSet,
    IsOwnAddress,
    NftFamily,
    Remember,
    SetMark,
)
from sliceplane.node.nft.table import NftRules

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Net("spp") as net:
        yield net.add_host("kernel", ip4="10.10.0.1/16", ip6="fd10::1/64")


def load(host: Host, transaction: Transaction) -> bool:
    """Whether the real kernel took it."""
    try:
        host.exec(["nft", "-f", "-"], stdin=transaction.render())
    except RuntimeError:
        return False
    return True


#: the fake is stricter here on purpose: kernels before 6.2 refuse it, other versions of nft do, or
#: it is never sent
STRICTER = (
    "chain used until this transaction",
    "address that is not canonical",
    "protocol unknown",
    "a set that packets may not fill",
    "networks that overlap",
)


@pytest.mark.parametrize(
    "commands",
    [row[2] for row in REFUSED if row[0] not in STRICTER],
    ids=[r[0] for r in REFUSED if r[0] not in STRICTER],
)
def test_the_real_kernel_refuses_it_too(host: Host, commands: tuple[Command, ...]) -> None:
    assert load(host, Transaction(REF, SETUP))
    before = listed(host, REF)
    assert not load(host, Transaction(REF, commands))
    assert listed(host, REF) == before
    load(host, deletion(REF))


def objects(family: NftFamily, number: int, targets: list[int]) -> ServiceObjects:
    # nft has a word to say on how protocols mix in a table, and says it to later transactions only.
    protocol = ("tcp", "udp", "sctp")[number % 3]
    vip = f"172.30.0.{number}" if family == "ip" else f"fd30::{number}"
    prefix = "10.0.0." if family == "ip" else "fd10::"
    elements: list[Any] = [(CLUSTER_IPS.name, (vip,), None)]
    chains: tuple[Chain, ...] = ()
    if targets and number % 4 == 0:
        chains = tuple(sticky(f"{number}", protocol, [f"{prefix}{n}" for n in targets]))
        elements.append((SERVICE_IPS.name, (vip, protocol, 32000 + number), goto(chains[-1].name)))
    elif targets:
        name = f"service-{number}"
        found = tuple(DnatTarget(f"{prefix}{n}", 8080) for n in targets)
        direct = number % 4 == 1
        chains = (BalancedChain(name, protocol, found),) if len(targets) > 1 and not direct else ()
        way = jump(name) if chains else found[0] if len(targets) == 1 else BalancedTargets(found)
        elements.append((SERVICE_IPS.name, (vip, protocol, 32000 + number), way))
        local = f"{prefix}{targets[0]}"
        elements.append((HAIRPIN.name, (local, local, protocol, 8080), None))
    return ServiceObjects(chains, tuple(elements))


def some_targets(rng: Rng) -> list[int]:
    """Up to six, often one."""
    one_in = 2 if rng.below(2) else 5
    return [1 + n for n in range(6) if rng.below(one_in) == 0]


def sticky(name: str, protocol: str, ips: list[str]) -> list[Chain]:
    """Chains with sets, rules that lead from one to the other, and every sort of statement that
    depends on nothing.
    """
    chains: list[Chain] = []
    for ip in ips:
        clients = NftContainer(f"affinity-{name}/{ip.replace(':', '.')}", ("addr",), timeout_s=60)
        rules = (NftRule((Remember(clients.name),)), NftRule((Dnat(protocol, ip, 8080),)))
        chains.append(RuleChain(f"endpoint-{name}/{ip.replace(':', '.')}", rules, clients))
    sets = [
        chain.own_set.name for chain in chains if isinstance(chain, RuleChain) and chain.own_set
    ]
    names = tuple(chain.name for chain in chains)
    rules = tuple(
        NftRule((InSet(("saddr",), c), Goto(n))) for c, n in zip(sets, names, strict=True)
    )
    wide = "10.0.0.0/8" if ":" not in ips[0] else "fd00::/8"
    others = (
        NftRule((IsOwnAddress("saddr"), SetMark(), Goto(names[0]))),
        NftRule(
            (FromInterface("cni*", inside=False), AddressIn("saddr", (wide,), inside=False), Drop())
        ),
        NftRule((GotoOneOf(names),)),
    )
    return [*chains, RuleChain(f"service-{name}", (*rules, *others))]


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.parametrize("seed", range(3))
def test_a_history_gives_the_same_ruleset(host: Host, family: NftFamily, seed: int) -> None:
    """Changes, retirement, damage by others and recovery; the two kernels agree after every
    step.
    """
    rng, now = Rng(seed), 0.0
    ref = TableRef(family, "sliceplane")
    state, fake = NftRules(ref), FakeKernel()
    for _ in range(25):
        for _ in range(rng.below(4)):
            number = 1 + rng.below(20)
            targets = some_targets(rng)
            gone = rng.below(5) == 0
            state.set_objects(
                ServiceKey("ns", f"{number}"), None if gone else objects(family, number, targets)
            )
        if rng.below(8) == 0:
            fake.run(deletion(ref))
            assert load(host, deletion(ref))
        now += 0.4
        transaction = state.take_transaction(now)
        if transaction is None:
            continue
        taken = load(host, transaction)
        try:
            fake.run(transaction)
        except FakeError:
            assert not taken
            state.on_failure()
            continue
        assert taken
        state.on_success(now)
        assert listed(host, ref) == expected(fake.tables[ref], family)
    load(host, deletion(ref))
