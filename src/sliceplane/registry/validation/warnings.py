"""What is accepted and should not be relied on: texts for ``Warning`` headers (controllers.md 5.2, reference B10)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from sliceplane.api.discovery import LABEL_MANAGED_BY
from sliceplane.api.errors import show
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource, Services
from sliceplane.kit.ip import parse_lenient
from sliceplane.registry.validation.addresses import ip_problem, plain_version
from sliceplane.registry.validation.services import ANNOTATION_TOPOLOGY_HINTS as _TOPOLOGY_HINTS
from sliceplane.registry.validation.services import ANNOTATION_TOPOLOGY_MODE as _TOPOLOGY_MODE

FQDN_WARNING: Final = "spec.addressType: FQDN endpoints are deprecated"
#: slices of the built-in controllers say what somebody else has been warned of
_CONTROLLERS: Final = ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")


def warnings_of(resource: Resource, new: Document, old: Document | None) -> tuple[str, ...]:
    """For an object that is about to be stored; *old* is ``None`` for a new one."""
    if resource is EndpointSlices:
        return tuple(_endpoint_slice(new, old))
    if resource is EndpointsObjects:
        return tuple(_endpoints(new))
    return tuple(_service(new)) if resource is Services else ()


def _endpoint_slice(document: Document, old: Document | None) -> Iterator[str]:
    kind = document.get("addressType")
    if kind == "FQDN":
        if old is None:
            yield FQDN_WARNING
        return
    if document["metadata"].get("labels", {}).get(LABEL_MANAGED_BY) in _CONTROLLERS:
        return
    for index, endpoint in enumerate(document.get("endpoints", ())):
        for position, text in enumerate(endpoint.get("addresses", ())):
            told = spelling(text)
            if told:
                yield f"endpoints[{index}].addresses[{position}]: {told}"


def _endpoints(document: Document) -> Iterator[str]:
    for index, subset in enumerate(document.get("subsets", ())):
        for member in ("addresses", "notReadyAddresses"):
            for position, address in enumerate(subset.get(member, ())):
                told = spelling(address.get("ip", ""))
                if told:
                    yield f"subsets[{index}].{member}[{position}].ip: {told}"


def _service(document: Document) -> Iterator[str]:
    spec: Document = document["spec"]
    if _TOPOLOGY_HINTS in document["metadata"].get("annotations", {}):
        yield f"annotation {_TOPOLOGY_HINTS} is deprecated, please use {_TOPOLOGY_MODE} instead"
    for member in ("clusterIPs", "externalIPs"):
        for index, text in enumerate(spec.get(member, ())):
            told = "" if text == "None" else spelling(text)
            if told:
                yield f"spec.{member}[{index}]: {told}"
    if spec.get("loadBalancerIP") and spelling(spec["loadBalancerIP"]):
        yield f"spec.loadBalancerIP: {spelling(spec['loadBalancerIP'])}"
    for index, text in enumerate(spec.get("loadBalancerSourceRanges", ())):
        told = _range_spelling(text.strip())
        if told:
            yield f"spec.loadBalancerSourceRanges[{index}]: {told}"
    if spec.get("type") == "ExternalName":
        if spec.get("externalIPs"):
            yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    elif spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'


def spelling(text: str) -> str:
    """What is wrong with the spelling of an address that was accepted; "" if nothing is, or if it is no address."""
    if plain_version(text):
        return ""
    address = parse_lenient(text)
    if address is None:
        return ""
    if ip_problem(text):
        until = "will be considered invalid in a future Kubernetes release"
        return f"non-standard IP address {show(text)} {until}: use {show(str(address))}"
    if str(address) != text:
        return f"IPv6 address {show(text)} should be in RFC 5952 canonical format ({show(str(address))})"
    return ""


def _range_spelling(text: str) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return ""
    canonical = str(network)
    if canonical == text or "/" not in text:
        return ""
    return f"IPv6 CIDR value {show(text)} should be in RFC 5952 canonical format ({show(canonical)})"
