"""Slices of many endpoints as their own controller writes them: kept as what the write changed, and
read back as told.

A history of one Service: Pods flip, come and go; the answer or the watch is quicker; another writer
changes the slice; and a server that does not keep what was written as it is.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.effort import scaled

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import (
    Condition,
    Node,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    Service,
    ServicePort,
    ServiceSpec,
)
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.diagnose.timeline.replay import Replay
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job
from sliceplane.watch.recorder.blocks import lines_of
from sliceplane.watch.recorder.entries import Changed, Code
from sliceplane.watch.recorder.file import Header, Recording
from sliceplane.watch.recorder.lines import writer_of
from sliceplane.watch.recorder.recorder import Recorder

BEGAN = 1_800_000_000.0
PODS = 30
NAME = "endpointslice-controller"

replace = msgspec.structs.replace


class Story:
    """The production controller, a recorder beside it, and just enough of a server.

    *meddles*: the server stores other endpoints than it is given, now and then. *brief*: it answers
    an update with the metadata alone, as it is asked to over HTTP.
    """

    def __init__(
        self, seed: int, *, segment_bytes: int = 1 << 23, meddles: bool = False, brief: bool = False
    ) -> None:
        self.random = Random(seed)
        self.brief = brief
        self.meddles = meddles
        self.now = BEGAN
        self.version = 1
        self.recorder = Recorder(1 << 24, b"saltsalt", BEGAN, segment_bytes=segment_bytes)
        self.record = self.recorder.begin(NAME, BEGAN)
        self.controller = EndpointSliceController()
        self.told: list[Change[Object]] = []
        self.pods: dict[str, Pod] = {}
        self.slices: dict[str, EndpointSlice] = {}
        self.job: Job | None = None
        service = ServiceSpec(
            selector={"app": "web"},
            ports=(ServicePort(port=80),),
            cluster_ips=("10.96.0.1",),
            ip_families=("IPv4",),
        )
        meta = ObjectMeta(name="web", namespace="shop", uid="web", resource_version="1")
        node = ObjectMeta(name="n1", uid="n1", resource_version="1")
        self.tell(Nodes.key, None, Node(kind="Node", metadata=node))
        self.tell(Services.key, None, Service(kind="Service", metadata=meta, spec=service))
        for number in range(PODS):
            self.set_pod(f"pod-{number}", ready=True)
        self.record.synced(self.now)
        self.controller.on_synced(self.now)

    def tell(self, resource: str, old: Object | None, new: Object | None) -> None:
        change = Change(resource, old, new)
        self.told.append(change)
        self.record.change(change, self.now)
        self.controller.on_change(change, self.now)

    def meta(self, name: str, uid: str) -> ObjectMeta:
        self.version += 1
        labels = {"app": "web"}
        return ObjectMeta(
            name=name, namespace="shop", uid=uid, resource_version=f"{self.version}", labels=labels
        )

    def set_pod(self, name: str, *, ready: bool) -> None:
        number = int(name.removeprefix("pod-"))
        address = f"10.0.{number // 250}.{number % 250}"
        conditions = (Condition(type="Ready", status=str(ready)),)
        status = PodStatus(
            phase="Running", pod_ip=address, pod_ips=(PodIP(ip=address),), conditions=conditions
        )
        pod = Pod(
            kind="Pod", metadata=self.meta(name, name), spec=PodSpec(node_name="n1"), status=status
        )
        old, self.pods[name] = self.pods.get(name), pod
        self.tell(Pods.key, old, pod)

    def step(self) -> None:
        self.now += 1.0
        pods = list(self.pods)
        what = self.random.random()
        if what < 0.1:
            self.tell(Pods.key, self.pods.pop(self.random.choice(pods)), None)
        elif what < 0.2:
            self.set_pod(
                f"pod-{max(int(name.removeprefix('pod-')) for name in pods) + 1}", ready=True
            )
        elif what < 0.25 and self.slices and self.job is None:
            name = self.random.choice(sorted(self.slices))
            labels = {**(self.slices[name].metadata.labels or {}), "note": f"{self.version}"}
            self.store(
                replace(
                    self.slices[name], metadata=replace(self.slices[name].metadata, labels=labels)
                )
            )
        else:
            for name in self.random.sample(
                pods, min(self.random.choice((1, 1, 1, 2, 25)), len(pods))
            ):
                self.set_pod(name, ready=self.random.random() < 0.5)
        self.take_batch()

    def take_batch(self) -> None:
        work = self.controller.take_work(self.now, 5)
        self.record.batch_taken(work, 5, self.now)
        for job in work.jobs:
            self.perform(job)

    def perform(self, job: Job) -> None:
        self.now += 0.003
        self.job = job
        answers: list[bytes] = []
        shown = self.random.random()
        for write in job.writes:
            if write.verb == "get":  # who else has written the slice: nobody
                answers.append(b'{"metadata":{}}')
                continue
            if write.verb == "delete":
                old = self.slices.pop(write.name)
                self.tell(EndpointSlices.key, old, None)
                answers.append(b'{"kind":"Status"}')
                continue
            new = decode(write.body, EndpointSlice)
            if write.verb == "create":
                name = f"web-{self.version}"
                new = replace(new, metadata=replace(new.metadata, name=name, uid=name))
            if self.meddles and new.endpoints and self.random.random() < 0.3:
                first = replace(new.endpoints[0], hostname=f"h-{self.version}")
                new = replace(new, endpoints=(first, *new.endpoints[1:]))
            if shown < 0.5:  # the watch is quicker
                answers.append(self.store(new))
            else:
                self.version += 1
                answers.append(
                    encode(
                        replace(
                            new, metadata=replace(new.metadata, resource_version=f"{self.version}")
                        )
                    )
                )
        whole = tuple(answers)
        if self.brief:
            assert all(write.metadata_only == (write.verb == "update") for write in job.writes)
            answers = [
                metadata_of(answer) if write.verb == "update" else answer
                for write, answer in zip(job.writes, answers, strict=True)
            ]
        done = Done(job, tuple(answers))
        self.record.done(done, self.now)
        self.controller.on_done(done, self.now)
        self.job = None
        if shown >= 0.5:
            for answer in whole:
                if b'"Status"' not in answer:
                    new = decode(answer, EndpointSlice)
                    if self.random.random() < 0.7:
                        self.recorder.note_body(new.metadata.resource_version, answer)
                    self.show(new)

    def store(self, new: EndpointSlice) -> bytes:
        self.version += 1
        new = replace(new, metadata=replace(new.metadata, resource_version=f"{self.version}"))
        body = encode(new)
        if self.random.random() < 0.7:
            self.recorder.note_body(new.metadata.resource_version, body)
        self.show(decode(body, EndpointSlice))
        return body

    def show(self, new: EndpointSlice) -> None:
        old = self.slices.get(new.metadata.name)
        self.slices[new.metadata.name] = new
        self.tell(EndpointSlices.key, old, new)

    def recording(self) -> Recording:
        assert not self.recorder.fault, self.recorder.fault
        self.recorder.check()
        return Recording(Header(), list(self.recorder.segments()))


def metadata_of(answer: bytes) -> bytes:
    metadata = decode(answer, Object).metadata
    return encode(
        {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    )


def short_forms(recording: Recording) -> int:
    """Versions that are kept as the run of endpoints that differs."""
    steps = [
        line
        for segment in recording.segments
        for block in segment.blocks
        for line in lines_of(block)
        if line[0] == Code.STEP
    ]
    return sum(isinstance(line[5], list) for line in steps)


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("meddles", [False, True])
@pytest.mark.parametrize("segment_bytes", [1 << 23, 4_000])
def test_slices_are_read_back_as_they_were_and_replayed(
    segment_bytes: int, meddles: bool, brief: bool
) -> None:
    short = 0
    for seed in range(scaled(8, least=2)):
        story = Story(seed, segment_bytes=segment_bytes, meddles=meddles, brief=brief)
        for _ in range(150):
            story.step()
        recording = story.recording()
        read = [entry.change for entry in entries(recording) if isinstance(entry, Changed)]
        assert read == story.told, f"seed {seed}"
        short += short_forms(recording)
        report = Replay({NAME: EndpointSliceController}).run(recording)
        assert report.same, f"seed {seed}: {report.differences}"
        assert report.writes > 50, f"seed {seed}: {report.writes} writes"
    assert short > 20, "no slice was kept as what changed of it"


def test_another_write_of_the_same_endpoints_has_another_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(1)
    for _ in range(40):
        story.step()
    recording = story.recording()
    from sliceplane.slices import writes

    body = writes.slice_body

    def lying(meta: ObjectMeta, address_type: str, endpoints: object, ports: bytes) -> bytes:
        return body(meta, address_type, endpoints, ports.replace(b"80", b"81"))  # type: ignore[arg-type]

    monkeypatch.setattr(writes, "slice_body", lying)
    report = Replay({NAME: EndpointSliceController}).run(recording)
    assert len(report.differences) == 1


def test_who_wrote_a_slice_is_read_from_its_metadata_and_not_from_its_endpoints() -> None:
    entry = '{"manager":"%s","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:%s"}'
    managers = f'"managedFields":[{entry % ("early", "01Z")},{entry % ("late", "02Z")}]'
    endpoints = f'"endpoints":[{entry % ("never", "03Z")}]'
    assert writer_of(f'{{"metadata":{{{managers}}},{endpoints}}}'.encode()) == "late"
    assert writer_of(f'{{"metadata":{{{managers}}}}}'.encode()) == "late"
    assert not writer_of(f'{{"metadata":{{}},{endpoints}}}'.encode())
