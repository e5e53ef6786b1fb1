"""Kinds whose defaults are a line or two: Endpoints, Event, Lease, LimitRange, Node, ResourceQuota, Secret."""

from __future__ import annotations

import base64

from sliceplane.api.meta import Document

_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)

_LIMIT_MEMBERS = ("default", "defaultRequest", "max", "maxLimitRequestRatio", "min")


def default_endpoints(document: Document) -> None:
    for subset in document.get("subsets", ()):
        for port in subset.get("ports", ()):
            port["protocol"] = port.get("protocol") or "TCP"


def default_event(document: Document) -> None:
    """Members that an Event always prints, also when empty (reference B16)."""
    document.setdefault("involvedObject", {})
    document.setdefault("source", {})
    document.setdefault("reportingComponent", "")
    document.setdefault("reportingInstance", "")


def default_lease(document: Document) -> None:
    document.setdefault("spec", {})


def default_node(document: Document) -> None:
    """A Node shows a nodeInfo from the start, with nothing in it."""
    document.setdefault("spec", {})
    status = document.setdefault("status", {})
    info = status.setdefault("nodeInfo", {})
    for member in _NODE_INFO:
        info.setdefault(member, "")
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})


def default_secret(document: Document) -> None:
    """``stringData`` is another way to write ``data``, and is never read back."""
    plain = document.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        document["data"] = dict(sorted({**document.get("data", {}), **encoded}.items()))
    if not document.get("data"):
        document.pop("data", None)
    document["type"] = document.get("type") or "Opaque"


def default_spec(document: Document) -> None:
    """A spec that always prints."""
    document.setdefault("spec", {})


def default_limit_range(document: Document) -> None:
    """Containers: what is not said about a default follows from the maximum, the default limit and the minimum."""
    for item in document.setdefault("spec", {}).setdefault("limits", []):
        for member in _LIMIT_MEMBERS:
            if item.get(member):
                item[member] = {name: str(item[member][name]) for name in sorted(item[member])}
        if item.get("type") != "Container":
            continue
        limit = {**item.get("max", {}), **item.get("default", {})}
        request = {**item.get("min", {}), **limit, **item.get("defaultRequest", {})}
        for member, amounts in (("default", limit), ("defaultRequest", request)):
            if amounts:
                item[member] = dict(sorted(amounts.items()))


def default_resource_quota(document: Document) -> None:
    """Quantities are texts, also where a client wrote a number."""
    document.setdefault("spec", {})
    for part, member in (("spec", "hard"), ("status", "hard"), ("status", "used")):
        amounts = document.get(part, {}).get(member)
        if amounts:
            document[part][member] = {name: str(amounts[name]) for name in sorted(amounts)}
