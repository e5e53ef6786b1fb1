"""A family's whole data plane on the fake kernel of iptables: objects in, packets out; the nftables one beside it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.nft.machine import NODE, NODE_IP
from tests.nft.machine import Machine as NftMachine

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.iptables.fake import FakeError, FakeTables
from sliceplane.iptables.found import parse_saved
from sliceplane.iptables.plane import FamilyPlane
from sliceplane.iptables.trace import Outcome, Packet, Path, trace
from sliceplane.kit.ip import Family
from sliceplane.proxy.plane import PlaneConfig
from sliceplane.proxy.surroundings import RulesConfig

Chance = dict[tuple[str, str, bool], Fraction]


class Machine:
    """A plane, its kernel, and the objects that it was told of."""

    def __init__(
        self,
        family: Family = "IPv4",
        rules: RulesConfig | None = None,
        own: tuple[str, ...] = (NODE_IP, "fd99::1"),
        kernel: FakeTables | None = None,
    ) -> None:
        self.plane = FamilyPlane(family, PlaneConfig(node_name=NODE, rules=rules or RulesConfig()))
        self.own = frozenset(own)
        self.kernel = kernel or FakeTables()
        self.now = 0.0
        self.known: dict[tuple[type, str], Any] = {}
        #: what the kernel was asked to take
        self.texts: list[str] = []
        #: refuse so many writes
        self.failures = 0
        self.plane.on_synced(0.0)

    def put(self, *objects: Service | EndpointSlice | Node | ServiceCIDR) -> None:
        for new in objects:
            self._tell(self.known.get((type(new), new.metadata.key)), new)
            self.known[type(new), new.metadata.key] = new

    def drop(self, subject: Service | EndpointSlice) -> None:
        self._tell(self.known.pop((type(subject), subject.metadata.key)), None)

    def _tell(self, old: Any, new: Any) -> None:
        subject = new if new is not None else old
        if isinstance(subject, Service):
            self.plane.on_service(old, new, self.now)
        elif isinstance(subject, EndpointSlice):
            self.plane.on_slice(old, new, self.now)
        elif isinstance(subject, ServiceCIDR):
            self.plane.on_service_cidr(subject.metadata.name, new, self.now)
        else:
            self.plane.on_node(new, self.now)

    def sync(self) -> None:
        """What a shell does until nothing is due."""
        while self.plane.due(self.now):
            transaction = self.plane.take_transaction(self.now)
            if transaction is None:
                continue
            found = parse_saved(self.kernel.save())
            text = transaction.render(found) if transaction.full else transaction.render()
            self.texts.append(text)
            try:
                if self.failures:
                    self.failures -= 1
                    raise FakeError("as told")
                self.kernel.restore(text)
            except FakeError:
                self.plane.on_failure(self.now)
                self.now = self.plane.next_deadline() or self.now
            else:
                self.plane.on_success(self.now)
        self.plane.check()

    def send(
        self,
        daddr: str = "172.30.0.1",
        dport: int = 80,
        proto: str = "tcp",
        saddr: str = "10.0.9.9",
        path: Path = "local",
        *,
        iif: str = "",
    ) -> dict[Outcome, Fraction]:
        self.sync()
        return trace(self.kernel.tables, Packet(saddr, daddr, proto, dport, iif=iif), path, self.own)


def plain(outcomes: dict[Any, Fraction]) -> Chance:
    """What both tracers say, in the same words."""
    return {(outcome.verdict, outcome.to, outcome.masquerade): share for outcome, share in outcomes.items()}


class Both:
    """The same objects for both back ends."""

    def __init__(self, family: Family = "IPv4", rules: RulesConfig | None = None) -> None:
        self.nft = NftMachine(family, rules)
        self.iptables = Machine(family, rules)

    def put(self, *objects: Any) -> None:
        for each in objects:
            self.iptables.put(each)
            if isinstance(each, ServiceCIDR):
                self.nft.plane.on_service_cidr(each.metadata.name, each, self.nft.now)
            else:
                self.nft.put(each)

    def send(self, *packet: Any, **extra: Any) -> tuple[Chance, Chance]:
        """What nftables makes of it, what iptables does."""
        return plain(self.nft.send(*packet, **extra)), plain(self.iptables.send(*packet, **extra))
