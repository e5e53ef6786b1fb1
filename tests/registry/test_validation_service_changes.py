"""Service: changes of its spec and of its status, one row for each rule (KEP-4444, KEP-563)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.test_validation_service import IPS, service

from sliceplane.api.scheme import Services
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.verbs.answers import validate_update

DUAL = {
    "clusterIP": "10.96.0.5",
    "clusterIPs": ["10.96.0.5", "fd00::5"],
    "ipFamilies": ["IPv4", "IPv6"],
    "ipFamilyPolicy": "RequireDualStack",
}
SINGLE = {**IPS, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
UPDATES: list[tuple[str, Any, Any, list[str]]] = [
    ("same", SINGLE, SINGLE, []),
    ("up", SINGLE, DUAL, []),
    ("down", DUAL, SINGLE, []),
    (
        "down without saying so",
        DUAL,
        {**SINGLE, "ipFamilyPolicy": "RequireDualStack"},
        [
            (
                'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be set to '
                "'SingleStack' "
                "when releasing the "
                "secondary clusterIP"
            ),
            (
                'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be set to '
                "'SingleStack' "
                "when releasing the "
                "secondary ipFamily"
            ),
        ],
    ),
    (
        "primary changed",
        SINGLE,
        {**SINGLE, "clusterIP": "10.96.0.6", "clusterIPs": ["10.96.0.6"]},
        ['spec.clusterIPs[0]: Invalid value: ["10.96.0.6"]: may not change once set'],
    ),
    (
        "secondary changed",
        DUAL,
        {**DUAL, "clusterIPs": ["10.96.0.5", "fd00::6"]},
        ['spec.clusterIPs[1]: Invalid value: ["10.96.0.5","fd00::6"]: may not change once set'],
    ),
    (
        "class changed",
        {**SINGLE, "type": "LoadBalancer", "loadBalancerClass": "a.b/c"},
        {**SINGLE, "type": "LoadBalancer", "loadBalancerClass": "a.b/d"},
        ['spec.loadBalancerClass: Invalid value: "a.b/d": may not change once set'],
    ),
    (
        "health check port changed",
        {
            **SINGLE,
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30001,
        },
        {
            **SINGLE,
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30002,
        },
        ["spec.healthCheckNodePort: Forbidden: field is immutable"],
    ),
    (
        "headless from addressed",
        SINGLE,
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
        },
        ['spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set'],
    ),
    ("to a name", SINGLE, {"type": "ExternalName", "externalName": "a.b"}, []),
    (
        "families swapped",
        DUAL,
        {**DUAL, "ipFamilies": ["IPv6", "IPv4"]},
        [
            'spec.ipFamilies[0]: Invalid value: ["IPv6","IPv4"]: may not change once set',
            'spec.ipFamilies[0]: Invalid value: ["IPv6","IPv4"]: may not change once set',
            (
                'spec.clusterIPs[0]: Invalid value: "10.96.0.5": expected an IPv6 value as '
                "indicated "
                "by `ipFamilies[0]`"
            ),
            (
                'spec.clusterIPs[1]: Invalid value: "fd00::5": expected an IPv4 value as '
                "indicated by "
                "`ipFamilies[1]`"
            ),
        ],
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), [row[1:] for row in UPDATES], ids=[row[0] for row in UPDATES]
)
def test_update(old: Any, new: Any, expected: list[str]) -> None:
    assert [
        str(error) for error in validate_update(Services, service(**new), service(**old))
    ] == expected


@pytest.mark.parametrize(
    ("ingress", "expected"),
    [
        ({"ip": "10.0.0.1"}, []),
        ({"hostname": "a.example"}, []),
        (
            {"ip": "x"},
            [
                (
                    'ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or '
                    "2001:db8::ffff)"
                )
            ],
        ),
        (
            {"ip": "10.0.0.1", "ipMode": "Foo"},
            ['ipMode: Unsupported value: "Foo": supported values: "Proxy", "VIP"'],
        ),
        ({"ipMode": "VIP"}, ["ipMode: Forbidden: may not be specified when `ip` is not set"]),
        (
            {"hostname": "10.0.0.1"},
            ['hostname: Invalid value: "10.0.0.1": must be a DNS name, not an IP address'],
        ),
    ],
)
def test_status(ingress: Any, expected: list[str]) -> None:
    old = service(type="LoadBalancer")
    new = service(type="LoadBalancer")
    new["status"] = {"loadBalancer": {"ingress": [ingress]}}
    kind_of(Services).defaults(new)
    errors = [str(error) for error in validate_update(Services, new, old, "status")]
    assert errors == [f"status.loadBalancer.ingress[0].{each}" for each in expected]
    assert bool(ingress.get("ip")) <= bool(ingress.get("ipMode")), (
        "an address is a VIP unless it is said otherwise"
    )
