"""``sliceplane check``: what is wrong, risky and unknown, on one screen."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.diagnose.explain.test_status import cluster, read, renew
from tests.diagnose.explain.world import World

from sliceplane.api.findings.codes import SEVERITIES
from sliceplane.diagnose.explain.overview import ROWS_MAX, Overview, overview, overview_text


def report_of(world: World) -> Overview:
    return overview(read(world))


def without_proxies(world: World) -> None:
    for number in range(3):
        world.drop("Lease", "kube-node-lease", f"sliceplane-proxy-node-{number}")


def without_hooks(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["containers"][0].pop("lifecycle")


def with_lost_services(world: World, number: int) -> None:
    for index in range(number):
        spec = {
            **world.get("Service", "shop", "cart")["spec"],
            "selector": {"app": f"lost-{index}"},
        }
        world.add("Service", "shop", f"lost-{index}", spec=spec)


def test_a_healthy_cluster_is_well() -> None:
    report = report_of(cluster())
    assert report.status.state == "well"
    assert overview_text(report, 80).splitlines() == [
        "cluster  https://10.0.0.1:6443 v1.36.2: ready, 2 checks",
        "         storage ok, controllers ok, queues ok, nodes ok, consumers ok",
        "checked  1 Service, 3 Nodes",
        "",
        "wrong    nothing found",
        "",
        "risky    nothing",
        "",
        "unknown  nothing",
    ]


def test_pods_that_end_before_nodes_know_are_a_risk() -> None:
    world = cluster()
    without_hooks(world)
    report = report_of(world)
    assert report.status.state == "well"  # a note alone is no bad news
    assert [(risk.code, risk.objects) for risk in report.risks] == [("D2", ("shop/cart",))]
    assert (
        "risky    note D2: Pods end before nodes know (shop/cart)"
        in overview_text(report, 80).splitlines()
    )


def test_nodes_that_report_nothing_are_unknown_and_the_remedy_is_named() -> None:
    world = cluster()
    without_proxies(world)
    (gap,) = report_of(world).unknown
    assert gap.sentence.startswith("3 of 3 Nodes reported no progress (node-0, node-1, node-2)")
    assert gap.remedy == "run 'sliceplane observe' on them (kube-proxy), or 'sliceplane proxy'"


def test_missing_rights_are_named_with_the_command_that_grants_them() -> None:
    world = cluster()
    world.refuse |= {"nodes", "pods"}
    report = report_of(world)
    assert [gap.sentence for gap in report.unknown if gap.remedy] == [
        "you may not list nodes, pods"
    ]
    command = "kubectl create clusterrole sliceplane-reader-list --verb=list --resource=nodes,pods"
    assert command in overview_text(report, 80).splitlines()[-1]


def test_a_node_that_is_not_ready_needs_attention_without_any_finding() -> None:
    world = cluster()
    renew(world, "kube-node-lease", "sliceplane-proxy-node-1", 300)
    report = report_of(world)
    assert report.status.state == "attention"
    lines = overview_text(report, None).splitlines()
    assert "nodes problem" in lines[1]
    (wrong,) = [line for line in lines if line.startswith("wrong")]
    assert wrong.startswith("wrong    nodes: 3 of 3 Nodes ready; ")
    assert "silent: node-1 for 5 min" in wrong


def test_nothing_is_well_where_services_may_not_be_read() -> None:
    world = cluster()
    world.refuse |= {"services"}
    assert report_of(world).status.state == "unknown"


@pytest.mark.parametrize("number", [1, ROWS_MAX, 40])
def test_errors_come_first_and_the_screen_is_bounded(number: int) -> None:
    world = cluster()
    with_lost_services(world, number)
    report = report_of(world)
    assert report.status.state == "attention"
    lines = overview_text(report, 80).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert len(lines) <= 4 * ROWS_MAX
    assert lines[4].startswith(f"wrong    {len(report.wrong)} error")


def test_risks_are_sorted_by_severity_and_then_by_the_number_of_objects() -> None:
    world = cluster()
    without_hooks(world)
    for workload in world.all("Deployment"):
        workload["spec"]["strategy"] = {"type": "Recreate"}
    report = report_of(world)
    ranks = [(SEVERITIES.index(risk.severity), -len(risk.objects)) for risk in report.risks]
    assert ranks == sorted(ranks)
    assert report.status.state == ("attention" if report.risks[0].severity == "warning" else "well")


def test_the_document_has_the_same_members_whatever_was_found() -> None:
    world = cluster()
    world.refuse |= {"leases", "nodes", "services"}
    renew(world, "kube-node-lease", "sliceplane-proxy-node-1", 300)
    well, blind = (
        json.loads(msgspec.json.encode(report_of(each).as_document()))
        for each in (cluster(), world)
    )
    assert list(well) == list(blind)
    assert well["parts"] == [
        {"name": name, "state": "well"}
        for name in (
            "servers",
            "storage",
            "controllers",
            "queues",
            "relays",
            "nodes",
            "consumers",
        )
    ]
