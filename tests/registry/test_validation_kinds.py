"""Metadata and the smaller kinds: one row for each rule, with the exact complaint."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointsObjects,
    Events,
    Leases,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.verbs.answers import refuse, validate_create, validate_update

QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def told(resource: Resource, document: Any) -> list[str]:
    return [str(error) for error in validate_create(resource, document)]


def made(resource: Resource, metadata: Any = None, **members: Any) -> Any:
    document = {"metadata": {"name": "x", "namespace": "default", **(metadata or {})}, **members}
    if not resource.namespaced:
        del document["metadata"]["namespace"]
    kind_of(resource).defaults(document)
    return document


def owner(**members: Any) -> Any:
    return {"apiVersion": "v1", "kind": "Service", "name": "a", "uid": "u", **members}


METADATA: list[tuple[str, Any, list[str]]] = [
    (
        "fine",
        {
            "labels": {"a.b/c": "d", "e": ""},
            "annotations": {"A.B/C": "?"},
            "finalizers": ["orphan", "a.b/c"],
        },
        [],
    ),
    ("no name", {"name": ""}, ["metadata.name: Required value: name or generateName is required"]),
    ("no namespace", {"namespace": ""}, ["metadata.namespace: Required value"]),
    ("trailing dash of a prefix", {"generateName": "web-"}, []),
    (
        "label key",
        {"labels": {"a b": "c"}},
        [f'metadata.labels: Invalid value: "a b": {QUALIFIED}'],
    ),
    (
        "label key prefix",
        {"labels": {"/b": "c"}},
        ['metadata.labels: Invalid value: "/b": prefix part must be non-empty'],
    ),
    (
        "label value",
        {"labels": {"a": "x" * 64}},
        [f'metadata.labels: Invalid value: "{"x" * 64}": must be no more than 63 bytes'],
    ),
    (
        "annotation key",
        {"annotations": {"a b": "c"}},
        [f'metadata.annotations: Invalid value: "a b": {QUALIFIED}'],
    ),
    (
        "annotation size",
        {"annotations": {"a": "x" * 262144}},
        ["metadata.annotations: Too long: may not be more than 262144 bytes"],
    ),
    (
        "owner without uid",
        {"ownerReferences": [owner(uid="")]},
        ['metadata.ownerReferences.uid: Invalid value: "": must not be empty'],
    ),
    (
        "owner without version",
        {"ownerReferences": [owner(apiVersion="", kind="", name="")]},
        [
            'metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty',
            'metadata.ownerReferences.kind: Invalid value: "": must not be empty',
            'metadata.ownerReferences.name: Invalid value: "": must not be empty',
        ],
    ),
    (
        "an event owns nothing",
        {"ownerReferences": [owner(kind="Event")]},
        [
            (
                "metadata.ownerReferences: Invalid value: "
                '{"apiVersion":"v1","kind":"Event","name":"a","uid":"u"}: /v1, '
                "Kind=Event is disallowed from being an owner"
            )
        ],
    ),
    (
        "two controllers",
        {"ownerReferences": [owner(controller=True), owner(controller=True, name="b")]},
        [
            (
                "metadata.ownerReferences: Invalid value: "
                '[{"apiVersion":"v1","kind":"Service","name":"a","uid":"u",'
                '"controller":true},{"apiVersion":"v1","kind":"Service","name":"b","uid":"u",'
                '"controller":true}]: Only one '
                'reference can have Controller set to true. Found "true" in references for '
                "Service/a and Service/b"
            )
        ],
    ),
    (
        "finalizer",
        {"finalizers": ["nodomain"]},
        [
            (
                'metadata.finalizers[0]: Invalid value: "nodomain": name is neither a standard '
                "finalizer "
                "name nor is it "
                "fully qualified"
            )
        ],
    ),
    (
        "both propagations",
        {"finalizers": ["orphan", "foregroundDeletion"]},
        [
            (
                'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: finalizer '
                "orphan and "
                "foregroundDeletion cannot be both set"
            )
        ],
    ),
]


@pytest.mark.parametrize(
    ("metadata", "expected"), [row[1:] for row in METADATA], ids=[row[0] for row in METADATA]
)
def test_metadata(metadata: Any, expected: list[str]) -> None:
    assert told(ConfigMaps, made(ConfigMaps, metadata)) == expected


def test_names_of_kinds() -> None:
    for name, problem in (("A", LABEL), ("a.b", "must not contain dots")):
        assert told(Services, made(Services, {"name": name}, spec={"ports": [{"port": 80}]})) == [
            f'metadata.name: Invalid value: "{name}": {problem}'
        ]
    assert told(ConfigMaps, made(ConfigMaps, {"name": "a.b"})) == []


def test_metadata_rules_are_told_twice_as_causes_and_once_as_text() -> None:
    old, new = made(ConfigMaps, {"uid": "1"}), made(ConfigMaps, {"uid": "2"})
    with pytest.raises(StatusError) as caught:
        refuse(ConfigMaps, new["metadata"], validate_update(ConfigMaps, new, old))
    assert (
        caught.value.message
        == 'ConfigMap "x" is invalid: metadata.uid: Invalid value: "2": field is immutable'
    )
    assert len((caught.value.details or {})["causes"]) == 2


SUBSET = {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}
CONTAINER = {"name": "c", "image": "i"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}


def pod(*containers: Any, **spec: Any) -> Any:
    return {
        "spec": {
            "containers": [dict(container) for container in containers or (CONTAINER,)],
            **spec,
        }
    }


MISMATCH = "`selector` does not match template `labels`"
KINDS: list[tuple[str, Resource, Any, list[str]]] = [
    ("endpoints", EndpointsObjects, {"subsets": [SUBSET]}, []),
    (
        "empty subset",
        EndpointsObjects,
        {"subsets": [{"ports": [{"port": 80}]}]},
        ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
    ),
    (
        "endpoints loopback",
        EndpointsObjects,
        {"subsets": [{"notReadyAddresses": [{"ip": "127.0.0.1"}]}]},
        [
            (
                'subsets[0].notReadyAddresses[0].ip: Invalid value: "127.0.0.1": may not be in '
                "the loopback range "
                "(127.0.0.0/8, ::1/128)"
            )
        ],
    ),
    (
        "endpoints of a node without a name",
        EndpointsObjects,
        {"subsets": [{"addresses": [{"ip": "10.0.0.1", "nodeName": ""}]}]},
        [f'subsets[0].addresses[0].nodeName: Invalid value: "": {check_dns_subdomain("")[0]}'],
    ),
    (
        "endpoints ports",
        EndpointsObjects,
        {
            "subsets": [
                {**SUBSET, "ports": [{"port": 0}, {"port": 1, "protocol": "x", "name": "n"}]}
            ]
        },
        [
            "subsets[0].ports[0].name: Required value",
            "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            (
                'subsets[0].ports[1].protocol: Unsupported value: "x": supported values: "SCTP", '
                '"TCP", "UDP"'
            ),
        ],
    ),
    ("lease", Leases, {"spec": {}}, []),
    (
        "lease numbers",
        Leases,
        {"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}},
        [
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "event elsewhere",
        Events,
        {"involvedObject": {"namespace": "zz"}},
        ['involvedObject.namespace: Invalid value: "zz": does not match event.namespace'],
    ),
    ("event about a node", Events, {"involvedObject": {}}, []),
    (
        "event with a time",
        Events,
        {"involvedObject": {"namespace": "zz"}, "eventTime": "2026-11-21T10:00:00.000000Z"},
        [],
    ),
    (
        "namespace finalizer",
        Namespaces,
        {"spec": {"finalizers": ["kubernetes", "x"]}},
        [
            (
                'spec.finalizers: Invalid value: "x": name is neither a standard finalizer name '
                "nor "
                "is it fully qualified"
            ),
        ],
    ),
    (
        "node",
        Nodes,
        {"spec": {"podCIDRs": ["x"], "taints": [{"key": "a", "effect": "E"}, {"key": "a"}]}},
        [
            (
                'spec.podCIDRs[0]: Invalid value: "x": must be a valid CIDR value, (e.g. '
                "10.9.8.0/24 "
                "or 2001:db8::/64)"
            ),
            (
                'spec.taints[0].effect: Unsupported value: "E": supported values: "NoExecute", '
                '"NoSchedule", '
                '"PreferNoSchedule"'
            ),
            "spec.taints[1].effect: Required value",
        ],
    ),
    ("pod", Pods, pod(), []),
    ("pod without containers", Pods, {"spec": {}}, ["spec.containers: Required value"]),
    (
        "containers",
        Pods,
        pod(
            {},
            {"name": "A", "image": "i"},
            {"name": "c", "image": " i"},
            {"name": "c", "image": "i"},
        ),
        [
            "spec.containers[0].name: Required value",
            "spec.containers[0].image: Required value",
            f'spec.containers[1].name: Invalid value: "A": {LABEL}',
            'spec.containers[3].name: Duplicate value: "c"',
            (
                'spec.containers[2].image: Invalid value: " i": must not have leading or trailing '
                "whitespace"
            ),
        ],
    ),
    (
        "container ports",
        Pods,
        pod({**CONTAINER, "ports": [{}, {"containerPort": 70000, "name": "80"}]}),
        [
            "spec.containers[0].ports[0].containerPort: Required value",
            (
                'spec.containers[0].ports[1].name: Invalid value: "80": must contain at least one '
                "letter (a-z)"
            ),
            (
                "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between "
                "1 "
                "and 65535, inclusive"
            ),
        ],
    ),
    (
        "pod policies",
        Pods,
        pod(restartPolicy="x", terminationGracePeriodSeconds=-1, hostname="A"),
        [
            (
                'spec.restartPolicy: Unsupported value: "x": supported values: "Always", '
                '"OnFailure", '
                '"Never"'
            ),
            f'spec.hostname: Invalid value: "A": {LABEL}',
        ],
    ),
    ("deployment", Deployments, {"spec": dict(WORKLOAD)}, []),
    (
        "no selector",
        Deployments,
        {"spec": {"template": TEMPLATE}},
        [
            "spec.selector: Required value",
            f'spec.template.metadata.labels: Invalid value: {{"a":"b"}}: {MISMATCH}',
        ],
    ),
    (
        "empty selector",
        ReplicaSets,
        {"spec": {"selector": {}, "template": TEMPLATE}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    (
        "selector misses its template",
        ReplicaSets,
        {"spec": {"selector": {"matchLabels": {"a": "c"}}, "template": TEMPLATE}},
        [
            (
                'spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not '
                "match "
                "template `labels`"
            )
        ],
    ),
    (
        "counts",
        Deployments,
        {"spec": {**WORKLOAD, "replicas": -1, "revisionHistoryLimit": -1, "minReadySeconds": 600}},
        [
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
            (
                "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than "
                "minReadySeconds"
            ),
        ],
    ),
    (
        "template restart policy",
        Deployments,
        {
            "spec": {
                **WORKLOAD,
                "template": {
                    **TEMPLATE,
                    "spec": {"containers": [CONTAINER], "restartPolicy": "Never"},
                },
            }
        },
        [
            (
                'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: '
                '"Always"'
            )
        ],
    ),
    (
        "strategy type",
        Deployments,
        {"spec": {**WORKLOAD, "strategy": {"type": "x"}}},
        [
            (
                'spec.strategy: Unsupported value: {"Type":"x","RollingUpdate":null}: '
                'supported values: "Recreate", "RollingUpdate"'
            )
        ],
    ),
    (
        "recreate",
        Deployments,
        {"spec": {**WORKLOAD, "strategy": {"type": "Recreate", "rollingUpdate": {}}}},
        [
            (
                "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy "
                "`type` is "
                "'Recreate'"
            )
        ],
    ),
    (
        "standstill",
        Deployments,
        {
            "spec": {
                **WORKLOAD,
                "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}},
            }
        },
        [
            (
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when "
                "`maxSurge` is 0"
            )
        ],
    ),
    (
        "percent",
        Deployments,
        {
            "spec": {
                **WORKLOAD,
                "strategy": {"rollingUpdate": {"maxSurge": "x", "maxUnavailable": "101%"}},
            }
        },
        [
            (
                'spec.strategy.rollingUpdate.maxSurge: Invalid value: "x": a valid percent string '
                "must be "
                "a numeric string "
                "followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
            (
                'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be '
                "greater than 100%"
            ),
        ],
    ),
    (
        "config keys",
        ConfigMaps,
        {"data": {"a b": ""}},
        [
            (
                'data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric '
                "characters, '-', '_' "
                "or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for "
                "validation is "
                "'[-._a-zA-Z0-9]+')"
            )
        ],
    ),
    (
        "config size",
        ConfigMaps,
        {"data": {"a": "x" * (1 << 20), "b": "y"}},
        ["[]: Too long: may not be more than 1048576 bytes"],
    ),
]


@pytest.mark.parametrize(
    ("resource", "members", "expected"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS]
)
def test_kind(resource: Resource, members: Any, expected: list[str]) -> None:
    assert told(resource, made(resource, **copy.deepcopy(members))) == expected


def test_an_event_of_another_namespace_needs_an_object() -> None:
    assert told(Events, made(Events, {"namespace": "n1"}, involvedObject={})) == [
        'involvedObject.namespace: Invalid value: "": does not match event.namespace'
    ]


def test_selectors_stay() -> None:
    old = made(Deployments, spec=dict(WORKLOAD))
    labels = {"a": "b", "c": "d"}
    changed = {
        "selector": {"matchLabels": {"c": "d"}},
        "template": {**TEMPLATE, "metadata": {"labels": labels}},
    }
    assert [
        str(error) for error in validate_update(Deployments, made(Deployments, spec=changed), old)
    ] == ['spec.selector: Invalid value: {"matchLabels":{"c":"d"}}: field is immutable']


def test_immutable_config_maps() -> None:
    old = made(ConfigMaps, data={"a": "1"}, immutable=True)
    assert [
        str(error) for error in validate_update(ConfigMaps, made(ConfigMaps, data={"a": "2"}), old)
    ] == [
        "immutable: Forbidden: field is immutable when `immutable` is set",
        "data: Forbidden: field is immutable when `immutable` is set",
    ]


def test_pod_cidrs_stay() -> None:
    old = made(Nodes, spec={"podCIDRs": ["10.0.0.0/24"]})
    assert [
        str(error)
        for error in validate_update(Nodes, made(Nodes, spec={"podCIDRs": ["10.1.0.0/24"]}), old)
    ] == ['spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid']
    assert validate_update(Nodes, old, made(Nodes, spec={})) == []


def test_unchanged_subsets_are_not_asked_about() -> None:
    bad = made(EndpointsObjects, subsets=[{"addresses": [{"ip": "127.0.0.1"}]}])
    assert validate_update(EndpointsObjects, bad, bad) == []
