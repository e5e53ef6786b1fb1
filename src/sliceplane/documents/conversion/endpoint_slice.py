"""EndpointSlice v1beta1 to v1 and back (``pkg/apis/discovery/v1beta1/conversion.go``).

The two differ in ``endpoints`` alone.  v1beta1 has one map, ``topology``; v1 has ``zone`` and ``nodeName`` for the two
entries that everybody used, and ``deprecatedTopology`` for the rest:

- to v1, the zone leaves the map for ``zone``, and a host name that ``nodeName`` says too leaves it for nothing;
- to v1beta1, the map is the rest with the zone and, unless the rest names a host of its own, the node's name.

So v1beta1 reads back with ``kubernetes.io/hostname`` in every endpoint that has a ``nodeName``; all else reads back as
written.  ``addressType`` is not looked at: slices of the type ``IP``, which the first versions had and which validation
refuses, pass through both ways.
"""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_ZONE
from sliceplane.api.meta import Document

HUB_VERSION = "discovery.k8s.io/v1"
OLD_VERSION = "discovery.k8s.io/v1beta1"


def to_hub(document: Document) -> Document:
    """The v1 form of a v1beta1 slice; new where it differs, shared where it does not."""
    return _converted(document, HUB_VERSION, _endpoint_to_hub)


def from_hub(document: Document) -> Document:
    """The v1beta1 form of a v1 slice; new where it differs, shared where it does not."""
    return _converted(document, OLD_VERSION, _endpoint_from_hub)


def _converted(document: Document, version: str, endpoint: Callable[[Document], Document]) -> Document:
    out = dict(document)
    if "apiVersion" in out:
        out["apiVersion"] = version
    if out.get("endpoints"):
        out["endpoints"] = [endpoint(item) for item in out["endpoints"]]
    return out


def _endpoint_to_hub(endpoint: Document) -> Document:
    out = {name: value for name, value in endpoint.items() if name != "topology"}
    rest: dict[str, str] = dict(endpoint.get("topology") or {})
    zone = rest.pop(LABEL_ZONE, None)
    if zone is not None:
        out["zone"] = zone
    if LABEL_HOSTNAME in rest and rest[LABEL_HOSTNAME] == out.get("nodeName"):
        del rest[LABEL_HOSTNAME]
    if rest:
        out["deprecatedTopology"] = dict(sorted(rest.items()))
    return out


def _endpoint_from_hub(endpoint: Document) -> Document:
    out = {name: value for name, value in endpoint.items() if name not in ("deprecatedTopology", "zone")}
    topology: dict[str, str] = dict(endpoint.get("deprecatedTopology") or {})
    if endpoint.get("zone") is not None:
        topology[LABEL_ZONE] = endpoint["zone"]
    if endpoint.get("nodeName") is not None and not topology.get(LABEL_HOSTNAME):
        topology[LABEL_HOSTNAME] = endpoint["nodeName"]
    if topology:
        out["topology"] = dict(sorted(topology.items()))
    return out
