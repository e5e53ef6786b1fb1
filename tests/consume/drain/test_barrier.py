"""Which nodes count, and what is said of those that do not tell."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Node
from sliceplane.consume.drain.answer import DrainedPod, DrainVerdict, Missing, Use, sentence
from sliceplane.consume.drain.barrier import (
    ConsumerState,
    Nodes,
    Proof,
    UnknownPolicy,
    compare,
    judge,
    parse_policy,
)
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.progress import ProgressReport
from sliceplane.consume.selections import EVERY
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_micro_time

SLICES = ("endpointslices", "all")
GOAL = {SLICES: 10}
NOW = 1_800_000_000.0
AFTER = UnknownPolicy("after", 60.0)


def facts(
    name: str, revision: int | None, *, until: float = NOW + 60, ready: bool | None = True
) -> ConsumerState:
    return ConsumerState(name, None if revision is None else {SLICES: revision}, until, ready)


def names(missing: tuple[Missing, ...]) -> list[str]:
    return [node.text for node in missing]


def test_who_holds_the_goal_is_done_and_who_does_not_is_named() -> None:
    proof = compare(GOAL, [facts("n2", 9), facts("n1", 10), facts("n3", 12)], NOW)
    assert (proof.required, names(proof.waiting), proof.unknown) == (3, ["n2"], ())


def test_a_stopped_proxy_counts_until_it_is_forgotten() -> None:
    stopped = facts("n1", 9, until=NOW - 299)
    assert names(compare(GOAL, [stopped], NOW).waiting) == ["n1 (its proxy stopped reporting)"]
    assert not compare(GOAL, [stopped._replace(applied={SLICES: 10})], NOW).waiting, (
        "its kernel has it"
    )
    longer = compare(GOAL, [stopped._replace(until=NOW - 301)], NOW)
    assert (longer.waiting, names(longer.unknown)) == ((), ["n1 (its proxy stopped long ago)"])
    other = facts("n2", 10)
    assert (
        compare(GOAL, [stopped._replace(until=NOW - 301, ready=False), other], NOW).required == 1
    ), "its node is gone"


def test_unknown_is_not_done() -> None:
    proof = compare(
        GOAL, [facts("n1", 10), facts("blind", None), facts("off", None, ready=False)], NOW
    )
    assert (proof.required, proof.waiting, names(proof.unknown)) == (
        2,
        (),
        ["blind (it never reported)"],
    )
    assert judge((), GOAL, proof, UnknownPolicy("wait"), 1e6).state == "unknown"
    after = UnknownPolicy("after", 60.0)
    assert judge((), GOAL, proof, after, 59.0).state == "unknown"
    let_go = judge((), GOAL, proof, after, 60.0)
    assert (let_go.state, names(let_go.let_go)) == ("proven", ["blind (it never reported)"])


def test_where_no_node_is_known_nothing_is_proven() -> None:
    proof = compare(GOAL, [facts("off", None, ready=False)], NOW)
    assert names(proof.unknown) == ["every node (none is Ready, and none reports)"]
    assert judge((), GOAL, proof, UnknownPolicy(), 0.0).state == "unknown"


def test_a_node_that_holds_is_not_what_makes_a_pod_that_is_used_drained() -> None:
    verdict = judge(
        (Use("shop/web", "IPv4", "ready"),),
        {},
        compare({}, [facts("n1", 10)], NOW),
        UnknownPolicy(),
        1.0,
    )
    assert verdict.state == "used"


def test_a_cache_that_lost_an_event_holds_nothing() -> None:
    proof = compare(GOAL, [facts("n1", 99)._replace(differs=True)], NOW)
    assert names(proof.waiting) == ["n1 (its cache lost an event)"]


def test_the_slowest_of_several_readings_counts() -> None:
    goal = {("endpointslices", "shared"): 10, ("endpointslices", "zone=a"): 8, EVERY: 5}
    held = {
        ("endpointslices", "shared"): 10,
        ("endpointslices", "zone=a"): 8,
        ("endpointslices", "region=r"): 5,
    }
    node = ConsumerState("n1", held, NOW, True)
    assert not compare(goal, [node], NOW).waiting
    for place, revision in held.items():
        assert compare(goal, [node._replace(applied={**held, place: revision - 1})], NOW).waiting, (
            place
        )


def test_a_proxy_of_an_older_release_tells_one_version_for_all() -> None:
    goal = {SLICES: 10, ("services", "all"): 90}
    node = ConsumerState("n1", {EVERY: 10}, NOW, True)
    assert not compare(goal, [node], NOW).waiting
    assert compare(goal, [node._replace(applied={EVERY: 9})], NOW).waiting


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("wait", ("wait", 0.0)),
        ("fail", ("fail", 0.0)),
        ("after=60s", ("after", 60.0)),
        ("after=2m", ("after", 120.0)),
    ],
)
def test_policies(text: str, policy: tuple[str, float]) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    "text", ["", "never", "after", "after=", "after=-1s", "after=5", "after=٣", "wait=1"]
)
def test_what_is_no_policy(text: str) -> None:
    with pytest.raises(ValueError, match="is none of"):
        parse_policy(text)


def lease(node: str, revision: int, *, renewed: float, version: int = 1, **other: str) -> Lease:
    """*other*: of another consumer, its ``kind``, ``namespace`` and ``reading``."""
    progress = encode(
        {"endpointslices": {other.get("reading", "all"): [revision, "0" * 16]}}
    ).decode()
    document = {
        "metadata": {
            "name": f"sliceplane-proxy-{node}",
            "resourceVersion": str(version),
            "namespace": other.get("namespace", "kube-node-lease"),
            "labels": {"sliceplane.dev/component": other.get("kind", "node-proxy")},
            "annotations": {"sliceplane.dev/progress": progress},
            "ownerReferences": [] if other else [{"kind": "Node", "name": node}],
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 90,
            "renewTime": format_micro_time(renewed),
        },
    }
    return decode(encode(document), Lease)


def test_nodes_of_leases_and_leases_of_nodes() -> None:
    nodes = Nodes()
    ready = {
        "metadata": {"name": "n2"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    nodes.on_node(None, decode(encode(ready), Node))
    first = lease("n1", 5, renewed=NOW - 100)
    nodes.on_lease(None, first, NOW)
    assert nodes.facts() == [
        ConsumerState("n1", {SLICES: 5}, NOW - 10, None),
        ConsumerState("n2", None, 0.0, True),
    ]
    ahead = lease(
        "n1", 6, renewed=NOW - 1000, version=2
    )  # its clock is wrong, and it has just told
    nodes.on_lease(first, ahead, NOW)
    assert nodes.facts()[0] == ConsumerState("n1", {SLICES: 6}, NOW + 90, None)
    nodes.on_lease(ahead, None, NOW)
    assert [node.name for node in nodes.facts()] == ["n2"]


WEB = "service/shop/web"


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        ({"kind": "view", "namespace": "shop", "reading": WEB}, True),
        ({"kind": "view", "namespace": "shop", "reading": "service/shop/cart"}, False),
        ({"kind": "view", "namespace": "store", "reading": WEB}, False),
        ({"kind": "dns", "namespace": "store"}, False),
        ({"kind": "dns"}, True),
        ({"namespace": "store"}, False),
    ],
    ids=[
        "of the Service",
        "of another",
        "from elsewhere",
        "of all, from elsewhere",
        "of all",
        "no node, from elsewhere",
    ],
)
def test_another_consumer_is_waited_for_where_the_goal_concerns_it_and_it_may_speak(
    other: dict[str, str], counts: bool
) -> None:
    goal = {**GOAL, ("endpointslices", WEB): 10}
    nodes = Nodes()
    nodes.on_lease(None, lease("n1", 12, renewed=NOW), NOW)
    told = lease("c", 9, renewed=NOW, **other)
    nodes.on_lease(None, told, NOW)
    proof = compare(goal, nodes.facts(), NOW)
    kind = other.get("kind", "")
    assert (proof.required, proof.others) == (1, int(counts))
    assert names(proof.waiting) == ([f"{kind} c"] if counts else [])
    assert not compare(goal, nodes.facts(), NOW + 91).others, "it has ended"
    nodes.on_lease(told, lease("c", 10, renewed=NOW, version=2, **other), NOW)
    assert not compare(goal, nodes.facts(), NOW).waiting


def xds_lease(revision: int, version: int, **clients: object) -> Lease:
    """Of an xDS server that reports clients that are ``behind``, or ``unacknowledged``."""
    made = lease("here", revision, renewed=NOW, version=version, kind="xds")
    progress = {"endpointslices": {"all": [revision, "0" * 16]}, **clients}
    annotations = {
        **(made.metadata.annotations or {}),
        "sliceplane.dev/progress": encode(progress).decode(),
    }
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def barrier_of(*leases: Lease) -> Nodes:
    nodes = Nodes()
    nodes.on_lease(None, lease("n1", 12, renewed=NOW), NOW)
    for held in leases:
        nodes.on_lease(None, held, NOW)
    return nodes


def test_a_client_that_is_behind_is_waited_for_by_its_service_and_named() -> None:
    goal = {**GOAL, ("endpointslices", WEB): 10}
    nodes = barrier_of(xds_lease(12, 1, behind={WEB: [9, "envoy edge-7 of ana"]}))
    (missing,) = compare(goal, nodes.facts(), NOW).waiting
    assert missing.text == "xds here (envoy edge-7 of ana has not acknowledged shop/web)"
    nodes.on_lease(
        None, xds_lease(12, 2, behind={"service/evil/mine": [9, "envoy edge-7 of ana"]}), NOW
    )
    assert not compare(goal, nodes.facts(), NOW).waiting, "of a Service of another namespace"
    nodes.on_lease(
        None, xds_lease(12, 3, behind={"namespace/shop": [9, "envoy edge-7 of ana"]}), NOW
    )
    assert "Services of shop" in compare(goal, nodes.facts(), NOW).waiting[0].text
    nodes.on_lease(
        None, xds_lease(12, 4, behind={"namespace/evil": [9, "envoy edge-7 of ana"]}), NOW
    )
    assert not compare(goal, nodes.facts(), NOW).waiting
    nodes.on_lease(None, xds_lease(12, 5, behind={"namespace/*": [9, "envoy edge-7 of ana"]}), NOW)
    assert compare(goal, nodes.facts(), NOW).waiting
    nodes.on_lease(None, xds_lease(12, 6, behind={WEB: [10, "envoy edge-7 of ana"]}), NOW)
    assert not compare(goal, nodes.facts(), NOW).waiting, "it has what the goal needs"


def test_a_client_that_is_not_waited_for_is_named() -> None:
    goal = {**GOAL, ("endpointslices", WEB): 10}
    nodes = barrier_of(
        xds_lease(12, 1, unacknowledged={WEB: "envoy edge-7 of ana", "service/evil/x": "other"})
    )
    proof = compare(goal, nodes.facts(), NOW)
    assert not proof.waiting
    (missing,) = proof.unacknowledged
    assert missing.text == "xds here (envoy edge-7 of ana did not acknowledge shop/web)"
    verdict = judge((), goal, proof, UnknownPolicy("wait"), 1.0)
    assert verdict.state == "proven"
    said = sentence(DrainedPod("shop/a", "drained", verdict, 0.04))
    assert said.endswith(
        "; not acknowledged: xds here (envoy edge-7 of ana did not acknowledge shop/web)"
    )


def test_a_late_lease_does_not_hide_a_client_that_is_behind() -> None:
    """A report came by the server's memory; the Lease of before comes after it."""
    goal = {**GOAL, ("endpointslices", WEB): 10}
    nodes = barrier_of(xds_lease(8, 1))
    report = decode(
        encode({"endpointslices": {"all": [12, "0"]}, "behind": {WEB: [9, "a"]}}), ProgressReport
    )
    assert nodes.on_report("kube-node-lease/sliceplane-proxy-here", report)
    nodes.on_lease(None, xds_lease(9, 2), NOW)
    assert compare(goal, nodes.facts(), NOW).waiting
    nodes.on_lease(None, xds_lease(12, 3), NOW)
    assert not compare(goal, nodes.facts(), NOW).waiting


