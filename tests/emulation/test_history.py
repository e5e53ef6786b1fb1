"""ControllerRevisions of emulated StatefulSets and DaemonSets: numbered, brought back, forgotten,
adopted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.emulation.emulated import make, owners

from sliceplane.api.codec import encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import ControllerRevisions, DaemonSets, Pods, Resource, StatefulSets
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.emulation.daemonset import DaemonSetController
from sliceplane.emulation.statefulset import StatefulSetController
from sliceplane.lab.sim.cluster import Cluster

LABELS = {"app": "db"}
BOTH = pytest.mark.parametrize("kind", [StatefulSets, DaemonSets], ids=lambda kind: kind.plural)


def started(kind: Resource, **spec: Any) -> Cluster:
    cluster = make(StatefulSetController(), DaemonSetController(), GarbageCollector())
    create(cluster, kind, **spec)
    cluster.converge()
    return cluster


def create(cluster: Cluster, kind: Resource, **spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "c", "image": "db:1"}]},
    }
    needed = {"selector": {"matchLabels": LABELS}, "template": template, **spec}
    head = {"name": "db", "annotations": {"kubernetes.io/change-cause": "the first"}}
    return cluster.create(kind, {"metadata": head, "spec": needed})


def roll(cluster: Cluster, kind: Resource, image: str) -> None:
    cluster.patch(
        kind,
        "db",
        {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}},
    )
    cluster.converge()


def kept(cluster: Cluster) -> list[dict[str, Any]]:
    return sorted(cluster.list(ControllerRevisions), key=lambda one: one.get("revision", 0))


def told(cluster: Cluster) -> list[tuple[int, str]]:
    """Number and image."""
    return [
        (one["revision"], one["data"]["spec"]["template"]["spec"]["containers"][0]["image"])
        for one in kept(cluster)
    ]


def undo(cluster: Cluster, kind: Resource, revision: dict[str, Any]) -> None:
    """As ``kubectl rollout undo`` does it."""
    body = encode(revision["data"])
    cluster.execute(
        Write(
            verb="patch",
            resource=kind,
            namespace="default",
            name="db",
            body=body,
            patch_type="strategic",
        )
    )
    cluster.converge()


def uids(cluster: Cluster, image: str) -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in cluster.list(Pods)
        if pod["spec"]["containers"][0]["image"] == image
    }


@BOTH
def test_every_template_has_a_revision_that_brings_it_back(kind: Resource) -> None:
    cluster = started(kind)
    owner = cluster.get(kind, "db")
    roll(cluster, kind, "db:2")
    first, second = kept(cluster)
    assert told(cluster) == [(1, "db:1"), (2, "db:2")]
    assert owners(first) == [(kind.kind, owner["metadata"]["uid"])]
    hashed = first["metadata"]["labels"]["controller-revision-hash"]
    assert first["metadata"]["name"] == f"db-{hashed}"
    assert first["metadata"]["labels"]["app"] == "db"
    assert first["metadata"]["annotations"] == {"kubernetes.io/change-cause": "the first"}
    label = second["metadata"]["labels"]["controller-revision-hash"]
    shown = {pod["metadata"]["labels"]["controller-revision-hash"] for pod in cluster.list(Pods)}
    assert shown == {label if kind is DaemonSets else f"db-{label}"}
    undo(cluster, kind, first)
    assert cluster.get(kind, "db")["spec"]["template"] == owner["spec"]["template"]
    assert told(cluster) == [(2, "db:2"), (3, "db:1")], "it is the same revision, and the newest"
    assert len(uids(cluster, "db:1")) == len(cluster.list(Pods))
    before = len(cluster.writes)
    cluster.replace(StatefulSetController(), DaemonSetController())
    cluster.converge()
    assert len(cluster.writes) == before, "what is true is not written again"
    cluster.check()


@BOTH
def test_the_oldest_go_and_those_of_pods_stay(kind: Resource) -> None:
    cluster = started(kind, revisionHistoryLimit=2)
    for number in range(2, 6):
        roll(cluster, kind, f"db:{number}")
    assert told(cluster) == [(3, "db:3"), (4, "db:4"), (5, "db:5")]
    cluster.patch(
        kind, "db", {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}
    )
    cluster.patch(kind, "db", {"spec": {"revisionHistoryLimit": 0}})
    roll(cluster, kind, "db:6")
    assert told(cluster) == [(5, "db:5"), (6, "db:6")], "Pods of the fifth are there"
    cluster.delete(kind, "db", propagationPolicy="Background")
    cluster.converge()
    assert kept(cluster) == []


@BOTH
def test_a_revision_that_somebody_deletes_comes_back_and_orphans_are_adopted(
    kind: Resource,
) -> None:
    cluster = started(kind)
    cluster.delete(ControllerRevisions, kept(cluster)[0]["metadata"]["name"])
    cluster.converge()
    assert told(cluster) == [(1, "db:1")]
    roll(cluster, kind, "db:2")
    cluster.delete(kind, "db", propagationPolicy="Orphan")
    cluster.converge()
    assert [owners(one) for one in kept(cluster)] == [[], []]
    again = create(cluster, kind)
    cluster.converge()
    assert [owners(one) for one in kept(cluster)] == [[(kind.kind, again["metadata"]["uid"])]] * 2
    assert told(cluster) == [(2, "db:2"), (3, "db:1")]
    cluster.check()


def test_a_rollback_restarts_nothing_that_need_not() -> None:
    """Daemon set should rollback without unnecessary restarts."""
    cluster = started(DaemonSets)
    before = uids(cluster, "db:1")
    assert len(before) == 3
    broken = {"metadata": {"annotations": {"emulation.sliceplane.dev/ready": "false"}}}
    template = {**broken, "spec": {"containers": [{"name": "c", "image": "db:2"}]}}
    cluster.patch(DaemonSets, "db", {"spec": {"template": template}})
    cluster.converge()
    left = uids(cluster, "db:1")
    assert len(left) == 2, "the rollout waits for the first of its Pods"
    undo(cluster, DaemonSets, kept(cluster)[0])
    assert uids(cluster, "db:1") > left
    assert uids(cluster, "db:2") == set()


@BOTH
def test_the_data_of_a_revision_is_what_go_encodes(kind: Resource) -> None:
    """Clients compare it byte by byte with their own encoding: sorted keys, and ``resources`` of
    every container.
    """
    cluster = started(kind)
    data = kept(cluster)[0]["data"]
    assert json.dumps(data) == json.dumps(data, sort_keys=True)
    assert data["spec"]["template"]["spec"]["containers"][0]["resources"] == {}
