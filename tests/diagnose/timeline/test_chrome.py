"""An export for Chrome: what begins ends, arrows have both ends, and halves that were cut are
closed and marked.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.diagnose.timeline.test_timeline import Story, rollout
from tests.watch.recorder.test_encoding import Told

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Leases
from sliceplane.consume.drain.relayed import ANNOTATION_NODES, NodeGroup, RelayedNodes
from sliceplane.consume.progress import AppliedRevision, ProgressReport
from sliceplane.diagnose.timeline.chrome import ChromeTrace
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.watch.recorder.file import Header, Recording
from sliceplane.watch.recorder.recorder import Recorder


def exported(recorder: Recorder, segment: int = 0) -> list[dict[str, Any]]:
    trace = ChromeTrace()
    trace.add_all(entries(Recording(Header(), list(recorder.segments())), segment))
    events: list[dict[str, Any]] = json.loads(json.dumps(trace.events))
    return events


def check_pairs(events: list[dict[str, Any]]) -> None:
    open_spans: Counter[tuple[str, int]] = Counter()
    arrows: Counter[int] = Counter()
    for event in events:
        if event["ph"] in "be":
            open_spans[event["cat"], event["id"]] += 1 if event["ph"] == "b" else -1
            assert open_spans[event["cat"], event["id"]] in (0, 1), event
        elif event["ph"] in "sf":
            arrows[event["id"]] += 1
    assert not +open_spans, "what begins ends"
    assert set(arrows.values()) <= {2}, "an arrow has two ends"
    named = {(event["pid"], event.get("tid")) for event in events if event["ph"] == "M"}
    assert {(event["pid"], event["tid"]) for event in events if "tid" in event} <= named


def test_a_rollout_leads_from_changes_over_slices_to_nodes() -> None:
    events = exported(rollout(10).recorder)
    check_pairs(events)
    processes = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert processes == {"endpointslice-controller", "objects", "node node-1", "node node-7"}
    threads = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert "shop/web" in threads
    ends = [event for event in events if event["ph"] == "e" and event["cat"] == "slice"]
    assert len(ends) == 10
    assert not any(event["args"].get("cut") for event in ends)
    # The last slice was on its way until node-7 told, 9 s after it.
    last = ends[-1]
    began = next(event for event in events if event["ph"] == "b" and event["id"] == last["id"])
    assert last["ts"] - began["ts"] == pytest.approx(9_000_000, abs=2)


def test_nodes_behind_a_relay_have_tracks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, int] = {}

    def progress(story: Story, node: str, revision: int) -> None:
        """The relay's Lease, with the last report of each node."""
        held[node] = revision
        reports = {
            name: ProgressReport({"all": AppliedRevision(of_node, "")})
            for name, of_node in held.items()
        }
        groups = tuple(NodeGroup(report, 0.0, node=name) for name, report in reports.items())
        annotations = {ANNOTATION_NODES: encode(RelayedNodes(len(groups), groups)).decode()}
        meta = ObjectMeta(
            name="sliceplane-relay-eu",
            namespace="kube-node-lease",
            labels={"sliceplane.dev/component": "relay"},
            annotations=annotations,
        )
        story.put(Leases, Lease(metadata=meta))

    plain = exported(rollout(10).recorder)
    monkeypatch.setattr(Story, "progress", progress)
    events = exported(rollout(10).recorder)
    check_pairs(events)
    for phase, category in (("M", None), ("e", "slice")):
        found, expected = (
            [
                (event["name"], event.get("ts"), event["args"].get("name"))
                for event in each
                if (event["ph"], event.get("cat")) == (phase, category)
            ]
            for each in (events, plain)
        )
        assert found == expected


@pytest.mark.parametrize("seed", range(5))
def test_halves_that_the_ring_cut_are_closed_and_marked(seed: int) -> None:
    told = Told(seed, 1500, limit_bytes=24_000, segment_bytes=6_000)
    assert told.recorder.ring.forgotten > 0
    events = exported(told.recorder)
    check_pairs(events)
    assert all(event["ts"] >= 0 for event in events if "ts" in event)
    finished = Told(seed, 40)
    record = finished.recorder.begin("late", finished.now)
    record.batch_taken(finished.history.work(), 5, finished.now)
    cut = [
        event
        for event in exported(finished.recorder)
        if event["ph"] == "e" and event["args"].get("cut")
    ]
    check_pairs(exported(finished.recorder))
    assert bool(cut) == bool(finished.history.jobs) or cut
