"""The tree of relays: any set of reports makes one, and a screen has the worst of it."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, LeaseSpec
from sliceplane.api.meta import ObjectMeta
from sliceplane.consume.drain.relays import RelayReport
from sliceplane.diagnose.drift.relays import (
    ORDER,
    RelayRow,
    relay_findings,
    relay_lines,
    relay_tree,
)

NOW = 1_790_000_000.0
HEALTHY = RelayReport("eu", "p-1", NOW - 8, 7200.0, "https://10.0.0.1:6443", "0.1.0")
NAMES = ["a", "b", "c", "d", "<img src=x>", "n" * 63]
RELAYS = st.builds(
    RelayReport,
    name=st.sampled_from(NAMES),
    process=st.sampled_from(["1", "2"]),
    heard=st.sampled_from([NOW - age for age in (-30, 5, 44, 46, 80, 100, 90_000)]),
    up_s=st.sampled_from([0.0, 30.0, 61.0, 7200.0]),
    parent=st.sampled_from(["https://10.0.0.1:6443", f"https://{'x' * 90}"]),
    release=st.just("0.1.0"),
    below=st.sampled_from(["", *NAMES, "absent"]),
    zone=st.sampled_from(["", "eu-central-1a", "z" * 60]),
    trouble=st.sampled_from(["", "nodes: no right"]),
    nodes=st.sampled_from([0, 4_999]),
    watches=st.sampled_from([0, 1, 99_999]),
    silence=st.dictionaries(
        st.sampled_from(["endpointslices", "nodes"]), st.sampled_from([0.3, 119.0, 121.0])
    ),
    is_late=st.booleans(),
)


def lease(*reports: RelayReport, name: str = "") -> Lease:
    return Lease(
        metadata=ObjectMeta(
            name=f"sliceplane-relay-{name or reports[0].name}",
            namespace="kube-node-lease",
            labels={"sliceplane.dev/component": "relay"},
            annotations={"sliceplane.dev/relays": encode(reports).decode()},
        ),
        spec=LeaseSpec(),
    )


@settings(max_examples=300, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    written=st.lists(
        st.tuples(st.sampled_from(NAMES), st.lists(RELAYS, max_size=6)), min_size=1, max_size=4
    ),
    rows_max=st.integers(1, 7),
)
def test_any_reports_are_one_tree(
    written: list[tuple[str, list[RelayReport]]], rows_max: int
) -> None:
    """Cycles, parents that do not report, and two reports of one process are among them."""
    rows = relay_tree([lease(*reports, name=name) for name, reports in written], NOW)
    reports = [report for _, found in written for report in found]
    assert sorted(row.name for row in rows) == sorted({report.name for report in reports})
    path: list[RelayRow] = []
    for row in rows:
        assert row.report.heard == max(each.heard for each in reports if each.name == row.name)
        del path[row.level - 1 :]
        assert len(path) == row.level - 1
        assert not path or row.report.below == path[-1].name
        if any(above.state in ("stopped", "unknown") for above in path):
            assert row.state == "unknown"
        else:
            assert row.state != "unknown"
        path.append(row)
    list(relay_findings(rows))
    lines = relay_lines(rows, rows_max)
    assert all(len(line) <= 78 for line in lines), lines
    worst = [min(ORDER.index(row.state) for row in subtree) for subtree in subtrees(rows)]
    assert worst == sorted(worst), "the worst first"


def subtrees(rows: tuple[RelayRow, ...]) -> list[list[RelayRow]]:
    found: list[list[RelayRow]] = []
    for row in rows:
        if row.level == 1:
            found.append([])
        found[-1].append(row)
    return found


def tree(*reports: RelayReport) -> tuple[RelayRow, ...]:
    return relay_tree([lease(*reports)], NOW)


def codes(*reports: RelayReport) -> list[str]:
    return [finding.code for finding in relay_findings(tree(*reports))]


def served(silence_s: float, watches: int = 12) -> dict[str, Any]:
    return {"silence": {"endpointslices": silence_s, "services": 0.2}, "watches": watches}


def test_a_screen_has_the_tree() -> None:
    eu = replace(HEALTHY, **served(21.0), nodes=960)
    child = replace(eu, name="eu-1", below="eu", zone="eu-central-1a", parent="https://eu:6444")
    behind = replace(child, name="eu-2", zone="", **served(240.0, 2_890))
    below = replace(child, name="eu-2-a", below="eu-2", zone="", nodes=0)
    gone = replace(child, name="eu-3", is_late=True, zone="", heard=NOW - 300)
    rows = tree(eu, child, behind, below, gone, replace(below, name="eu-3-a", below="eu-3"))
    assert relay_lines(rows, 20) == (
        "RELAY       ZONE           STATE    SILENT  WATCHES  NODES  AGE",
        "eu          -              ready    21 s    12       960    8 s",
        "  eu-3      -              stopped  21 s    12       960    5 min",
        "    eu-3-a  -              unknown  21 s    12       0      8 s",
        "  eu-2      -              behind   4 min   2,890    960    8 s",
        "    eu-2-a  -              ready    21 s    12       0      8 s",
        "  eu-1      eu-central-1a  ready    21 s    12       960    8 s",
    )
    assert [(row.name, row.level, row.parent) for row in rows if row.level != 2] == [
        ("eu", 1, "https://10.0.0.1:6443"),
        ("eu-3-a", 3, "eu-3"),
        ("eu-2-a", 3, "eu-2"),
    ]


def test_hundreds_of_relays_are_a_screen_with_the_worst() -> None:
    reports = [
        replace(HEALTHY, name=f"r-{number:03}", **served(number % 60)) for number in range(400)
    ]
    reports[317] = replace(reports[317], silence={"nodes": 121.0})
    lines = relay_lines(relay_tree([lease(each) for each in reports], NOW), 20)
    assert len(lines) == 22
    assert lines[1].split()[:3] == ["r-317", "-", "behind"]
    assert lines[-1] == "and 380 more (--output json has all)"


def test_a_fault_is_told_once_and_not_for_those_below_it() -> None:
    behind = replace(HEALTHY, **served(121.0))
    below = replace(behind, name="b", below="eu")
    assert codes(behind, below, replace(below, name="c", below="b")) == ["N17"]
    assert codes(replace(behind, **served(119.0)), below) == ["N17"], "the lower one alone"
    stopped = replace(HEALTHY, heard=NOW - 46)
    assert codes(stopped, replace(below, is_late=True)) == ["N16"], "of b nothing is known"
    troubled = replace(HEALTHY, trouble="nodes: no right to list")
    assert codes(troubled) == [], "it has no client"
    assert codes(replace(troubled, watches=3), replace(HEALTHY, name="b", below="eu")) == ["N19"]
    assert codes(replace(troubled, nodes=1)) == ["N19"]
    assert codes(replace(troubled, nodes=1, up_s=59.0)) == [], "it starts"


def test_two_processes_are_told_while_both_live() -> None:
    twin = replace(HEALTHY, process="p-2", up_s=300.0, heard=NOW - 40)
    assert codes(HEALTHY, twin) == ["N18"]
    assert codes(HEALTHY, replace(twin, heard=NOW - 91)) == [], "it has ended"
    new = replace(HEALTHY, up_s=60.0)
    assert codes(new, replace(twin, heard=NOW - 9)) == [], "one replaces the other"
    # Behind two parents neither refuses the other's write.
    here = lease(replace(HEALTHY, name="x"), replace(HEALTHY, below="x"))
    there = lease(replace(HEALTHY, name="y"), replace(twin, below="y"))
    (row,) = [row for row in relay_tree([here, there], NOW) if row.twin]
    assert (row.name, row.report.process, row.twin) == ("eu", "p-1", "p-2")
