"""A family's whole data plane on the fake kernel: objects in, packets out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

from tests.nft.fake import FakeError, FakeKernel

from sliceplane.api import codec
from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.kit.ip import Family
from sliceplane.node.context import RulesConfig
from sliceplane.node.nft.objects import TableRef, Transaction
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.nft.trace import Packet, PacketOutcome, Path, trace
from sliceplane.node.plane import NodePlaneConfig

NODE = "node-1"
VIP = "172.30.0.1"
CLIENT = "10.0.9.9"
NODE_IP = "192.168.0.1"


def service(name: str = "svc", number: int = 1, **spec: Any) -> Service:
    document = {
        "metadata": {"namespace": "ns", "name": name},
        "status": {"loadBalancer": {"ingress": spec.pop("ingress", [])}},
        "spec": {
            "clusterIP": f"172.30.0.{number}",
            "clusterIPs": [f"172.30.0.{number}", f"fd30::{number}"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            **spec,
        },
    }
    return codec.decode(codec.encode(document), Service)


def make_slice(
    endpoints: list[Any],
    service_name: str = "svc",
    *,
    ports: list[Any] | None = None,
    version: int = 1,
    kind: str = "IPv4",
) -> EndpointSlice:
    document = {
        "metadata": {
            "namespace": "ns",
            "name": f"{service_name}-{kind.lower()}",
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": kind,
        "endpoints": [{"addresses": [e]} if isinstance(e, str) else e for e in endpoints],
        "ports": ports or [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def ep(address: str, **extra: Any) -> dict[str, Any]:
    return {"addresses": [address], **extra}


def node(zone: str = "", *ips: str, name: str = NODE, **spec: Any) -> Node:
    document = {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": spec,
        "status": {"addresses": [{"type": "InternalIP", "address": ip} for ip in ips]},
    }
    return codec.decode(codec.encode(document), Node)


DYING = {"conditions": {"ready": False, "serving": True, "terminating": True}}
IN_ZONE_A = {"hints": {"forZones": [{"name": "a"}]}}
GONE = {"conditions": {"ready": False, "serving": False, "terminating": True}}


class AnyMachine(ABC):
    """A plane of any back end, its kernel, and the objects that it was told of."""

    def __init__(self, plane: Any, own: tuple[str, ...]) -> None:
        self.plane = plane
        self.own = frozenset(own)
        self.now = 0.0
        self.known: dict[tuple[type, str], Any] = {}
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
        while self.plane.schedule.due(self.now) or self.plane.tracker.portions.behind:
            self.now = max(self.now, self.plane.schedule.next_deadline() or 0.0)
            transaction = self.plane.take_transaction(self.now)
            if transaction is None:
                continue
            if self._taken(transaction):
                self.plane.on_success(self.now)
            else:
                self.plane.on_failure(self.now)
                self.now = self.plane.schedule.next_deadline() or self.now
        self.plane.check()

    def send(
        self,
        daddr: str = VIP,
        dport: int = 80,
        proto: str = "tcp",
        saddr: str = CLIENT,
        path: Path = "local",
        *,
        iif: str = "",
    ) -> dict[Any, Fraction]:
        """What becomes of a packet, and with which probability."""
        self.sync()
        return self._trace(path, saddr, daddr, proto, dport, iif=iif)

    @abstractmethod
    def _taken(self, transaction: Any) -> bool:
        """Whether the kernel takes it."""

    @abstractmethod
    def _trace(self, path: Path, *packet: Any, iif: str) -> dict[Any, Fraction]: ...


class Machine(AnyMachine):
    """That of nftables."""

    def __init__(
        self,
        family: Family = "IPv4",
        rules: RulesConfig | None = None,
        own: tuple[str, ...] = (NODE_IP, "fd99::1"),
    ) -> None:
        self.kernel = FakeKernel()
        self.ref = TableRef("ip" if family == "IPv4" else "ip6", "sliceplane")
        super().__init__(
            nft_plane(family, NodePlaneConfig(node_name=NODE, rules=rules or RulesConfig())), own
        )

    def _taken(self, transaction: Transaction) -> bool:
        try:
            self.kernel.run(transaction)
        except FakeError:
            return False
        return True

    def _trace(self, path: Path, *packet: Any, iif: str) -> dict[PacketOutcome, Fraction]:
        return trace(self.kernel.tables[self.ref], Packet(*packet, iif=iif), path, self.own)


def evenly(*targets: str, masquerade: bool = False) -> dict[PacketOutcome, Fraction]:
    return {
        PacketOutcome("accept", target, masquerade): Fraction(1, len(targets))
        for target in sorted(targets)
    }


REJECT = {PacketOutcome("reject"): Fraction(1)}
DROPPED = {PacketOutcome("drop"): Fraction(1)}
