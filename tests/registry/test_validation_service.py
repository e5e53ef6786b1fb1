"""Service: one row for each rule, with the exact complaint (KEP-4444, KEP-563)."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.scheme import Services
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.verbs.answers import validate_create


def service(**spec: Any) -> Any:
    document = {
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {"ports": [{"port": 80}], **spec},
    }
    kind_of(Services).defaults(document)
    return document


def told(document: Any) -> list[str]:
    return [str(error) for error in validate_create(Services, document)]


def two(first: Any, second: Any) -> Any:
    return {"ports": [{"name": "a", "port": 80, **first}, {"name": "b", "port": 81, **second}]}


IPS = {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}
RULES: list[tuple[str, Any, list[str]]] = [
    ("good", {}, []),
    ("no ports", {"ports": []}, ["spec.ports: Required value"]),
    ("headless without ports", {"ports": [], "clusterIP": "None", "clusterIPs": ["None"]}, []),
    (
        "headless node port",
        {"type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"]},
        [
            (
                "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for "
                "NodePort services"
            )
        ],
    ),
    (
        "headless load balancer",
        {"type": "LoadBalancer", "clusterIP": "None", "clusterIPs": ["None"]},
        [
            (
                "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for "
                "LoadBalancer services"
            )
        ],
    ),
    ("no external name", {"type": "ExternalName"}, ["spec.externalName: Required value"]),
    (
        "external name with addresses",
        {
            "type": "ExternalName",
            "externalName": "a.b.",
            **IPS,
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
        },
        [
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services",
        ],
    ),
    (
        "unnamed ports",
        {"ports": [{"port": 80}, {"port": 81}]},
        ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
    ),
    ("port names differ", two({}, {"name": "a"}), ['spec.ports[1].name: Duplicate value: "a"']),
    (
        "port range",
        {"ports": [{"port": 65536, "targetPort": 1}]},
        ["spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive"],
    ),
    (
        "protocol",
        {"ports": [{"port": 80, "protocol": "tcp"}]},
        [
            (
                'spec.ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", '
                '"TCP", "UDP"'
            )
        ],
    ),
    (
        "target number",
        {"ports": [{"port": 80, "targetPort": -1}]},
        ["spec.ports[0].targetPort: Invalid value: -1: must be between 1 and 65535, inclusive"],
    ),
    (
        "target name",
        {"ports": [{"port": 80, "targetPort": "A-very-long-port--name-"}]},
        [
            f'spec.ports[0].targetPort: Invalid value: "A-very-long-port--name-": {problem}'
            for problem in (
                "must be no more than 15 characters",
                "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "must not contain consecutive hyphens",
                "must not begin or end with a hyphen",
            )
        ],
    ),
    (
        "target name of digits",
        {"ports": [{"port": 80, "targetPort": "80"}]},
        ['spec.ports[0].targetPort: Invalid value: "80": must contain at least one letter (a-z)'],
    ),
    (
        "same port and protocol",
        two({}, {"port": 80}),
        [
            (
                "spec.ports[1]: Duplicate value: "
                '{"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,'
                '"NodePort":0}'
            )
        ],
    ),
    ("same port, other protocol", two({}, {"port": 80, "protocol": "UDP"}), []),
    (
        "node port on a ClusterIP service",
        {"ports": [{"port": 80, "nodePort": 30000}]},
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    ),
    (
        "same node port",
        {"type": "NodePort", **two({"nodePort": 30000}, {"nodePort": 30000})},
        ["spec.ports[1].nodePort: Duplicate value: 30000"],
    ),
    (
        "affinity",
        {"sessionAffinity": "Foo"},
        ['spec.sessionAffinity: Unsupported value: "Foo": supported values: "ClientIP", "None"'],
    ),
    (
        "affinity timeout",
        {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
        },
        [
            (
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be "
                "greater than 0 and less than 86400"
            )
        ],
    ),
    (
        "type",
        {"type": "Foo"},
        [
            (
                'spec.type: Unsupported value: "Foo": supported values: "ClusterIP", '
                '"ExternalName", "LoadBalancer", "NodePort"'
            )
        ],
    ),
    (
        "first address",
        {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.6"]},
        ['spec.clusterIPs: Invalid value: ["10.96.0.6"]: first value must match `clusterIP`'],
    ),
    (
        "list alone",
        {"clusterIPs": ["10.96.0.6"]},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.96.0.6"]: must be empty when `clusterIP` is '
                "not "
                "specified"
            )
        ],
    ),
    ("single alone", {"clusterIP": "10.96.0.6"}, ["spec.clusterIPs: Required value"]),
    (
        "not an address",
        {"clusterIP": "x", "clusterIPs": ["x"]},
        [
            (
                'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. '
                "10.9.8.7 "
                "or 2001:db8::ffff)"
            )
        ],
    ),
    (
        "None and more",
        {"clusterIP": "None", "clusterIPs": ["None", "10.96.0.6"]},
        [
            (
                'spec.clusterIPs: Invalid value: ["None","10.96.0.6"]: \'None\' must be the first '
                "and "
                "only value"
            )
        ],
    ),
    (
        "three addresses",
        {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "fd00::1", "fd00::2"]},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.96.0.5","fd00::1","fd00::2"]: may only hold '
                "up "
                "to 2 values"
            )
        ],
    ),
    (
        "two of one family",
        {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "10.96.0.6"]},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.96.0.5","10.96.0.6"]: may specify no more '
                "than one "
                "IP for each IP "
                "family"
            )
        ],
    ),
    (
        "family mismatch",
        {**IPS, "ipFamilies": ["IPv6"]},
        [
            (
                'spec.clusterIPs[0]: Invalid value: "10.96.0.5": expected an IPv6 value as '
                "indicated "
                "by `ipFamilies[0]`"
            )
        ],
    ),
    (
        "family",
        {"ipFamilies": ["IPv5"]},
        ['spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"'],
    ),
    (
        "family twice",
        {"ipFamilies": ["IPv4", "IPv4"]},
        ['spec.ipFamilies[1]: Duplicate value: "IPv4"'],
    ),
    (
        "family policy",
        {"ipFamilyPolicy": "Foo"},
        [
            (
                'spec.ipFamilyPolicy: Unsupported value: "Foo": supported values: '
                '"PreferDualStack", "RequireDualStack", "SingleStack"'
            )
        ],
    ),
    (
        "external address",
        {"externalIPs": ["127.0.0.1"]},
        [
            (
                'spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range '
                "(127.0.0.0/8, ::1/128)"
            )
        ],
    ),
    (
        "source ranges",
        {"loadBalancerSourceRanges": ["10.0.0.0/8"]},
        [
            (
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is "
                "'LoadBalancer'"
            )
        ],
    ),
    (
        "bad source ranges",
        {
            "type": "LoadBalancer",
            "loadBalancerSourceRanges": [
                "10.0.0.0/8",
                " 10.0.0.0/8 ",
                "10.0.0.0",
                "::1/129",
                "10.0.0.1/8",
                "010.0.0.0/8",
            ],
        },
        [
            f"spec.LoadBalancerSourceRanges[{index}]: Invalid value: {problem}"
            for index, problem in (
                (2, '"10.0.0.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'),
                (3, '"::1/129": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'),
                (4, '"10.0.0.1/8": must not have bits set beyond the prefix length'),
                (5, '"010.0.0.0/8": must not have leading 0s in IP or prefix length'),
            )
        ],
    ),
    (
        "mapped source range",
        {"type": "LoadBalancer", "loadBalancerSourceRanges": ["::ffff:10.0.0.0/104"]},
        [
            (
                'spec.LoadBalancerSourceRanges[0]: Invalid value: "::ffff:10.0.0.0/104": '
                "must not have an IPv4-mapped IPv6 address"
            )
        ],
    ),
    (
        "the kubelet's port",
        {"type": "LoadBalancer", "ports": [{"port": 10250}]},
        [
            (
                "spec.ports[0]: Invalid value: 10250: may not expose port 10250 externally since "
                "it is used by kubelet"
            )
        ],
    ),
    (
        "a good class",
        {"type": "LoadBalancer", "loadBalancerClass": "a.b/c"},
        [],
    ),
    (
        "affinity without a timeout",
        {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}},
        },
        [
            (
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: "
                "must be greater than 0 and less than 86400"
            )
        ],
    ),
    (
        "allocate",
        {"allocateLoadBalancerNodePorts": True},
        [
            (
                "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is "
                "'LoadBalancer'"
            )
        ],
    ),
    (
        "class",
        {"loadBalancerClass": "a/b"},
        ["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    ),
    (
        "external policy",
        {"externalTrafficPolicy": "Local"},
        [
            (
                'spec.externalTrafficPolicy: Invalid value: "Local": may only be set for '
                "externally-accessible services"
            ),
        ],
    ),
    (
        "external policy value",
        {"type": "NodePort", "externalTrafficPolicy": "Foo"},
        [
            (
                'spec.externalTrafficPolicy: Unsupported value: "Foo": supported values: '
                '"Cluster", "Local"'
            )
        ],
    ),
    (
        "internal policy value",
        {"internalTrafficPolicy": "Foo"},
        [
            (
                'spec.internalTrafficPolicy: Unsupported value: "Foo": supported values: '
                '"Cluster", "Local"'
            )
        ],
    ),
    (
        "health check port",
        {"healthCheckNodePort": 30000},
        [
            (
                "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is "
                "'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
            )
        ],
    ),
    (
        "traffic distribution",
        {"trafficDistribution": "Foo"},
        [
            (
                'spec.trafficDistribution: Unsupported value: "Foo": supported values: '
                '"PreferClose", "PreferSameNode", "PreferSameZone"'
            )
        ],
    ),
    ("close", {"trafficDistribution": "PreferClose"}, []),
    ("zone", {"trafficDistribution": "PreferSameZone"}, []),
    ("node", {"trafficDistribution": "PreferSameNode"}, []),
    ("a heuristic", {"trafficDistribution": "example.com/Nearest"}, []),
    (
        "no name of a heuristic",
        {"trafficDistribution": "Example.com/Nearest"},
        [
            (
                'spec.trafficDistribution: Unsupported value: "Example.com/Nearest": supported '
                'values: "PreferClose", "PreferSameNode", "PreferSameZone"'
            )
        ],
    ),
]


@pytest.mark.parametrize(
    ("spec", "expected"), [row[1:] for row in RULES], ids=[row[0] for row in RULES]
)
def test_rule(spec: Any, expected: list[str]) -> None:
    assert told(service(**spec)) == expected


SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
MODE, HINTS = "service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"),
    [
        ({MODE: "Auto", HINTS: "Auto"}, {}, []),
        (
            {MODE: "Auto", HINTS: "Disabled"},
            {},
            [
                (
                    f'metadata.annotations[{MODE}]: Invalid value: "Auto": '
                    f"must match annotations[{HINTS}] when both are specified"
                )
            ],
        ),
        (
            {SOURCE_RANGES: "10.0.0.0/8"},
            {},
            [
                (
                    f"metadata.annotations[{SOURCE_RANGES}]: Forbidden: may only be used when "
                    "`type` is 'LoadBalancer'"
                )
            ],
        ),
        ({SOURCE_RANGES: " 10.0.0.0/8, 10.1.0.0/16"}, {"type": "LoadBalancer"}, []),
        (
            {SOURCE_RANGES: "x"},
            {"type": "LoadBalancer"},
            [
                (
                    f'metadata.annotations[{SOURCE_RANGES}]: Invalid value: "x": '
                    "must be a list of IP ranges. For example, 10.240.0.0/24,10.250.0.0/24"
                )
            ],
        ),
    ],
)
def test_annotations(annotations: Any, spec: Any, expected: list[str]) -> None:
    document = service(**spec)
    document["metadata"]["annotations"] = annotations
    assert told(document) == expected
