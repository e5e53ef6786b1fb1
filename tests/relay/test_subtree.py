"""Relays that report through each other: what reaches the top, in any tree and any history, and
examples of limits, restarts and two processes of one name.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes
from sliceplane.consume.drain.relays import RelayReport, relays_of
from sliceplane.diagnose.drift.relays import relay_tree
from sliceplane.relay import subtree
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.reports import NodeReports
from sliceplane.relay.subtree import described

START = 1_790_000_000.0
SERVER = "https://10.0.0.1:6443"


def own(name: str, now: float, *, process: str = "", began: float = START) -> RelayReport:
    process = process or f"of-{name}"
    return RelayReport(name, process, now, now - began, SERVER, "0.1.0")


def lease_of(document: Document | None) -> Lease:
    assert document is not None, "no Lease is due"
    return decode(encode(document), Lease)


def reports_in(document: Document | None) -> dict[tuple[str, str], RelayReport]:
    return {(each.name, each.process): each for each in relays_of(lease_of(document))}


def written(core: NodeReports, report: RelayReport) -> Lease:
    core.relays.on_own(report)
    return lease_of(core.take_lease(report.heard))


# Trees: a relay has a smaller number than those below it.


@dataclass
class Member:
    name: str
    parent: int | None
    core: NodeReports
    alive: bool = True
    #: of its last Lease
    wrote: float = START


@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_the_top_reports_each_relay_below_it(data: st.DataObject) -> None:
    """The oracle knows who lives, and where each reports; the top knows what was written."""
    size = data.draw(st.integers(1, 7))
    members = [
        Member(
            f"r{number}",
            data.draw(st.integers(0, number - 1)) if number else None,
            NodeReports(f"r{number}"),
        )
        for number in range(size)
    ]
    now = START
    top: Lease | None = None
    for _ in range(data.draw(st.integers(30, 60))):
        now += 5.0
        if data.draw(st.integers(0, 9)) == 0 and size > 1:
            victim = members[data.draw(st.integers(1, size - 1))]
            victim.alive = False
        if data.draw(st.integers(0, 9)) == 0 and size > 2:
            mover = members[data.draw(st.integers(2, size - 1))]
            mover.parent = data.draw(st.integers(0, members.index(mover) - 1))
        for member in reversed(members):
            if not member.alive:
                continue
            member.core.relays.on_own(own(member.name, now))
            document = member.core.take_lease(now)
            if document is None:
                continue
            member.wrote, lease = now, lease_of(document)
            if member.parent is None:
                top = lease
            elif (above := members[member.parent]).alive:
                assert above.core.accepts(lease)
                above.core.on_lease(lease, now + data.draw(st.sampled_from([0.0, 0.4, 3.0])))
    assert top is not None
    rows = {row.name: row for row in relay_tree([top], now)}
    for number, member in enumerate(members):
        path = [member]
        while path[-1].parent is not None:
            path.append(members[path[-1].parent])
        state = rows[member.name].state if member.name in rows else "absent"
        if all(each.alive for each in path):
            # It may have moved so short a time ago that no report came from its new place yet.
            assert state != "ready" or now - rows[member.name].report.heard <= 45 + 30 * len(path)
        assert number or state == "ready"
    # Nothing changes from now on, so each living relay is seen below its parent, and no dead one.
    for _ in range(60):
        now += 5.0
        for member in reversed(members):
            member.core.relays.on_own(own(member.name, now))
            if member.alive and (document := member.core.take_lease(now)) is not None:
                lease = lease_of(document)
                if member.parent is None:
                    top = lease
                elif members[member.parent].alive:
                    members[member.parent].core.on_lease(lease, now)
    rows = {row.name: row for row in relay_tree([top], now)}
    for member in members:
        path = [member]
        while path[-1].parent is not None:
            path.append(members[path[-1].parent])
        if all(each.alive for each in path):
            row = rows[member.name]
            assert (row.state, row.twin, row.level) == ("ready", "", len(path))
            above = members[member.parent].name if member.parent is not None else SERVER
            assert row.parent == above
        elif member.name in rows:
            assert rows[member.name].state in ("stopped", "unknown")


# Examples


def test_figures_that_change_all_the_time_are_written_with_the_next_report_only() -> None:
    core = NodeReports("a")
    written(core, own("a", START))
    for seconds, watches in ((10, 5), (20, 7)):
        silence = {"endpointslices": seconds / 10}
        core.relays.on_own(replace(own("a", START + seconds), watches=watches, silence=silence))
        assert core.take_lease(START + seconds) is None, "watches come and go"
    core.relays.on_own(replace(own("a", START + 30), trouble="endpointslices: lost", nodes=3))
    (report,) = reports_in(core.take_lease(START + 30)).values()
    assert report.trouble, "a relay that is not ready tells it at once"
    core.relays.on_own(replace(own("a", START + 40), trouble="endpointslices: lost for longer"))
    assert core.take_lease(START + 40) is None
    assert core.take_lease(START + 60) is not None, "the Lease is renewed"


def test_a_relay_without_nodes_reports_itself_and_a_child_is_part_of_its_parent() -> None:
    child, parent = NodeReports("child"), NodeReports("parent")
    lease = written(child, own("child", START))
    assert parent.accepts(lease)
    parent.on_lease(lease, START + 1)
    found = relays_of(written(parent, own("parent", START + 2)))
    assert [(each.name, each.below, each.is_late) for each in found] == [
        ("parent", "", False),
        ("child", "parent", False),
    ]
    late = relays_of(written(parent, own("parent", START + 60)))
    assert [each.is_late for each in late] == [False, True]
    assert len(relays_of(written(parent, own("parent", START + 86_500)))) == 1, "it is forgotten"


def test_a_relay_of_a_zone_passes_nodes_on_and_reports_itself() -> None:
    zonal = NodeReports("zonal")
    zonal.compares = False
    below = NodeReports("below")
    assert zonal.accepts(written(below, own("below", START)))
    (report,) = reports_in(lease_document(zonal, replace(own("zonal", START), zone="z"))).values()
    assert report.zone == "z"


def lease_document(core: NodeReports, report: RelayReport) -> Document | None:
    core.relays.on_own(report)
    return core.take_lease(report.heard)


def test_a_restarted_relay_replaces_its_former_process() -> None:
    first, second = NodeReports("a"), NodeReports("a")
    lease = written(first, own("a", START, process="one"))
    second.restore(lease, START + 5)
    began = START + 5
    found = reports_in(lease_document(second, own("a", START + 5, process="two", began=began)))
    assert found.keys() == {("a", "one"), ("a", "two")}
    (row,) = relay_tree([written(second, own("a", START + 40, process="two", began=began))], START)
    assert (row.report.process, row.twin) == ("two", "")
    later = reports_in(lease_document(second, own("a", START + 100, process="two", began=began)))
    assert later.keys() == {("a", "two")}, "it is forgotten"


@pytest.mark.parametrize(("together_s", "are_twins"), [(40, False), (120, True)])
def test_two_processes_of_one_name_see_each_other(together_s: int, are_twins: bool) -> None:
    """Each reads the other's Lease when its write is refused. A replacement is no twin."""
    one, two = NodeReports("a"), NodeReports("a")
    began = START + 300
    lease = written(one, own("a", began - 1, process="one"))
    two.restore(lease, began)
    now = began
    while now < began + together_s:
        for core, process, since in ((two, "two", began), (one, "one", START)):
            now += 10
            core.restore(lease, now)
            core.on_failure()
            lease = written(core, own("a", now, process=process, began=since))
    (row,) = relay_tree([lease], now)
    assert bool(row.twin) == are_twins
    assert {row.report.process, row.twin or "two"} == {"one", "two"}


