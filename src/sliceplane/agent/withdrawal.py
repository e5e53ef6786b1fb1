"""How an agent's endpoint is taken back: its slices say that it does not serve, and why, and its
Lease goes at the end.

Each write is bound to the version that was judged: what the agent wrote since stays, and so does
what it then means.
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


def withdrawal(found: EndpointSlice) -> Write | None:
    """Returns the write that withdraws a slice whose agent is lost; ``None``: it is withdrawn
    already.
    """
    if (found.metadata.annotations or {}).get(ANNOTATION_STATE) == "lost" and not _serves(found):
        return None
    return _patch(found, {ANNOTATION_STATE: "lost"}, withdraws=True)


def shown_refusal(found: EndpointSlice) -> str:
    """The sentence that the slice has."""
    return (found.metadata.annotations or {}).get(ANNOTATION_REFUSED, "")


def refusal(found: EndpointSlice, why: str, *, empties: bool = False) -> Write | None:
    """Returns the write that refuses a slice for the reason *why*, or lifts its refusal for "".
    ``None``: no need.

    *empties*: it does not fit its agent's grant, so no endpoint stays. It says why until its agent
    writes it anew: an empty slice fits every grant.
    """
    if empties:
        if why == shown_refusal(found) and not found.endpoints:
            return None
        return _patch(found, {ANNOTATION_REFUSED: why, ANNOTATION_STATE: "failing"}, endpoints=())
    if why == shown_refusal(found) and not (why and _serves(found)):
        return None
    if not why and not found.endpoints:
        return None
    return _patch(found, {ANNOTATION_REFUSED: why or None}, withdraws=bool(why))


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


def _serves(found: EndpointSlice) -> bool:
    """As consumers read it: what is not said is true."""
    return any(
        endpoint.conditions.ready is not False or endpoint.conditions.serving is not False
        for endpoint in found.endpoints or ()
    )


def _patch(
    found: EndpointSlice,
    annotations: dict[str, str | None],
    *,
    withdraws: bool = False,
    endpoints: tuple[SliceEndpoint, ...] | None = None,
) -> Write:
    meta = found.metadata
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
        gone = msgspec.convert(conditions("lost", publish_not_ready=False), EndpointConditions)
        body["endpoints"] = [
            replace(endpoint, conditions=gone) for endpoint in found.endpoints or ()
        ]
    return Write(
        verb="patch",
        resource=EndpointSlices,
        namespace=meta.namespace,
        name=meta.name,
        body=encode(body),
        tolerate=("NotFound", "Conflict"),
    )
