"""Random objects with a Pod in them, most of them bad in one or two places.

``Maker(seed)`` makes the same objects everywhere: it draws members from the schema of the kind, and
their values from ``VALUES``, else from those of their type. ``tests/peers/test_validation.py``
shows them to Kubernetes' own rules.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from sliceplane.server.documents.schema import Type, lookup_kind, struct

KINDS = {
    "Pod": "v1",
    "PodTemplate": "v1",
    "ReplicationController": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
}
NAMES = ("a", "b", "c", "Bad_", "a.b", "")
PATHS = ("p", "/p/q", "../p", "p/../q", "..p", "")
AMOUNTS = ("1", "500m", "2Gi", "-1", "0", "1.5", "3")
FIELDS = (
    "metadata.name",
    "metadata.labels",
    "metadata.labels['a']",
    "metadata.annotations['_']",
    "spec.x",
)
FURTHER_FIELDS = ("spec.host", "status.phase", "status.podIPs['a']", "spec.nodeName", "")
PORTS = (80, 0, 70000, "web", "-", 443)
#: values of members by name, where those of the type would seldom do
VALUES: dict[str, tuple[Any, ...]] = {
    "name": NAMES,
    "image": ("i:1", "i:1", " i", ""),
    "restartPolicy": (
        "Always",
        "Never",
        "OnFailure",
        "Sometimes",
        "RestartContainer",
        "NotRequired",
    ),
    "dnsPolicy": ("ClusterFirst", "None", "Default", "Other"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError", "Log"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Sometimes"),
    "pullPolicy": ("Always", "Never", "Sometimes"),
    "protocol": ("TCP", "UDP", "ICMP"),
    "fieldPath": (*FIELDS, *FURTHER_FIELDS),
    "apiVersion": ("v1", "v1", "v2"),
    "resource": (
        "limits.cpu",
        "requests.memory",
        "limits.hugepages-2Mi",
        "limits.disk",
        "requests.ephemeral-storage",
        "",
    ),
    "divisor": ("1", "1m", "1Mi", "2", "0"),
    "key": ("a", "a/b", "..a", "a b", "", "node-role.io/x"),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "", "Foo"),
    "effect": ("NoExecute", "NoSchedule", "Never", ""),
    "value": ("a", "", "b c"),
    "values": (["a"], [], ["a", "b"], ["-"], ["metadata"]),
    "topologyKey": ("zone", "", "a b"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway", "Maybe"),
    "nodeAffinityPolicy": ("Honor", "Ignore", "x"),
    "nodeTaintsPolicy": ("Honor", "Ignore", "x"),
    "weight": (1, 100, 0, 101),
    "maxSkew": (1, 0, -1),
    "minDomains": (1, 0),
    "matchLabelKeys": (["a"], ["x", "_"], ["c"]),
    "mismatchLabelKeys": (["b"], ["a"]),
    "ip": ("10.0.0.1", "010.0.0.1", "x", "::1"),
    "hostIP": ("10.0.0.1", ""),
    "nameservers": (["10.0.0.1"], ["x"], ["1.1.1.1"] * 4, []),
    "searches": (["a.b"], ["."], ["_a.b_c."], ["B"], ["a"] * 33, ["a" * 250] * 9),
    "namespaces": (["a"], ["B"]),
    "hostnames": (["a"], ["B_"], ["a.b", ""]),
    "supplementalGroups": ([1], [-1, 2**31]),
    "runAsUser": (1, -1, 2**31),
    "runAsGroup": (1, -1),
    "fsGroup": (1, -1),
    "fsGroupChangePolicy": ("Always", "OnRootMismatch", "x"),
    "supplementalGroupsPolicy": ("Merge", "Strict", "x"),
    "seLinuxChangePolicy": ("Recursive", "MountOption", "x"),
    "procMount": ("Default", "Unmasked", "x"),
    "type": ("Localhost", "RuntimeDefault", "Unconfined", "", "x", "Directory"),
    "localhostProfile": (*PATHS, " padded ", "a" * 4100),
    "runAsUserName": (
        "user",
        "domain\\user",
        "a\\b\\c",
        "",
        "\x01",
        "..",
        "\\",
        "bad domain?\\a*",
        "d\\" + "u" * 105,
    ),
    "gmsaCredentialSpecName": ("a", "B", ""),
    "gmsaCredentialSpec": ("a", "", "x" * 65600),
    "add": (["NET_ADMIN"], ["CAP_SYS_ADMIN"]),
    "mountPath": ("/a", "/b", "", "/dev/x"),
    "devicePath": ("/dev/x", "/a", "", "/dev/../x"),
    "subPath": PATHS,
    "subPathExpr": PATHS,
    "path": PATHS,
    "directory": PATHS,
    "mountPropagation": ("None", "HostToContainer", "Bidirectional", "x"),
    "recursiveReadOnly": ("Disabled", "Enabled", "IfPossible", "x"),
    "mode": (0o644, 0o1000, -1),
    "defaultMode": (0o644, 0o1000, -1),
    "partition": (1, 256, -1, 0),
    "iqn": ("iqn.2001-04.com.example:storage", "eui.0123456789abcdef", "iqn.x", "x", ""),
    "initiatorName": ("iqn.2001-04.com.example:storage", "naa." + "0" * 32, "naa.0", "x", ""),
    "targetPortal": ("1.2.3.4", "", "a" * 70),
    "lun": (0, 256, -1),
    "chapAuthSession": (True, False),
    "registry": ("a:1", "a:1,b", "[::1]:2", ""),
    "tenant": ("a", "t" * 70),
    "targetWWNs": (["a"], []),
    "wwids": (["b"], []),
    "options": ({"a": "b"}, {"x.kubernetes.io/a": "b"}, {"k8s.io/a": "b"}),
    "cachingMode": ("None", "ReadOnly", "x"),
    "kind": ("PersistentVolumeClaim", "Managed", "Dedicated", "x", ""),
    "diskURI": ("https://a", "/subscriptions/a", "x", ""),
    "driver": ("a.b", "A.b", "_", "", "a" * 64),
    "accessModes": (["ReadWriteOnce"], ["ReadWriteOncePod", "ReadOnlyMany"], ["x"], []),
    "requests": (
        {"cpu": "1"},
        {"storage": "1Gi"},
        {"storage": "0"},
        {"memory": "2Gi"},
        {"example.com/gpu": "1"},
    ),
    "limits": (
        {"cpu": "2"},
        {"memory": "1Gi"},
        {"hugepages-2Mi": "4Mi", "cpu": "1"},
        {"hugepages-2Mi": "3Mi"},
        {"x": "1"},
    ),
    "volumeMode": ("Block", "Filesystem", "x"),
    "storageClassName": ("a", "B", ""),
    "volumeAttributesClassName": ("a", "B", ""),
    "apiGroup": ("snapshot.storage.k8s.io", "B", ""),
    "port": PORTS,
    "containerPort": (80, 443, 0, 70000),
    "hostPort": (80, 443, 0, 70000),
    "scheme": ("HTTP", "HTTPS", "ftp"),
    "service": ("a",),
    "command": (["a"], []),
    "seconds": (1, 0, -1, 100),
    "successThreshold": (1, 2, -1),
    "terminationGracePeriodSeconds": (30, 0, -1),
    "activeDeadlineSeconds": (5, 0, 2**31),
    "nodeSelector": ({"a": "b"}, {"_": "b c"}),
    "labels": ({"a": "b"}, {"a": "b", "c": "d"}, {"_": "b"}),
    "matchLabels": ({"a": "b"}, {"a": "c"}, {"_": " "}),
    "annotations": (
        {"a": "b"},
        {"controller.kubernetes.io/pod-deletion-cost": "1"},
        {"controller.kubernetes.io/pod-deletion-cost": "+1"},
        {"seccomp.security.alpha.kubernetes.io/pod": "runtime/default"},
        {"container.seccomp.security.alpha.kubernetes.io/c": "x"},
        {"container.apparmor.security.beta.kubernetes.io/c": "localhost/a"},
        {"container.apparmor.security.beta.kubernetes.io/d": "x"},
        {"kubernetes.io/config.mirror": "x"},
    ),
    "conditionType": ("a", "_", ""),
    "serviceAccountName": ("a", "B_"),
    "nodeName": ("a", "B_"),
    "hostname": ("a", "B_", "a.b"),
    "hostnameOverride": ("a", "B_", "a" * 65),
    "subdomain": ("a", "B_"),
    "priorityClassName": ("a", "B_"),
    "runtimeClassName": ("a", "B_"),
    "preemptionPolicy": ("Never", "x"),
    "overhead": ({"cpu": "1"}, {"x": "-1"}),
    "os": ({"name": "linux"}, {"name": "windows"}, {"name": "x"}, {}),
    "resourceName": ("cpu", "memory", "disk", ""),
    "request": ("a", "B"),
    "resourceClaimName": ("a", "B"),
    "resourceClaimTemplateName": ("a", "B"),
    "action": ("Restart", "RestartAllContainers", "x"),
    "targetContainerName": ("c", "x", ""),
    "maxUnavailable": (1, 0, "25%", "0%", "101%", "x", -1),
    "maxSurge": (1, 0, "25%", "0%", "x"),
    "minAvailable": (1, "50%", "x", -1),
    "unhealthyPodEvictionPolicy": ("AlwaysAllow", "x"),
    "podManagementPolicy": ("OrderedReady", "Parallel", "x"),
    "whenDeleted": ("Retain", "Delete", "x"),
    "whenScaled": ("Retain", "Delete", "x"),
    "serviceName": ("a", "B_"),
    "replicas": (1, 0, -1),
    "minReadySeconds": (0, 5, -1),
    "progressDeadlineSeconds": (600, 3, -1),
    "revisionHistoryLimit": (10, -1),
    "start": (0, -1),
    "volumeName": ("v", "a", "x"),
    "containerName": ("c", ""),
    "expirationSeconds": (600, 599, 2**32 + 1),
}
#: values of members of one struct, instead of those by name
OF_STRUCTS: dict[str, tuple[Any, ...]] = {
    "core.PodSpec.restartPolicy": ("Always", "Always", "Never", "OnFailure", "Sometimes"),
    "core.Toleration.operator": ("Equal", "Exists", "Foo", "Lt", ""),
    "core.VolumeMount.name": ("v", "a", "x", ""),
    "core.VolumeDevice.name": ("v", "a", "x", ""),
    "core.Sysctl.name": ("net.ipv4.ip_forward", "kernel.shmmax", "net/ipv4.x", "A", ""),
    "core.HTTPHeader.name": ("A-b", "a b"),
    "core.FileKeySelector.key": ("A", "a=b", ""),
    "core.GRPCAction.port": (80, 0),
    "core.ContainerPort.name": ("web", "web", "-", "A", "no-more-than-15-c"),
    "core.DownwardAPIVolumeFile.path": PATHS,
    "core.NFSVolumeSource.path": PATHS,
    "core.EnvVar.name": ("A", "a b", "=", ""),
    "apps.DeploymentStrategy.type": ("Recreate", "RollingUpdate", "x"),
    "apps.DaemonSetUpdateStrategy.type": ("OnDelete", "RollingUpdate", "x"),
    "apps.StatefulSetUpdateStrategy.type": ("OnDelete", "RollingUpdate", "x"),
    "core.ResourceClaim.name": ("a", "x", ""),
}
OF_TYPES: dict[str, tuple[Any, ...]] = {
    "string": ("a", "B_", ""),
    "int32": (1, 0, -1),
    "int64": (1, 0, -1),
    "bool": (True, False),
    "quantity": AMOUNTS,
    "intOrString": (1, "1", "x"),
    "any": ({},),
    "bytes": ("",),
    "time": ("2026-01-01T00:00:00Z",),
    "microTime": ("2026-01-01T00:00:00.000000Z",),
}
#: members that are not drawn: status, what the server owns, and what lies behind gates that are off
LEFT_OUT = frozenset(
    (
        *(
            "status",
            "managedFields",
            "ownerReferences",
            "finalizers",
            "creationTimestamp",
            "deletionTimestamp",
            "uid",
        ),
        *(
            "selfLink",
            "resourceVersion",
            "generation",
            "deletionGracePeriodSeconds",
            "generateName",
            "namespace",
        ),
        *(
            "clusterTrustBundle",
            "podCertificate",
            "stopSignal",
            "schedulingGroup",
            "workloadRef",
            "serviceAccount",
        ),
    )
)
#: structs of which one member is to be given
ONE_OF = frozenset(
    ("core.Volume", "core.VolumeProjection", "core.EnvVarSource", "core.EnvFromSource")
)
#: how often the head of an object is drawn
METADATA = 0.05
CONTAINER = {"name": "c", "image": "i:1"}


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def object(self) -> Any:
        """A good object in which a few places were written anew."""
        kind = self.random.choice(["Pod"] * 6 + sorted(KINDS))
        return self.grafted(self.good_one(kind), self.random.randint(1, 3))

    def good_one(self, kind: str) -> Any:
        return {
            "apiVersion": KINDS[kind],
            "kind": kind,
            "metadata": {"name": "o"},
            **copy.deepcopy(good(kind)),
        }

    def update(self, old: Any) -> Any:
        """What *old* becomes."""
        new = self.grafted(copy.deepcopy(old), self.random.randint(0, 2))
        # Another name is another object.
        new["metadata"]["name"] = old["metadata"]["name"]
        return {"object": new, "old": old}

    def grafted(self, document: Any, times: int) -> Any:
        shape = lookup_kind(document["apiVersion"], document["kind"])
        assert shape is not None
        for _ in range(times):
            self.graft(document, shape.name, 0)
        if document["kind"] == "PodDisruptionBudget":
            # As upstream: its head is judged only when its spec is good.
            document["metadata"] = {"name": "o"}
        return document

    def graft(self, document: Any, name: str, depth: int) -> None:
        """Writes one member anew, mostly far below."""
        fields = struct(name).fields
        member = self.random.choice([one for one in fields if self.drawn(one, depth)] or [""])
        if not member:
            return
        kind = fields[member].type
        below = document.get(member)
        if kind.kind == "struct" and f"{name}.{member}" not in OF_STRUCTS and member not in VALUES:
            if below is None or self.random.random() < 0.1:
                document[member] = self.struct(kind.name, depth + 1)
            else:
                self.graft(below, kind.name, depth + 1)
        elif (
            kind.kind == "list"
            and kind.element.kind == "struct"
            and below
            and self.random.random() < 0.8
        ):
            self.graft(self.random.choice(below), kind.element.name, depth + 1)
        elif self.random.random() < 0.1:
            document.pop(member, None)
        else:
            document[member] = self.value(name, member, kind, depth)

    def drawn(self, member: str, depth: int) -> bool:
        if depth == 0:
            return member in ("spec", "template") or (
                member == "metadata" and self.random.random() < METADATA
            )
        return member not in LEFT_OUT

    def struct(self, name: str, depth: int) -> Any:
        chance = 0.7 if len(struct(name).fields) < 6 else 0.15
        fields = {
            member: field for member, field in struct(name).fields.items() if member not in LEFT_OUT
        }
        wanted = [
            member
            for member, field in fields.items()
            if field.required or self.random.random() < chance
        ]
        if name in ONE_OF:
            choices = sorted(member for member in fields if member != "name")
            wanted = [
                *("name",) * ("name" in fields),
                *self.random.sample(choices, self.random.choice((1, 1, 1, 2))),
            ]
        return {member: self.value(name, member, fields[member].type, depth) for member in wanted}

    def value(self, name: str, member: str, kind: Type, depth: int) -> Any:
        values = OF_STRUCTS.get(f"{name}.{member}") or VALUES.get(member)
        if values and self.fits(values[0], kind):
            # Good values come first, and more often.
            return copy.deepcopy(
                values[min(self.random.randrange(len(values)), self.random.randrange(len(values)))]
            )
        if kind.kind == "struct":
            return self.struct(kind.name, depth + 1) if depth < 9 else {}
        if kind.kind == "list":
            count = self.random.choice((1, 1, 2))
            return [self.value(name, "", kind.element, depth + 1) for _ in range(count)]
        if kind.kind == "map":
            return {"a": self.value(name, "", kind.element, depth + 1)}
        return self.random.choice(OF_TYPES[kind.kind])

    def fits(self, value: Any, kind: Type) -> bool:
        expected = {
            "list": list,
            "map": dict,
            "struct": dict,
            "string": str,
            "bool": bool,
            "int32": int,
            "int64": int,
        }
        return isinstance(value, expected.get(kind.kind, (str, int)))


def good(kind: str) -> Any:
    """The spec of a good object."""
    if kind == "PodDisruptionBudget":
        return {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    pod = {
        "serviceAccountName": "default",
        "volumes": [
            {"name": "v", "emptyDir": {}},
            {"name": "a", "persistentVolumeClaim": {"claimName": "x"}},
        ],
        "containers": [
            {**CONTAINER, "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "b"}]}
        ],
    }
    if kind == "Pod":
        return {"spec": pod}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    if kind == "PodTemplate":
        return {"template": template}
    selector = {"a": "b"} if kind == "ReplicationController" else {"matchLabels": {"a": "b"}}
    return {"spec": {"selector": selector, "template": template}}
