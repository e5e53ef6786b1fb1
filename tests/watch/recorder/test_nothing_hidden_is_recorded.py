"""A marker in every text of every kind, and in each key of a map: a recording has those of the
listed fields alone.

The documents are made from the schema of the API, so a field of a later version is covered by
itself. Each text has a number, so that a test says which field came through.
"""

from __future__ import annotations

import re
from typing import Any
from zlib import decompress

import msgspec
import pytest

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import PodSpec
from sliceplane.api.requests import Write
from sliceplane.api.scheme import (
    RESOURCES,
    ControllerRevisions,
    Deployments,
    Pods,
    ReplicaSets,
    Resource,
)
from sliceplane.diagnose.timeline.replay import Replay
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.server.documents.schema import Type, lookup, struct
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work
from sliceplane.watch.recorder.file import Header, read_lines, write_lines
from sliceplane.watch.recorder.recorder import Recorder
from sliceplane.watch.recorder.redact import KEPT_ANNOTATIONS, TOKEN, Redactor
from sliceplane.watch.recorder.templates import KEPT

SALT = b"0123456789abcdef"
MARK = re.compile(r"(?:M|m)4RK(\d+)z")
TIMES = {
    "time": "2026-01-01T00:00:00Z",
    "microTime": "2026-01-01T00:00:00.000000Z",
    "quantity": "1",
}

#: fields of projections that are recorded as they are, beside those of templates (``KEPT``), and
#: why that is right
RECORDED = {
    "claims: what quotas count": "core.PersistentVolumeClaimSpec.storageClassName",
    "identity and ownership": """
        meta.ObjectMeta.annotations meta.ObjectMeta.finalizers meta.ObjectMeta.generateName meta.ObjectMeta.labels
        meta.ObjectMeta.name meta.ObjectMeta.namespace meta.ObjectMeta.resourceVersion meta.ObjectMeta.uid
        meta.OwnerReference.apiVersion meta.OwnerReference.kind meta.OwnerReference.name meta.OwnerReference.uid
        core.ObjectReference.apiVersion core.ObjectReference.fieldPath core.ObjectReference.kind
        core.ObjectReference.name core.ObjectReference.namespace core.ObjectReference.resourceVersion
        core.ObjectReference.uid core.PersistentVolumeClaim.apiVersion core.PersistentVolumeClaim.kind
        core.Event.reason core.Event.type coordination.LeaseSpec.holderIdentity""",
    "endpoints: what controllers read and write": """
        core.EndpointAddress.hostname core.EndpointAddress.ip core.EndpointAddress.nodeName
        core.EndpointPort.appProtocol core.EndpointPort.name core.EndpointPort.protocol
        discovery.Endpoint.addresses discovery.Endpoint.deprecatedTopology discovery.Endpoint.hostname
        discovery.Endpoint.nodeName discovery.Endpoint.zone discovery.EndpointPort.appProtocol
        discovery.EndpointPort.name discovery.EndpointPort.protocol discovery.EndpointSlice.addressType
        discovery.ForNode.name discovery.ForZone.name""",
    "Services: what controllers decide on": """
        core.LoadBalancerIngress.ip core.LoadBalancerIngress.ipMode core.ServicePort.appProtocol core.ServicePort.name
        core.ServicePort.protocol core.ServicePort.targetPort core.ServiceSpec.clusterIP core.ServiceSpec.clusterIPs
        core.ServiceSpec.externalIPs core.ServiceSpec.externalName core.ServiceSpec.externalTrafficPolicy
        core.ServiceSpec.internalTrafficPolicy core.ServiceSpec.ipFamilies core.ServiceSpec.ipFamilyPolicy
        core.ServiceSpec.loadBalancerClass core.ServiceSpec.loadBalancerSourceRanges core.ServiceSpec.selector
        core.ServiceSpec.sessionAffinity core.ServiceSpec.trafficDistribution core.ServiceSpec.type
        networking.ServiceCIDRSpec.cidrs""",
    "nodes and quotas: what controllers decide on": """
        core.NodeAddress.address core.NodeAddress.type core.NodeSpec.podCIDR core.NodeSpec.podCIDRs
        core.NodeStatus.allocatable core.Taint.effect core.Taint.key core.Taint.value core.NamespaceSpec.finalizers
        core.NamespaceStatus.phase core.ResourceQuotaSpec.hard core.ResourceQuotaSpec.scopes
        core.ResourceQuotaStatus.hard core.ResourceQuotaStatus.used core.ScopedResourceSelectorRequirement.operator
        core.ScopedResourceSelectorRequirement.scopeName core.ScopedResourceSelectorRequirement.values
        policy.PodDisruptionBudgetSpec.maxUnavailable policy.PodDisruptionBudgetSpec.minAvailable
        policy.PodDisruptionBudgetStatus.disruptedPods""",
    "Pods: what their projection has beyond a template's": """
        core.Container.restartPolicy core.ContainerStatus.name core.EphemeralContainer.restartPolicy core.PodIP.ip
        core.PodStatus.hostIP core.PodStatus.phase core.PodStatus.podIP core.PodStatus.reason""",
    "workloads: how they roll out": """
        apps.DaemonSetUpdateStrategy.type apps.RollingUpdateDaemonSet.maxSurge
        apps.RollingUpdateDaemonSet.maxUnavailable apps.DeploymentStrategy.type apps.RollingUpdateDeployment.maxSurge
        apps.RollingUpdateDeployment.maxUnavailable apps.StatefulSetSpec.podManagementPolicy
        apps.StatefulSetSpec.serviceName apps.StatefulSetStatus.currentRevision apps.StatefulSetStatus.updateRevision
        apps.StatefulSetUpdateStrategy.type core.ReplicationControllerSpec.selector""",
    "conditions: a controller compares the one that it wrote": " ".join(
        f"{kind}Condition.{member}"
        for kind in (
            *("meta.", "core.Namespace", "core.Node", "core.Pod", "core.ReplicationController"),
            *("apps.Deployment", "apps.ReplicaSet"),
        )
        for member in ("message", "reason", "status", "type")
    ),
}
ALLOWED = {field for fields in RECORDED.values() for field in fields.split()}
ALLOWED_IN_TEMPLATES = {f"{name}.{field}" for name, fields in KEPT.items() for field in fields}


