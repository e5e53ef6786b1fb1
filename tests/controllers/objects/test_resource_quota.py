"""The quota controller keeps ``status`` true, and never below what was charged."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import (
    ConfigMaps,
    Namespaces,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    Resource,
    ResourceQuotas,
    Secrets,
    Services,
)
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.controllers.objects.resource_quota import CHARGE_PATIENCE_S, ResourceQuotaController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.server.registry.kinds import COUNTED, kind_of, quota_text, usage
from sliceplane.server.registry.kinds.pods.pod_quota import is_in_scopes
from sliceplane.watch.cache import Change

HARD = {
    "configmaps": "3",
    "count/configmaps": "9",
    "services.nodeports": "4",
    "count/x.example.com": "1",
}


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard or HARD}}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(ResourceQuotaController())


def status(cluster: Cluster) -> Any:
    return cluster.get(ResourceQuotas, "q")["status"]


def test_status_follows(cluster: Cluster) -> None:
    cluster.create(ConfigMaps, {"metadata": {"name": "a"}})
    cluster.create(ResourceQuotas, quota())
    cluster.converge()
    assert status(cluster) == {
        "hard": HARD,
        "used": {"configmaps": "1", "count/configmaps": "1", "services.nodeports": "0"},
    }
    cluster.create(ConfigMaps, {"metadata": {"name": "b"}})
    cluster.create(ConfigMaps, {"metadata": {"name": "c"}})
    assert status(cluster)["used"]["configmaps"] == "3", "charged at once"
    with pytest.raises(StatusError, match="exceeded quota"):
        cluster.create(ConfigMaps, {"metadata": {"name": "d"}})
    writes = len(cluster.writes)
    cluster.converge()
    assert len(cluster.writes) == writes, "what is charged already is not written again"
    cluster.delete(ConfigMaps, "a")
    waited = cluster.converge()
    assert status(cluster)["used"]["configmaps"] == "2"
    assert waited < 1, "a delete is credited at once"
    cluster.create(ConfigMaps, {"metadata": {"name": "d"}})


TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
LIVES: list[tuple[Resource, str, dict[str, Any]]] = [
    (ConfigMaps, "configmaps", {}),
    (Secrets, "secrets", {}),
    (Services, "services", {"spec": {"ports": [{"port": 80}]}}),
    (Pods, "pods", {"spec": TEMPLATE["spec"]}),
    (
        ReplicationControllers,
        "replicationcontrollers",
        {"spec": {"replicas": 0, "template": TEMPLATE}},
    ),
    (
        ReplicaSets,
        "count/replicasets.apps",
        {"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}},
    ),
]


@pytest.mark.parametrize(("resource", "name", "content"), LIVES, ids=[name for _, name, _ in LIVES])
def test_a_quota_follows_the_life_of_an_object(
    cluster: Cluster, resource: Resource, name: str, content: dict[str, Any]
) -> None:
    """ "should create a ResourceQuota and capture the life of a ..."."""
    cluster.create(ResourceQuotas, quota(**{name: "2", "resourcequotas": "1"}))
    cluster.converge()
    assert status(cluster) == {
        "hard": {name: "2", "resourcequotas": "1"},
        "used": {name: "0", "resourcequotas": "1"},
    }
    cluster.create(resource, {"metadata": {"name": "a"}, **content})
    cluster.converge()
    assert status(cluster)["used"][name] == "1"
    cluster.delete(resource, "a")
    cluster.converge()
    assert status(cluster)["used"][name] == "0"


def test_names_of_kinds_that_are_not_served_are_counted_as_nothing(cluster: Cluster) -> None:
    names = (
        "persistentvolumeclaims",
        "requests.storage",
        "gold.storageclass.storage.k8s.io/requests.storage",
    )
    cluster.create(ResourceQuotas, quota(**dict.fromkeys((*names, "count/x.example.com"), "5")))
    cluster.converge()
    assert status(cluster)["used"] == dict.fromkeys(names, "0")


def test_a_pod_that_is_done_gives_back_what_it_asked_for(cluster: Cluster) -> None:
    cluster.create(
        ResourceQuotas,
        quota(**{"pods": "1", "count/pods": "9", "cpu": "1", "requests.memory": "64Mi"}),
    )
    resources = {"requests": {"cpu": "1", "memory": "64Mi"}}
    for name in "ab":
        cluster.converge()
        spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
        cluster.create(Pods, {"metadata": {"name": name}, "spec": spec})
        cluster.patch(Pods, name, {"status": {"phase": "Succeeded"}}, subresource="status")
    cluster.converge()
    assert status(cluster)["used"] == {
        "pods": "0",
        "count/pods": "2",
        "cpu": "0",
        "requests.memory": "0",
    }


def test_a_changed_spec_changes_the_status(cluster: Cluster) -> None:
    cluster.create(ResourceQuotas, quota(configmaps="3", secrets="1"))
    cluster.converge()
    cluster.patch(ResourceQuotas, "q", {"spec": {"hard": {"secrets": None, "configmaps": "5"}}})
    cluster.converge()
    assert status(cluster) == {"hard": {"configmaps": "5"}, "used": {"configmaps": "0"}}
    cluster.delete(ResourceQuotas, "q")
    cluster.converge()
    cluster.controllers[0].check()


@pytest.mark.parametrize("said", ["0", "1", "9"])
def test_a_status_that_somebody_spoils_is_set_right(cluster: Cluster, said: str) -> None:
    """Lowered, it would let too much in; raised, it would keep out what fits."""
    cluster.create(ResourceQuotas, quota(configmaps="5"))
    for name in "ab":
        cluster.create(ConfigMaps, {"metadata": {"name": name}})
    cluster.converge()
    assert status(cluster)["used"] == {"configmaps": "2"}
    spoilt = {"status": {"used": {"configmaps": said}, "hard": {"configmaps": "7", "secrets": "1"}}}
    cluster.patch(ResourceQuotas, "q", spoilt, subresource="status")
    cluster.converge()
    assert status(cluster) == {"hard": {"configmaps": "5"}, "used": {"configmaps": "2"}}


def test_what_is_let_in_at_once_is_what_fits(cluster: Cluster) -> None:
    """Creates and deletes without a look of the controller in between: the server's charge alone
    decides.
    """
    cluster.create(ResourceQuotas, quota(configmaps="3"))
    cluster.converge()
    codes = []
    for number in range(8):
        try:
            cluster.create(ConfigMaps, {"metadata": {"name": f"c{number}"}})
            codes.append(201)
        except StatusError as error:
            codes.append(error.code)
    assert codes == [201] * 3 + [403] * 5
    cluster.delete(ConfigMaps, "c0")
    assert status(cluster)["used"] == {"configmaps": "3"}, "only the controller gives back"
    cluster.converge()
    assert status(cluster)["used"] == {"configmaps": "2"}
    cluster.create(ConfigMaps, {"metadata": {"name": "again"}})
    cluster.converge()
    assert status(cluster)["used"] == {"configmaps": "3"}


def test_a_namespace_with_a_quota_can_go() -> None:
    cluster = Cluster(ResourceQuotaController(), NamespaceController())
    cluster.create(Namespaces, {"metadata": {"name": "shop"}})
    cluster.create(ResourceQuotas, quota(), namespace="shop")
    cluster.create(ConfigMaps, {"metadata": {"name": "a"}}, namespace="shop")
    cluster.converge()
    cluster.delete(Namespaces, "shop")
    cluster.converge()
    assert "shop" not in [each["metadata"]["name"] for each in cluster.list(Namespaces)]
    for controller in cluster.controllers:
        controller.check()


def made(version: int, used: str) -> ResourceQuota:
    meta = ObjectMeta(name="q", namespace="default", uid="q-uid", resource_version=str(version))
    amounts: dict[str, str | int] = {"count/configmaps": "5"}
    charged: dict[str, str | int] = {"count/configmaps": used}
    return ResourceQuota(
        metadata=meta,
        spec=ResourceQuotaSpec(hard=amounts),
        status=ResourceQuotaStatus(hard=amounts, used=charged),
    )


def test_a_charge_is_not_taken_back_before_its_object_was_seen() -> None:
    controller = ResourceQuotaController()
    controller.on_synced(0.0)
    controller.on_change(Change(ResourceQuotas.key, None, made(10, "1")), 0.0)
    assert controller.take_work(0.0, 9).jobs == (), "the object of the charge is still to come"
    assert controller.next_deadline() == CHARGE_PATIENCE_S
    seen = Object(
        metadata=ObjectMeta(name="c", namespace="default", uid="c", resource_version="11")
    )
    controller.on_change(Change(ConfigMaps.key, None, seen), 0.1)
    assert controller.take_work(0.1, 9).jobs == (), "it is right now"
    controller.on_change(Change(ConfigMaps.key, seen, None), 0.2)
    (job,) = controller.take_work(0.2, 9).jobs
    assert b'"used":{"count/configmaps":"0"}' in job.writes[0].body
    assert b'"resourceVersion":"10"' in job.writes[0].body
    controller.check()


def test_an_object_that_never_comes_is_not_waited_for_for_ever() -> None:
    controller = ResourceQuotaController()
    controller.on_synced(0.0)
    controller.on_change(Change(ResourceQuotas.key, None, made(10, "1")), 0.0)
    assert controller.take_work(0.0, 9).jobs == ()
    assert len(controller.take_work(CHARGE_PATIENCE_S, 9).jobs) == 1


STEPS = (
    "map",
    "service",
    "pod",
    "drop map",
    "drop service",
    "drop pod",
    "deadline",
    "done",
    "quota",
    "restart",
    "settle",
)
LIMITS = {
    "count/configmaps": "3",
    "count/services": "4",
    "services": "9",
    "services.nodeports": "3",
}
POD_LIMITS = {"pods": "3", "count/pods": "4", "requests.cpu": "2"}
QUOTAS = {
    "q": {"hard": LIMITS},
    "urgent": {"hard": POD_LIMITS, "scopes": ["Terminating"]},
    "rest": {"hard": POD_LIMITS, "scopes": ["NotTerminating"]},
    "best": {"hard": {"pods": "9", "count/pods": "9"}, "scopes": ["BestEffort"]},
}


def perform(cluster: Cluster, step: str, number: int) -> None:
    name = f"o{number}"
    match step:
        case "map":
            cluster.create(ConfigMaps, {"metadata": {"name": name}})
        case "service":
            spec = {"type": "NodePort" if number % 2 else "ClusterIP", "ports": [{"port": 1}]}
            cluster.create(Services, {"metadata": {"name": name}, "spec": spec})
        case "pod":
            resources = {"requests": {"cpu": f"{number}50m"}} if number else {}
            deadline = {"activeDeadlineSeconds": 60} if number % 2 else {}
            spec = {"containers": [{"name": "c", "image": "i", "resources": resources}], **deadline}
            cluster.create(Pods, {"metadata": {"name": name}, "spec": spec})
        case "drop pod":
            cluster.delete(Pods, name)
        case "deadline":
            cluster.patch(Pods, name, {"spec": {"activeDeadlineSeconds": 5}})
        case "done":
            cluster.patch(Pods, name, {"status": {"phase": "Succeeded"}}, subresource="status")
        case "drop map":
            cluster.delete(ConfigMaps, name)
        case "drop service":
            cluster.delete(Services, name)
        case "quota":
            for quota_name, spec in QUOTAS.items():
                cluster.create(ResourceQuotas, {"metadata": {"name": quota_name}, "spec": spec})
        case "restart":
            cluster.replace(ResourceQuotaController())
        case _:
            cluster.converge()


@effort(40)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=25))
def test_used_is_what_a_full_count_finds(script: list[tuple[str, int]]) -> None:
    cluster = Cluster(ResourceQuotaController())
    codes = []
    for step, number in script:
        try:
            perform(cluster, step, number)
        except StatusError as error:
            codes.append(error.code)
    assert set(codes) <= {403, 404, 409}
    cluster.converge()
    cluster.check()
    for found in cluster.list(ResourceQuotas):
        quota_spec = decode(encode(found), ResourceQuota).spec
        counted: dict[str, Fraction] = defaultdict(Fraction)
        for resource in COUNTED:
            for record in cluster.store.list(resource.storage_key, namespace="default").records:
                item = decode(record.body, resource.projection)
                if is_in_scopes(quota_spec, kind_of(resource).quota.traits(item)):
                    for name, amount in usage(resource, item).items():
                        counted[name] += amount
        hard = quota_spec.hard or {}
        assert found["status"] == {
            "hard": hard,
            "used": {name: quota_text(name, counted[name]) for name in hard},
        }