def test_a_lease_of_a_namespace_names_no_clients_of_others_and_moves_no_cursor() -> None:
    goal = {**GOAL, ("endpointslices", WEB): 10}
    held = xds_lease(12, 1, unacknowledged={WEB: "\x1b[2J" + "x" * 500})
    nodes = barrier_of(replace(held, metadata=replace(held.metadata, namespace="evil")))
    assert not compare(goal, nodes.facts(), NOW).unacknowledged
    (missing,) = compare(goal, barrier_of(held).facts(), NOW).unacknowledged
    assert "\x1b" not in missing.text
    assert len(missing.text) < 200


def test_other_consumers_alone_prove_nothing() -> None:
    nodes = Nodes()
    nodes.on_lease(None, lease("c", 12, renewed=NOW, kind="dns"), NOW)
    proof = compare(GOAL, nodes.facts(), NOW)
    assert judge((), GOAL, proof, UnknownPolicy("wait"), 1e6).state == "unknown"


def test_what_is_said() -> None:
    waiting = DrainVerdict(
        "waiting", waiting=tuple(Missing(f"n{number}", "") for number in range(5)), required=9
    )
    assert sentence(DrainedPod("shop/a", "time over", waiting, 60.0)) == (
        "not drained after 60 s: waiting for n0, n1, n2 and 2 more"
    )
    proven = DrainVerdict(
        "proven", revision=7, required=3, let_go=(Missing("n9", "it never reported"),)
    )
    assert sentence(DrainedPod("shop/a", "drained", proven, 0.0421, gone=True)) == (
        "drained: 2 nodes hold version 7 or later, after 42 ms; not known of n9 (it never reported); "
        "the Pod is gone"
    )


