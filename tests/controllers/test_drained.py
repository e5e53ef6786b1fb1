"""The condition ``sliceplane.dev/Drained``, fed by hand: when it is written, when reports are asked
for, when not.
"""

from __future__ import annotations

import json
from typing import Any

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Pod
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Leases, Pods, Services
from sliceplane.consume.drain.reports import BarrierAnswer, questions
from sliceplane.consume.progress import AppliedRevision, ProgressReport
from sliceplane.controllers.drained import DrainedController
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import Done
from sliceplane.watch.digest import digest_of

NOW = 1_800_000_000.0
OPTED = {"sliceplane.dev/drain-barrier": "true"}


class Story:
    """A controller, and what it was told."""

    def __init__(self) -> None:
        self.controller = DrainedController()
        self.now = NOW
        self.seen: dict[tuple[str, str], Any] = {}
        #: what the server's memory answers; ``None``: it has none
        self.memory: BarrierAnswer | None = None
        self.questions: list[Write] = []
        self.controller.on_synced(NOW)

    def tell(self, resource: Any, made: Object | None, name: str = "") -> None:
        key = (resource.key, name or (made.metadata.key if made else ""))
        old = self.seen.pop(key, None)
        if made is not None:
            self.seen[key] = made
        self.controller.on_change(Change(resource.key, old, made), self.now)

    def pod(
        self, *, annotations: dict[str, str] | None = None, dying: bool = False, told: str = ""
    ) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        if told:
            conditions.append({"type": "sliceplane.dev/Drained", "status": told})
        document = {
            "metadata": {
                "name": "p",
                "namespace": "shop",
                "uid": "u",
                "annotations": annotations or {},
            },
            "spec": {"nodeName": "n1"},
            "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": conditions},
        }
        if dying:
            document["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        self.tell(Pods, decode(encode(document), Pod))

    def slice(self, version: int, *, ready: bool, pod: str = "p") -> EndpointSlice:
        own = {
            "addresses": ["10.0.0.1"],
            "targetRef": {"kind": "Pod", "name": pod, "uid": "u"},
            "conditions": {"ready": ready, "serving": True, "terminating": not ready},
        }
        document = {
            "metadata": {
                "name": "web-1",
                "namespace": "shop",
                "resourceVersion": str(version),
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 80}],
            "endpoints": [own, {"addresses": ["10.0.0.2"]}],
        }
        made = decode(encode(document), EndpointSlice)
        self.tell(EndpointSlices, made)
        self.controller.on_mark(Mark(EndpointSlices.key, str(version)), self.now)
        return made

    def report(self, version: int, *held: EndpointSlice) -> None:
        progress = encode(progress_of(version, *held)).decode()
        document = {
            "metadata": {
                "name": "sliceplane-proxy-n1",
                "namespace": "kube-node-lease",
                "labels": {"sliceplane.dev/component": "node-proxy"},
                "resourceVersion": str(version),
                "annotations": {"sliceplane.dev/progress": progress},
            },
            "spec": {
                "holderIdentity": "n1",
                "leaseDurationSeconds": 90,
                "renewTime": format_micro_time(self.now),
            },
        }
        self.tell(Leases, decode(encode(document), Lease))

    def writes(self) -> list[tuple[str, Any]]:
        """What it writes now, all of which succeeds; questions are answered by ``memory``."""
        taken: list[Write] = []
        while jobs := self.controller.take_work(self.now, 10).jobs:
            for job in jobs:
                asks = [write for write in job.writes if write.verb == "ask"]
                self.questions += asks
                taken += [write for write in job.writes if write not in asks]
                answer = b"" if not asks or self.memory is None else encode(self.memory)
                self.controller.on_done(Done(job, tuple(answer for _ in job.writes)), self.now)
                self.now += 0.001 if asks else 0.0
        self.controller.check()
        return [(write.resource.plural, json.loads(write.body)) for write in taken]

    def told(self) -> list[tuple[str, str, str]]:
        conditions = [
            body["status"]["conditions"][0] for plural, body in self.writes() if plural == "pods"
        ]
        return [(entry["status"], entry["reason"], entry["message"]) for entry in conditions]


def progress_of(version: int, *held: EndpointSlice) -> ProgressReport:
    return ProgressReport({"all": AppliedRevision(version, digest_of(held))})


