"""What a request may write of an EndpointSlice (reference, controllers.md 5.4).

``deprecatedTopology`` is the memory of v1beta1: its clients write it, clients of v1 only carry it along.
"""

from __future__ import annotations

from sliceplane.api.discovery import LABEL_HOSTNAME
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.documents import conversion
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.registry import gated_fields
from sliceplane.registry.types import Target


def prepare(gates: Gates, target: Target, new: Document, old: Document | None) -> None:
    """Undo, in place, what *new* says and the request may not; *old* is ``None`` for a new object."""
    gated_fields.drop_from_slice(gates, target, new, old)
    if target.via is None:
        _drop_topology(new, old)
        if old is not None:
            new.update(conversion.realign(new, old))


def _drop_topology(new: Document, old: Document | None) -> None:
    """``deprecatedTopology`` cannot be written through v1, only carried along with unchanged endpoints.

    A host name in it that the old object had too becomes ``nodeName`` before it goes.
    """
    endpoints = new.get("endpoints", [])
    before = [] if old is None else old.get("endpoints", [])
    if old is not None and endpoints == before:
        return
    if not any("deprecatedTopology" in endpoint for endpoint in endpoints):
        return
    hosts = {endpoint.get("deprecatedTopology", {}).get(LABEL_HOSTNAME) for endpoint in before} - {None}
    for endpoint in endpoints:
        topology = endpoint.pop("deprecatedTopology", None) or {}
        host = topology.get(LABEL_HOSTNAME)
        if host and host in hosts and "nodeName" not in endpoint and not check_dns_subdomain(host):
            endpoint["nodeName"] = host
