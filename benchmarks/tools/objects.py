"""Documents as a large cluster has them: Pods, Nodes, Services and EndpointSlices by number, always
the same bytes.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

NAMESPACE = "bench"
APP = "web"
ZONES = ("zone-a", "zone-b", "zone-c")
#: endpoints of one slice, the controller's default
PER_SLICE = 100
PODS_PER_NODE = 20
TRANSITION = "2026-11-21T10:00:00Z"


def uid(number: int) -> str:
    return f"5a1e0000-0000-4000-8000-{number:012x}"


def pod_ip(number: int) -> str:
    """10.128.0.0/9 holds eight million of them."""
    return f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def pod_name(number: int) -> str:
    return f"{APP}-7d4b9c6f5d-{number:06d}"


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def namespace_document() -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def node_document(number: int) -> Document:
    labels = {"topology.kubernetes.io/zone": ZONES[number % len(ZONES)]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name(number), "labels": labels},
    }


def service_document(name: str = APP, *, cluster_ip: str = "", port: int = 80) -> Document:
    spec: Document = {
        "selector": {"app": name},
        "ports": [{"name": "http", "protocol": "TCP", "port": port, "targetPort": 8080}],
    }
    if cluster_ip:
        spec |= {
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ipFamilies": ["IPv4"],
            "type": "ClusterIP",
        }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def pod_document(number: int, *, node: str = "") -> Document:
    """Without status: that is written to the subresource."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(number), "namespace": NAMESPACE, "labels": {"app": APP}},
        "spec": {
            "nodeName": node or node_name(number // PODS_PER_NODE),
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/web:1",
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                }
            ],
        },
    }


def pod_status(address: str, *, ready: bool, turn: int = 0) -> Document:
    """*turn* makes transition times differ, as a kubelet's do."""
    when = f"2026-11-21T{turn // 3600 % 24:02d}:{turn // 60 % 60:02d}:{turn % 60:02d}Z"
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": when,
    }
    return {
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [condition],
        }
    }


def endpoint(number: int) -> Document:
    return {
        "addresses": [pod_ip(number)],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {
            "kind": "Pod",
            "namespace": NAMESPACE,
            "name": pod_name(number),
            "uid": uid(number),
        },
        "nodeName": node_name(number // PODS_PER_NODE),
        "zone": ZONES[number // PODS_PER_NODE % len(ZONES)],
    }


def slice_document(name: str, service: str, numbers: range) -> Document:
    """The EndpointSlice of the Pods *numbers*; 100 of them make 25 KB of JSON."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "benchmark",
            },
        },
        "addressType": "IPv4",
        "endpoints": [endpoint(number) for number in numbers],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