class Planted:
    """Documents full of markers; ``fields`` has the definition and field of each marker, by its
    number.
    """

    def __init__(self) -> None:
        self.fields: list[str] = []

    def mark(self, field: str) -> str:
        self.fields.append(field)
        return f"M4RK{len(self.fields) - 1}z"

    def document(self, resource: Resource) -> dict[str, Any]:
        shape = lookup(resource.schema_key)
        made: dict[str, Any] = self._struct(shape.name, ())
        return made | {"apiVersion": resource.api_version, "kind": resource.kind}

    def _struct(self, name: str, above: tuple[str, ...]) -> dict[str, Any]:
        if above.count(name) > 0:
            return {}
        return {
            field.name: self._value(field.type, f"{name}.{field.name}", (*above, name))
            for field in struct(name).fields.values()
        }

    def _value(self, kind: Type, field: str, above: tuple[str, ...]) -> Any:
        match kind.kind:
            case "struct":
                return self._struct(kind.name, above)
            case "list":
                return [self._value(kind.element, field, above)]
            case "map":
                return {self.mark(field): self._value(kind.element, field, above)}
            case "bool":
                return True
            case "int32" | "int64":
                return 1
            case "float64":
                return 1.5
            case kind if kind in TIMES:
                return TIMES[kind]
            case "any":
                return {self.mark(field): self.mark(field)}
            case _:
                return self.mark(field)

    def found(self, text: str) -> set[str]:
        return {self.fields[int(number)] for number in MARK.findall(text)}


def text_of(recorder: Recorder) -> str:
    """All of a file, with its blocks inflated."""
    assert not recorder.fault
    read = read_lines(list(write_lines(Header(), recorder.segments())))
    blocks = [
        block
        for segment in read.segments
        for block in (*segment.checkpoint, *segment.names, *segment.blocks)
    ]
    return b"".join(map(decompress, blocks)).decode()


