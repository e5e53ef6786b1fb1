"""A cluster as changes of an informer, and a client that reads answers with dnspython."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from sliceplane.api import codec
from sliceplane.api.core import Namespace, Node, Pod, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.server import NameServer
from sliceplane.watch.cache import Change

NOW = 1_700_000_000.0
ZONE = "cluster.local."


def service(name: str = "demo", namespace: str = "default", **spec: Any) -> Service:
    document = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return codec.decode(codec.encode(document), Service)


def headless(name: str = "peers", **spec: Any) -> Service:
    return service(name, clusterIP="None", clusterIPs=["None"], **spec)


def endpoint(
    address: str,
    *,
    ready: bool | None = True,
    zone: str = "",
    hints: Iterable[str] = (),
    **more: Any,
) -> Any:
    entry: dict[str, Any] = {
        "addresses": [address],
        "conditions": {} if ready is None else {"ready": ready},
        **more,
    }
    if zone:
        entry["zone"] = zone
    if hints:
        entry["hints"] = {"forZones": [{"name": hint} for hint in hints]}
    return entry


def slice_of(
    of: str,
    *endpoints: Any,
    name: str = "",
    family: str = "IPv4",
    ports: Iterable[dict[str, Any]] = (),
    version: int = 1,
    namespace: str = "default",
) -> EndpointSlice:
    document = {
        "metadata": {
            "name": name or f"{of}-1",
            "namespace": namespace,
            "resourceVersion": str(version),
            "labels": {LABEL_SERVICE_NAME: of},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def node(name: str, zone: str, *, pods: str = "", address: str = "") -> Node:
    document = {
        "metadata": {"name": name, "labels": {LABEL_ZONE: zone}},
        "spec": {"podCIDRs": [pods]} if pods else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]} if address else {},
    }
    return codec.decode(codec.encode(document), Node)


def namespace(name: str) -> Namespace:
    return codec.decode(codec.encode({"metadata": {"name": name}}), Namespace)


def pod(name: str, *ips: str, phase: str = "Running", deleted: str = "") -> Pod:
    metadata = {"name": name, "namespace": "default"} | (
        {"deletionTimestamp": deleted} if deleted else {}
    )
    status = {"phase": phase, "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    return codec.decode(codec.encode({"metadata": metadata, "status": status}), Pod)


class Cluster:
    """A name server, and the objects that it was told of."""

    def __init__(
        self, *objects: Object, synced: bool = True, config: AnswerConfig | None = None, **zone: Any
    ) -> None:
        self.server = NameServer(ZoneConfig(**zone), config or AnswerConfig())
        self.objects: dict[tuple[str, str], Object] = {}
        self.put(*objects)
        if synced:
            self.server.on_synced()

    def put(self, *objects: Object) -> None:
        self.tell(*[(_key(item), item) for item in objects])

    def remove(self, *objects: Object) -> None:
        self.tell(*[(_key(item), None) for item in objects])

    def tell(self, *changes: tuple[tuple[str, str], Object | None]) -> None:
        told = []
        for key, new in changes:
            old = self.objects.pop(key, None)
            if new is not None:
                self.objects[key] = new
            if old is not None or new is not None:
                told.append(Change(key[0], old, new))
        self.server.apply(told, NOW)

    def ask(
        self,
        name: str,
        kind: str = "A",
        *,
        client: str = "10.1.0.9",
        transport: Any = "udp",
        **query: Any,
    ) -> dns.message.Message:
        """Twice, so that the quick way and the slow one are both taken, and must agree."""
        absolute = name if name.endswith(".") else f"{name}.svc.{ZONE}"
        packet = dns.message.make_query(absolute, kind, id=77, **query).to_wire()
        before = self.server._rotation
        slow = self.server.answer_slowly(packet, client, transport, NOW)
        self.server._rotation = before
        quick = self.server.answer(packet, client, transport, NOW)
        assert isinstance(quick, bytes), quick
        assert quick == slow, f"{quick.hex()} is not {slow!r}"
        answer = dns.message.from_wire(quick)
        assert answer.id == 77
        assert answer.flags & dns.flags.QR
        return answer

    def addresses(self, name: str, kind: str = "A", **how: Any) -> list[str]:
        return sorted(str(item) for rrset in self.ask(name, kind, **how).answer for item in rrset)

    def outcome(self, name: str, kind: str = "A", **how: Any) -> str:
        answer = self.ask(name, kind, **how)
        return dns.rcode.to_text(answer.rcode()) if answer.rcode() or answer.answer else "NODATA"


def _key(item: Object) -> tuple[str, str]:
    return type(item).__name__, item.metadata.key


def minimum_of(answer: dns.message.Message) -> int:
    """For how long a resolver may keep that there is nothing."""
    (soa,) = answer.authority
    assert soa.rdtype == dns.rdatatype.SOA
    return min(int(soa.ttl), int(soa[0].minimum))
