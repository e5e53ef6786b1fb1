"""Rules of volumes, profiles and updates of a Pod that no other quick test breaks: how each
complaint begins.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.test_validation_changes import judge
from tests.registry.test_validation_details import TEMPLATE, WORKLOAD, made
from tests.registry.test_validation_pods import complaints, container

from sliceplane.api.scheme import Pods, Resource, StatefulSets
from sliceplane.server.registry.validation.volumes import check_volumes
from sliceplane.server.registry.verbs.answers import validate_update

V0 = "spec.volumes[0]"
CONTEXT = "spec.securityContext"
CONTAINERS = TEMPLATE["spec"]["containers"]  # type: ignore[index]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def volume(**source: Any) -> Any:
    return {"volumes": [{"name": "v", **source}]}


def context(**members: Any) -> Any:
    return {"securityContext": members}


def claim(**members: Any) -> Any:
    plain = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return volume(ephemeral={"volumeClaimTemplate": {"spec": {**plain, **members}}})


CLAIM = f"{V0}.ephemeral.volumeClaimTemplate"
SPECS: dict[str, tuple[Any, list[str]]] = {
    "same name": (
        {"volumes": [{"name": "v", "emptyDir": {}}] * 2},
        [f'{V0[:-2]}1].name: Duplicate value: "v"'],
    ),
    "tenant": (
        volume(quobyte={"registry": "a:1", "volume": "v", "tenant": "x" * 65}),
        [f"{V0}.quobyte.tenant"],
    ),
    "option": (
        volume(flexVolume={"driver": "a/b", "options": {"x.k8s.io/a": "b"}}),
        [f"{V0}.flexVolume.options[x.k8s.io/a]: Invalid value"],
    ),
    "driver": (volume(csi={"driver": "_"}), [f"{V0}.csi.driver: Invalid value"]),
    "secret": (
        volume(csi={"driver": "a", "nodePublishSecretRef": {}}),
        [f"{V0}.csi.nodePublishSecretRef.name"],
    ),
    "amount": (
        volume(
            downwardAPI={"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}
        ),
        [f"{V0}.downwardAPI.resourceFieldRef.containerName: Required value"],
    ),
    "projected": (
        volume(projected={"sources": [{"downwardAPI": {"items": [{"path": "p"}]}}]}),
        [f"{V0}.projected.sources[0].downwardAPI: Required value"],
    ),
    "key": (
        volume(configMap={"name": "a", "items": [{"key": "k", "path": "../p"}]}),
        [f"{V0}.configMap.items[0].path: Invalid value"],
    ),
    "no key": (
        volume(configMap={"name": "a", "items": [{"path": "p"}]}),
        [f"{V0}.configMap.items[0].key: Required"],
    ),
    "partition": (
        volume(gcePersistentDisk={"pdName": "a", "partition": 256}),
        [f"{V0}.persistentDisk.partition: Invalid value: 256"],
    ),
    "repository": (
        volume(gitRepo={"directory": "a"}),
        [f"{V0}.gitRepo.repository: Required value"],
    ),
    "kind of disk": (
        volume(
            azureDisk={"diskName": "a", "diskURI": "https://b", "cachingMode": "x", "kind": "y"}
        ),
        [
            f'{V0}.azureDisk.cachingMode: Unsupported value: "x"',
            f'{V0}.azureDisk.kind: Unsupported value: "y"',
        ],
    ),
    "names of a volume": (
        volume(storageos={"volumeName": "_", "volumeNamespace": "_"}),
        [
            f"{V0}.storageos.volumeName: Invalid value",
            f"{V0}.storageos.volumeNamespace: Invalid value",
        ],
    ),
    "groups": (
        context(supplementalGroupsPolicy="x"),
        [f'{CONTEXT}.supplementalGroupsPolicy: Unsupported value: "x"'],
    ),
    "group of a source": (
        claim(dataSource={"apiGroup": "_", "kind": "k", "name": "n"}),
        [f'{CLAIM}.spec.dataSource.apiGroup: Invalid value: "_"'],
    ),
    "namespace of a source": (
        claim(dataSourceRef={"apiGroup": "a.b", "kind": "k", "name": "n", "namespace": "_"}),
        [f'{CLAIM}.spec.dataSourceRef.namespace: Invalid value: "_"'],
    ),
    "file of variables": (
        container(
            env=[
                {
                    "name": "A",
                    "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "_"}},
                }
            ]
        ),
        [
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value",
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found",
        ],
    ),
    "modes": (
        claim(accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
        [f"{CLAIM}.spec.accessModes: Forbidden"],
    ),
    "size": (
        claim(resources={"requests": {"storage": "0"}}),
        [f"{CLAIM}.spec.resources[storage]: Invalid value"],
    ),
    "annotation": (
        volume(
            ephemeral={
                "volumeClaimTemplate": {
                    "metadata": {"annotations": {"_": ""}},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                }
            }
        ),
        [f"{CLAIM}.metadata.annotations: Invalid value"],
    ),
    "seccomp path": (
        context(seccompProfile={"type": "Localhost", "localhostProfile": "/a"}),
        [f"{CONTEXT}.seccompProfile.localhostProfile: Invalid value"],
    ),
    "AppArmor path": (
        context(appArmorProfile={"type": "Localhost", "localhostProfile": "x" * 4096}),
        [f"{CONTEXT}.appArmorProfile.localhostProfile: Too long"],
    ),
    "credentials": (
        context(windowsOptions={"gmsaCredentialSpec": "x" * (64 * 1024 + 1)}),
        [f"{CONTEXT}.windowsOptions.gmsaCredentialSpec: Invalid value"],
    ),
    "sysctl": (context(sysctls=[{"value": "1"}]), [f"{CONTEXT}.sysctls[0].name: Required value"]),
    "Windows on Linux": (
        {"os": {"name": "linux"}, **context(windowsOptions={"runAsUserName": "a"})},
        [f"{CONTEXT}.windowsOptions: Forbidden"],
    ),
    "host ports": (
        {
            "initContainers": [
                {
                    "name": "i",
                    "image": "i:1",
                    "ports": [{"containerPort": 1, "hostPort": 1, "protocol": "TCP"}] * 2,
                }
            ]
        },
        ["spec.initContainers[0].ports[1].hostPort: Duplicate value"],
    ),
    "restart by a resize": (
        {
            "initContainers": [
                {
                    "name": "i",
                    "image": "i:1",
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
                }
            ]
        },
        ["spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value"],
    ),
}


def pod(**members: Any) -> Any:
    return {"spec": {**container(), **members}}


def gated(**members: Any) -> Any:
    return pod(schedulingGates=[{"name": "g"}], **members)


def nodes(*terms: Any) -> Any:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def rolling(most: Any) -> Any:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}}
    return {"spec": {**WORKLOAD, "updateStrategy": strategy}}


METADATA = {"name": "x", "namespace": "default"}
ZONE = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
RACK = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
CHANGES: dict[str, tuple[Resource, Any, Any, str]] = {
    "deadline taken": (
        Pods,
        pod(),
        pod(activeDeadlineSeconds=9),
        "spec.activeDeadlineSeconds: Invalid value: null",
    ),
    "later": (
        Pods,
        pod(activeDeadlineSeconds=10),
        pod(activeDeadlineSeconds=9),
        "spec.activeDeadlineSeconds: Invalid value: 10",
    ),
    "gate": (Pods, gated(), pod(), "spec.schedulingGates[0].name: Forbidden"),
    "node labels": (
        Pods,
        gated(),
        gated(nodeSelector={"a": "b"}),
        "spec.nodeSelector: Invalid value",
    ),
    "other terms": (
        Pods,
        gated(affinity=nodes(RACK)),
        gated(affinity=nodes(ZONE)),
        "spec.affinity.nodeAffinity",
    ),
    "fewer terms": (Pods, gated(), gated(affinity=nodes(ZONE)), "spec.affinity.nodeAffinity"),
    "mirror": (
        Pods,
        {**pod(), "metadata": {**METADATA, "annotations": {"kubernetes.io/config.mirror": "a"}}},
        {**pod(), "metadata": METADATA},
        "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add",
    ),
    "rolling update": (
        StatefulSets,
        rolling("x"),
        {"spec": WORKLOAD},
        "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value",
    ),
    "none at a time": (
        StatefulSets,
        rolling(0),
        {"spec": WORKLOAD},
        "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0",
    ),
    "more than all": (
        StatefulSets,
        rolling("101%"),
        {"spec": WORKLOAD},
        "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value",
    ),
    "annotation of a template": (
        StatefulSets,
        {
            "spec": {
                **WORKLOAD,
                "template": {
                    **TEMPLATE,
                    "metadata": {"labels": {"a": "b"}, "annotations": {"_": ""}},
                },
            }
        },
        {"spec": WORKLOAD},
        "spec.template",
    ),
}


@pytest.mark.parametrize(("members", "beginnings"), SPECS.values(), ids=SPECS)
def test_a_bad_volume_or_profile_is_refused(members: Any, beginnings: list[str]) -> None:
    judge(complaints(members), beginnings)


@pytest.mark.parametrize(("resource", "new", "old", "begins"), CHANGES.values(), ids=CHANGES)
def test_a_change_that_a_pod_may_not_make_is_refused(
    resource: Resource, new: Any, old: Any, begins: str
) -> None:
    told = [
        str(error) for error in validate_update(resource, made(resource, new), made(resource, old))
    ]
    assert any(text.startswith(begins) for text in told), told


def test_a_volume_has_a_type_and_its_claim_a_name() -> None:
    told = check_volumes("spec.volumes", [{"name": "v"}], None)[1]
    judge(
        [str(error) for error in told],
        ["spec.volumes[0]: Required value: must specify a volume type"],
    )
    ephemeral = claim()["volumes"]
    judge(
        [str(error) for error in check_volumes("v", ephemeral, "p" * 253)[1]],
        ["v[0].name: Invalid value"],
    )
