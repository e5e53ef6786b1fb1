"""Short builders of the objects of cases: Pods as endpoints, slices of the Service, the Service
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sliceplane.lab.conformance.steps import SERVICE, SERVICE_PORT, Document, Put

_SERVICE_NAME: Final = "kubernetes.io/service-name"
_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
READY: Final[Mapping[str, bool]] = {"ready": True}
CONTROLLER: Final = "endpointslice-controller.k8s.io"


def port(name: str, number: int, protocol: str = "TCP") -> Document:
    return {"name": name, "port": number, "protocol": protocol}


HTTP: Final = (port("http", 8080),)


def ip(number: int, family: str = "IPv4") -> str:
    """Returns the address of Pod *number*, 1 to 65,534."""
    return f"fd10::{number:x}" if family == "IPv6" else f"10.1.{number >> 8}.{number & 255}"


def pod(
    number: int,
    *,
    at: int = 0,
    zone: str = "east",
    family: str = "IPv4",
    zones: Iterable[str] = (),
    nodes: Iterable[str] = (),
    conditions: Mapping[str, bool] = READY,
) -> Document:
    """Returns Pod *number* as an endpoint; *at*: the number of the Pod whose address it has."""
    endpoint: dict[str, Any] = {
        "addresses": [ip(at or number, family)],
        "conditions": dict(conditions),
        "targetRef": {
            "kind": "Pod",
            "name": f"web-{number}",
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
        },
        "nodeName": f"{zone}-1",
        "zone": zone,
    }
    hints = {
        name: [{"name": target} for target in targets]
        for name, targets in (("forZones", tuple(zones)), ("forNodes", tuple(nodes)))
        if targets
    }
    if hints:
        endpoint["hints"] = hints
    return endpoint


def pods(numbers: Iterable[int], **keywords: Any) -> tuple[Document, ...]:
    return tuple(pod(number, **keywords) for number in numbers)


def slice_(
    name: str,
    *endpoints: Document,
    ports: Iterable[Document] = HTTP,
    service: str | None = SERVICE,
    manager: str | None = CONTROLLER,
    family: str = "IPv4",
    note: str = "",
) -> Put:
    """Returns an EndpointSlice; *service* ``None`` omits the label, *note* is an irrelevant change."""
    labels = {_SERVICE_NAME: service, _MANAGED_BY: manager}
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {key: value for key, value in labels.items() if value is not None},
    }
    if note:
        metadata["annotations"] = {"example.com/note": note}
    return Put(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": list(ports),
        }
    )


def service(*ports: Document, name: str = SERVICE, policy: str = "") -> Put:
    """Returns a Service without a selector, for which no controller writes slices."""
    service_ports = ports or ({"name": "http", "port": SERVICE_PORT, "protocol": "TCP"},)
    spec: dict[str, Any] = {"clusterIP": "None", "ports": list(service_ports)}
    if policy:
        spec["internalTrafficPolicy"] = policy
    return Put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
