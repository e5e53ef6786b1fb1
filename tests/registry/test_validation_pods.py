"""Rules of a Pod's spec: one row for each, with the text that Kubernetes' source has
(pkg/apis/core/validation/validation.go, 1.36)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.growth.measure import assert_linear

from sliceplane.api.scheme import Deployments, Pods
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.validation.resources import AMOUNTS_MAX

C0 = "spec.containers[0]"
GPUS = f'{C0}.resources.requests[gpus]: Invalid value: "gpus": must be a standard resource'
LABEL_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
AFFINITY = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
)
REFERENCE = {"fieldRef": {"fieldPath": "metadata.name"}}


def container(**members: Any) -> Any:
    return {"containers": [{"name": "c", "image": "i:1", **members}]}


def needs(*terms: Any) -> Any:
    chosen = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": chosen}}


def spread(**members: Any) -> Any:
    plain = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**plain, **members}]}


ROWS: list[tuple[Any, list[str]]] = [
    (
        container(env=[{"name": "A", "value": "x", "valueFrom": REFERENCE}]),
        [
            (
                f'{C0}.env[0].valueFrom: Invalid value: "": may not be specified when `value` is '
                "not "
                "empty"
            )
        ],
    ),
    (
        container(env=[{"name": "A=B"}, {"value": "x"}]),
        [
            (
                f'{C0}.env[0].name: Invalid value: "A=B": a valid environment variable name must '
                "consist only of "
                "printable ASCII characters other than '='"
            ),
            f"{C0}.env[1].name: Required value",
        ],
    ),
    (
        container(env=[{"name": "A", "valueFrom": {}}]),
        [
            (
                f'{C0}.env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, '
                "`resourceFieldRef`, "
                "`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )
        ],
    ),
    (
        container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        [
            (
                f'{C0}.resources.requests: Invalid value: "2": must be less than or equal to cpu '
                "limit of 1"
            )
        ],
    ),
    (
        container(resources={"requests": {"memory": "-1Mi"}}),
        [
            (
                f'{C0}.resources.requests[memory]: Invalid value: "-1Mi": must be greater than or '
                "equal to 0"
            )
        ],
    ),
    (
        container(
            resources={"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}}
        ),
        [f"{C0}.resources: Forbidden: HugePages require cpu or memory"],
    ),
    (
        container(resources={"requests": {"gpus": "1"}, "claims": [{"name": "x"}]}),
        [
            f"{GPUS} type or fully qualified",
            f"{GPUS} for containers",
            (
                f'{C0}.resources.claims[0]: Not found: "x": must be one of the names in '
                "pod.spec.resourceClaims "
                "which is empty"
            ),
        ],
    ),
    (
        container(terminationMessagePolicy="x"),
        [
            (
                f'{C0}.terminationMessagePolicy: Unsupported value: "x": supported values: "File", '
                '"FallbackToLogsOnError"'
            )
        ],
    ),
    (
        container(
            livenessProbe={
                "exec": {"command": ["a"]},
                "tcpSocket": {"port": 1},
                "successThreshold": 2,
            }
        ),
        [
            f"{C0}.livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            f"{C0}.livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ],
    ),
    (
        container(readinessProbe={"periodSeconds": -1}),
        [
            f"{C0}.readinessProbe: Required value: must specify a handler type",
            (
                f"{C0}.readinessProbe.periodSeconds: Invalid value: -1: must be greater than or "
                "equal to 0"
            ),
        ],
    ),
    (
        container(lifecycle={"preStop": {"sleep": {"seconds": 60}}}),
        [
            (
                f"{C0}.lifecycle.preStop.sleep: Invalid value: 60: must be non-negative and less "
                "than terminationGracePeriodSeconds (30)"
            )
        ],
    ),
    (
        container(securityContext={"runAsUser": -1}),
        [
            (
                f"{C0}.securityContext.runAsUser: Invalid value: -1: must be between 0 and "
                "2147483647, inclusive"
            )
        ],
    ),
    (
        {
            "initContainers": [
                {"name": "a", "image": "i:1", "readinessProbe": {"exec": {"command": ["a"]}}}
            ]
        },
        [
            (
                "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init "
                "containers without restartPolicy=Always"
            )
        ],
    ),
    (
        {"dnsPolicy": "x"},
        [
            (
                'spec.dnsPolicy: Unsupported value: "x": supported values: '
                '"ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"'
            )
        ],
    ),
    (
        {"dnsPolicy": "None"},
        ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    ),
    (
        {"tolerations": [{"key": "a", "operator": "In", "effect": "x"}]},
        [
            (
                'spec.tolerations[0].operator: Unsupported value: "In": supported values: "Equal", '
                '"Exists"'
            ),
            (
                'spec.tolerations[0].effect: Unsupported value: "x": supported values: '
                '"NoSchedule", "PreferNoSchedule", "NoExecute"'
            ),
        ],
    ),
    (needs(), [f"{AFFINITY}: Required value: must have at least one node selector term"]),
    (
        needs({"matchExpressions": [{"key": "_", "operator": "In"}]}),
        [
            (
                f"{AFFINITY}[0].matchExpressions[0].values: Required value: must be specified when "
                "`operator` is 'In' or 'NotIn'"
            ),
            f'{AFFINITY}[0].matchExpressions[0].key: Invalid value: "_": {LABEL_KEY}',
        ],
    ),
    (
        spread(maxSkew=0, whenUnsatisfiable="x"),
        [
            (
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than "
                "zero"
            ),
            (
                'spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "x": '
                "supported values: "
                '"DoNotSchedule", "ScheduleAnyway"'
            ),
        ],
    ),
    (
        {"topologySpreadConstraints": spread()["topologySpreadConstraints"] * 2},
        [
            (
                "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate "
                "value: "
                '"{zone, DoNotSchedule}"'
            )
        ],
    ),
    (
        {"activeDeadlineSeconds": 0},
        [
            (
                "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, "
                "inclusive"
            )
        ],
    ),
    (
        {"os": {"name": "x"}},
        ['spec.os: Unsupported value: "x": supported values: "linux", "windows"'],
    ),
    ({"hostAliases": [{"ip": "x"}]}, [f'spec.hostAliases[0].ip: Invalid value: "x": {IP}']),
    ({"schedulingGates": [{"name": "a"}] * 2}, ['spec.schedulingGates[1]: Duplicate value: "a"']),
    (
        {"preemptionPolicy": "x"},
        [
            (
                'spec.preemptionPolicy: Unsupported value: "x": supported values: '
                '"PreemptLowerPriority", "Never"'
            )
        ],
    ),
    # Accepted, as upstream does.
    ({"terminationGracePeriodSeconds": -1}, []),
    (
        {
            **container(
                env=[
                    {
                        "name": "a.b c",
                        "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}},
                    }
                ]
            ),
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
        [],
    ),
    (
        container(
            env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}}]
        ),
        [],
    ),
    (
        container(
            resources={"limits": {"example.com/gpu": 1, "cpu": "1"}, "requests": {"cpu": "500m"}}
        ),
        [],
    ),
    ({"tolerations": [{"operator": "Exists"}]}, []),
    (spread(labelSelector={"matchLabels": {"a": "b"}}, matchLabelKeys=["a"]), []),
]


def complaints(members: Any) -> list[str]:
    document = {"metadata": {"name": "p"}, "spec": {**container(), **copy.deepcopy(members)}}
    kind_of(Pods).defaults(document)
    return [str(error) for error in kind_of(Pods).validate(document)]


@pytest.mark.parametrize(("members", "expected"), ROWS)
def test_a_spec_is_judged_as_upstream_does(members: Any, expected: list[str]) -> None:
    assert complaints(members) == expected


@pytest.mark.parametrize(("members", "expected"), ROWS)
def test_a_template_is_judged_as_a_pod(members: Any, expected: list[str]) -> None:
    labels = {"matchLabels": {"a": "b"}}
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {**container(), **copy.deepcopy(members)},
    }
    document = {"metadata": {"name": "d"}, "spec": {"selector": labels, "template": template}}
    kind_of(Deployments).defaults(document)
    told = [str(error) for error in kind_of(Deployments).validate(document)]
    assert [
        text.replace("spec.template.spec", "spec") for text in told[: len(expected)]
    ] == expected


def test_messages_of_missing_claims_do_not_grow_with_all_claims() -> None:
    """Each complaint lists the Pod's claims: 2,000 of them in 2,000 messages were hundreds of
    megabytes.
    """

    def make(count: int) -> Callable[[], list[str]]:
        members = container(
            resources={"claims": [{"name": f"missing-{number}"} for number in range(count)]}
        )
        members["resourceClaims"] = [{"name": f"claim-{number:040}"} for number in range(count)]
        return partial(complaints, members)

    assert sum(map(len, make(2000)())) < 1000 * 5000
    assert_linear(make, 2000)


def test_repeated_spread_constraints_are_found_in_one_pass() -> None:
    def make(count: int) -> Callable[[], list[str]]:
        constraints = [
            spread(topologyKey=f"zone-{number}")["topologySpreadConstraints"][0]
            for number in range(count)
        ]
        return partial(complaints, {"topologySpreadConstraints": constraints})

    assert make(10)() == []
    assert_linear(make, 4000)


def test_a_pod_has_a_bounded_number_of_amounts() -> None:
    """120,000 limits of one Pod held the loop for seconds with each change: quotas add
    amounts up.
    """
    limits = {f"example.com/{number}": "1" for number in range(AMOUNTS_MAX // 2 + 1)}
    detail = (
        f"must not have more than {AMOUNTS_MAX} amounts of resources in all containers together"
    )
    assert complaints(container(resources={"limits": limits})) == [
        f"spec.containers: Forbidden: {detail}"
    ]
