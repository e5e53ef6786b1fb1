"""EndpointSlice: port names and protocols, and the members that are always printed (controllers.md 5.1)."""

from __future__ import annotations

from sliceplane.api.meta import Document


def default_endpoint_slice(document: Document) -> None:
    for port in document.setdefault("ports", []):
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
    for endpoint in document.setdefault("endpoints", []):
        endpoint.setdefault("conditions", {})
