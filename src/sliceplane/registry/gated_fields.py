"""Fields of features that are switched off (reference, controllers.md 5.4 "Historic rules"; KEP-4444 rollback).

A field whose gate is off is dropped from new objects and from updates, unless the object used it before: switching a
feature off must not break what was written while it was on, and switching it on again must find it.  "Used" is asked
of the object as a whole, so a client can still move a field from one endpoint to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sliceplane.api import gates as names
from sliceplane.api.discovery import LABEL_HOSTNAME
from sliceplane.api.errors import FieldError, not_supported
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Services
from sliceplane.kit.names import is_domain_qualified
from sliceplane.registry.types import Target

_DISTRIBUTION: Final = "spec.trafficDistribution"
#: without PreferSameTrafficDistribution
_DISTRIBUTIONS: Final = ("PreferClose",)


class _EndpointRule(NamedTuple):
    gate: str
    used: Callable[[Document], bool]
    drop: Callable[[Document], None]


def _drop_members(parent: str, *members: str) -> Callable[[Document], None]:
    def drop(endpoint: Document) -> None:
        for member in members:
            endpoint.get(parent, {}).pop(member, None)

    return drop


def _drop_node_name(endpoint: Document) -> None:
    endpoint.pop("nodeName", None)


def _drop_hints(endpoint: Document) -> None:
    endpoint.pop("hints", None)


_ENDPOINT_RULES: Final = (
    _EndpointRule(names.ENDPOINT_SLICE_NODE_NAME, lambda endpoint: "nodeName" in endpoint, _drop_node_name),
    _EndpointRule(
        names.ENDPOINT_SLICE_TERMINATING_CONDITION,
        lambda endpoint: bool(endpoint.get("conditions", {}).keys() & {"serving", "terminating"}),
        _drop_members("conditions", "serving", "terminating"),
    ),
    _EndpointRule(names.TOPOLOGY_AWARE_HINTS, lambda endpoint: "hints" in endpoint, _drop_hints),
    _EndpointRule(
        names.PREFER_SAME_TRAFFIC_DISTRIBUTION,
        lambda endpoint: bool(endpoint.get("hints", {}).get("forNodes")),
        _drop_members("hints", "forNodes"),
    ),
)


def drop_from_slice(gates: Gates, target: Target, new: Document, old: Document | None) -> None:
    """In place.  *old* is ``None`` for a new slice."""
    before = [] if old is None else old.get("endpoints", [])
    for rule in _ENDPOINT_RULES:
        if gates.enabled(rule.gate) or any(map(rule.used, before)):
            continue
        for endpoint in new.get("endpoints", []):
            if rule.drop is _drop_node_name and target.via is not None and endpoint.get("nodeName"):
                # In v1beta1 the map says it too, and the conversion to v1 has taken it from there.
                endpoint.setdefault("deprecatedTopology", {}).setdefault(LABEL_HOSTNAME, endpoint["nodeName"])
            rule.drop(endpoint)


def drop_from_service(gates: Gates, new: Document, old: Document | None) -> None:
    """In place.  *old* is ``None`` for a new Service."""
    used = old is not None and "trafficDistribution" in old.get("spec", {})
    if not used and not gates.enabled(names.SERVICE_TRAFFIC_DISTRIBUTION):
        new.get("spec", {}).pop("trafficDistribution", None)


def narrow(
    gates: Gates, target: Target, errors: list[FieldError], new: Document, old: Document | None
) -> list[FieldError]:
    """The *errors* of validation, with values refused whose gate is off; a value that was there before may stay."""
    if target.resource is not Services or gates.enabled(names.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        return errors
    value = new.get("spec", {}).get("trafficDistribution")
    if value is None or value in _DISTRIBUTIONS or is_domain_qualified(value):
        return errors
    if old is not None and value == old.get("spec", {}).get("trafficDistribution"):
        return errors
    others = [error for error in errors if error.field != _DISTRIBUTION]
    return [*others, not_supported(_DISTRIBUTION, value, _DISTRIBUTIONS)]
