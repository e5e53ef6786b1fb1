"""Pods that random drawing (``specs``) seldom meets: one for each rule that it missed."""

from __future__ import annotations

import copy
from typing import Any

from tests.peers.specs import CONTAINER, good


def _volumes(*sources: Any) -> Any:
    return {"volumes": [{"name": f"v{number}", **source} for number, source in enumerate(sources)]}


def _container(**members: Any) -> Any:
    return {"containers": [{**CONTAINER, **members}]}


def _env(*sources: Any) -> Any:
    return _container(env=[{"name": "A", "valueFrom": source} for source in sources])


def _affinity(*terms: Any) -> Any:
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}
    }
    return {"affinity": {"nodeAffinity": required}}


_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_PROFILES = (
    {"type": "Localhost", "localhostProfile": "a"},
    {"type": "RuntimeDefault"},
    {"type": "Unconfined"},
)
_SAID = (
    "localhost/a",
    "localhost/b",
    "runtime/default",
    "docker/default",
    "unconfined",
    "x",
    "localhost/../a",
)
_SEEN = "seccomp.security.alpha.kubernetes.io/pod"
_SEEN_OF = "container.seccomp.security.alpha.kubernetes.io/c"
_ARMOR_OF = "container.apparmor.security.beta.kubernetes.io/c"
#: what random drawing seldom meets: members of the spec of a Pod, and its annotations
EXTRA: tuple[tuple[Any, dict[str, str]], ...] = (
    *(
        (members, {})
        for members in (
            _volumes(
                {"ephemeral": {"volumeClaimTemplate": {"spec": _CLAIM}}},
                {"persistentVolumeClaim": {"claimName": "o-v0"}},
            ),
            _volumes(
                {
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "metadata": {"name": "a", "labels": {"_": "a"}},
                            "spec": {},
                        }
                    }
                }
            ),
            _volumes(
                {
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "spec": {**_CLAIM, "accessModes": ["x", "ReadWriteOncePod"]}
                        }
                    }
                }
            ),
            _volumes(
                *(
                    {"ephemeral": {"volumeClaimTemplate": {"spec": {**_CLAIM, **source}}}}
                    for source in (
                        {
                            "dataSource": {"kind": "a", "name": "b"},
                            "dataSourceRef": {"kind": "a", "name": "b", "namespace": "c"},
                        },
                        {
                            "dataSource": {"kind": "a", "name": "b"},
                            "dataSourceRef": {"kind": "c", "name": "b"},
                        },
                    )
                )
            ),
            _volumes(
                {
                    "iscsi": {
                        "targetPortal": "p" * 70,
                        "iqn": "foo",
                        "initiatorName": "naa." + "0" * 32,
                        "lun": 1,
                    }
                }
            ),
            _volumes(
                {
                    "iscsi": {
                        "targetPortal": "p",
                        "iqn": "naa.1",
                        "initiatorName": "x",
                        "chapAuthDiscovery": True,
                    }
                }
            ),
            _volumes({"flocker": {"datasetName": "a/b", "datasetUUID": "x"}}, {"flocker": {}}),
            _volumes(
                *(
                    {"quobyte": {"registry": registry, "volume": "v"}}
                    for registry in ("", "a", "a:1,b:c:d", "[::1]:2")
                )
            ),
            _volumes(
                *(
                    {"fc": source}
                    for source in (
                        {},
                        {"targetWWNs": ["a"]},
                        {"targetWWNs": ["a"], "wwids": ["b"], "lun": 256},
                    )
                )
            ),
            _volumes(
                {"csi": {"driver": "a" * 70}},
                {"csi": {"driver": "a", "nodePublishSecretRef": {"name": "_"}}},
            ),
            _volumes(
                {
                    "downwardAPI": {
                        "items": [
                            {"path": "a"},
                            {"path": "..b", "fieldRef": {"fieldPath": "spec.nodeName"}},
                        ]
                    }
                }
            ),
            _volumes(
                {
                    "downwardAPI": {
                        "items": [
                            {
                                "path": "a",
                                "fieldRef": {"fieldPath": "metadata.name"},
                                "resourceFieldRef": {},
                            }
                        ]
                    }
                }
            ),
            _volumes(
                {
                    "projected": {
                        "sources": [
                            {
                                "downwardAPI": {
                                    "items": [
                                        {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}
                                    ]
                                    * 2
                                }
                            },
                            {"secret": {"name": "s", "items": [{"key": "a", "path": "a"}]}},
                            {
                                "configMap": {
                                    "items": [{"key": "a", "path": "b"}, {"key": "a", "path": "b"}]
                                }
                            },
                            {"serviceAccountToken": {"path": "t", "expirationSeconds": 2**33}},
                            {
                                "serviceAccountToken": {"path": "/t", "expirationSeconds": 1},
                                "secret": {"name": "s"},
                            },
                        ]
                    }
                }
            ),
            _volumes(
                {"emptyDir": {"sizeLimit": "-1"}},
                {"hostPath": {"path": "/a", "type": "x"}},
                {"image": {}},
                {"nfs": {}},
            ),
            {
                "securityContext": {"sysctls": [{"name": "net.a", "value": "1"}] * 2},
                "hostNetwork": True,
            },
            {
                "securityContext": {
                    "sysctls": [
                        {"name": "a" * 254, "value": "1"},
                        {"name": "kernel/sem", "value": ""},
                    ]
                },
                "hostIPC": True,
            },
            _container(
                securityContext={
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"add": ["CAP_SYS_ADMIN"]},
                }
            ),
            _container(
                securityContext={
                    "allowPrivilegeEscalation": False,
                    "privileged": True,
                    "seLinuxOptions": {"level": "a"},
                    "seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"},
                    "appArmorProfile": {"type": "Localhost", "localhostProfile": " a"},
                    "windowsOptions": {"runAsUserName": "a", "hostProcess": False},
                }
            ),
            {
                **_container(securityContext={"windowsOptions": {"hostProcess": False}}),
                "securityContext": {"windowsOptions": {"hostProcess": True}},
                "initContainers": [{**CONTAINER, "name": "d"}],
            },
            {
                "securityContext": {"windowsOptions": {"hostProcess": True}},
                "hostNetwork": True,
                "os": {"name": "windows"},
            },
            _container(restartPolicy="Never", restartPolicyRules=[{"action": "Restart"}] * 21),
            _container(
                restartPolicy="Never",
                restartPolicyRules=[
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [1] * 256}}
                ],
            ),
            {
                "initContainers": [
                    {**CONTAINER, "name": "d", "restartPolicyRules": [{"action": "Restart"}]}
                ]
            },
            _container(
                lifecycle={
                    "preStop": {"sleep": {"seconds": 100}},
                    "postStart": {"sleep": {"seconds": -1}},
                }
            ),
            {
                **_container(lifecycle={"preStop": {"sleep": {"seconds": 0}}}),
                "terminationGracePeriodSeconds": -1,
            },
            _env(
                {},
                {"fieldRef": {}},
                {"fieldRef": {"fieldPath": "status.x['a']"}},
                {"fieldRef": {"fieldPath": "['a']"}},
            ),
            _env(
                {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}},
                {"resourceFieldRef": {}},
            ),
            _env({"resourceFieldRef": {"resource": "limits.hugepages-1Gi", "divisor": "3"}}),
            _env(
                {"configMapKeyRef": {"key": "." * 254}},
                {"secretKeyRef": {"name": "a", "key": ".."}},
            ),
            _container(
                envFrom=[
                    {"configMapRef": {"name": "a-"}},
                    {"prefix": "=", "secretRef": {"name": "A-"}},
                    {},
                ]
            ),
            _container(
                resources={
                    "limits": {"example.com/a": "1500m"},
                    "requests": {"example.com/a": "1500m"},
                }
            ),
            _container(resources={"limits": {"requests.example.com/a": "1"}}),
            _container(
                resources={"limits": {"kubernetes.io/a": "1", "pods": "1", "hugepages-x": "1"}}
            ),
            _container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "1.5"}}),
            _container(resources={"requests": {"example.com/a": "1"}, "limits": {"cpu": "-0.5"}}),
            _container(
                resources={"claims": [{"name": "a", "request": "b"}, {"name": "a"}, {"name": "a"}]}
            ),
            {
                **_container(resources={"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
                "resources": {"limits": {"cpu": "1"}},
            },
            {
                **_container(resources={"requests": {"cpu": "1500m"}}),
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            },
            {
                **_container(resources={"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}}),
                "resources": {"limits": {"cpu": "1"}},
            },
            _affinity(),
            _affinity(
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["B_"]}]}
            ),
            _affinity({"matchFields": [{"key": "metadata.uid", "operator": "Exists"}]}),
            {
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"x": "y"}},
                        "matchLabelKeys": ["x"],
                    }
                ]
            },
            {
                "resourceClaims": [
                    {"name": "a"},
                    {"name": "a", "resourceClaimName": "b"},
                    {"resourceClaimTemplateName": "_"},
                ]
            },
            {
                "ephemeralContainers": [
                    {**CONTAINER, "name": "e", "image": "i ", "targetContainerName": "x"}
                ]
            },
            {"nodeName": "n", "schedulingGates": [{"name": "a"}]},
            {
                "serviceAccountName": "",
                **_volumes({"projected": {"sources": [{"serviceAccountToken": {"path": "a"}}]}}),
            },
            {"terminationGracePeriodSeconds": -1},
        )
    ),
    *(
        (
            {
                "securityContext": {"seccompProfile": profile},
                **_container(securityContext={member: profile}),
            },
            {key: said},
        )
        for key, member in (
            (_SEEN, "seccompProfile"),
            (_SEEN_OF, "seccompProfile"),
            (_ARMOR_OF, "appArmorProfile"),
        )
        for profile in _PROFILES
        for said in _SAID
    ),
    (
        {
            "os": {"name": "windows"},
            **_container(securityContext={"appArmorProfile": _PROFILES[1]}),
        },
        {_ARMOR_OF: "x"},
    ),
    ({"resourceClaims": [{"name": "a"}]}, {"kubernetes.io/config.mirror": "x"}),
    ({}, {"controller.kubernetes.io/pod-deletion-cost": str(2**31)}),
    ({}, {"controller.kubernetes.io/pod-deletion-cost": "-0"}),
)


def extra(number: int) -> Any:
    """A Pod with ``EXTRA[number]``."""
    members, annotations = EXTRA[number]
    head = {"name": "o", "labels": {"x": "y"}, "annotations": annotations}
    return copy.deepcopy(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": head,
            "spec": {**good("Pod")["spec"], **members},
        }
    )
