"""Netlink messages against the program ``nft``: the same transactions, one kernel by messages and
one by text; both list the same ruleset, in the words of ``nft`` and in the kernel's own steps.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kernel.netns import Host, Net, run
from tests.kernel.test_fake_parity import STRICTER, objects, some_targets
from tests.nft.refusals import REF, REFUSED, SETUP
from tests.node.test_service_demand import asking

from sliceplane.consume.model import ServiceKey
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.node.context import Detector, NodeContext
from sliceplane.node.demand import ServiceDemand
from sliceplane.node.io.kernel.nft_backend import NftError, NftRunner
from sliceplane.node.io.kernel.nft_netlink import Channel, Messages
from sliceplane.node.nft.build import RuleChain, ServiceObjects
from sliceplane.node.nft.netlink.batch import encode
from sliceplane.node.nft.netlink.messages import Inexpressible
from sliceplane.node.nft.objects import Command, NftRule, TableRef, Transaction, deletion
from sliceplane.node.nft.statements import AddressIn, Drop, FromInterface, NftFamily
from sliceplane.node.nft.table import NftRules

pytestmark = pytest.mark.kernel

WIDE: dict[NftFamily, tuple[str, ...]] = {
    "ip": ("0.0.0.0/8", "9.9.9.9/32", "203.0.113.0/24", "255.0.0.0/8"),
    "ip6": ("2001::/32", "fe00::1/128", "ff00::/8"),
}
#: one network, which ends at a byte or not, is all there is or one address; neighbours; single
#: addresses
NETWORKS: dict[NftFamily, tuple[tuple[str, ...], ...]] = {
    "ip": (
        ("10.0.0.0/8",),
        ("10.0.0.0/9",),
        ("0.0.0.0/0",),
        ("10.0.0.1/32",),
        ("10.0.0.0/8", "11.0.0.0/8"),
        ("0.0.0.0/1", "128.0.0.0/1"),
        ("10.0.0.1/32", "10.0.0.3/32"),
        ("10.0.0.0/24", "255.255.255.255/32"),
    ),
    "ip6": (
        ("fd00::/16",),
        ("fd00::/9",),
        ("::/0",),
        ("fd00::1/128",),
        ("fd00::/16", "fd01::/16"),
        ("::/1", "8000::/1"),
        ("fd00::1/128", "fd00::3/128"),
    ),
}


class Pair:
    """``by_messages`` and ``by_text`` are told the same."""

    def __init__(self, by_messages: Host, by_text: Host) -> None:
        self.by_messages, self.by_text = by_messages, by_text
        self._channel = Channel(by_messages.netns)

    def write(self, transaction: Transaction) -> None:
        batch = encode(transaction)
        answers = self._channel.send(batch)
        assert [(answer.sequence, answer.errno) for answer in answers] == [(batch.last, 0)], answers
        self.by_text.exec(["nft", "-f", "-"], stdin=transaction.render())

    def compare(self, *, steps_too: bool = True) -> None:
        assert listed(self.by_messages) == listed(self.by_text)
        if steps_too:
            assert steps(self.by_messages) == steps(self.by_text)


def listed(host: Host) -> list[Any]:
    """The ruleset without handles, which count what was ever made."""
    entries: list[Any] = json.loads(host.exec(["nft", "-j", "list", "ruleset"]).stdout)["nftables"]
    for entry in entries:
        for described in entry.values():
            described.pop("handle", None)
    return entries


def steps(host: Host) -> list[str]:
    """What the kernel tells of rules and elements, before ``nft`` makes words of it."""
    done = run(host.place.command("nft", "--debug=netlink", "list", "ruleset"))
    lines = re.sub(r"(__(?:map|set))\d+", r"\1", done.stdout).splitlines()
    return sorted(
        re.sub(r"^(ip6? \S+ \S+) \d+( \d+)?", r"\1", line.strip()) for line in lines if line.strip()
    )


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with Net("spm") as net:
        yield net


@pytest.fixture(scope="module")
def pair(net: Net) -> Pair:
    hosts = [net.add_host(f"k{n}", ip4=f"10.10.0.{n}/16", ip6=f"fd10::{n}/64") for n in (1, 2)]
    return Pair(*hosts)


def contexts(family: NftFamily, number: int) -> NodeContext:
    wide = WIDE[family]
    return (
        NodeContext(),
        NodeContext(
            node_ports_listed=True, detector=Detector(network=wide[0]), service_networks=wide[:1]
        ),
        NodeContext(detector=Detector(interface="cni*"), service_networks=wide),
        NodeContext(detector=Detector(interface="cni0"), masquerade_all=True),
    )[number]


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.parametrize("seed", range(4))
def test_a_history_by_messages_gives_what_it_gives_by_nft(
    pair: Pair, family: NftFamily, seed: int
) -> None:
    """Whole tables, changes of elements, rules, chains, maps and dynamic sets, retirement,
    deletion.
    """
    history(pair, family, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_many_histories(pair: Pair, family: NftFamily) -> None:
    for seed in range(100, 160):
        history(pair, family, seed)


def history(pair: Pair, family: NftFamily, seed: int) -> None:
    rng, now, state = (
        Rng(seed),
        0.0,
        NftRules(TableRef(family, "sliceplane"), contexts(family, seed % 4)),
    )
    memory: dict[str, tuple[tuple[str, int], ...]] = {}
    for step in range(15):
        for _ in range(rng.below(6)):
            number = 1 + rng.below(20)
            targets = some_targets(rng)
            gone = rng.below(5) == 0
            found = None if gone else objects(family, number, targets)
            state.set_objects(ServiceKey("ns", f"{number}"), found)
            for chain in found.chains if found is not None else ():
                if isinstance(chain, RuleChain) and chain.own_set is not None:
                    memory[chain.own_set.name] = (
                        ("192.0.2.1" if family == "ip" else "fd99::1", 50),
                    )
        if step == 10:
            state.needs_full = True
        now += 0.4
        transaction = state.take_transaction(now)
        if transaction is not None:
            pair.write(transaction)
            state.on_success(now)
            pair.compare(steps_too=step % 5 == 4)
    state.needs_full = True
    state.restore_sets(memory)
    transaction = state.take_transaction(now)
    assert transaction is not None
    pair.write(transaction)
    assert len(listed(pair.by_messages)) == len(
        listed(pair.by_text)
    )  # elements of dynamic sets run out as we look
    pair.write(deletion(state.table))
    pair.compare()


def test_sets_with_counters(pair: Pair) -> None:
    """The table of demand, whole, changed, and removed."""
    services = [asking("a", 1, (0, 1, 2)), asking("a", 2, (1, 2)), None]
    demand = ServiceDemand(FAMILIES)
    for old, new in zip([None, *services], services, strict=False):
        demand.on_service(old, new)
        for family in FAMILIES:
            transaction = demand.take_transaction(family)
            assert transaction is not None
            pair.write(transaction)
        pair.compare()


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_networks_and_interfaces(pair: Pair, family: NftFamily) -> None:
    state = NftRules(TableRef(family, "sliceplane"))
    rules = [
        NftRule((AddressIn(field, networks, inside), Drop()))
        for networks in NETWORKS[family]
        for field in ("saddr", "daddr")
        for inside in (True, False)
    ]
    rules += [
        NftRule((FromInterface(name, inside), Drop()))
        for name in ("eth0", "veth*")
        for inside in (True, False)
    ]
    state.set_objects(
        ServiceKey("ns", "a"), ServiceObjects((RuleChain("firewall-x", tuple(rules)),))
    )
    transaction = state.take_transaction(0.0)
    assert transaction is not None
    pair.write(transaction)
    pair.compare()
    pair.write(deletion(state.table))


def test_elements_for_many_messages(pair: Pair) -> None:
    """An attribute has 64 KiB at most; more elements than that are told in several messages, and
    deleted likewise.
    """
    state = NftRules(TableRef("ip", "sliceplane"))
    names = [f"{number:05d}" for number in range(3000)]
    elements = tuple(
        ("cluster-ips", (f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}",), None) for n in range(5000)
    )
    for name in names:
        chain = RuleChain(f"firewall-{name}", (NftRule((Drop(),)),))
        state.set_objects(ServiceKey("ns", name), ServiceObjects((chain,)))
    state.set_objects(ServiceKey("ns", "wide"), ServiceObjects((), elements))
    for wanted in (None, ServiceObjects((), elements[:7])):
        if wanted is not None:
            state.set_objects(ServiceKey("ns", "wide"), wanted)
        transaction = state.take_transaction(0.0)
        assert transaction is not None
        pair.write(transaction)
        state.on_success(0.0)
        pair.compare()
    pair.write(deletion(state.table))


#: only ``nft`` minds: to the kernel ports are ports, and a key that is shorter than what was loaded
#: is a key
OF_NFT_ALONE = ("map of another protocol for the rule", "map of numbers for a translation")
REFUSED_HERE = [row for row in REFUSED if row[0] not in STRICTER + OF_NFT_ALONE]


@pytest.mark.parametrize(
    "commands", [row[2] for row in REFUSED_HERE], ids=[row[0] for row in REFUSED_HERE]
)
async def test_what_is_refused_changes_nothing_and_is_told(
    pair: Pair, commands: tuple[Command, ...]
) -> None:
    """By the kernel, which says of what; or by us, and then ``nft`` says so."""
    pair.write(Transaction(REF, SETUP))
    before = listed(pair.by_messages)
    transaction = Transaction(REF, commands)
    runner = NftRunner(netns=pair.by_messages.netns)
    with pytest.raises(NftError) as caught:
        await runner.write(transaction)
    assert caught.value.reason == "rejected"
    try:
        encode(transaction)
    except Inexpressible:
        assert str(caught.value).startswith("nft refused the transaction: "), (
            "the program was asked"
        )
    else:
        line = commands[-1].render(REF)
        assert str(caught.value).startswith(f"the kernel refused the transaction: {line[:200]}"), (
            caught.value
        )
    assert listed(pair.by_messages) == before


async def test_many_refusals_at_once(pair: Pair) -> None:
    """More answers than the socket holds."""
    pair.write(Transaction(REF, SETUP))
    command = next(row[2][0] for row in REFUSED if row[0] == "no chain to flush")
    with pytest.raises(NftError, match="flush chain ip sliceplane x: No such file or directory"):
        await NftRunner(netns=pair.by_messages.netns).write(Transaction(REF, (command,) * 20_000))


async def test_a_namespace_of_the_same_name_is_another_one(net: Net) -> None:
    """The socket of a namespace that is gone is not used for the new one."""
    runner = NftRunner(netns="spm-again")
    table = TableRef("ip", "sliceplane")
    state = NftRules(table)
    transaction = state.take_transaction(0.0)
    assert transaction is not None
    for _ in range(2):
        run(["ip", "netns", "add", "spm-again"])
        try:
            await runner.write(transaction)
            assert await runner.tables() == {table}
        finally:
            run(["ip", "netns", "delete", "spm-again"])
    with pytest.raises(NftError) as caught:
        await runner.write(transaction)
    assert caught.value.reason == "namespace"


async def test_families_side_by_side(pair: Pair) -> None:
    messages = Messages(pair.by_messages.netns)
    tables = [TableRef("ip", f"t{n}") for n in range(4)] + [
        TableRef("ip6", f"t{n}") for n in range(4)
    ]
    transactions = [NftRules(table).take_transaction(0.0) for table in tables]
    assert all(
        await asyncio.gather(
            *(messages.write(found) for found in transactions if found is not None)
        )
    )
    assert set(tables) <= await NftRunner(netns=pair.by_messages.netns).tables()
    assert all(await asyncio.gather(*(messages.write(deletion(table)) for table in tables)))