def test_nodes_that_were_all_let_go_hold_nothing() -> None:
    everyone = (Missing("every node", "none is Ready, and none reports"),)
    said = sentence(
        DrainedPod("shop/a", "drained", judge((), GOAL, Proof(0, (), everyone), AFTER, 61.0), 61.0)
    )
    assert said.startswith("drained: no node is known to hold version"), said


def test_nothing_is_proven_and_no_node_let_go_while_the_api_server_is_away() -> None:
    cluster = DrainCluster()
    for policy in (UnknownPolicy("wait"), UnknownPolicy("fail"), AFTER):
        cluster.lost = "connection refused"
        for held in (
            [facts("n1", 99)],
            [facts("n1", 1, until=NOW - 1e4)],
            [facts("n1", 1, until=NOW - 1e4, ready=True)],
            [],
        ):
            verdict = cluster.verdict("shop/a", held, NOW, policy=policy, waited_s=1e6)
            assert (verdict.state, verdict.let_go) == ("unknown", ())
            said = sentence(DrainedPod("shop/a", "cannot know", verdict, 60.0))
            assert said == (
                "cannot know: nothing is known of every node (no changes from the API server: "
                "connection refused)"
            )
        cluster.lost = ""
        assert cluster.verdict("shop/a", [facts("n1", 99)], NOW, policy=policy).state == "proven"