def recorded(resource: Resource, document: dict[str, Any]) -> str:
    """Of everything that happens to an object: seen, changed, written, answered, refused,
    checkpointed.
    """
    recorder = Recorder(1 << 22, SALT, 1.0)
    record = recorder.begin("one", 1.0)
    body = encode(document)
    seen = decode(body, resource.projection)
    record.change(Change(resource.key, None, seen), 1.0)
    other = msgspec.structs.replace(
        seen, metadata=msgspec.structs.replace(seen.metadata, resource_version="9")
    )
    record.change(Change(resource.key, seen, other), 1.0)
    writes = tuple(
        Write(verb=verb, resource=resource, namespace="shop", name="a", body=body)
        for verb in ("create", "update", "patch", "list")
    )
    job = Job(key="shop/a", writes=writes)
    record.batch_taken(Work(jobs=(job,)), 5, 1.0)
    listed = encode({"items": [document]})
    record.done(Done(job, (body, body, body, listed)), 1.0)
    recorder.encode()
    recorder._begin_segment()
    return text_of(recorder)


@pytest.fixture(scope="module")
def came_through() -> dict[str, set[str]]:
    """Fields by the kind in whose recording their marker is."""
    found = {}
    for resource in RESOURCES:
        planted = Planted()
        found[resource.key] = planted.found(recorded(resource, planted.document(resource)))
        assert found[resource.key], "an object has a name at least"
    return found


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.key)
def test_no_text_but_the_listed_is_recorded(
    resource: Resource, came_through: dict[str, set[str]]
) -> None:
    assert came_through[resource.key] - ALLOWED - ALLOWED_IN_TEMPLATES == set()


def test_the_list_has_no_field_that_is_not_recorded(came_through: dict[str, set[str]]) -> None:
    """So that the list is what a reader may rely on."""
    assert (ALLOWED | ALLOWED_IN_TEMPLATES) - set().union(*came_through.values()) == set()


def test_values_of_annotations_are_kept_by_name_alone() -> None:
    names = [*KEPT_ANNOTATIONS, "sliceplane.dev/drain", "agent.sliceplane.dev/state"]
    hidden = [
        "kubectl.kubernetes.io/last-applied-configuration",
        "nginx.ingress.kubernetes.io/configuration-snippet",
        "service.beta.kubernetes.io/aws-load-balancer-ssl-cert",
        "notsliceplane.dev/x",
    ]
    annotations = dict.fromkeys(hidden, "M4RK0z") | dict.fromkeys(names, "M4RK1z")
    for resource in (Pods, Deployments, ControllerRevisions):
        text = recorded(
            resource, {"metadata": {"name": "a", "namespace": "shop", "annotations": annotations}}
        )
        assert "M4RK0z" not in text
        assert "M4RK1z" in text


def template() -> dict[str, Any]:
    planted = Planted()
    made = planted._value(Type("struct", name="core.PodTemplateSpec"), "", ())
    assert isinstance(made, dict)
    return made


def test_a_revision_has_the_template_as_its_owner_has_it() -> None:
    """The StatefulSet controller finds the template of a revision by comparing the two."""
    redactor = Redactor(SALT)
    owned = template()
    revision = redactor.revision({"spec": {"template": {"$patch": "replace", **owned}}})
    assert revision == {"spec": {"template": {"$patch": "replace", **redactor.template(owned)}}}
    for data in (
        {"spec": {"template": "M4RK0z"}},
        {"M4RK0z": 1},
        {"spec": {"template": {}, "M4RK0z": {}}},
        {"spec": []},
    ):
        assert "M4RK" not in encode(redactor.revision(data)).decode()


def test_what_a_template_means_to_controllers_is_not_hidden() -> None:
    """Its projection (scheduling, ports, containers) is the same; another value has another token,
    here and nowhere.
    """
    plain = template()
    redacted = Redactor(SALT).template(plain)
    spec = msgspec.convert(plain["spec"], PodSpec)
    hidden = msgspec.convert(redacted["spec"], PodSpec)
    for field in spec.__struct_fields__:
        if "containers" not in field:
            assert getattr(hidden, field) == getattr(spec, field), field
    assert hidden.containers is not None
    assert spec.containers is not None
    for name in ("name", "image", "ports", "resources"):
        assert getattr(hidden.containers[0], name) == getattr(spec.containers[0], name)

    def args(value: str, salt: bytes = SALT) -> Any:
        of_one = Redactor(salt).template({"spec": {"containers": [{"name": "a", "args": [value]}]}})
        return of_one["spec"]["containers"][0]["args"]

    assert args("a") == args("a")
    assert args("a") != args("b")
    assert args("a") != args("a", b"another salt of it")
    assert args(args("a")[0]) == args("a")
    assert args(TOKEN + "password")[0] != TOKEN + "password"


