"""A family's whole data plane on the fake kernel of iptables: objects in, packets out; the nftables
one beside it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.iptables.fake import FakeError, FakeTables
from tests.iptables.trace import Outcome, Packet, Path, trace
from tests.nft.machine import NODE, NODE_IP, AnyMachine
from tests.nft.machine import Machine as NftMachine

from sliceplane.kit.ip import Family
from sliceplane.node.context import RulesConfig
from sliceplane.node.iptables.saved import parse_saved
from sliceplane.node.iptables.table import IptablesTransaction, iptables_plane
from sliceplane.node.plane import NodePlaneConfig

Chance = dict[tuple[str, str, bool], Fraction]


class Machine(AnyMachine):
    """That of iptables."""

    def __init__(
        self,
        family: Family = "IPv4",
        rules: RulesConfig | None = None,
        own: tuple[str, ...] = (NODE_IP, "fd99::1"),
        kernel: FakeTables | None = None,
    ) -> None:
        self.kernel = kernel or FakeTables()
        #: what the kernel was asked to take
        self.texts: list[str] = []
        #: refuse so many writes
        self.failures = 0
        super().__init__(
            iptables_plane(family, NodePlaneConfig(node_name=NODE, rules=rules or RulesConfig())),
            own,
        )

    def _taken(self, transaction: IptablesTransaction) -> bool:
        found = parse_saved(self.kernel.save())
        text = transaction.render(found) if transaction.full else transaction.render()
        self.texts.append(text)
        if self.failures:
            self.failures -= 1
            return False
        try:
            self.kernel.restore(text)
        except FakeError:
            return False
        return True

    def _trace(self, path: Path, *packet: Any, iif: str) -> dict[Outcome, Fraction]:
        return trace(self.kernel.tables, Packet(*packet, iif=iif), path, self.own)


def plain(outcomes: dict[Any, Fraction]) -> Chance:
    """What both tracers say, in the same words."""
    return {
        (outcome.verdict, outcome.to, outcome.masquerade): share
        for outcome, share in outcomes.items()
    }


class Both:
    """The same objects for both back ends."""

    def __init__(self, family: Family = "IPv4", rules: RulesConfig | None = None) -> None:
        self.nft = NftMachine(family, rules)
        self.iptables = Machine(family, rules)

    def put(self, *objects: Any) -> None:
        self.iptables.put(*objects)
        self.nft.put(*objects)

    def send(self, *packet: Any, **extra: Any) -> tuple[Chance, Chance]:
        """What nftables makes of it, what iptables does."""
        return plain(self.nft.send(*packet, **extra)), plain(self.iptables.send(*packet, **extra))
