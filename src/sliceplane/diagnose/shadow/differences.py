"""Kinds of differences, and the texts for the values of the two sides."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from sliceplane.api.discovery import EndpointHints, SliceEndpoint
from sliceplane.slices.content import Ports

#: the value of a side that has nothing
NOTHING: Final = "(none)"


class DifferenceKind(StrEnum):
    """The kinds, as metrics and reports have them."""

    ENDPOINT_MISSING = "endpoint-missing"
    ENDPOINT_STALE = "endpoint-stale"
    ENDPOINT_DUPLICATE = "endpoint-duplicate"
    ADDRESSES = "addresses"
    READY = "ready"
    SERVING = "serving"
    TERMINATING = "terminating"
    HOSTNAME = "hostname"
    NODE = "node"
    ZONE = "zone"
    TARGET_REF = "target-ref"
    HINT_MISSING = "hint-missing"
    HINT_UNEXPECTED = "hint-unexpected"
    HINTS = "hints"
    PORTS = "ports"
    LABELS = "labels"
    MANAGED_BY = "managed-by"
    OWNER = "owner"
    ADDRESS_TYPE = "address-type"


class SliceDifference(NamedTuple):
    """One difference of one service. ``pod``: the pod concerned. ``subject``: the object concerned
    as text: ``Pod NAME``, ``EndpointSlice NAME``, ``address ADDRESS`` or "" for the service.
    ``desired`` is our side.
    """

    kind: DifferenceKind
    address_type: str
    subject: str
    desired: str
    actual: str
    pod: str = ""


def truth(value: bool) -> str:
    return "true" if value else "false"


def addresses_text(endpoint: SliceEndpoint) -> str:
    return ",".join(sorted(endpoint.addresses)) or NOTHING


def target_text(endpoint: SliceEndpoint) -> str:
    target = endpoint.target_ref
    return (
        NOTHING
        if target is None
        else f"{target.kind} {target.namespace}/{target.name} uid={target.uid}"
    )


def hints_text(hints: EndpointHints | None) -> str:
    zones = sorted(hint.name for hint in (hints.for_zones if hints else None) or ())
    nodes = sorted(hint.name for hint in (hints.for_nodes if hints else None) or ())
    parts = [
        f"{what} {','.join(names)}" for what, names in (("zones", zones), ("nodes", nodes)) if names
    ]
    return " ".join(parts) or NOTHING


def ports_text(ports: Ports) -> str:
    return (
        ", ".join(
            f"{port.name or '-'}:{'all' if port.port is None else port.port}/{port.protocol}"
            + (f"({port.app_protocol})" if port.app_protocol else "")
            for port in sorted(ports, key=lambda port: port.order)
        )
        or NOTHING
    )


def labels_text(labels: dict[str, str], keys: list[str]) -> str:
    return ",".join(f"{key}={labels[key]}" for key in keys if key in labels) or NOTHING
