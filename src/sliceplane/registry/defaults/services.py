"""Service: type, affinity, policies and ports (reference B6)."""

from __future__ import annotations

from sliceplane.api.meta import Document

AFFINITY_TIMEOUT_S = 10800
_EXTERNAL_TYPES = ("LoadBalancer", "NodePort")


def default_service(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec["type"] = spec.get("type") or "ClusterIP"
    if not spec.get("selector"):
        # An empty one selects nothing and does not survive protobuf: there is one spelling of "none".
        spec.pop("selector", None)
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", AFFINITY_TIMEOUT_S)
    for port in spec.get("ports", ()):
        port["protocol"] = port.get("protocol") or "TCP"
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] in _EXTERNAL_TYPES or (spec["type"] == "ClusterIP" and spec.get("externalIPs")):
        spec["externalTrafficPolicy"] = spec.get("externalTrafficPolicy") or "Cluster"
    if spec["type"] in (*_EXTERNAL_TYPES, "ClusterIP"):
        spec["internalTrafficPolicy"] = spec.get("internalTrafficPolicy") or "Cluster"
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for ingress in document.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if ingress.get("ip"):
                ingress["ipMode"] = ingress.get("ipMode") or "VIP"
