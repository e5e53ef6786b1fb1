"""One screen about a cluster: what is well, what needs attention, what could not be looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.diagnose.explain.faults import relays
from tests.diagnose.explain.world import NOW, READINGS_MAX, World, ago, healthy

from sliceplane.diagnose.explain.investigation import FORBIDDEN, Investigation
from sliceplane.diagnose.explain.objects import LEASES, NODES
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.diagnose.explain.scrape import samples
from sliceplane.diagnose.explain.status import Part, PlaneStatus, ReadPage, StatusFacts
from sliceplane.diagnose.explain.status_parts import status
from sliceplane.diagnose.explain.text import status_as_text

METRICS = """\
# HELP workqueue_depth Keys that wait for a worker.
workqueue_depth{name="endpoint_slice"} 2.0
workqueue_depth{name="namespace"} 0
workqueue_longest_running_processor_seconds{name="endpoint_slice"} 0.2
apiserver_storage_size_bytes{storage_cluster_id="x"} 2.5e+06
apiserver_storage_revision 812
apiserver_resource_objects{group="",resource="pods"} 9
apiserver_resource_objects{group="",resource="broken"} -1
apiserver_registered_watchers 35
apiserver_longrunning_requests{verb="WATCH",resource="endpointslices"} 3
apiserver_longrunning_requests{verb="WATCH",resource="pods"} 4
"""
LEADER = {"holderIdentity": "master-1_7f", "leaseDurationSeconds": 15}
PAGES = StatusFacts(
    "https://10.0.0.1:6443",
    0,
    ReadPage('{"gitVersion":"v1.36.2"}'),
    ReadPage("[+]ping ok\n[+]etcd ok\nreadyz check passed"),
    ReadPage(METRICS),
    {},
    (),
    None,  # type: ignore[arg-type]  # ``look`` fills them in
)


def cluster() -> World:
    """Healthy, led, with a node proxy of ours on each of three nodes."""
    world = healthy()
    world.add(
        "Lease", "kube-system", "kube-controller-manager", spec={**LEADER, "renewTime": ago(2)}
    )
    for number in range(3):
        world.add(
            "Lease",
            "kube-node-lease",
            f"sliceplane-proxy-node-{number}",
            meta={"annotations": {"sliceplane.dev/endpointslices-revision": "812"}},
            spec={
                "holderIdentity": f"node-{number}",
                "leaseDurationSeconds": 90,
                "renewTime": ago(8),
            },
        )
    return world


def read(world: World, pages: StatusFacts = PAGES) -> StatusFacts:
    investigation = Investigation(ExplainQuestion("everything"), 1_790_000_000.0)
    for _ in range(READINGS_MAX):
        for selection in investigation.pending_reads():
            if selection.resource.plural in world.refuse:
                investigation.on_refused(selection, FORBIDDEN)
            else:
                investigation.on_list(
                    selection, investigation.decoded(selection, world.list(selection))
                )
    facts = investigation.facts
    said = {kind: f"no right to list {kind}" for kind in world.refuse}
    leases: Any = {
        place: said.get("leases") or facts.of(LEASES, place)
        for place in ("kube-system", "kube-node-lease")
    }
    nodes: Any = said.get("nodes") or facts.of(NODES)
    return replace(pages, now=facts.now, leases=leases, nodes=nodes, lint=investigation.answer())


def look(world: World, pages: StatusFacts = PAGES) -> PlaneStatus:
    return status(read(world, pages))


def part(found: PlaneStatus, name: str) -> Part:
    return next(part for part in found.parts if part.name == name)


def renew(world: World, namespace: str, name: str, age: float) -> None:
    world.get("Lease", namespace, name)["spec"]["renewTime"] = ago(age)


def test_a_healthy_cluster_is_one_screen_of_80_columns() -> None:
    found = look(cluster())
    assert found.state == "well"
    assert status_as_text(found, 80).splitlines() == [
        "  servers      https://10.0.0.1:6443 v1.36.2: ready, 2 checks",
        "  storage      9 objects, 2.5 MB, revision 812",
        "  controllers  the EndpointSlice controllers run within the server",
        "               kube-controller-manager: master-1_7f, renewed 2 s ago",
        "  queues       2 keys wait in 2 queues, most in endpoint_slice: 2",
        "  nodes        3 of 3 Nodes ready",
        "               kubelets: 3 of 3 fresh, the slowest reported 3 s ago",
        "               node proxies: 3 of 3 fresh, the slowest reported 8 s ago",
        "               they hold version 812",
        "  consumers    35 watches open, 3 clients watch EndpointSlices",
        "  Services     nothing wrong in 1 Service",
    ]


def proxy_stops(world: World) -> str:
    renew(world, "kube-node-lease", "sliceplane-proxy-node-1", 300)
    return "node proxies: 2 of 3 fresh, the slowest reported 8 s ago; silent: node-1 for 5 min"


def proxy_stands_still(world: World) -> str:
    """Its Lease lasts for 90 s, and its last report is late."""
    renew(world, "kube-node-lease", "sliceplane-proxy-node-1", 69)
    return "node proxies: 2 of 3 fresh, the slowest reported 8 s ago; silent: node-1 for 69 s"


def proxy_is_behind(world: World) -> str:
    lease = world.get("Lease", "kube-node-lease", "sliceplane-proxy-node-1")
    lease["metadata"]["annotations"]["sliceplane.dev/endpointslices-revision"] = "790"
    return "they hold version 812; node-1 holds 790"


def kubelet_stops(world: World) -> str:
    renew(world, "kube-node-lease", "node-2", 70)
    return "kubelets: 2 of 3 fresh, the slowest reported 3 s ago; silent: node-2 for 70 s"


def node_is_lost(world: World) -> str:
    world.get("Node", "", "node-0")["status"]["conditions"][0]["status"] = "Unknown"
    return "2 of 3 Nodes ready; not node-0"


@pytest.mark.parametrize("plant", [proxy_stops, proxy_stands_still, kubelet_stops, node_is_lost])
def test_nodes_that_are_late_are_named(plant: Callable[[World], str]) -> None:
    world = cluster()
    line = plant(world)
    found = look(world)
    assert line in part(found, "nodes").lines
    assert (part(found, "nodes").state, found.state) == ("attention", "attention")


def test_nodes_whose_rules_are_observed_and_those_that_report_nothing_are_told_apart() -> None:
    world = cluster()
    for number, rules in ((0, "kube-proxy nftables"), (1, "kube-proxy iptables-nft")):
        lease = world.get("Lease", "kube-node-lease", f"sliceplane-proxy-node-{number}")
        progress = {"observed": rules}
        lease["metadata"]["annotations"]["sliceplane.dev/progress"] = json.dumps(progress)
    world.drop("Lease", "kube-node-lease", "sliceplane-proxy-node-2")
    lines = part(look(world), "nodes").lines
    assert (
        "rules of other proxies: kube-proxy iptables-nft on 1 Node, kube-proxy nftables on 1 Node"
        in lines
    )
    assert "no report of their rules: node-2" in lines


def test_a_proxy_that_holds_less_is_named_and_may_be_on_its_way() -> None:
    world = cluster()
    line = proxy_is_behind(world)
    found = look(world)
    assert line in part(found, "nodes").lines
    assert found.state == "well"


@pytest.mark.parametrize(
    ("old", "new", "name", "line"),
    [
        (
            'endpoint_slice"} 2.0',
            'endpoint_slice"} 5000',
            "queues",
            "5,000 keys wait in 2 queues, most in endpoint_slice: 5,000",
        ),
        (
            'endpoint_slice"} 0.2',
            'endpoint_slice"} 130',
            "queues",
            (
                "2 keys wait in 2 queues, most in endpoint_slice: 2; endpoint_slice works on one "
                "for "
                "2 min"
            ),
        ),
        (
            "# HELP",
            "sliceplane_storage_staleness_seconds 9\n# HELP",
            "storage",
            "9 objects, 2.5 MB, revision 812, the server's memory is 9 s behind",
        ),
    ],
)
def test_figures_of_the_server_that_are_too_large_need_attention(
    old: str, new: str, name: str, line: str
) -> None:
    assert old in METRICS
    found = look(cluster(), replace(PAGES, metrics=ReadPage(METRICS.replace(old, new, 1))))
    assert (part(found, name).lines, part(found, name).state) == ((line,), "attention")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            'apiserver_storage_size_bytes{storage_cluster_id="x"} 2.5e+06',
            "sliceplane_object_bytes 1.2e+06",
            "9 objects, 1.2 MB in memory, no database file, revision 812",
        ),
        (
            "# HELP",
            "sliceplane_storage_spare_bytes 1.25e+06\n# HELP",
            "9 objects, 2.5 MB (1.2 MB spare), revision 812",
        ),
        (
            'apiserver_resource_objects{group="",resource="pods"} 9',
            'apiserver_resource_objects{group="",resource="pods"} -1',
            "objects not counted, 2.5 MB, revision 812",
        ),
    ],
)
def test_storage_tells_its_size_and_the_spare_part_of_it(old: str, new: str, line: str) -> None:
    """Of a plane with ``--data-dir memory:`` it said "? storage not looked at"."""
    assert old in METRICS
    found = part(
        look(cluster(), replace(PAGES, metrics=ReadPage(METRICS.replace(old, new, 1)))), "storage"
    )
    assert (found.lines, found.state, found.unread) == ((line,), "well", ())


def test_a_server_that_is_not_ready_says_which_check_fails() -> None:
    readyz = ReadPage(
        "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed",
        "the server answers 500",
        500,
    )
    found = look(cluster(), replace(PAGES, readyz=readyz))
    assert part(found, "servers").lines[0].endswith(": not ready: etcd")
    assert found.state == "attention"


def test_controllers_without_a_leader_need_attention_only_if_nobody_else_does_their_work() -> None:
    world = cluster()
    renew(world, "kube-system", "kube-controller-manager", 180)
    elsewhere = replace(PAGES, metrics=ReadPage(why="no right to"))
    found = part(look(world, elsewhere), "controllers")
    assert found.state == "attention"
    assert found.lines[0].startswith("the EndpointSlice controllers have no leader")
    assert (
        found.lines[1] == "kube-controller-manager: no leader, master-1_7f did, renewed 3 min ago"
    )
    world.add(
        "Lease", "kube-system", "sliceplane-controllers", spec={**LEADER, "renewTime": ago(2)}
    )
    assert part(look(world, elsewhere), "controllers").state == "well"


def test_controllers_are_unknown_if_no_lease_exists_and_the_metrics_may_not_be_read() -> None:
    """They may run within the server, which only its metrics tell."""
    world = cluster()
    world.drop("Lease", "kube-system", "kube-controller-manager")
    elsewhere = replace(PAGES, metrics=ReadPage(why="no right to get /metrics"))
    assert part(look(world, elsewhere), "controllers").state == "unknown"
    assert part(look(world, replace(PAGES, metrics=ReadPage(""))), "controllers").state == (
        "attention"
    )


def test_servers_are_counted_by_their_leases_and_are_no_leaders() -> None:
    world = cluster()
    for name, age in (("apiserver-a", 5), ("apiserver-b", 7200)):
        labels = {"apiserver.kubernetes.io/identity": "kube-apiserver"}
        spec = {"holderIdentity": name, "leaseDurationSeconds": 3600, "renewTime": ago(age)}
        world.add("Lease", "kube-system", name, labels=labels, spec=spec)
    found = look(world)
    assert part(found, "servers").lines[1] == "1 of 2 servers renews its Lease"
    assert len(part(found, "controllers").lines) == 2


def test_what_may_not_be_read_is_said_and_is_not_well() -> None:
    world = cluster()
    world.refuse |= {"leases", "nodes"}
    found = look(
        world, replace(PAGES, metrics=ReadPage(why="no right to get /metrics", status=403))
    )
    assert [part.name for part in found.parts if part.state == "unknown"] == [
        "storage",
        "controllers",
        "queues",
        "relays",
        "nodes",
        "consumers",
    ]
    text = status_as_text(found, 80)
    assert "? nodes        not looked at" in text
    assert "nodes (no right to list nodes)" in text
    assert "leases.coordination.k8s.io" in text


def test_relays_are_a_tree_of_80_columns() -> None:
    world = cluster()
    relays.reports(
        relays.relay("eu", nodes=1920),
        relays.below("eu-central-1", "eu", zone="eu-central-1a"),
        relays.below("eu-west-1", "eu", zone="eu-west-1b", heard=NOW - 240, is_late=True),
        relays.below("eu-west-1-edge", "eu-west-1"),
    )(world)
    relays.reports(relays.relay("us"))(world)
    found = look(world)
    lines = status_as_text(found, 80).splitlines()
    first = next(number for number, line in enumerate(lines) if "relays" in line)
    assert lines[first : first + 8] == [
        "! relays       3 of 5 relays ready below https://10.0.0.1:6443; not eu-west-1",
        "               (stopped), eu-west-1-edge (unknown)",
        "  RELAY               ZONE           STATE    SILENT  WATCHES  NODES  AGE",
        "  eu                  -              ready    21 s    33       1,920  8 s",
        "    eu-west-1         eu-west-1b     stopped  21 s    33       0      4 min",
        "      eu-west-1-edge  -              unknown  21 s    33       0      8 s",
        "    eu-central-1      eu-central-1a  ready    21 s    33       0      8 s",
        "  us                  -              ready    21 s    33       0      8 s",
    ]
    assert found.state == "attention"
    rows = part(found, "relays").figures["relays"]
    assert [(row["name"], row["parent"], row["level"], row["state"]) for row in rows[:3]] == [
        ("eu", "https://10.0.0.1:6443", 1, "ready"),
        ("eu-west-1", "eu", 2, "stopped"),
        ("eu-west-1-edge", "eu-west-1", 3, "unknown"),
    ]
    json.dumps(found.as_document())


def test_two_processes_of_one_relay_need_attention_and_a_start_does_not() -> None:
    world = cluster()
    relays.reports(relays.relay("eu"), relays.TWIN)(world)
    below = f"below {relays.SERVER}"
    found = part(look(world), "relays")
    assert found.state == "attention"
    assert found.lines == (f"0 of 1 relay ready {below}; not eu (shared)",)
    world = cluster()
    relays.reports(relays.relay("eu", trouble="nodes: nothing was listed yet", up_s=3.0))(world)
    found = part(look(world), "relays")
    assert found.state == "well"
    assert found.lines == (f"0 of 1 relay ready {below}; not eu (starting)",)


def test_without_services_nobody_can_tell() -> None:
    world = cluster()
    world.refuse.add("services")
    assert look(world).state == "unknown"
    assert "? Services     not looked at" in status_as_text(look(world), 80)


def test_the_worst_findings_come_last_and_are_counted() -> None:
    world = cluster()
    for number in range(8):
        name = f"lost-{number}"
        world.add(
            "Service",
            "shop",
            name,
            spec={**world.get("Service", "shop", "cart")["spec"], "selector": {"app": name}},
        )
    found = look(world)
    assert (found.state, len(found.findings), found.more >= 3) == ("attention", 5, True)
    lines = status_as_text(found, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"and {found.more} more: sliceplane lint" in lines[-1]


def test_the_document_has_the_same_members_whatever_was_found() -> None:
    world = cluster()
    world.refuse |= {"leases", "nodes", "services"}
    well, blind = (
        json.loads(msgspec.json.encode(look(each).as_document())) for each in (cluster(), world)
    )
    assert list(well) == list(blind)
    assert [entry["name"] for entry in well["parts"]] == [entry["name"] for entry in blind["parts"]]
    assert well["parts"][5]["figures"]["proxies"] == {
        "known": 3,
        "slowestSeconds": 8.0,
        "silent": [],
        "versions": {f"node-{number}": 812 for number in range(3)},
        "observed": {},
    }


def test_lines_of_metrics_that_are_none_are_passed_over() -> None:
    page = 'a 1\na{x="\\"} y",z="2"} 3 1700000000\na{ 4\na five\nab 6\n# a 7\n'
    found = samples(page, frozenset({"a"}))["a"]
    assert [(dict(sample.labels), sample.value) for sample in found] == [
        ({}, 1.0),
        ({"x": '\\"} y', "z": "2"}, 3.0),
    ]


def test_what_is_too_young_to_judge_is_counted_apart_and_nothing_is_well_yet() -> None:
    world = cluster()
    for pod in world.all("Pod"):
        pod["spec"]["readinessGates"] = [{"conditionType": "example.org/lb"}]
        for condition in pod["status"]["conditions"]:
            if condition["type"] != "PodScheduled":
                condition.update(
                    lastTransitionTime=ago(12),
                    status="True" if condition["type"] != "Ready" else "False",
                )
    found = look(world)
    assert (found.state, found.too_young) == ("unknown", 1)
    lines = status_as_text(found, None).splitlines()
    assert "? Services     1 too young to judge in 1 Service" in lines
    assert any(
        "young R7 Service shop/cart" in line and "(12 s old; judged after 60 s)" in line
        for line in lines
    )
    world.get("Node", "", "node-0")["status"]["conditions"][0]["status"] = "Unknown"
    assert look(world).state == "attention"
