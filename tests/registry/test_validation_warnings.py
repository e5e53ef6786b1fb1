"""Warnings: one row for each, with the exact text."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource, Services
from sliceplane.server.registry.kinds import kind_of

CANONICAL = 'IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")'
ZEROS = (
    'non-standard IP address "10.0.0.01" will be considered invalid in a future Kubernetes '
    'release: use "10.0.0.1"'
)
MANAGED = "endpointslice.kubernetes.io/managed-by"


def slice_(kind: str, *addresses: str, manager: str = "") -> Any:
    endpoints = [{"addresses": list(addresses)}]
    labels = {MANAGED: manager} if manager else {}
    return {"metadata": {"labels": labels}, "addressType": kind, "endpoints": endpoints}


def service(annotations: Any = None, **spec: Any) -> Any:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"type": "ClusterIP", **spec}}


EXTERNAL_IPS = "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
ROWS: list[tuple[Resource, Any, list[str]]] = [
    (EndpointSlices, slice_("FQDN", "a.b"), ["spec.addressType: FQDN endpoints are deprecated"]),
    (
        EndpointSlices,
        slice_("IPv4", "10.0.0.1", "10.0.0.01"),
        [f"endpoints[0].addresses[1]: {ZEROS}"],
    ),
    (EndpointSlices, slice_("IPv6", "2001:DB8::1"), [f"endpoints[0].addresses[0]: {CANONICAL}"]),
    (
        EndpointSlices,
        slice_("IPv6", "2001:DB8::1", manager="me"),
        [f"endpoints[0].addresses[0]: {CANONICAL}"],
    ),
    (EndpointSlices, slice_("IPv6", "2001:DB8::1", manager="endpointslice-controller.k8s.io"), []),
    (
        EndpointSlices,
        slice_("IPv6", "2001:DB8::1", manager="endpointslicemirroring-controller.k8s.io"),
        [],
    ),
    (
        EndpointsObjects,
        {
            "metadata": {},
            "subsets": [
                {"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.01"}]}
            ],
        },
        [f"subsets[0].notReadyAddresses[0].ip: {ZEROS}"],
    ),
    (Services, service(clusterIPs=["None"]), []),
    (Services, service(clusterIPs=["2001:DB8::1"]), [f"spec.clusterIPs[0]: {CANONICAL}"]),
    (
        Services,
        service(externalIPs=["2001:DB8::1"]),
        [f"spec.externalIPs[0]: {CANONICAL}", EXTERNAL_IPS],
    ),
    (Services, service(externalIPs=["10.0.0.1"]), [EXTERNAL_IPS]),
    (
        Services,
        service(
            clusterIPs=["None"],
            externalIPs=["10.0.0.1"],
            loadBalancerIP="10.0.0.2",
            sessionAffinity="ClientIP",
        ),
        [
            f"spec.{member} is ignored for headless services"
            for member in ("loadBalancerIP", "externalIPs", "SessionAffinity")
        ],
    ),
    (
        Services,
        service(trafficDistribution="PreferClose"),
        ['spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'],
    ),
    (Services, service(trafficDistribution="PreferSameZone"), []),
    (Services, service(loadBalancerIP="2001:DB8::1"), [f"spec.loadBalancerIP: {CANONICAL}"]),
    (
        Services,
        service(loadBalancerSourceRanges=["2001:DB8::/64"]),
        [
            (
                'spec.loadBalancerSourceRanges[0]: IPv6 CIDR value "2001:DB8::/64" should be in '
                "RFC 5952 "
                'canonical format ("2001:db8::/64")'
            )
        ],
    ),
    (
        Services,
        service(externalName="a.b"),
        ['spec.externalName is ignored when spec.type is not "ExternalName"'],
    ),
    (
        Services,
        service(type="ExternalName", externalName="a.b", externalIPs=["10.0.0.1"]),
        ['spec.externalIPs is ignored when spec.type is "ExternalName"'],
    ),
    (
        Services,
        service({"service.kubernetes.io/topology-aware-hints": "auto"}),
        [
            (
                "annotation service.kubernetes.io/topology-aware-hints is deprecated, "
                "please use service.kubernetes.io/topology-mode instead"
            )
        ],
    ),
    (Services, service({"service.kubernetes.io/topology-mode": "auto"}), []),
]


@pytest.mark.parametrize(("resource", "document", "expected"), ROWS)
def test_warning(resource: Resource, document: Any, expected: list[str]) -> None:
    assert list(kind_of(resource).warnings(document, None)) == expected


def test_fqdn_is_told_at_creation_only() -> None:
    document = slice_("FQDN", "a.b")
    assert tuple(kind_of(EndpointSlices).warnings(document, document)) == ()
