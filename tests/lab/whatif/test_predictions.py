"""What-if over small clusters: one story for each kind of change and for each rule of routing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace
from tests.lab.whatif.asked import ask, cart, deployment, make_cluster, service, state_of, traffic

from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    Nodes,
    Pods,
    PriorityClasses,
    ReplicaSets,
    RuntimeClasses,
    ServiceAccounts,
    Services,
)
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.lab.whatif.picture import Clients
from sliceplane.lab.whatif.prediction import Prediction
from sliceplane.lab.whatif.state import WhatIfError
from sliceplane.lab.whatif.text import judgement

SAME_ZONE = "traffic-distribution=PreferSameZone"
THIRD = Fraction(1, 3)


def loads(found: Prediction) -> dict[str, Fraction]:
    return {zone: found.after.shares.load(zone) for zone in found.after.zones}


def mark(cluster: Cluster, pod: dict[str, Any], *, ready: bool) -> None:
    annotations = {"emulation.sliceplane.dev/ready": "true" if ready else "false"}
    cluster.patch(Pods, pod["metadata"]["name"], {"metadata": {"annotations": annotations}})


def test_four_four_three_over_three_equal_zones() -> None:
    found = ask(cart(11, a=2, b=2, c=2), SAME_ZONE)
    assert sorted(found.after.ready.values()) == [3, 4, 4]
    assert found.before.shares.leaving == THIRD * (3 - Fraction(4 + 4 + 3, 11))
    assert found.after.shares.leaving == 0
    factor, zone = found.after.shares.greatest
    assert (factor, found.after.ready[zone]) == (Fraction(11, 9), 3)
    assert found.after.loads.fix == {zone: 1}, "12 Pods, 4 in each zone"
    assert found.is_worse
    assert (found.written.updates, found.written.creates, found.written.deletes) == (1, 0, 0)
    assert found.written.events == 6


def test_same_zone_at_skew() -> None:
    """60% of the clients are where a third of the Pods is."""
    found = ask(cart(9, a=1, b=1, c=1), SAME_ZONE, clients=traffic(a=0.6, b=0.3, c=0.1))
    assert loads(found) == {
        "zone-a": Fraction(9, 5),
        "zone-b": Fraction(9, 10),
        "zone-c": Fraction(3, 10),
    }
    assert found.after.shares.leaving == 0
    added = found.after.loads.fix
    assert added is not None
    assert set(added) == {"zone-a"}
    total = 9 + added.total()
    assert Fraction(6, 10) * total / (3 + added["zone-a"]) <= Fraction(12, 10)
    assert Fraction(6, 10) * (total - 1) / (2 + added["zone-a"]) > Fraction(12, 10), (
        "one Pod less does not mend it"
    )


def test_a_zone_that_is_lost() -> None:
    cluster = cart(9, a=1, b=1, c=1)
    cluster.patch(Services, "cart", {"spec": {"trafficDistribution": "PreferSameZone"}})
    cluster.converge()
    found = ask(cluster, "zone-lost=zone-b")
    assert found.after.ready == {"zone-a": 3, "zone-b": 0, "zone-c": 3}
    assert found.after.clients == {"zone-a": Fraction(1, 2), "zone-c": Fraction(1, 2)}
    assert found.after.shares.leaving == 0
    assert found.after.shares.greatest[0] == 1
    assert found.stays is not None
    assert found.stays.shares.leaving == THIRD, (
        "clients of the lost zone that go on go to the others"
    )
    assert found.before.watchers - found.after.watchers == 1, "its node proxy is gone, too"


def lost(found: Prediction) -> list[tuple[float, int, Fraction]]:
    """When, Pods that are ready, and the share that is sent to those that are gone."""
    return [
        (moment.after_s, moment.picture.ready.total(), moment.failing) for moment in found.moments
    ]


def test_a_lost_zone_is_an_endpoint_until_its_nodes_are_unknown_and_replaced_after_five_minutes() -> (
    None
):
    found = ask(cart(9, a=1, b=2, c=1), "zone-lost=zone-b", "ready-delay=7s")
    assert lost(found) == [(0, 9, THIRD), (40, 6, 0), (40 + 300 + 10 + 7, 9, 0)], (
        "one Node in ten seconds"
    )
    last = found.moments[-1]
    assert last.picture.ready["zone-b"] == 0
    assert last.written.writes > 0
    assert found.moments[1].written == found.written
    assert found.moments[1].picture == found.after
    early = ask(cart(9, a=1, b=2, c=1), "zone-lost=zone-b", "node-grace=50s", "ready-delay=7s")
    assert [after_s for after_s, _, _ in lost(early)] == [0, 50, 367]


def with_toleration(pods: int, seconds: dict[str, int], **zones: int) -> Cluster:
    cluster = make_cluster(**zones)
    cluster.converge()
    toleration = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        **seconds,
    }
    cluster.create(Deployments, deployment(pods, tolerations=[toleration]))
    cluster.create(Services, service())
    cluster.converge()
    return cluster


def test_pods_say_how_long_they_stay_on_a_lost_node() -> None:
    soon = ask(
        with_toleration(4, {"tolerationSeconds": 20}, a=1, b=1),
        "zone-lost=zone-b",
        "ready-delay=0s",
    )
    assert lost(soon) == [(0, 4, Fraction(1, 2)), (40, 2, 0), (60, 4, 0)]
    never = ask(with_toleration(4, {}, a=1, b=1), "zone-lost=zone-b")
    assert lost(never) == [(0, 4, Fraction(1, 2)), (40, 2, 0)]
    assert "No Pod is deleted" in " ".join(judgement(never))


def test_pods_without_a_deployment_are_not_replaced() -> None:
    cluster = cart(4, a=1, b=1)
    (of_deployment,) = cluster.list(ReplicaSets)
    cluster.delete(Deployments, "cart", propagationPolicy="Orphan")
    cluster.delete(ReplicaSets, of_deployment["metadata"]["name"], propagationPolicy="Orphan")
    for pod in cluster.list(Pods):
        cluster.patch(Pods, pod["metadata"]["name"], {"metadata": {"ownerReferences": None}})
    found = ask(cluster, "zone-lost=zone-b")
    assert [ready for _, ready, _ in lost(found)] == [4, 2, 2]
    assert "2 Pods of the Service are not replaced" in " ".join(judgement(found))


def test_where_every_zone_is_lost_no_pod_is_deleted() -> None:
    with pytest.raises(WhatIfError, match="there is no client"):
        ask(cart(2, a=1), "zone-lost=zone-a")
    found = ask(cart(2, a=1), "zone-lost=zone-a", clients=traffic(a=0.5, x=0.5))
    assert [ready for _, ready, _ in lost(found)] == [2, 0]


def able(rate: int, capacity: int, **zones: float) -> Clients:
    return replace(traffic(**zones), rate=Fraction(rate), capacity=Fraction(capacity))


@pytest.mark.parametrize(
    ("spec", "changes"), [({}, ()), ({"trafficDistribution": "PreferSameZone"}, ())]
)
def test_overload_is_more_than_a_pod_can_take(
    spec: dict[str, Any], changes: tuple[str, ...]
) -> None:
    clients = able(3000, 270)
    found = ask(cart(11, of=spec, a=2, b=2, c=2), *changes, clients=clients)
    fix = found.after.loads.fix
    assert fix is not None
    assert fix.total() == 1, "12 Pods get 250 each, also zone by zone"
    assert found.after.loads.used == Fraction(3000, 270) / (11 if not spec else 9)
    mended = ask(cart(12, of=spec, a=2, b=2, c=2), clients=clients)
    assert mended.after.loads.used <= 1
    assert mended.after.loads.fix == {}


def test_clients_of_a_lost_zone_take_their_requests_with_them() -> None:
    found = ask(cart(12, a=2, b=2, c=2), "zone-lost=zone-b", clients=able(3000, 300))
    assert found.before.loads.used == Fraction(250, 300)
    assert (found.after.loads.rate, found.after.loads.used) == (2000, Fraction(250, 300))
    assert found.stays is not None
    assert found.stays.used == Fraction(3000, 8 * 300), "the others have to carry all"
    assert found.stays.fix is not None
    assert found.stays.fix.total() == 2
    assert found.is_worse
    assert not ask(cart(12, a=2, b=2, c=2), "zone-lost=zone-b", clients=able(3000, 375)).is_worse


def test_a_zone_without_endpoints_is_answered_by_all() -> None:
    found = ask(cart(4, a=1, b=1), SAME_ZONE, "zone-added=zone-d:2")
    assert found.after.clients == {
        "zone-a": Fraction(1, 4),
        "zone-b": Fraction(1, 4),
        "zone-d": Fraction(1, 2),
    }
    assert found.after.shares.leaving == Fraction(1, 2)
    assert found.after.shares.of_zone("zone-a") == Fraction(1, 4) + Fraction(1, 2) * Fraction(2, 4)
    assert found.after.watchers == found.before.watchers + 2


def test_scaling_is_done_by_the_controllers() -> None:
    found = ask(cart(3, a=1, b=1, c=1), "replicas=9")
    assert found.after.ready == {"zone-a": 3, "zone-b": 3, "zone-c": 3}
    assert found.written.updates >= 1
    down = ask(cart(9, a=1, b=1, c=1), "replicas=2", "termination=5s")
    assert down.after.ready.total() == 2
    assert down.written.took_s >= 5, "Pods that end are endpoints until they are gone"


def test_accounts_and_classes_that_were_not_read_are_there() -> None:
    """A state has none of them, and a server refuses a Pod that names what is not there."""
    cluster = make_cluster(a=1)
    cluster.converge()
    cluster.create(ServiceAccounts, {"metadata": {"name": "shop"}})
    cluster.create(PriorityClasses, {"metadata": {"name": "high"}, "value": 7}, "")
    cluster.create(RuntimeClasses, {"metadata": {"name": "sandboxed"}, "handler": "h"}, "")
    named = {
        "serviceAccountName": "shop",
        "priorityClassName": "high",
        "runtimeClassName": "sandboxed",
    }
    cluster.create(Deployments, deployment(2, **named))
    cluster.create(Services, service())
    cluster.converge()
    found = ask(cluster, "replicas=5")
    assert sum(found.after.ready.values()) == 5


def test_a_rollout_takes_the_time_that_its_pods_take() -> None:
    cluster = cart(6, a=1, b=1, c=1)
    slow = ask(
        cluster,
        "rollout=yes",
        "max-surge=1",
        "max-unavailable=0",
        "ready-delay=10s",
        "termination=1s",
    )
    fast = ask(
        cluster,
        "rollout=cart",
        "max-surge=6",
        "max-unavailable=0",
        "ready-delay=10s",
        "termination=1s",
    )
    assert slow.after.ready.total() == fast.after.ready.total() == 6
    assert slow.written.took_s > 55
    assert fast.written.took_s < 20
    assert slow.written.writes > fast.written.writes
    before = {item["metadata"]["name"] for item in cluster.list(Pods)}
    after = {pod.metadata.name for pod in slow.state.pods("default")}
    assert not before & after, "every Pod is another one"
    assert {item["metadata"]["name"] for item in cluster.list(Pods)} == before, (
        "the cluster itself is as it was"
    )


def test_larger_slices_are_made_when_something_changes() -> None:
    cluster = cart(9, config=EndpointSliceConfig(max_endpoints_per_slice=3), a=1, b=1, c=1)
    now = ["max-endpoints-per-slice=3"]
    alone = ask(cluster, "max-endpoints-per-slice=1000", now=now)
    assert (alone.before.slices, alone.after.slices, alone.written.writes) == (3, 3, 0), (
        "full slices stay"
    )
    rolled = ask(cluster, "max-endpoints-per-slice=1000", "rollout=yes", now=now)
    same = ask(cluster, "rollout=yes", now=now)
    assert rolled.after.slices < same.after.slices
    assert rolled.after.each_json > same.after.each_json


@pytest.mark.slow
def test_a_hundred_or_a_thousand_endpoints_a_slice() -> None:
    """A rollout of 400 Pods, sixty Nodes: fewer writes, and each is several times as large."""
    state = state_of(cart(400, a=20, b=20, c=20))
    rollout = ("rollout=yes", "ready-delay=5s", "termination=30s")
    small = ask(state, *rollout)
    large = ask(state, *rollout, "max-endpoints-per-slice=1000")
    assert small.before.slices == large.before.slices >= 4
    assert small.after.slices >= 4
    assert large.after.slices <= 2
    assert large.written.writes < small.written.writes
    assert large.written.protobuf > 1.5 * small.written.protobuf
    assert large.after.each_json > 2 * small.after.each_json
    assert small.after.ready.total() == large.after.ready.total() == 400


def test_more_watchers_get_more_bytes_and_each_gets_every_byte() -> None:
    cluster = cart(6, a=1, b=1)
    alone = ask(cluster, SAME_ZONE)
    more = ask(cluster, SAME_ZONE, watchers=3)
    assert (alone.written.events, more.written.events) == (2, 5)
    assert Fraction(alone.written.json, 2) == Fraction(more.written.json, 5)
    assert alone.written.protobuf < alone.written.json


def test_subsets_by_zone_are_sent_to_their_zone() -> None:
    found = ask(cart(12, a=2, b=2, c=2), "subsetting=RequireZone")
    assert found.after.slices == 3
    assert found.after.shares.leaving == 0
    assert found.after.each_json < found.before.each_json / 4
    assert found.written.events < 3 * found.after.watchers


def test_defragmenting_is_run() -> None:
    cluster = cart(8, config=EndpointSliceConfig(max_endpoints_per_slice=2), a=1)
    found = ask(
        cluster, "max-endpoints-per-slice=8", "defragment=yes", now=["max-endpoints-per-slice=2"]
    )
    assert (found.before.slices, found.after.slices) == (4, 1)
    assert found.written.deletes == 3


def test_auto_follows_its_hints_and_says_why_it_gives_none() -> None:
    few = ask(cart(4, a=1, b=1, c=1), "topology-mode=Auto")
    assert few.after.shares.leaving > 0
    assert any("Unable to allocate" in note for note in few.notes)
    enough = ask(cart(9, a=1, b=1, c=1), "topology-mode=Auto")
    assert enough.after.shares.leaving == 0
    assert [note.partition(":")[0] for note in enough.notes] == ["TopologyAwareHintsEnabled"]


def test_auto_hints_an_endpoint_for_another_zone() -> None:
    cluster = cart(8, a=1, b=1)
    cluster.create(Nodes, {"metadata": {"name": "node-b-9", "labels": {LABEL_ZONE: "zone-b"}}})
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready], "allocatable": {"cpu": "8"}}
    cluster.patch(Nodes, "node-b-9", {"status": status}, subresource="status")
    found = ask(cluster, "topology-mode=Auto")
    hinted = {kind.zone_hints[0]: 0 for kind in found.after.kinds}
    for kind, number in found.after.kinds.items():
        hinted[kind.zone_hints[0]] += number
    assert hinted == {"zone-a": 2, "zone-b": 6}, "zone-b has 12 of 16 CPUs"
    strange = sum(
        number
        for kind, number in found.after.kinds.items()
        if kind.zone == "zone-a" != kind.zone_hints[0]
    )
    share = found.after.clients["zone-b"]
    assert found.after.shares.leaving == share * Fraction(strange, 6)


def test_same_node_first_then_the_zone() -> None:
    found = ask(cart(2, a=2, b=1), "traffic-distribution=PreferSameNode")
    used = {kind.node for kind in found.after.kinds}
    assert len(used) == 2
    assert found.after.shares.leaving == 0, "a Node without a Pod uses its zone's"
    assert found.after.shares.greatest[0] == Fraction(4, 3), "two Nodes of zone-a share one Pod"


def test_local_inside_drops_what_finds_nothing_on_its_node() -> None:
    found = ask(cart(2, of={"internalTrafficPolicy": "Local"}, a=2, b=2))
    assert found.after.shares.dropped == Fraction(1, 2)
    assert found.after.shares.leaving == 0
    assert not found.is_worse, "it was so before"


def test_local_outside_gives_each_healthy_node_the_same() -> None:
    cluster = cart(3, of={"type": "NodePort", "externalTrafficPolicy": "Local"}, a=1, b=1, c=1)
    cluster.patch(Services, "cart", {"spec": {"trafficDistribution": None}})
    scaled = ask(cluster, "replicas=4")
    outside = scaled.after.outside
    assert outside is not None
    assert outside.dropped == 0
    assert outside.leaving == 0
    assert outside.greatest[0] == Fraction(4, 3), (
        "two Pods of one Node share its third; one has a third alone"
    )


def test_terminating_endpoints_are_used_where_none_is_ready() -> None:
    cluster = cart(2, a=1, b=1)
    for pod in cluster.list(Pods):
        mark(cluster, pod, ready=False)
    cluster.converge()
    found = ask(cluster)
    assert (found.after.ready.total(), found.after.shares.dropped) == (0, 1), (
        "not ready, and not terminating"
    )
    published = ask(cart(2, of={"publishNotReadyAddresses": True}, a=1, b=1))
    assert published.after.shares.dropped == 0


def terminate(cluster: Cluster) -> None:
    """Every endpoint ends and still serves: slices that another controller writes."""
    for item in cluster.list(EndpointSlices):
        for endpoint in item["endpoints"]:
            endpoint["conditions"] = {"ready": False, "serving": True, "terminating": True}
        cluster.create(
            EndpointSlices,
            {
                "metadata": {"name": "theirs", "labels": {"kubernetes.io/service-name": "cart"}},
                "addressType": "IPv4",
                "ports": item["ports"],
                "endpoints": item["endpoints"],
            },
        )


def test_the_fall_back_ignores_hints_and_is_told() -> None:
    cluster = cart(4, a=1, b=1)
    terminate(cluster)
    for pod in cluster.list(Pods):
        cluster.delete(Pods, pod["metadata"]["name"], gracePeriodSeconds=0)
    cluster.patch(Services, "cart", {"spec": {"selector": {"app": "cart", "tier": "gone"}}})
    cluster.converge()
    found = ask(cluster)
    assert found.after.ready.total() == 0
    assert found.after.shares.candidates == 4
    assert found.after.shares.leaving == Fraction(1, 2)
    assert found.after.shares.dropped == 0


def without_zone(cluster: Cluster) -> None:
    cluster.patch(Nodes, "node-a-1", {"metadata": {"labels": {LABEL_ZONE: None}}})


@pytest.mark.parametrize("change", [without_zone])
def test_an_endpoint_without_a_hint_spoils_them_for_all(change: Callable[[Cluster], None]) -> None:
    cluster = cart(4, of={"trafficDistribution": "PreferSameZone"}, a=1, b=1, c=2)
    assert ask(cluster).after.shares.leaving == 0
    change(cluster)
    cluster.converge()
    found = ask(cluster)
    assert any(not kind.zone_hints for kind in found.after.kinds)
    assert found.after.shares.greatest[0] == 1
    assert found.after.shares.leaving > Fraction(1, 2)


def test_a_node_loses_its_zone_by_a_change() -> None:
    cluster = cart(4, of={"trafficDistribution": "PreferSameZone"}, a=2, b=2)
    found = ask(cluster, "node-zone=node-a-1:")
    assert found.after.clients[""] == Fraction(1, 4)
    assert found.after.shares.leaving > found.before.shares.leaving == 0


def test_clients_are_where_their_pods_are() -> None:
    cluster = cart(6, a=1, b=1, c=1)
    cluster.create(Services, service("other"))
    found = ask(cluster, SAME_ZONE, clients=Clients(selector="app=cart"))
    assert found.after.clients == {"zone-a": THIRD, "zone-b": THIRD, "zone-c": THIRD}
    assert found.assumed[0].startswith("Clients are where the 6 Pods of app=cart are")
    with pytest.raises(WhatIfError, match="there is no client"):
        ask(cluster, SAME_ZONE, clients=Clients(selector="app=nothing"))


def test_pods_that_were_not_ready_stay_so() -> None:
    cluster = cart(3, a=1, b=1, c=1)
    mark(cluster, cluster.list(Pods)[0], ready=False)
    cluster.converge()
    found = ask(cluster, "replicas=4")
    assert found.after.ready.total() == 3
    assert found.after.endpoints == 4


def test_the_same_question_has_the_same_answer_byte_for_byte() -> None:
    from sliceplane.lab.whatif.document import as_document
    from sliceplane.lab.whatif.text import as_text

    state = cart(5, a=2, b=1)
    first, second = (ask(state, "rollout=yes", "ready-delay=3s") for _ in range(2))
    assert as_document(first) == as_document(second)
    assert as_text(first, 80) == as_text(second, 80)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("zone-lost=zone-bb", "there is no Node in zone zone-bb; is zone-b or zone-a meant?"),
        ("zone-added=zone-a", "zone zone-a is there already"),
        ("node-zone=node-a-2:zone-b", "there is no Node node-a-2; is node-a-1"),
        ("replicas=-3", "-3 is not between 0 and 50,000"),
        ("replicas=many", "'many' is no whole number"),
        (
            "replicas=card:3",
            "there is no workload of Service default/cart with the name card; is cart meant?",
        ),
        ("max-surge=25%", "add rollout=yes"),
        ("traffic-distribution=PreferSameRack", "the server would refuse that"),
        ("max-endpoints-per-slice=1001", "1001 is not between 1 and 1,000"),
        ("subsetting=ByZone", "is none of off, Original"),
        ("ready-delay=soon", "is no duration"),
        ("defragment=perhaps", "is neither yes nor no"),
    ],
)
def test_what_cannot_be_is_said(change: str, sentence: str) -> None:
    with pytest.raises(WhatIfError) as caught:
        ask(cart(1, a=1, b=1), change)
    assert sentence in str(caught.value)


def test_a_service_that_is_not_there_has_a_near_name() -> None:
    with pytest.raises(WhatIfError, match="is default/cart meant"):
        ask(cart(1, a=1), name="card")


def test_a_service_without_selector_is_no_question() -> None:
    cluster = cart(1, a=1)
    cluster.create(Services, service("plain", selector=None))
    with pytest.raises(WhatIfError, match="has no selector"):
        ask(cluster, name="plain")


# Ranges


def test_pods_that_come_together_or_one_by_one_are_a_range_of_writes() -> None:
    found = ask(cart(3, a=1, b=1, c=1), "replicas=20")
    assert found.between(lambda run: run.written.writes) == (1, 17)
    assert found.between(lambda run: run.ready.total()) == (20, 20)
    assert "range is of" in " ".join(found.assumed)


def test_a_batch_period_bounds_the_writes_of_pods_that_come_one_by_one() -> None:
    least, most = ask(cart(3, a=1, b=1, c=1), "replicas=20", now=("batch-period=1s",)).between(
        lambda run: run.written.writes
    )
    assert 1 <= least <= most <= 5


def test_a_change_that_is_one_write_is_run_once() -> None:
    assert len(ask(cart(11, a=2, b=2, c=2), SAME_ZONE).runs) == 1


@pytest.mark.parametrize("replicas", [5, 9, 14])
def test_the_zones_in_which_pods_go_are_those_of_their_ages_now(replicas: int) -> None:
    """Each zone has six Pods, those of zone-a are older, and a ReplicaSet deletes younger ones
    first.

    Ten minutes later their ages are the same to it.
    """

    def cordon(*zones: str) -> None:
        for zone in ("a", "b", "c"):
            cluster.patch(Nodes, f"node-{zone}-1", {"spec": {"unschedulable": zone in zones}})

    cluster = make_cluster(a=1, b=1, c=1)
    cluster.converge(limit_s=5.0)
    cordon("b", "c")
    cluster.create(Services, service())
    cluster.create(Deployments, deployment(6))
    cluster.converge(limit_s=5.0)
    cluster.now += 30.0
    cordon("a")
    cluster.patch(Deployments, "cart", {"spec": {"replicas": 18}})
    cluster.converge(limit_s=5.0)
    cluster.now += 5.0
    found = ask(replace(state_of(cluster), read_at=cluster.now), f"replicas={replicas}")
    cluster.patch(Deployments, "cart", {"spec": {"replicas": replicas}})
    cluster.converge(limit_s=5.0)
    left: dict[str, int] = {}
    for item in cluster.list(Pods):
        zone = item["metadata"]["labels"][LABEL_ZONE]
        left[zone] = left.get(zone, 0) + (not item["metadata"].get("deletionTimestamp"))
    assert {zone: number for zone, number in found.after.ready.items() if number} == {
        zone: number for zone, number in left.items() if number
    }


def test_pods_that_are_due_before_any_change_are_told() -> None:
    """A ReplicaSet whose owner is not the Deployment: the Deployment makes another one."""
    cluster = cart(3, a=1, b=1)
    cluster.controllers = ()
    (replica_set,) = cluster.list(ReplicaSets)
    owner = replica_set["metadata"]["ownerReferences"][0]
    gone = {**owner, "uid": "5a1e0000-0000-4000-8000-000000000001"}
    name = replica_set["metadata"]["name"]
    cluster.patch(ReplicaSets, name, {"metadata": {"ownerReferences": [gone]}})
    found = ask(cluster, "replicas=4")
    (told,) = [text for text in found.assumed if "created or deleted" in text]
    assert told.startswith("3 Pods are created or deleted before any change: "), told
    assert not [t for t in ask(cart(3, a=1, b=1), "replicas=4").assumed if "before any" in t]