def begin(annotations: dict[str, str]) -> Story:
    story = Story()
    story.pod(annotations=annotations)
    story.controller.on_mark(Mark(Services.key, "1"), NOW)
    story.report(10, story.slice(10, ready=True))
    assert story.writes() == [], "nothing leaves"
    return story


def test_a_pod_that_is_deleted_is_told_once_its_node_holds_that() -> None:
    story = begin(OPTED)
    story.pod(annotations=OPTED, dying=True)
    assert story.writes() == [], "a slice says ready"
    story.now += 0.02
    gone = story.slice(11, ready=False)
    ((plural, body),) = story.writes()
    assert (plural, body["metadata"]["annotations"]["sliceplane.dev/report"].split("/")[-1]) == (
        "endpointslices",
        "0",
    )
    assert story.writes() == [], "nodes were asked a moment ago"
    story.now += 0.02
    story.report(11, gone)
    assert story.told() == [("True", "Proven", "revision 11, 1 nodes, 41 ms")]
    assert len(story.questions) == 1, "a server without a memory is not asked again soon"
    story.report(12, gone)
    assert story.writes() == [], "it is written once"


def test_a_pod_of_no_service_is_drained_at_once() -> None:
    """Nothing is written of it, so no mark comes for a minute."""
    story = Story()
    story.controller.on_mark(Mark(Services.key, "1"), NOW)
    story.report(10, story.slice(10, ready=True, pod="other"))
    story.pod(annotations=OPTED, dying=True)
    assert [status for status, _, _ in story.told()] == ["True"]


def test_a_node_that_tells_in_the_servers_memory_is_asked_for_no_write() -> None:
    story = begin(OPTED)
    story.memory = BarrierAnswer(1)
    story.pod(annotations=OPTED, dying=True)
    gone = story.slice(11, ready=False)
    taken = story.controller.take_work(story.now, 10).jobs
    (job,) = [job for job in taken if job.writes[0].verb == "ask"]
    wanted = questions.decode(job.writes[0].body).versions
    assert (wanted.endpointslices["all"], wanted.endpointslices["*"]) == (11, 10)
    answer = BarrierAnswer(
        2,
        {
            "kube-node-lease/sliceplane-proxy-n1": progress_of(11, gone),
            "kube-node-lease/gone": progress_of(5),
        },
    )
    story.controller.on_done(Done(job, (encode(answer),)), story.now + 0.004)
    story.now += 0.004
    assert story.told() == [("True", "Proven", "revision 11, 1 nodes, 4 ms")]


def test_a_node_that_the_servers_memory_does_not_know_is_asked_by_an_annotation() -> None:
    story = begin(OPTED)
    story.memory = BarrierAnswer(1)
    story.pod(annotations=OPTED, dying=True)
    story.slice(11, ready=False)
    began = story.now
    while not (writes := story.writes()):
        assert story.now < began + 2, "it is asked in vain"
        story.now += 0.05
    assert story.now - began >= 0.5
    assert [plural for plural, _ in writes] == ["endpointslices"]


def test_a_node_that_does_not_tell_is_asked_again() -> None:
    story = begin(OPTED)
    story.pod(annotations=OPTED, dying=True)
    story.slice(11, ready=False)
    assert len(story.writes()) == 1
    story.now += 1.1
    assert len(story.writes()) == 1


def test_a_cache_that_lost_an_event_proves_nothing() -> None:
    story = begin(OPTED)
    story.pod(annotations=OPTED, dying=True)
    story.slice(11, ready=False)
    story.writes()
    story.report(11)  # the digest of nothing
    assert story.told() == []


def test_who_did_not_ask_costs_no_write() -> None:
    story = begin({})
    story.pod(dying=True)
    story.report(11, story.slice(11, ready=False))
    assert story.writes() == []


def test_a_mark_that_is_taken_away_takes_the_condition_back() -> None:
    mark = {"sliceplane.dev/drain": "now"}
    story = begin({})
    story.pod(annotations=mark)
    story.report(11, story.slice(11, ready=False))
    assert [status for status, _, _ in story.told()] == ["True"]
    story.pod(annotations=mark, told="True")
    assert story.told() == []
    story.pod(told="True")
    assert story.told() == [("False", "Serving", "")]
    story.pod(told="False")
    assert story.told() == []
    story.tell(Pods, None, "shop/p")
    assert story.writes() == []