@pytest.mark.parametrize(
    "value", ["M4RK0z", ["M4RK0z"], {"M4RK0z": ["M4RK0z"]}, [[{"M4RK0z": "M4RK0z"}]]]
)
def test_members_of_another_type_than_the_schema_says_are_hidden(value: Any) -> None:
    for document in (
        {"spec": value},
        {"metadata": {"annotations": value}},
        {"spec": {"containers": value}},
        {"spec": {"containers": [{"name": "a", "env": value, "image": [value], "ports": value}]}},
        {"spec": {"volumes": [{"name": "a", "csi": value, "emptyDir": {"sizeLimit": [value]}}]}},
        {"spec": {"activeDeadlineSeconds": value, "hostNetwork": value}},
        {"M4RK0z": value},
    ):
        text = encode(Redactor(SALT).template(document)).decode()
        assert "M4RK" not in text, text


def test_digests_tell_nothing_of_hidden_values() -> None:
    """A checksum of 32 bits finds a password of a dictionary, where all else in the body is
    known.
    """

    def digest(resource: Resource, body: dict[str, Any]) -> int:
        write = Write(verb="create", resource=resource, namespace="shop", body=encode(body))
        return Redactor(SALT).digest(write)

    def pod(secret: str, image: str = "nginx") -> dict[str, Any]:
        return {
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "a", "image": image, "args": [secret]}]},
        }

    assert digest(Pods, pod("swordfish")) == digest(Pods, pod("hunter2"))
    owned = {"metadata": {"name": "a"}, "spec": {"template": pod("swordfish")}}
    assert digest(ReplicaSets, owned) == digest(
        ReplicaSets, {**owned, "spec": {"template": pod("hunter2")}}
    )
    revision = {"metadata": {"name": "a"}, "data": {"spec": {"template": pod("swordfish")}}}
    other = {**revision, "data": {"spec": {"template": pod("hunter2")}}}
    assert digest(ControllerRevisions, revision) == digest(ControllerRevisions, other)
    # Where nothing is hidden the digest still tells writes apart.
    plain, changed = (
        {"spec": {"containers": [{"name": "a", "image": image}]}}
        for image in ("nginx:1", "nginx:2")
    )
    assert digest(Pods, plain) != digest(Pods, changed)


def test_controllers_of_templates_replay_without_what_is_hidden() -> None:
    """They compare templates with each other and copy them; the writes that follow are those that
    were recorded.
    """
    hidden = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "a", "image": "b", "args": ["c"]}]},
    }
    deployment = {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u1",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": hidden},
    }
    recorder = Recorder(1 << 22, SALT, 1.0)
    controller = DeploymentController()
    record = recorder.begin(controller.info.name, 1.0)
    seen = decode(encode(deployment), Deployments.projection)
    change: Change[Any] = Change(Deployments.key, None, seen)
    record.change(change, 1.0)
    controller.on_change(change, 1.0)
    record.synced(1.0)
    controller.on_synced(1.0)
    for now in (1.0, 2.0, 3.0):
        work = controller.take_work(now, 10)
        record.batch_taken(work, 10, now)
        for job in work.jobs:
            answers = tuple(_answered(write, now) for write in job.writes)
            done = Done(job, answers)
            record.done(done, now)
            controller.on_done(done, now)
            for write, answer in zip(job.writes, answers, strict=True):
                if write.verb == "create":
                    made: Change[Any] = Change(
                        ReplicaSets.key, None, decode(answer, ReplicaSets.projection)
                    )
                    record.change(made, now)
                    controller.on_change(made, now)
    recording = read_lines(list(write_lines(Header(), recorder.segments())))
    report = Replay({controller.info.name: DeploymentController}).run(recording)
    assert report.differences == []
    assert report.skipped == {}
    assert (report.jobs, report.writes) == (2, 4)


def _answered(write: Write, now: float) -> bytes:
    document = msgspec.json.decode(write.body)
    document.setdefault("metadata", {}).update(uid=f"u{now}", resourceVersion=f"{now:.0f}0")
    return encode(document)
