"""Drift from what was read: each fault is named, what only looks like one is not, and what is not
known is said.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from sliceplane.api.core import Node
from sliceplane.api.meta import ObjectMeta
from sliceplane.consume.progress import (
    LEASE_DURATION_S,
    REPORT_LATE_S,
    AppliedRevision,
    ProgressReport,
)
from sliceplane.diagnose.drift.answer import Drift, as_text
from sliceplane.diagnose.drift.facts import DriftFacts, LeaseReport, Listed, ProxyPages
from sliceplane.diagnose.drift.judge import judge, past_versions_to_read
from sliceplane.emulation.nodes import LABEL_EMULATED
from sliceplane.watch.digest import digest_of_versions

NOW = 1_800_000_000.0


def item(
    name: str,
    version: int,
    *,
    selections: tuple[str, ...] = ("all", "shared"),
    age_s: float = 600.0,
) -> Listed:
    return Listed(f"shop/{name}-1", str(version), selections, f"shop/{name}", NOW - age_s)


CART, WEB = item("cart", 40), item("web", 50)


def held(revision: int, *items: Listed) -> AppliedRevision:
    return AppliedRevision(revision, digest_of_versions((each.key, each.version) for each in items))


def told(
    node: str, revision: int = 60, *items: Listed, ago_s: float = 5.0, **rest: Any
) -> LeaseReport:
    report = ProgressReport(endpointslices={"all": held(revision, *(items or (CART, WEB)))}, **rest)
    return LeaseReport(node, report, revision, NOW - ago_s, LEASE_DURATION_S, node)


def facts(
    *reports: LeaseReport, slices: tuple[Listed, ...] = (CART, WEB), **rest: Any
) -> DriftFacts:
    nodes = tuple(Node(metadata=ObjectMeta(name=report.node)) for report in reports)
    return DriftFacts(
        now=NOW,
        consumers=reports,
        **{"nodes": nodes, "now_of": {"endpointslices": (70, slices)}, **rest},
    )


def said(drift: Drift) -> list[tuple[str, str]]:
    return [(finding.code, finding.sentence) for finding in drift.findings]


def states(drift: Drift) -> dict[str, str]:
    return {row.node: row.state for row in drift.rows}


def test_a_proxy_that_hears_nothing_is_behind_for_that_reason() -> None:
    """What it does not hold follows from it, and is told by no finding of its own."""
    deaf = told("n1", 50, inputs_since=int(NOW) - 540)
    newer = Listed("shop/cart", "69", ("all",), "shop/cart", NOW - 300)
    drift = judge(facts(deaf, told("n2"), slices=(newer, WEB)))
    sentence = (
        "n1: its inputs are 9 min old: its proxy runs, but receives no events from the API server"
    )
    assert [entry for entry in said(drift) if entry[1].startswith("n1")] == [("N15", sentence)]
    assert states(drift)["n1"] == "behind"


def test_nodes_that_hold_what_the_server_says_are_in_step() -> None:
    drift = judge(facts(told("n1"), told("n2", 50)))
    assert states(drift) == {"n1": "in step", "n2": "in step"}
    assert (drift.differs, drift.is_blind, drift.findings, drift.unchecked) == (
        False,
        False,
        (),
        (),
    )


def test_a_stopped_proxy() -> None:
    drift = judge(facts(told("n1"), told("n2", ago_s=LEASE_DURATION_S + 31)))
    assert said(drift) == [("N1", "n2: its proxy has not reported for 2 min")]
    assert states(drift) == {"n1": "in step", "n2": "stopped"}
    assert not judge(facts(told("n1", ago_s=REPORT_LATE_S - 1))).findings


def test_a_proxy_that_stands_still_has_stopped_before_its_lease_runs_out() -> None:
    """And is told by that alone, though it is behind, too."""
    newer = item("cart", 65, age_s=34.0)
    drift = judge(
        facts(
            told("n1", ago_s=REPORT_LATE_S + 1),
            slices=(newer, WEB),
            past={("endpointslices", 60): (CART, WEB)},
        )
    )
    assert said(drift) == [("N1", "n1: its proxy has not reported for 46 s")]
    assert states(drift) == {"n1": "stopped"}


def test_a_kernel_that_could_not_be_looked_at_deeply_is_not_as_told() -> None:
    shallow = judge(facts(told("n1"), pages={"n1": ProxyPages(why="no such pages")}))
    assert [(row.kernel, shallow.is_blind) for row in shallow.rows] == [("as told", False)]
    deep = judge(
        facts(
            told("n1"),
            pages={"n1": ProxyPages(why="no such pages", rules_why="not root", is_deep=True)},
        )
    )
    assert [(row.kernel, row.state, deep.is_blind) for row in deep.rows] == [
        ("not looked at", "unknown", True)
    ]
    assert deep.unchecked == ("n1: its proxy's pages (no such pages)", "n1: rules (not root)")


@pytest.mark.parametrize(("age_s", "state"), [(11.0, "catching up"), (34.0, "behind")])
def test_a_node_behind_has_the_time_of_a_report(age_s: float, state: str) -> None:
    newer = item("cart", 65, age_s=age_s)
    past = {("endpointslices", 60): (CART, WEB)}
    drift = judge(facts(told("n1"), slices=(newer, WEB), past=past))
    assert states(drift) == {"n1": state}
    assert said(drift) == (
        [("N2", "n1: 34 s behind: it does not hold shop/cart")] if state == "behind" else []
    )
    (row,) = drift.rows
    assert (row.behind, row.behind_s, row.cache) == (1, age_s, "equal")


def test_behind_is_asked_of_one_service() -> None:
    newer = item("cart", 65, age_s=34.0)
    known = facts(told("n1"), slices=(newer, WEB), past={("endpointslices", 60): (CART, WEB)})
    assert states(judge(replace(known, service="shop/cart"))) == {"n1": "behind"}
    assert states(judge(replace(known, service="shop/web"))) == {"n1": "in step"}


def test_what_a_node_does_not_read_is_no_concern_of_it() -> None:
    other = item("cart", 65, selections=("all", "zone=b"), age_s=34.0)
    report = ProgressReport(endpointslices={"shared": held(60, WEB), "zone=a": held(60)})
    told_of = LeaseReport("n1", report, 60, NOW, LEASE_DURATION_S, "n1")
    assert states(judge(facts(told_of, slices=(other, WEB)))) == {"n1": "in step"}


def test_a_lost_event_is_named_with_its_object_where_the_node_can_be_asked() -> None:
    lost = told("n1", 60, WEB)
    drift = judge(facts(lost, told("n2")))
    assert states(drift) == {"n1": "lost an event", "n2": "in step"}
    sentence = "n1: lost an event: it holds endpointslices (all) 60 with another content"
    assert said(drift) == [("N4", sentence)]
    look = ProxyPages(objects={"endpointslices/all": {WEB.key: WEB.version}})
    assert said(judge(facts(lost, pages={"n1": look}))) == [
        ("N4", f"{sentence}: shop/cart-1 is missing")
    ]
    old = ProxyPages(
        objects={
            "endpointslices/all": {
                CART.key: "12",
                WEB.key: WEB.version,
                "shop/gone": "3",
                "shop/new": "66",
            }
        }
    )
    differences = "shop/cart-1 is 40 and it keeps 12, shop/gone is gone and it keeps 3"
    assert said(judge(facts(lost, pages={"n1": old}))) == [("N4", f"{sentence}: {differences}")]
    unseen = judge(
        facts(lost, pages={"n1": ProxyPages(why="http://10.0.0.1:10249: connection refused")})
    )
    assert unseen.unchecked == (
        "n1: its proxy's pages (http://10.0.0.1:10249: connection refused)",
    )


def test_the_past_is_asked_for_where_the_present_does_not_tell() -> None:
    newer = item("cart", 65, age_s=5.0)
    known = facts(told("n1"), told("n2"), told("n3", 66, newer, WEB), slices=(newer, WEB))
    assert past_versions_to_read(known) == (("endpointslices", 60),)
    assert states(judge(known)) == {"n1": "unknown", "n2": "unknown", "n3": "in step"}
    assert judge(known).is_blind
    gone = {("endpointslices", 60): "the server has no endpointslices of version 60 any more"}
    drift = judge(replace(known, past=gone))
    assert drift.unchecked[0] == "n1: too young to judge (5 s behind; judged after 15 s)"
    assert (
        drift.unchecked[1]
        == "n1: its cache (the server has no endpointslices of version 60 any more)"
    )
    assert (
        states(judge(replace(known, past={("endpointslices", 60): (CART, WEB)})))["n1"]
        == "catching up"
    )
    assert past_versions_to_read(facts(told("n1"))) == ()


def test_a_slice_that_was_deleted_is_found_by_the_digest_and_asked_for() -> None:
    known = facts(told("n1", 45), slices=(WEB._replace(version="44"),))
    assert past_versions_to_read(known) == (("endpointslices", 45),)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        ("IPv4 rules are not written: No buffer space available", "N3"),
        (
            (
                "IPv4 rules were gone and were put back at 2027-01-15T08:00:00Z (1 times since the "
                "start)"
            ),
            "N5",
        ),
    ],
)
def test_what_a_proxy_says_of_its_kernel(problem: str, code: str) -> None:
    drift = judge(facts(told("n1", problems=(problem,))))
    assert (states(drift), said(drift)) == ({"n1": "kernel differs"}, [(code, f"n1: {problem}")])


def test_a_look_at_the_kernel() -> None:
    rules = (
        "IPv4: element 10.96.0.7 . tcp . 80 of service-ips is missing",
        "IPv4: chain x is missing",
    )
    drift = judge(facts(told("n1"), pages={"n1": ProxyPages(rules=rules)}))
    assert said(drift) == [("N5", f"n1: {rules[0]}, and 1 more")]
    (row,) = judge(facts(told("n1"), pages={"n1": ProxyPages(rules=())})).rows
    assert (row.kernel, row.state) == ("equal", "in step")
    unseen = judge(
        facts(told("n1"), pages={"n1": ProxyPages(rules_why="IPv4 rules are being written")})
    )
    assert unseen.unchecked == ("n1: rules (IPv4 rules are being written)",)


def test_a_proxy_that_is_no_node_and_a_node_that_never_told() -> None:
    nodes = tuple(Node(metadata=ObjectMeta(name=name)) for name in ("node-7", "node-8"))
    misnamed = told("node-7.corp")._replace(owner="")
    drift = judge(facts(misnamed, nodes=nodes))
    assert said(drift) == [
        ("N7", "node-7.corp: its proxy says that it is node-7.corp; the Node is node-7")
    ]
    assert states(drift) == {
        "node-7": "never told",
        "node-8": "never told",
        "node-7.corp": "in step",
    }
    assert drift.is_blind
    assert judge(facts(told("n1"), nodes=None)).findings == (), "nodes may not be read"
    assert judge(facts(misnamed, nodes=())).findings == (), (
        "no name is wrong where there is no Node"
    )
    (finding,) = judge(facts(told("laptop")._replace(owner=""), nodes=nodes)).findings
    remedy = (
        "start the proxy with --hostname-override=NODE, one of node-7, node-8, or with "
        "--register-node"
    )
    assert finding.remedy == remedy


def test_an_emulated_node_is_called_so_and_no_silent_node() -> None:
    """Each was "never told", with a line below the table that blamed its proxy."""
    nodes = [
        Node(metadata=ObjectMeta(name=f"node-{n}", labels={LABEL_EMULATED: "true"})) for n in (1, 2)
    ]
    drift = judge(facts(nodes=tuple(nodes)))
    assert states(drift) == {"node-1": "emulated", "node-2": "emulated"}
    assert drift.unchecked == ("2 emulated nodes: no proxy and no kernel, so no rules",)
    assert (drift.is_blind, drift.differs) == (True, False)
    assert not judge(
        facts(told("n1"), nodes=(*nodes, Node(metadata=ObjectMeta(name="n1"))))
    ).is_blind
    assert states(judge(facts(told("node-1"), nodes=tuple(nodes))))["node-1"] == "in step", (
        "one with a proxy is a node"
    )


def test_an_older_proxy_tells_no_digest() -> None:
    older = LeaseReport("n1", None, 40, NOW, LEASE_DURATION_S, "n1")
    drift = judge(facts(older, slices=(CART, item("web", 50, age_s=34.0))))
    assert states(drift) == {"n1": "behind"}
    assert drift.unchecked == ("n1: its cache (its proxy reports no digest)",)


def test_the_text_fits_a_terminal_and_json_is_stable() -> None:
    drift = judge(facts(told("n1"), told("a-node-with-a-name", 60, WEB), told("n3", ago_s=300.0)))
    lines = as_text(drift, 80).splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert lines[0].split() == ["NODE", "STATE", "VERSION", "REPORTED", "BEHIND", "CACHE", "KERNEL"]
    assert [line.split()[0] for line in lines[1:4]] == ["a-node-with-a-name", "n3", "n1"], (
        "the worst first"
    )
    document = json.loads(json.dumps(drift.as_document()))
    assert list(document) == ["nodes", "relays", "findings", "notLookedAt"]
    assert list(document["nodes"][0]) == [
        *(
            "node",
            "state",
            "revision",
            "objectsBehind",
            "secondsBehind",
            "secondsSinceReport",
            "cache",
            "kernel",
        )
    ]
    assert as_text(judge(facts())) == (
        "no node reports here; 'sliceplane observe' does it on nodes with kube-proxy"
    )


@pytest.mark.parametrize(
    ("kind", "title", "teller"), [("dns", "names", "name server"), ("xds", "xDS", "xDS server")]
)
def test_what_tells_beside_proxies_has_a_row_without_a_kernel(
    kind: str, title: str, teller: str
) -> None:
    other = told("n1")._replace(kind=kind, owner="")
    drift = judge(facts(other, told("n1")))
    assert [(row.node, row.state, row.kernel) for row in drift.rows] == [
        ("n1", "in step", "as told"),
        (f"n1 ({title})", "in step", "-"),
    ]
    assert not drift.findings
    assert states(judge(facts(other)))["n1"] == "never told"  # of its proxy
    lost = told("n1", 60, WEB)._replace(kind=kind)
    ((code, sentence),) = said(judge(facts(lost, told("n1"), pages={"n1": ProxyPages(objects={})})))
    assert (code, sentence.partition(":")[0]) == ("N4", f"n1 ({title})")
    (stopped,) = judge(
        facts(other._replace(renewed=NOW - LEASE_DURATION_S - 60), told("n1"))
    ).findings
    assert stopped.sentence.startswith(f"n1 ({title}): its {teller} has not reported")
    assert stopped.subject.name == f"sliceplane-{kind}-n1"


def test_an_xds_server_is_behind_whose_client_has_not_accepted_what_changed() -> None:
    newer = item("cart", 65, age_s=34.0)
    server = told("host")._replace(kind="xds", owner="")
    drift = judge(
        facts(server, slices=(newer, WEB), nodes=None, past={("endpointslices", 60): (CART, WEB)})
    )
    assert states(drift) == {"host (xDS)": "behind"}
    (finding,) = drift.findings
    assert finding.sentence == "host (xDS): 34 s behind: it does not hold shop/cart"
    assert finding.effect.endswith("sliceplane xds status")