def test_other_consumers_are_counted_in_the_sentence() -> None:
    proven = DrainVerdict("proven", revision=7, required=1, others=2)
    assert sentence(DrainedPod("shop/a", "drained", proven, 0.0421)) == (
        "drained: 1 node and 2 more that told hold version 7 or later, after 42 ms"
    )


def test_a_stopped_node_is_named_a_thousand_times_of_a_thousand() -> None:
    """Whichever of whichever number of nodes it is, however long ago it stopped, and whatever
    others hold.
    """
    rng = Rng(4)
    for _ in range(1000):
        count = 1 + rng.below(20)
        stopped = rng.below(count)
        nodes = [
            facts(f"n{number}", 10 + rng.below(5))
            if number != stopped
            else facts(f"n{number}", rng.below(10), until=NOW + 90 - rng.uniform(0.0, 90.0 + 299.0))
            for number in range(count)
        ]
        proof = compare(GOAL, nodes, NOW)
        assert [missing.node for missing in proof.waiting] == [f"n{stopped}"]
        for policy in (UnknownPolicy("wait"), UnknownPolicy("fail"), UnknownPolicy("after", 0.0)):
            assert judge((), GOAL, proof, policy, 1e6).state == "waiting"


def test_seed_2555_a_node_that_was_given_another_zone_holds_nothing_of_it_until_it_says_so() -> (
    None
):
    """Its proxy's rules had the zone's slices, and its last report was of the zone of before."""
    nodes = Nodes()
    node = {"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "b"}}}
    nodes.on_node(None, decode(encode(node), Node))
    goal = {("endpointslices", "zone=b"): 10}
    told = lease("n1", 12, renewed=NOW, reading="shared")
    nodes.on_lease(None, told, NOW)
    assert names(compare(goal, nodes.facts(), NOW).waiting) == ["n1"]
    nodes.on_lease(told, lease("n1", 12, renewed=NOW, version=2, reading="zone=b"), NOW)
    assert not compare(goal, nodes.facts(), NOW).waiting
    nodes.on_lease(None, lease("n1", 12, renewed=NOW, version=3), NOW)
    assert not compare(goal, nodes.facts(), NOW).waiting, (
        "it reads all slices, whatever its zone is"
    )
