"""How large our objects really are: the production engine makes them, the registry stores them, the API's encoders
put them on the wire.

An object's size is a base and so much for each endpoint.  Objects of up to 1,000 endpoints are made and measured; a
larger Endpoints object, which the KEP reckons with and no server since 1.22 would hold, is drawn out from two of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource, Services
from sliceplane.documents.wire import Encoding, event_bytes, object_bytes
from sliceplane.estimate.scale import Design
from sliceplane.kit.rng import Rng
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import Body, Context, Target, User, WriteOptions
from sliceplane.slices.engine import MAX_ENDPOINTS_LIMIT, SliceEngine
from sliceplane.store.mvcc import Store

#: where a classic Endpoints object is cut (KEP-0752, "Endpoints Controller (classic)")
ENDPOINTS_CAPACITY: Final = 1000
NOW: Final = 1_800_000_000.0
_STAMP: Final = "2026-11-21T10:00:00Z"
_NAMESPACE: Final = "default"
_SERVICE: Final = "web"
_PODS_PER_NODE: Final = 20
_ZONES: Final = ("zone-a", "zone-b", "zone-c")


class RealSizes:
    """``scale.Sizes`` of one encoding.  *hints*: every endpoint has a zone hint (``trafficDistribution``)."""

    def __init__(self, encoding: Encoding, *, hints: bool = False) -> None:
        self._encoding: Encoding = encoding
        self._hints = hints

    def object_bytes(self, design: Design, endpoints: int) -> int:
        return self._measure(design, endpoints, framed=False)

    def event_bytes(self, design: Design, endpoints: int) -> int:
        return self._measure(design, endpoints, framed=True)

    def _measure(self, design: Design, endpoints: int, *, framed: bool) -> int:
        if endpoints <= MAX_ENDPOINTS_LIMIT:
            return _size(design is Design.ENDPOINTS, endpoints, self._encoding, self._hints, framed)
        full = self._measure(design, MAX_ENDPOINTS_LIMIT, framed=framed)
        half = self._measure(design, MAX_ENDPOINTS_LIMIT // 2, framed=framed)
        return full + (endpoints - MAX_ENDPOINTS_LIMIT) * (full - half) // (MAX_ENDPOINTS_LIMIT // 2)


@cache
def _size(classic: bool, endpoints: int, encoding: Encoding, hints: bool, framed: bool) -> int:
    stored = stored_endpoints(endpoints) if classic else stored_slice(endpoints, hints=hints)
    return event_bytes(stored, encoding) if framed else object_bytes(stored, encoding)


def stored_slice(endpoints: int, *, hints: bool = False) -> bytes:
    """The JSON of a slice of *endpoints* ready Pods, as our server holds it.  At most 1,000."""
    engine = SliceEngine(max_endpoints_per_slice=MAX_ENDPOINTS_LIMIT)
    for number in range((endpoints + _PODS_PER_NODE - 1) // _PODS_PER_NODE):
        engine.on_node(None, decode(encode(_node(number)), Node))
    for number in range(endpoints):
        engine.on_pod(None, decode(encode(_pod(number)), Pod))
    service = _service(hints=hints)
    engine.on_service(decode(encode(service), Service))
    (write,) = engine.plan(f"{_NAMESPACE}/{_SERVICE}", NOW).writes
    return _store(EndpointSlices, decode_document(write.body))


def stored_endpoints(endpoints: int) -> bytes:
    """The JSON of an Endpoints object of *endpoints* ready addresses, as a server holds it."""
    metadata = {
        "name": _SERVICE,
        "namespace": _NAMESPACE,
        "labels": {"app": _SERVICE, "endpoints.kubernetes.io/managed-by": "endpoint-controller"},
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": _STAMP},
    }
    addresses = [
        {"ip": _address(number), "nodeName": _node_name(number), "targetRef": _reference(number)}
        for number in range(endpoints)
    ]
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    subsets = [{"addresses": addresses, "ports": ports}]
    return _store(EndpointsObjects, {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets})


def _store(resource: Resource, document: Document) -> bytes:
    registry = Registry(Store(), rng=Rng(1))
    registry.bootstrap(NOW)
    context = Context(now=NOW, user=User(name="estimate", groups=("system:masters",)))
    target = Target(resource=resource, namespace=_NAMESPACE)
    return registry.create(
        context, target, Body(document=document), WriteOptions(field_manager="kube-controller-manager")
    ).body


# What the objects are about: Pods of a Deployment, twenty to a Node, Nodes in three zones.


def _uid(number: int) -> str:
    return f"5a1e0000-0000-4000-8000-{number:012x}"


def _pod_name(number: int) -> str:
    return f"{_SERVICE}-7d4b9c6f5d-{number:05x}"


def _node_name(number: int) -> str:
    return f"node-{number // _PODS_PER_NODE:05d}"


def _address(number: int) -> str:
    return f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _reference(number: int) -> Document:
    return {"kind": "Pod", "namespace": _NAMESPACE, "name": _pod_name(number), "uid": _uid(number)}


def _metadata(name: str, number: int, **more: Any) -> Document:
    return {"name": name, "uid": _uid(number), "resourceVersion": "1", "creationTimestamp": _STAMP, **more}


def _node(number: int) -> Document:
    labels = {"topology.kubernetes.io/zone": _ZONES[number % len(_ZONES)]}
    name = _node_name(number * _PODS_PER_NODE)
    return {"apiVersion": "v1", "kind": "Node", "metadata": _metadata(name, number, labels=labels)}


def _pod(number: int) -> Document:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": _STAMP}
    port = {"name": "http", "containerPort": 8080, "protocol": "TCP"}
    metadata = _metadata(_pod_name(number), number, namespace=_NAMESPACE, labels={"app": _SERVICE})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": _node_name(number), "containers": [{"name": "main", "ports": [port]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": _address(number)}], "conditions": [condition]},
    }


def _service(*, hints: bool) -> Document:
    spec: Document = {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.10",
        "ipFamilies": ["IPv4"],
        "selector": {"app": _SERVICE},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
    }
    if hints:
        spec["trafficDistribution"] = "PreferSameZone"
    metadata = _metadata(_SERVICE, 0, namespace=_NAMESPACE, labels={"app": _SERVICE})
    return {"apiVersion": Services.api_version, "kind": Services.kind, "metadata": metadata, "spec": spec}
