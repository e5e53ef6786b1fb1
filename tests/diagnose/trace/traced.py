"""Questions to a cluster that is made of documents."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.core import Node, Pod, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Condition
from sliceplane.consume.model import ServiceKey
from sliceplane.diagnose.trace.answer import TraceAnswer
from sliceplane.diagnose.trace.cluster import TracedCluster
from sliceplane.diagnose.trace.explain import explain
from sliceplane.diagnose.trace.inquiry import Inquiry, TracedProxy
from sliceplane.diagnose.trace.question import Protocol, Question, parse_source, parse_to
from sliceplane.node.context import RulesConfig

T = TypeVar("T")
PODS = RulesConfig(cluster_cidrs=("10.1.0.0/16", "fd01::/64"))
CLIENT, OUTSIDE = "10.1.0.5", "198.51.100.7"


def made(kind: type[T], **document: Any) -> T:
    return codec.decode(codec.encode(document), kind)


def node(name: str, zone: str, *ips: str, **labels: str) -> Node:
    labels = {"topology.kubernetes.io/zone": zone, **labels} if zone else labels
    addresses = [{"type": "InternalIP", "address": ip} for ip in ips]
    return made(Node, metadata={"name": name, "labels": labels}, status={"addresses": addresses})


def pod(name: str, on: str, *ips: str, phase: str = "Running") -> Pod:
    status = {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips], "phase": phase}
    return made(
        Pod, metadata={"namespace": "prod", "name": name}, spec={"nodeName": on}, status=status
    )


def service(
    name: str = "api", ip: str = "10.96.0.10", *, ingress: Any = (), **spec: Any
) -> Service:
    default = {
        "clusterIP": ip,
        "clusterIPs": [ip],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }
    return made(
        Service,
        metadata={"namespace": "prod", "name": name, "labels": spec.pop("labels", {})},
        spec={**default, **spec},
        status={"loadBalancer": {"ingress": list(ingress)}},
    )


def slice_of(
    name: str, endpoints: list[Any], *, of: str = "api", version: int = 1, **more: Any
) -> EndpointSlice:
    """*more*: ``labels``, ``ports``, ``addressType``."""
    labels = {LABEL_SERVICE_NAME: of, **more.pop("labels", {})}
    meta = {"namespace": "prod", "name": name, "resourceVersion": str(version), "labels": labels}
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    return made(
        EndpointSlice,
        **{"metadata": meta, "addressType": "IPv4", "ports": ports, "endpoints": endpoints, **more},
    )


def ep(
    address: str, pod_name: str = "", on: str = "", zone: str = "", **more: Any
) -> dict[str, Any]:
    """*more*: ``hints``, a zone for which it is; ``flags``: r ready, s serving, t terminating;
    ``for_node``.
    """
    flags, hint, for_node = more.pop("flags", "rs"), more.pop("hint", ""), more.pop("for_node", "")
    endpoint: dict[str, Any] = {
        "addresses": [address],
        "conditions": {"ready": "r" in flags, "serving": "s" in flags, "terminating": "t" in flags},
    }
    if pod_name:
        endpoint["targetRef"] = {
            "kind": "Pod",
            "name": pod_name,
            "namespace": "prod",
            "uid": pod_name,
        }
    if on:
        endpoint["nodeName"] = on
    if zone:
        endpoint["zone"] = zone
    hints = {
        "forZones": [{"name": hint}] if hint else [],
        "forNodes": [{"name": for_node}] if for_node else [],
    }
    return {**endpoint, "hints": {kind: each for kind, each in hints.items() if each}, **more}


NODES = (node("node-a", "zone-a", "192.0.2.1"), node("node-b", "zone-b", "192.0.2.2"))
SENDER = pod("client", "node-a", CLIENT)
RANGE = made(ServiceCIDR, metadata={"name": "kubernetes"}, spec={"cidrs": ["10.96.0.0/16"]})
#: KEP-4444's example: two zones, trafficDistribution set, so each endpoint has a hint for its own
#: zone
ZONES = (
    ep("10.1.1.1", "api-1", "node-a", "zone-a", hint="zone-a"),
    ep("10.1.1.2", "api-2", "node-a", "zone-a", hint="zone-a"),
    ep("10.1.2.1", "api-3", "node-b", "zone-b", hint="zone-b"),
)
TWO = (ep("10.1.1.1", "api-1", "node-a", "zone-a"), ep("10.1.2.1", "api-3", "node-b", "zone-b"))
REMOTE = TWO[1:]
FOUR = (*ZONES, ep("10.1.2.2", "api-4", "node-b", "zone-b", hint="zone-b"))


def ready_node(name: str, zone: str, ip: str) -> Node:
    plain = node(name, zone, ip)
    ready = Condition(type="Ready", status="True")
    status = replace(plain.status, conditions=(ready,), allocatable={"cpu": "4"})
    return replace(plain, status=status)


READY_NODES = (
    ready_node("node-a", "zone-a", "192.0.2.1"),
    ready_node("node-b", "zone-b", "192.0.2.2"),
)


def asking(value: str, shares: str = "", **spec: Any) -> Service:
    annotations = {"service.kubernetes.io/topology-mode": value}
    if shares:
        annotations["sliceplane.dev/measured-shares"] = shares
    plain = service(**spec)
    return replace(plain, metadata=replace(plain.metadata, annotations=annotations))


def ask(
    *objects: Service | EndpointSlice | Node | Pod,
    to: str = "10.96.0.10:80",
    source: str = CLIENT,
    at: str = "",
    protocol: Protocol | None = None,
    rules: RulesConfig = PODS,
    gates: str = "",
    unread: tuple[str, ...] = (),
) -> TraceAnswer:
    """The answer in a cluster of *objects*, the two nodes (unless there are others), the client and
    the range.
    """
    nodes = tuple(each for each in objects if isinstance(each, Node)) or NODES
    services = tuple(each for each in objects if isinstance(each, Service))
    slices = [each for each in objects if isinstance(each, EndpointSlice)]
    pods = (SENDER, *(each for each in objects if isinstance(each, Pod)))
    cluster = TracedCluster(services, nodes, pods, (RANGE,), unread)
    sender = parse_source(source)
    assert isinstance(sender, str), "the story's senders have addresses"
    question = Question(sender, parse_to(to), protocol, at)
    inquiry = Inquiry(question, cluster, TracedProxy(rules, Gates.parse(gates)))
    while wanted := inquiry.pending_services():
        for key in wanted:
            inquiry.on_slices(key, [each for each in slices if owner_of(each) == key])
    return explain(inquiry)


def owner_of(each: EndpointSlice) -> ServiceKey:
    return ServiceKey(
        each.metadata.namespace, (each.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
    )


def shares(answer: TraceAnswer) -> dict[str, str]:
    return {each.address: each.share for each in answer.targets}


def why(answer: TraceAnswer, address: str) -> str:
    return next(each.why for each in (*answer.targets, *answer.others) if each.address == address)
