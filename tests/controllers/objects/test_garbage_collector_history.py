"""What went wrong elsewhere with deletions and caches, for the collector."""

from __future__ import annotations

import pytest
from tests.controllers.objects.owned_objects import make, names, owned_by, put
from tests.slices.fake_cluster import FakeCluster, replace

from sliceplane.api.errors import conflict, unreachable
from sliceplane.api.scheme import ConfigMaps, Services
from sliceplane.controllers.objects.garbage_collector import GarbageCollector


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    put(made, make("Service", "web", "s1"))
    for number in range(3):
        put(made, make("ConfigMap", f"c{number}", f"c{number}", owned_by("Service", "web", "s1")))
    return made


@pytest.fixture
def collector(cluster: FakeCluster) -> GarbageCollector:
    made = GarbageCollector()
    cluster.start(made, 0.0)
    cluster.settle(made, 0.0)
    return made


def test_kubernetes_115658_an_owner_deleted_in_a_watch_gap_is_missed_at_the_relist(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """production-stack#1091, kubernetes#115658: the deletion is told by a list alone."""
    cluster.delete(Services, "shop", "web")
    cluster.relist(collector, 1.0)
    cluster.settle(collector, 1.0)
    assert names(cluster) == []


def test_kubernetes_115658_an_owner_recreated_in_a_watch_gap_is_another_one(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    cluster.delete(Services, "shop", "web")
    put(cluster, make("Service", "web", "s2"))
    put(cluster, make("ConfigMap", "new", "n", owned_by("Service", "web", "s2")))
    cluster.relist(collector, 1.0)
    cluster.settle(collector, 1.0)
    assert names(cluster) == ["new", "web"]


def test_kubernetes_127429_one_conflict_and_no_further_event(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """kubernetes#127429: what failed is tried again by itself."""
    cluster.delete(Services, "shop", "web")
    cluster.deliver(collector, 1.0)
    (look_up,) = collector.take_work(1.0, 10).jobs
    collector.on_done(cluster.run(look_up), 1.0)
    for job in collector.take_work(1.0, 10).jobs:
        refused = conflict("configmaps", "", job.writes[0].name, "the object has been modified")
        collector.on_done(cluster.run(job, fail_at=0, error=refused), 1.0)
    assert len(names(cluster)) == 3
    cluster.settle(collector, 1.0)
    assert names(cluster) == []


def test_cilium_48050_a_deletion_while_the_server_is_away(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """cilium#48050: look-ups and deletions without answers, some of them done; then nothing more
    happens.
    """
    cluster.delete(Services, "shop", "web")
    cluster.deliver(collector, 1.0)
    now = 1.0
    for turn in range(6):
        for job in collector.take_work(now, 10).jobs:
            collector.on_done(
                cluster.run(job, fail_at=0, error=unreachable("gone"), lost=turn % 2 == 1), now
            )
        collector.check()
        due = collector.next_deadline()
        assert due is not None, "it gave up"
        now = max(now, due)
    cluster.settle(collector, now)
    assert names(cluster) == []


def test_kubernetes_128928_churn_leaves_nothing_behind(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """kubernetes#128928: everything that is remembered goes with what it was remembered for."""
    wrong = owned_by("Service", "wrong", "nobody")
    for number in range(200):
        put(cluster, make("Service", f"s{number}", f"owner-{number}", namespace="other"))
        owners = (owned_by("Service", f"s{number}", f"owner-{number}"), wrong)
        put(cluster, make("ConfigMap", f"d{number}", f"d{number}", *owners))
        put(cluster, make("ConfigMap", f"o{number}", f"o{number}", owners[0], namespace="other"))
        policy = ("Background", "Foreground", "Orphan")[number % 3]
        cluster.delete(Services, "other", f"s{number}", policy)
        cluster.settle(collector, float(number))
    for space, name in [
        (space, name) for kind, space, name in cluster.objects if kind == ConfigMaps.key
    ]:
        cluster.delete(ConfigMaps, space, name)
    cluster.delete(Services, "shop", "web")
    cluster.settle(collector, 1000.0)
    graph = collector._graph
    state = (graph.items, graph._claimed, graph._blocking, graph._gone, graph._ended)
    own = (
        collector._acted,
        collector._lookups,
        collector._delayed,
        collector._released,
        collector._reported,
    )
    assert [len(each) for each in (*state, *own)] == [0] * 10
    assert collector.next_deadline() is None


def test_nacos_10209_a_restart_deletes_nothing(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """nacos#10209, kubernetes#23034: caches fill kind by kind, dependents first; all is left before
    all are full.
    """
    again = GarbageCollector()
    for key, found in sorted(cluster.objects.items()):
        if key[0] == ConfigMaps.key:
            put(cluster, found)
    cluster.deliver(again, 0.0)
    assert again.take_work(10.0, 10).jobs == ()
    cluster.start(again, 10.0)
    before = len(cluster.writes)
    cluster.settle(again, 10.0)
    assert len(cluster.writes) == before
    assert len(names(cluster)) == 4


def test_kubernetes_134739_an_event_costs_the_same_in_a_large_family(
    cluster: FakeCluster, collector: GarbageCollector
) -> None:
    """kubernetes#134739: a dependent that changes makes no work for its thousand siblings, nor for
    itself.
    """
    for number in range(1000):
        put(
            cluster, make("ConfigMap", f"m{number}", f"m{number}", owned_by("Service", "web", "s1"))
        )
    cluster.settle(collector, 0.0)
    before = collector._queue.adds
    for number in range(1000):
        found = cluster.objects["configmaps", "shop", f"m{number}"]
        put(cluster, replace(found, metadata=replace(found.metadata, labels={"turn": "1"})))
    cluster.settle(collector, 1.0)
    assert collector._queue.adds == before
