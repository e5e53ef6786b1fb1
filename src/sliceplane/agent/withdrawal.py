"""The writes that withdraw an agent's endpoint: its slices become not serving with a reason, and
its Lease is deleted at the end.

Each write has the judged version as its precondition, so it never overwrites what the agent wrote
since.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease
from sliceplane.api.discovery import EndpointConditions, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.consume.agents.registration import ANNOTATION_REFUSED, ANNOTATION_STATE, conditions


def withdrawal(stored: EndpointSlice) -> Write | None:
    """Returns the write that withdraws a slice of a lost agent; ``None``: it is withdrawn already."""
    if (stored.metadata.annotations or {}).get(ANNOTATION_STATE) == "lost" and not _is_serving(
        stored
    ):
        return None
    return _patch(stored, {ANNOTATION_STATE: "lost"}, withdraws=True)


def current_refusal(stored: EndpointSlice) -> str:
    """Returns the reason for a refusal that the slice has, or ""."""
    return (stored.metadata.annotations or {}).get(ANNOTATION_REFUSED, "")


def refusal(stored: EndpointSlice, reason: str, *, empties: bool = False) -> Write | None:
    """Returns the write that refuses a slice for *reason*, or lifts its refusal for "". ``None``:
    no write is needed.

    *empties*: the slice does not fit its agent's grant, so it loses all endpoints. The reason stays
    until its agent writes it again: an empty slice fits every grant.
    """
    if empties:
        if reason == current_refusal(stored) and not stored.endpoints:
            return None
        return _patch(
            stored, {ANNOTATION_REFUSED: reason, ANNOTATION_STATE: "failing"}, endpoints=()
        )
    if reason == current_refusal(stored) and not (reason and _is_serving(stored)):
        return None
    if not reason and not stored.endpoints:
        return None
    return _patch(stored, {ANNOTATION_REFUSED: reason or None}, withdraws=bool(reason))


def lease_end(lease: Lease) -> Write:
    """Deletes this version of the Lease; a renewal that was not observed yet keeps it."""
    meta = lease.metadata
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return Write(
        verb="delete",
        resource=Leases,
        namespace=meta.namespace,
        name=meta.name,
        body=encode({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}),
        tolerate=("NotFound", "Conflict"),
    )


def _is_serving(stored: EndpointSlice) -> bool:
    """Returns True if a consumer would send to it: an absent condition counts as true."""
    return any(
        endpoint.conditions.ready is not False or endpoint.conditions.serving is not False
        for endpoint in stored.endpoints or ()
    )


def _patch(
    stored: EndpointSlice,
    annotations: dict[str, str | None],
    *,
    withdraws: bool = False,
    endpoints: tuple[SliceEndpoint, ...] | None = None,
) -> Write:
    meta = stored.metadata
    body: Document = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": annotations,
        }
    }
    if endpoints is not None:
        body["endpoints"] = endpoints
    elif withdraws:
        withdrawn = msgspec.convert(conditions("lost", publish_not_ready=False), EndpointConditions)
        body["endpoints"] = [
            replace(endpoint, conditions=withdrawn) for endpoint in stored.endpoints or ()
        ]
    return Write(
        verb="patch",
        resource=EndpointSlices,
        namespace=meta.namespace,
        name=meta.name,
        body=encode(body),
        tolerate=("NotFound", "Conflict"),
    )
