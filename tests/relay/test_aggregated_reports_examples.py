"""Examples of aggregated reports: how many are named, what is folded, and who may report others."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.drain.relayed import (
    EXCEPTIONS_MAX,
    RelayedNodes,
    flatten,
    nodes_of,
    pack_names,
    unpack_names,
)
from sliceplane.consume.progress import Progress
from sliceplane.relay import reports
from sliceplane.relay.reports import FOLDED_PROBLEMS, NodeReports
from sliceplane.watch.cache import Change, Mark

NOW = 1_790_000_000.0


def lease_of(name: str, revision: int = 10, *problems: str) -> Lease:
    progress = Progress(name, ("IPv4",))
    progress.on_mark(EndpointSlices.key, "all", Mark(EndpointSlices.key, str(revision)))
    progress.on_idle("IPv4")
    progress.on_problems(problems)
    return decode(progress.take_report(NOW), Lease)


def groups(document: Document | None) -> RelayedNodes:
    assert document is not None
    text = document["metadata"]["annotations"]["sliceplane.dev/nodes"]
    return decode(text.encode(), RelayedNodes)


def expanded(document: Document | None) -> dict[str, Lease]:
    lease = decode(encode(document), Lease)
    return {each.spec.holder_identity or "": each for each in flatten([lease])}


def test_many_nodes_are_one_group_with_the_least_revision() -> None:
    core = NodeReports("a")
    for number in range(500):
        core.on_lease(lease_of(f"n-{number}", 10 + number % 7), NOW)
    written = core.take_lease(NOW)
    (group,) = groups(written).groups
    assert group.report.endpointslices["all"].revision == 10
    assert len(expanded(written)) == groups(written).nodes == 500
    assert len(encode(written)) < 4_000
    assert core.take_lease(NOW + 20) is None, "nothing is new"
    assert core.take_lease(NOW + 31) is not None


def test_stopped_nodes_are_named_and_more_than_a_hundred_claim_nothing() -> None:
    core = NodeReports("a")
    for number in range(130):
        core.on_lease(lease_of(f"old-{number}"), NOW)
    for number in range(20):
        core.on_lease(lease_of(f"new-{number}"), NOW + 40)
    written = core.take_lease(NOW + 60)
    found = groups(written).groups
    named = [group for group in found if group.node]
    assert len(named) == EXCEPTIONS_MAX
    assert all(group.is_late and group.report.endpointslices["all"].revision for group in named)
    (folded,) = [group for group in found if not group.node and group.is_late]
    assert len(folded.names) == 30
    assert folded.report.endpointslices["all"].revision == 0
    assert len(expanded(written)) == 150


def test_problems_are_named_with_their_text_and_folded_without() -> None:
    core = NodeReports("a")
    for number in range(101):
        core.on_lease(lease_of(f"n-{number:03}", 10, f"nft refused {number}"), NOW)
    written = groups(core.take_lease(NOW))
    assert written.groups[-1].report.problems == ("nft refused 99",)
    (folded,) = [group for group in written.groups if not group.node]
    assert (folded.names, folded.report.problems) == (("n-100",), (FOLDED_PROBLEMS,))


def test_what_is_full_or_means_more_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    core = NodeReports("a")
    plain = lease_of("n-0")
    assert core.accepts(plain)
    meta = plain.metadata
    annotations = {**(meta.annotations or {}), "sliceplane.dev/demand": "3f9a12c0:1"}
    for other in (
        replace(meta, annotations=annotations),
        replace(meta, annotations={"sliceplane.dev/endpointslices-revision": "10"}),
        replace(meta, labels={"sliceplane.dev/component": "view"}),
        replace(meta, name="sliceplane-proxy-n-1"),
    ):
        assert not core.accepts(replace(plain, metadata=other))
    core.on_lease(plain, NOW)
    monkeypatch.setattr(reports, "NODES_MAX", 1)
    assert core.accepts(plain)
    assert not core.accepts(lease_of("n-1"))


def test_a_lease_that_is_passed_on_leaves_the_aggregate_once_it_is_late() -> None:
    core = NodeReports("a")
    core.on_lease(lease_of("n-0"), NOW)
    core.on_passed("sliceplane-proxy-n-0")
    assert expanded(core.take_lease(NOW)).keys() == {"n-0"}, "its own Lease may not be there yet"
    assert not expanded(core.take_lease(NOW + 60))
    core.check()


def test_a_node_cannot_report_others_in_its_own_lease() -> None:
    core = NodeReports("a")
    core.on_lease(lease_of("victim", 99), NOW)
    aggregate = decode(encode(core.take_lease(NOW)), Lease)
    assert [each.lease.spec.holder_identity for each in nodes_of(aggregate)] == ["victim"]
    for changed in ({"name": "sliceplane-proxy-evil"}, {"namespace": "evil"}):
        forged = replace(aggregate, metadata=replace(aggregate.metadata, **changed))
        assert nodes_of(forged) == [(forged, 0.0)]


@pytest.mark.parametrize(
    "packed",
    [
        "",
        "%",
        b64encode(b"no zlib").decode(),
        b64encode(zlib.compress(b"a" * 2**21)).decode(),
        b64encode(zlib.compress(b"node-1")[:-4]).decode(),
        b64encode(zlib.compress(b"\xff")).decode(),
    ],
    ids=["nothing", "no base64", "no zlib", "too long", "not complete", "no text"],
)
def test_names_that_cannot_be_read_are_nobody(packed: str) -> None:
    assert unpack_names(pack_names(["b", "a"])) == ("a", "b")
    with pytest.raises(ValueError):
        unpack_names(packed)
    core = NodeReports("a")
    core.on_lease(lease_of("n-0"), NOW)
    document = core.take_lease(NOW)
    assert document is not None
    annotations = document["metadata"]["annotations"]
    text = annotations["sliceplane.dev/nodes"].replace(pack_names(["n-0"]), packed)
    annotations["sliceplane.dev/nodes"] = text
    assert not expanded(document)


def test_a_group_says_how_old_its_reports_are_and_an_older_one_changes_nothing() -> None:
    core = NodeReports("a")
    core.on_lease(lease_of("n-0", 10), NOW)
    core.on_lease(lease_of("n-1", 11), NOW + 7)
    document = core.take_lease(NOW + 8)
    (group,) = groups(document).groups
    assert (group.heard, group.spread_s) == (NOW, 7.0)
    ages = [each.age_s for each in nodes_of(decode(encode(document), Lease))]
    assert ages == [8.0, 8.0]
    older = NodeReports("lower")
    older.on_lease(lease_of("n-1", 5), NOW)
    core.on_lease(decode(encode(older.take_lease(NOW + 1)), Lease), NOW + 1)
    assert groups(core.take_lease(NOW + 39)).groups[0].report.endpointslices["all"].revision == 10


@pytest.mark.parametrize("exceptions", [0, 100])
def test_a_cache_that_lost_an_event_counts_as_such_named_or_not(
    exceptions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "EXCEPTIONS_MAX", exceptions)
    core, barrier = NodeReports("a"), DrainCluster()
    # The relay has nothing at this version, so its digest is that of nothing.
    core.on_mark(Mark(EndpointSlices.key, "10", listed=True), NOW)
    core.on_lease(lease_of("n-0"), NOW)
    lost = lease_of("n-1")
    annotations = dict(lost.metadata.annotations or {})
    progress = "sliceplane.dev/progress"
    annotations[progress] = annotations[progress].replace("0" * 16, "1" * 16)
    lost = replace(lost, metadata=replace(lost.metadata, annotations=annotations))
    core.on_lease(lost, NOW)
    lease = decode(encode(core.take_lease(NOW)), Lease)
    barrier.on_change(Change(Leases.key, None, lease), NOW)
    differs = {fact.name: fact.differs for fact in barrier.facts()}
    assert differs == {"n-0": False, "n-1": True}
