"""Rules of a Pod's spec that ``test_validation_pods`` does not break: how each complaint begins."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.test_validation_pods import complaints, container, needs, spread

C0 = "spec.containers[0]"
ENV = f"{C0}.env[0].valueFrom"
NODES = "spec.affinity.nodeAffinity"
TERM = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
SPREAD = "spec.topologySpreadConstraints[0]"
HTTP = {"port": 80, "path": "/", "scheme": "HTTP"}


def source(**members: Any) -> Any:
    return container(env=[{"name": "A", "valueFrom": members}])


def field(path: str) -> Any:
    return source(fieldRef={"fieldPath": path})


def limits(**amounts: Any) -> Any:
    return container(
        resources={"limits": {name.replace("_", "-"): amount for name, amount in amounts.items()}}
    )


def named_limits(amounts: Any) -> Any:
    return container(resources={"limits": amounts, "requests": amounts})


def probe(member: str = "livenessProbe", **members: Any) -> Any:
    return container(**{member: {"successThreshold": 1, **members}})


def get(**members: Any) -> Any:
    return probe(httpGet={**HTTP, **members})


def security(**members: Any) -> Any:
    return container(securityContext=members)


def prefers(*terms: Any) -> Any:
    return {
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": list(terms)}
        }
    }


def beside(required: Any = (), preferred: Any = ()) -> Any:
    chosen = {
        "requiredDuringSchedulingIgnoredDuringExecution": list(required),
        "preferredDuringSchedulingIgnoredDuringExecution": list(preferred),
    }
    return {"affinity": {"podAffinity": chosen}}


def expression(operator: str, *values: str, key: str = "a") -> Any:
    return needs({"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


def fields(operator: str, *values: str, key: str = "metadata.name") -> Any:
    return needs({"matchFields": [{"key": key, "operator": operator, "values": list(values)}]})


def tolerates(**members: Any) -> Any:
    return {"tolerations": [members]}


ROWS: dict[str, tuple[Any, list[str]]] = {
    # Environment
    "two sources": (
        source(fieldRef={"fieldPath": "metadata.name"}, secretKeyRef={"name": "s", "key": "k"}),
        [ENV],
    ),
    "no field": (field(""), [f"{ENV}.fieldRef.fieldPath: Required value"]),
    "label key": (field("metadata.labels['_']"), [f"{ENV}.fieldRef: Invalid value"]),
    "all labels": (field("metadata.labels"), [f"{ENV}.fieldRef.fieldPath: Unsupported value"]),
    "no such field": (field("spec.x"), [f"{ENV}.fieldRef.fieldPath: Invalid value"]),
    "no resource": (
        source(resourceFieldRef={}),
        [f"{ENV}.resourceFieldRef.resource: Required value"],
    ),
    "resource": (
        source(resourceFieldRef={"resource": "x"}),
        [f"{ENV}.resourceFieldRef.resource: Unsupported value"],
    ),
    "key of a map": (
        source(configMapKeyRef={"name": "_", "key": ""}),
        [
            f"{ENV}.configMapKeyRef.name: Invalid value",
            f"{ENV}.configMapKeyRef.key: Required value",
        ],
    ),
    "key of a secret": (
        source(secretKeyRef={"name": "s", "key": "a b"}),
        [f"{ENV}.secretKeyRef.key: Invalid value"],
    ),
    "prefix": (
        container(envFrom=[{"prefix": "=", "configMapRef": {"name": "a"}}]),
        [f"{C0}.envFrom[0].prefix: Invalid value"],
    ),
    "map": (
        container(envFrom=[{"configMapRef": {"name": "_"}}]),
        [f"{C0}.envFrom[0].configMapRef.name: Invalid"],
    ),
    "no map": (
        container(envFrom=[{"configMapRef": {}}]),
        [f"{C0}.envFrom[0].configMapRef.name: Required value"],
    ),
    "no source": (
        container(envFrom=[{}]),
        [f'{C0}.envFrom: Invalid value: "": must specify one of'],
    ),
    "map and secret": (
        container(envFrom=[{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]),
        [f'{C0}.envFrom: Invalid value: "": may not have more than one field'],
    ),
    # Amounts
    "negative": (
        limits(cpu="-1"),
        [
            f"{C0}.resources.limits[cpu]: Invalid value",
            f"{C0}.resources.requests[cpu]: Invalid value",
        ],
    ),
    "name": (
        named_limits({"a b/c": "1"}),
        [f"{C0}.resources.limits[a b/c]: Invalid"] * 2
        + [f"{C0}.resources.requests[a b/c]: Invalid"] * 2,
    ),
    "extended": (
        named_limits({"requests.x.y/z": "1"}),
        [
            f"{C0}.resources.limits[requests.x.y/z]: Invalid",
            f"{C0}.resources.requests[requests.x.y/z]: Invalid",
        ],
    ),
    "half": (
        named_limits({"x.y/z": "500m"}),
        [f"{C0}.resources.limits[x.y/z]: Invalid", f"{C0}.resources.requests[x.y/z]: Invalid"],
    ),
    "huge": (
        limits(cpu="1", hugepages_2Mi="3Mi"),
        [
            f"{C0}.resources.limits[hugepages-2Mi]: Invalid",
            f"{C0}.resources.requests[hugepages-2Mi]: Invalid",
        ],
    ),
    "no limit": (
        container(resources={"requests": {"x.y/z": "1"}}),
        [f"{C0}.resources.limits: Required value: Limit must be set"],
    ),
    "claims": (
        {
            **container(resources={"claims": [{}, {"name": "a"}, {"name": "a"}]}),
            "resourceClaims": [{"name": "a", "resourceClaimName": "x"}],
        },
        [
            f"{C0}.resources.claims[0]: Required value",
            f'{C0}.resources.claims[2]: Duplicate value: "a"',
        ],
    ),
    "overhead": ({"overhead": {"cpu": "-1"}}, ["spec.overhead.limits[cpu]: Invalid value"]),
    # Probes
    "patience": (
        probe(exec={"command": ["a"]}, terminationGracePeriodSeconds=0),
        [
            (
                f"{C0}.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be "
                "greater than 0"
            )
        ],
    ),
    "patience of readiness": (
        probe("readinessProbe", exec={"command": ["a"]}, terminationGracePeriodSeconds=1),
        [f"{C0}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set"],
    ),
    "command": (probe(exec={}), [f"{C0}.livenessProbe.exec.command: Required value"]),
    "port": (
        probe(tcpSocket={"port": 70000}),
        [f"{C0}.livenessProbe.tcpSocket.port: Invalid value: 70000"],
    ),
    "port name": (
        probe(tcpSocket={"port": "-"}),
        [f'{C0}.livenessProbe.tcpSocket.port: Invalid value: "-"'] * 2,
    ),
    "scheme": (get(scheme="FTP"), [f"{C0}.livenessProbe.httpGet.scheme: Unsupported value"]),
    "header": (
        get(httpHeaders=[{"name": "a b", "value": ""}]),
        [f"{C0}.livenessProbe.httpGet.httpHeaders: Invalid"],
    ),
    # What a container may do
    "mount": (security(procMount="x"), [f"{C0}.securityContext.procMount: Unsupported value"]),
    "unmasked": (
        security(procMount="Unmasked"),
        [f"{C0}.securityContext.procMount: Invalid value"],
    ),
    "no profile": (
        security(seccompProfile={}),
        [f"{C0}.securityContext.seccompProfile.type: Required value"],
    ),
    "profile": (
        security(seccompProfile={"type": "x"}),
        [f"{C0}.securityContext.seccompProfile.type: Unsupported value"],
    ),
    "local profile": (
        security(seccompProfile={"type": "Localhost"}),
        [f"{C0}.securityContext.seccompProfile.localhostProfile: Required value"],
    ),
    "escalation": (
        security(allowPrivilegeEscalation=False, privileged=True),
        [f"{C0}.securityContext: Invalid value"],
    ),
    "of the Pod": (
        {
            "securityContext": {
                "fsGroup": -1,
                "supplementalGroups": [-1],
                "fsGroupChangePolicy": "x",
                "seccompProfile": {"type": "x"},
            }
        },
        [
            "spec.securityContext.fsGroup: Invalid value",
            "spec.securityContext.supplementalGroups[0]: Invalid value",
            "spec.securityContext.fsGroupChangePolicy: Unsupported value",
            "spec.securityContext.seccompProfile.type: Unsupported value",
        ],
    ),
    # Names, ports, images
    "pull policy": (container(imagePullPolicy="x"), [f"{C0}.imagePullPolicy: Unsupported value"]),
    "same name": (
        {"containers": [{"name": "c", "image": "i:1"}] * 2},
        ['spec.containers[1].name: Duplicate value: "c"'],
    ),
    "host port": (
        container(ports=[{"containerPort": 1, "hostPort": 70000}]),
        [f"{C0}.ports[0].hostPort: Invalid value: 70000"],
    ),
    "protocol": (
        container(ports=[{"containerPort": 1, "protocol": "x"}]),
        [f"{C0}.ports[0].protocol: Unsupported value"],
    ),
    "same port name": (
        container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
        [f'{C0}.ports[1].name: Duplicate value: "a"'],
    ),
    "gate": (
        {"readinessGates": [{"conditionType": "_"}]},
        ["spec.readinessGates[0].conditionType: Invalid value"],
    ),
    "node labels": ({"nodeSelector": {"_": "a"}}, ["spec.nodeSelector: Invalid value"]),
    "system": ({"os": {}}, ["spec.os.name: Required value"]),
    # DNS
    "no server": (
        {"dnsPolicy": "None", "dnsConfig": {}},
        ["spec.dnsConfig.nameservers: Required value"],
    ),
    "servers": (
        {"dnsConfig": {"nameservers": ["10.0.0.1"] * 4}},
        ["spec.dnsConfig.nameservers: Invalid value"],
    ),
    "server": (
        {"dnsConfig": {"nameservers": ["x"]}},
        ["spec.dnsConfig.nameservers[0]: Invalid value"],
    ),
    "searches": (
        {"dnsConfig": {"searches": ["a"] * 33}},
        ["spec.dnsConfig.searches: Invalid value"],
    ),
    "option": ({"dnsConfig": {"options": [{}]}}, ["spec.dnsConfig.options[0]"]),
    "alias": (
        {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["_"]}]},
        ["spec.hostAliases[0].hostnames[0]: Invalid value"],
    ),
    # Tolerations
    "key": (tolerates(key="_", operator="Exists"), ["spec.tolerations[0].key: Invalid value"]),
    "all keys": (tolerates(operator="Equal"), ["spec.tolerations[0].operator: Invalid value"]),
    "seconds": (
        tolerates(key="a", operator="Exists", tolerationSeconds=1),
        ["spec.tolerations[0].effect: Invalid"],
    ),
    "value": (tolerates(key="a", value="_"), ["spec.tolerations[0].operator: Invalid value"]),
    "no value": (
        tolerates(key="a", operator="Exists", value="b"),
        ["spec.tolerations[0].operator: Invalid value"],
    ),
    # Affinity
    "weight": (
        prefers(
            {"weight": 0, "preference": {"matchExpressions": [{"key": "_", "operator": "Exists"}]}}
        ),
        [
            f"{NODES}.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
            f"{NODES}.preferred",
        ],
    ),
    "exists": (
        expression("Exists", "b"),
        [f"{NODES}.{TERM}.matchExpressions[0].values: Forbidden"],
    ),
    "greater": (expression("Gt"), [f"{NODES}.{TERM}.matchExpressions[0].values: Required value"]),
    "operator": (expression("x"), [f"{NODES}.{TERM}.matchExpressions[0].operator: Invalid value"]),
    "label value": (
        expression("In", "_"),
        [f"{NODES}.{TERM}.matchExpressions[0].values[0]: Invalid value"],
    ),
    "field operator": (
        fields("Gt", "a"),
        [f"{NODES}.{TERM}.matchFields[0].operator: Invalid value"],
    ),
    "field values": (fields("In"), [f"{NODES}.{TERM}.matchFields[0].values: Required value"]),
    "field key": (
        fields("In", "a", key="x"),
        [f"{NODES}.{TERM}.matchFields[0].key: Invalid value"],
    ),
    "field value": (fields("In", "_"), [f"{NODES}.{TERM}.matchFields[0].values[0]: Invalid value"]),
    "beside Pods": (
        beside([{"labelSelector": {}, "namespaces": ["_"], "topologyKey": ""}]),
        ["spec.affinity.podAffinity.required"] * 4,
    ),
    "rather beside Pods": (
        beside(
            (), [{"weight": 101, "podAffinityTerm": {"topologyKey": "a b", "labelSelector": {}}}]
        ),
        ["spec.affinity.podAffinity.preferred"] * 2,
    ),
    "keys without a selector": (
        beside([{"matchLabelKeys": ["a"], "topologyKey": "z"}]),
        ["spec.affinity.podAffinity.required"],
    ),
    "keys": (
        beside(
            [
                {
                    "labelSelector": {},
                    "matchLabelKeys": ["_", "b"],
                    "mismatchLabelKeys": ["b"],
                    "topologyKey": "z",
                }
            ]
        ),
        ["spec.affinity.podAffinity.required"] * 2,
    ),
    "keys twice": (
        beside(
            [
                {
                    "labelSelector": {
                        "matchLabels": {"a": "b"},
                        "matchExpressions": [{"key": "a", "operator": "Exists"}],
                    },
                    "matchLabelKeys": ["a"],
                    "topologyKey": "z",
                }
            ]
        ),
        ["spec.affinity.podAffinity.required"],
    ),
    # Topology spread
    "topology": (spread(topologyKey=""), [f"{SPREAD}.topologyKey: Required value"]),
    "domains": (
        spread(minDomains=0),
        [f"{SPREAD}.minDomains: Invalid value: 0: must be greater than zero"],
    ),
    "domains of a wish": (
        spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"),
        [f"{SPREAD}.minDomains: Invalid value: 1: can only use minDomains"],
    ),
    "policy": (spread(nodeTaintsPolicy="x"), [f"{SPREAD}.nodeTaintsPolicy: Unsupported value"]),
    "spread keys": (spread(matchLabelKeys=["a"]), [f"{SPREAD}.matchLabelKeys: Forbidden"]),
    "spread selector": (
        spread(labelSelector={"matchLabels": {"_": "a"}}),
        [f"{SPREAD}.labelSelector.matchLabels: Invalid value"],
    ),
    "scheduling gate": (
        {"schedulingGates": [{"name": "_"}]},
        ["spec.schedulingGates[0]: Invalid value"],
    ),
}


@pytest.mark.parametrize(("members", "beginnings"), ROWS.values(), ids=ROWS)
def test_a_bad_detail_of_a_spec_is_refused(members: Any, beginnings: list[str]) -> None:
    told = complaints(members)
    assert len(told) == len(beginnings), told
    assert all(text.startswith(begins) for text, begins in zip(told, beginnings, strict=True)), told