def test_relays_that_find_no_room_write_their_own_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtree, "RELAYS_BYTES_MAX", 2_000)
    top = NodeReports("top")
    top.relays.on_own(own("top", START))
    accepted = []
    for number in range(20):
        lease = written(NodeReports(f"r{number}"), own(f"r{number}", START))
        if top.accepts(lease):
            top.on_lease(lease, START)
            accepted.append(number)
    assert 5 < len(accepted) < 20
    lease = written(top, own("top", START))
    assert len(relays_of(lease)) == 1 + len(accepted)
    assert len((lease.metadata.annotations or {})["sliceplane.dev/relays"]) <= 2_000
    # The Lease of another process of the name brings more than there is room for.
    other = NodeReports("top")
    monkeypatch.setattr(subtree, "RELAYS_BYTES_MAX", 1_000)
    other.restore(lease, START)
    assert len(relays_of(written(other, own("top", START, process="x")))) == 1


def test_reports_of_others_are_no_relays() -> None:
    lease = written(NodeReports("a"), own("a", START))
    meta = lease.metadata
    labels = {"sliceplane.dev/component": "node-proxy"}
    assert relays_of(replace(lease, metadata=replace(meta, labels=labels))) == ()
    for text in ("", "{", '[{"name":"a"}]', '{"name":"a"}', "[1]"):
        annotations = {"sliceplane.dev/relays": text}
        assert relays_of(replace(lease, metadata=replace(meta, annotations=annotations))) == ()
        assert not NodeReports("b").accepts(
            replace(lease, metadata=replace(meta, annotations=annotations))
        )


class Parent:
    def __init__(self, mirror: ResourceMirror, silence_s: float, trouble: str = "") -> None:
        self.mirror = mirror
        self.silence_s = silence_s
        self.trouble = trouble


def mirror(resource: type[EndpointSlices] | type[Nodes], *, filled: bool = True) -> ResourceMirror:
    made = ResourceMirror(resource)  # type: ignore[arg-type]
    made.filled = filled
    return made


def test_a_report_has_no_user_of_a_url_and_the_longest_silence_of_each_resource() -> None:
    parents = {
        Selection(EndpointSlices, label_selector="zone=a"): Parent(mirror(EndpointSlices), 0.31),  # type: ignore[arg-type]
        Selection(EndpointSlices): Parent(mirror(EndpointSlices), 130.04, "the parent is silent"),  # type: ignore[arg-type]
        Selection(Nodes): Parent(mirror(Nodes, filled=False), float("inf"), "x" * 500),  # type: ignore[arg-type]
    }
    begun = replace(own("a", START), parent="https://me:secret@10.0.0.1:6443/k8s/c-1")
    report = described(begun, parents)
    assert report.parent == "https://10.0.0.1:6443/k8s/c-1"
    assert report.silence == {"endpointslices": 130.0}, "nodes were not listed yet"
    assert report.trouble == "endpointslices: the parent is silent"
    assert report.silence_s == 130.0
    assert "secret" not in msgspec.json.encode(report).decode()
