"""What a timeline says: each cause once, with who and what followed; and that its index finds every
version.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.watch.recorder.histories import RESOURCES
from tests.watch.recorder.test_encoding import BEGAN, SALT, Told

from sliceplane.api.apps import Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec
from sliceplane.api.codec import encode
from sliceplane.api.core import Condition, Lease, Pod, PodIP, PodStatus, Service
from sliceplane.api.discovery import (
    LABEL_SERVICE_NAME,
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.meta import Object, ObjectMeta, ObjectReference, OwnerReference
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    Leases,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)
from sliceplane.consume.progress import ANNOTATION_REVISION, LEASE_PREFIX
from sliceplane.diagnose.timeline.elsewhere import lines_of
from sliceplane.diagnose.timeline.index import Index
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.diagnose.timeline.text import line_document, line_text, membership_text
from sliceplane.diagnose.timeline.timeline import Timeline
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work, Write
from sliceplane.watch.recorder.entries import Changed, Marked, SentVersion
from sliceplane.watch.recorder.file import Header, Recording
from sliceplane.watch.recorder.recorder import Recorder

replace = msgspec.structs.replace


@effort(30)
@given(seed=st.integers(0, 1 << 32), limit=st.sampled_from((1 << 24, 40_000)))
def test_the_index_has_every_version_that_a_reader_has(seed: int, limit: int) -> None:
    recording = Told(seed, 300, limit_bytes=limit, segment_bytes=limit // 4).recording()
    index = Index(recording)
    for resource in RESOURCES:
        index.load(index.keys(resource, "shop"))
    steps: dict[tuple[str, str], list[Any]] = {}
    for position in range(len(recording.segments)):
        seen: set[int] = set()
        for entry in entries(replace_segments(recording, position)):
            if isinstance(entry, Changed) and entry.step not in seen:
                seen.add(entry.step)
                steps.setdefault((entry.change.resource, entry.key), []).append(
                    (entry.at, entry.change)
                )
    assert steps == {
        (key.resource, f"{key.namespace}/{key.name}"): [
            (step.at, Change(key.resource, index.version(step.old), index.version(step.new)))
            for step in found
        ]
        for key, found in index.steps.items()
    }


def replace_segments(recording: Recording, position: int) -> Recording:
    """One segment alone."""
    return Recording(recording.header, recording.segments[position : position + 1])


class Story:
    """A Deployment's Pods behind a Service, told to the slice controller's recorder."""

    def __init__(self) -> None:
        self.recorder = Recorder(1 << 24, SALT, BEGAN)
        self.now = BEGAN
        self.version = 0
        self.objects: dict[tuple[str, str], Object] = {}
        self.record = self.recorder.begin("endpointslice-controller", BEGAN)
        self.record.synced(BEGAN)

    def put(self, resource: Resource, new: Object, writer: str = "") -> None:
        self.version += 1
        meta = replace(
            new.metadata, resource_version=str(self.version), uid=f"uid-{new.metadata.name}"
        )
        new = replace(new, metadata=meta)
        if writer:
            managed = [
                {
                    "manager": writer,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2027-01-15T08:00:00Z",
                }
            ]
            self.recorder.note_body(
                str(self.version), encode({"metadata": {"managedFields": managed}})
            )
        key = (resource.key, meta.name)
        self.record.change(Change(resource.key, self.objects.get(key), new), self.now)
        self.objects[key] = new

    def remove(self, resource: Resource, name: str) -> None:
        self.record.change(
            Change(resource.key, self.objects.pop((resource.key, name)), None), self.now
        )

    def owned(self, name: str, kind: str, owner: str) -> ObjectMeta:
        reference = OwnerReference(kind=kind, name=owner, controller=True)
        return ObjectMeta(
            name=name, namespace="shop", owner_references=(reference,), labels={"app": "web"}
        )

    def pod(self, number: int, *, ready: bool, owner: str = "web-1") -> None:
        conditions = (Condition(type="Ready", status="True" if ready else "False"),)
        status = PodStatus(
            phase="Running", pod_ips=(PodIP(ip=f"10.0.0.{number}"),), conditions=conditions
        )
        self.put(
            Pods,
            Pod(metadata=self.owned(f"{owner}-{number}", "ReplicaSet", owner), status=status),
            "kubelet",
        )

    def scale(self, replicas: int, writer: str) -> None:
        spec = DeploymentSpec(replicas=replicas)
        self.put(
            Deployments,
            Deployment(metadata=ObjectMeta(name="web", namespace="shop"), spec=spec),
            writer,
        )
        meta = self.owned("web-1", "Deployment", "web")
        self.put(
            ReplicaSets,
            ReplicaSet(metadata=meta, spec=ReplicaSetSpec(replicas=replicas)),
            "kube-controller-manager",
        )

    def publish(self, numbers: list[int], body: bytes = b"{}") -> None:
        """The slice with the Pods of these numbers, by the controller."""
        endpoints = tuple(
            SliceEndpoint(
                addresses=(f"10.0.0.{number}",),
                conditions=EndpointConditions(ready=True),
                target_ref=ObjectReference(kind="Pod", name=f"web-1-{number}"),
            )
            for number in numbers
        )
        write = Write(
            verb="update", resource=EndpointSlices, namespace="shop", name="web-x", body=body
        )
        job = Job(key="shop/web", writes=(write,))
        self.record.batch_taken(Work(jobs=(job,)), 5, self.now)
        meta = ObjectMeta(name="web-x", namespace="shop", labels={LABEL_SERVICE_NAME: "web"})
        new = EndpointSlice(
            metadata=replace(meta, resource_version=str(self.version + 1)), endpoints=endpoints
        )
        self.record.done(Done(job, (encode(new),)), self.now)
        self.put(EndpointSlices, new)

    def progress(self, node: str, revision: int) -> None:
        meta = ObjectMeta(
            name=f"{LEASE_PREFIX}{node}",
            namespace="kube-node-lease",
            annotations={ANNOTATION_REVISION: str(revision)},
        )
        self.put(Leases, Lease(metadata=meta))

    def timeline(self) -> Timeline:
        recording = Recording(Header(), list(self.recorder.segments()))
        assert not self.recorder.fault
        return Timeline(Index(recording), "shop", "web")


def rollout(pods: int = 100) -> Story:
    story = Story()
    story.scale(0, "helm")
    for node in ("node-1", "node-7"):
        story.progress(node, 0)
    story.now += 100
    story.scale(pods, "anna")
    for number in range(pods):
        story.now += 0.05
        story.pod(number, ready=False)
        story.pod(number, ready=True)
        story.publish(list(range(number + 1)), body=b"x" * 500)
    newest = story.version
    story.now += 0.4
    story.progress("node-1", newest)
    story.now += 8.6
    story.progress("node-7", newest)
    return story


def test_a_rollout_of_a_hundred_pods_is_one_line_that_opens() -> None:
    lines = rollout().timeline().lines(BEGAN + 50)
    assert len(lines) == 1
    text = line_text(lines[0])
    assert "anna" in text
    assert "Deployment web: spec.replicas 0 -> 100; Pods: 100 made, 100 ready" in text
    assert (
        "1 slice in 100 writes, 50.0 kB; 2 of 2 nodes reported, the last node-7 after 9.0 s" in text
    )
    opened = line_text(lines[0], opened=True).splitlines()
    assert len(opened) == 1 + 2 + 1 + 100
    assert [row[:25] for row in opened[1:3]] == [
        "  +0.00 s anna: Deploymen",
        "  +0.00 s kube-controller",
    ]
    assert [row.split() for row in opened[3:5]] == [
        ["Pod", "made", "ready"],
        ["web-1-0", "+0.05", "s", "+0.05", "s"],
    ]
    assert line_document(lines[0])["nodes"] == {"node-1": 0.4, "node-7": 9.0}


def sent(
    story: Story, revision: int, watchers: int, size_bytes: int, *, gone: bool = False
) -> None:
    """The server sent the event of this revision, or of the end of the object that had it."""
    story.recorder.sent(
        SentVersion("web-x", revision, gone), "shop/web", watchers, size_bytes, story.now
    )


def test_a_line_tells_to_how_many_watchers_its_slices_went() -> None:
    story = rollout(0)
    story.now += 60
    for number, watchers in enumerate((200, 198)):
        story.pod(number, ready=True)
        sent(story, story.version + 1, watchers, watchers * 650)
        story.publish(list(range(number + 1)), body=b"x" * 650)
    story.now += 60
    story.scale(1, "bert")
    sent(
        story, story.objects[EndpointSlices.key, "web-x"].metadata.revision, 200, 130_000, gone=True
    )
    story.remove(EndpointSlices, "web-x")
    lines = story.timeline().lines(BEGAN + 120)
    assert [line_text(line).partition("; 1 slice")[2] for line in lines] == [
        " in 2 writes, 1.3 kB; 258.7 kB sent to up to 200 watchers; 0 of 2 nodes reported",
        "; 130.0 kB sent to 200 watchers; 0 of 2 nodes reported",
    ]
    assert line_document(lines[0])["sent"] == {"fewest": 198, "most": 200, "bytes": 258_700}
    shown = entries(Recording(Header(), list(story.recorder.segments())))
    texts = [entry.text for entry in shown if isinstance(entry, Marked)]
    assert texts[0].endswith(": 130000 bytes to 200 watchers")


def test_on_a_screen_a_line_is_a_block_that_fits_and_opens_with_a_row_for_each_pod() -> None:
    story = rollout()
    story.now += 0.3
    story.scale(1, "bert")
    stamp = "2027-01-15T08:00:00Z"
    leaving = story.objects[Pods.key, "web-1-2"]
    for grace in (stamp, stamp.replace(":00Z", ":09Z")):
        leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp=grace))
        story.put(Pods, leaving, "kubelet")
    story.remove(Pods, "web-1-2")
    story.publish([0])
    lines = story.timeline().lines(BEGAN + 50)
    assert line_text(lines[0], width=80).splitlines() == [
        "2027-01-15T08:01:40.250000Z anna: 202 changes in 5.0 s",
        "  Deployment web: spec.replicas 0 -> 100",
        "  Pods: 100 made, 100 ready",
        "  1 slice in 100 writes, 50.0 kB; 2 of 2 nodes reported, the last node-7 after",
        "    9.0 s",
    ]
    opened = line_text(lines[0], opened=True, width=80).splitlines()
    assert (len(opened), max(map(len, opened))) == (5 + 2 + 1 + 100, 78)
    assert "Pods: 1 terminating, 1 gone" in line_text(lines[1], width=80), (
        "told once: its grace only grew shorter"
    )
    narrow = line_text(lines[0], opened=True, width=40).splitlines()
    assert max(map(len, narrow[1:])) <= 40


def test_what_came_after_the_next_line_began_is_told_there() -> None:
    story = Story()
    story.scale(0, "helm")
    story.now += 100
    story.scale(1, "anna")
    story.pod(0, ready=False)
    story.now += 0.5
    story.put(
        Services, Service(metadata=ObjectMeta(name="web", namespace="shop")), "kubectl-expose"
    )
    story.now += 0.5
    story.pod(0, ready=True)
    story.publish([0])
    first, second = story.timeline().lines(BEGAN + 50)
    assert line_text(first).endswith("; what followed is in the next line")
    assert "Service web: made; 1 slice" in line_text(second)


def test_where_not_each_event_is_known_nothing_is_said_of_watchers() -> None:
    story = rollout(0)
    story.now += 60
    for number in range(2):
        story.pod(number, ready=True)
        if number:
            sent(story, story.version + 1, 3, 300)
        story.publish(list(range(number + 1)))
    line = story.timeline().lines(BEGAN + 120)[0]
    assert "watcher" not in line_text(line)
    assert line_document(line)["sent"] is None


def test_another_change_of_the_deployment_is_another_line() -> None:
    story = rollout(3)
    story.now += 1
    story.scale(2, "bert")
    story.remove(Pods, "web-1-2")
    story.publish([0, 1])
    lines = story.timeline().lines(BEGAN + 50)
    assert [line.author for line in lines] == ["anna", "bert"]
    assert "spec.replicas 3 -> 2; Pods: Pod web-1-2 gone" in line_document(lines[1])["what"]


def test_a_foreign_edit_of_a_slice_is_a_line_with_its_writer() -> None:
    story = rollout(2)
    story.now += 60
    slice_before = story.objects[EndpointSlices.key, "web-x"]
    assert isinstance(slice_before, EndpointSlice)
    story.put(
        EndpointSlices, replace(slice_before, endpoints=slice_before.endpoints[:1]), "kubectl-edit"
    )
    line = story.timeline().lines(BEGAN + 150)[0]
    assert line.author == "kubectl-edit"
    assert "EndpointSlice web-x: endpoints[10.0.0.1] there -> none" in line.what


def test_membership_then_and_now() -> None:
    story = rollout(3)
    story.now += 60
    story.publish([0, 2])
    timeline = story.timeline()
    membership = timeline.membership(BEGAN + 120, timeline.ended)
    assert "- 10.0.0.1 web-1-1 ready" in membership_text(membership)
    assert membership_text(membership).endswith("2 of 3 endpoints as they were, 2 then")


def test_a_service_that_was_never_seen_is_not_known() -> None:
    story = rollout(1)
    recording = Recording(Header(), list(story.recorder.segments()))
    assert not Timeline(Index(recording), "shop", "cart").is_recorded


def test_elsewhere_managed_fields_and_events_make_lines() -> None:
    fields = {"f:spec": {"f:selector": {}, "f:ports": {".": {}}}}
    managed = [
        {
            "manager": "helm",
            "operation": "Update",
            "time": "2027-01-15T08:00:10Z",
            "fieldsV1": fields,
        }
    ]
    service = {"kind": "Service", "metadata": {"name": "web", "managedFields": managed}}
    event = {
        "involvedObject": {"kind": "Service", "name": "web"},
        "reason": "FailedToUpdateEndpointSlices",
        "message": "no",
        "count": 3,
        "lastTimestamp": "2027-01-15T08:00:20Z",
        "source": {"component": "endpoint-slice-controller"},
    }
    lines = lines_of([service], [event, {**event, "lastTimestamp": "2027-01-15T07:00:00Z"}], BEGAN)
    assert [(line.author, line.what) for line in lines] == [
        ("helm", "Service web: set spec.selector, spec.ports"),
        ("endpoint-slice-controller", "Service web: FailedToUpdateEndpointSlices: no (3 times)"),
    ]
    assert "slice changed" not in line_text(lines[0]), "what followed is not known there"
    assert line_document(lines[0])["slices"] is None


def test_lines_of_one_second_are_in_the_order_of_versions_where_nothing_is_recorded() -> None:
    def document(kind: str, version: str) -> dict[str, Any]:
        entry = {"manager": "kubectl", "time": "2026-01-31T12:00:00Z", "fieldsV1": {"f:spec": {}}}
        return {
            "kind": kind,
            "metadata": {"name": "web", "resourceVersion": version, "managedFields": [entry]},
        }

    event = {
        "metadata": {"resourceVersion": "11"},
        "eventTime": "2026-01-31T12:00:00.900000Z",
        "involvedObject": {"kind": "Deployment", "name": "web"},
        "reason": "ScalingReplicaSet",
    }
    lines = lines_of(
        [document("Pod", "12"), document("Service", "9"), document("Deployment", "10")],
        [event],
        0.0,
    )
    assert [line.what.split()[0] for line in lines] == [
        "Service",
        "Deployment",
        "Deployment",
        "Pod",
    ]
    assert "ScalingReplicaSet" in lines[2].what
