"""Every namespace has its default ServiceAccount and the authority's certificate, and gets them
back.
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.core import Namespace
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import ConfigMaps, Namespaces, ResourceQuotas, ServiceAccounts
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.controllers.objects.per_namespace import (
    RECHECK_S,
    RootCaPublisher,
    ServiceAccountController,
)
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done

BOOTSTRAP = ("default", "kube-node-lease", "kube-public", "kube-system")
CA = "kube-root-ca.crt"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(
        ServiceAccountController(),
        RootCaPublisher("PEM"),
        NamespaceController(),
        ResourceQuotaController(),
    )


def data(cluster: Cluster, namespace: str = "default") -> Any:
    return cluster.get(ConfigMaps, CA, namespace=namespace).get("data")


def check(cluster: Cluster) -> None:
    for controller in cluster.controllers:
        controller.check()


def test_every_namespace_has_both(cluster: Cluster) -> None:
    cluster.converge()
    cluster.create(Namespaces, {"metadata": {"name": "shop"}})
    cluster.converge()
    for namespace in (*BOOTSTRAP, "shop"):
        assert cluster.get(ServiceAccounts, "default", namespace=namespace)
        assert data(cluster, namespace) == {"ca.crt": "PEM"}
    writes = len(cluster.writes)
    cluster.patch(Namespaces, "shop", {"metadata": {"labels": {"a": "b"}}}, namespace="")
    cluster.converge()
    assert len(cluster.writes) == writes, "all is there: nothing is asked of the server"
    check(cluster)


def test_what_is_removed_or_spoiled_comes_back(cluster: Cluster) -> None:
    cluster.converge()
    uid = cluster.get(ServiceAccounts, "default")["metadata"]["uid"]
    cluster.delete(ServiceAccounts, "default")
    cluster.delete(ConfigMaps, CA)
    cluster.converge()
    assert cluster.get(ServiceAccounts, "default")["metadata"]["uid"] != uid
    for spoiled in ({"ca.crt": "other"}, {"ca.crt": None}, None):
        cluster.patch(ConfigMaps, CA, {"data": spoiled})
        cluster.converge()
        assert data(cluster) == {"ca.crt": "PEM"}
    cluster.patch(ConfigMaps, CA, {"data": {"mine": "x", "ca.crt": "other"}})
    cluster.converge()
    assert data(cluster) == {"mine": "x", "ca.crt": "PEM"}


def test_a_namespace_can_go(cluster: Cluster) -> None:
    cluster.create(Namespaces, {"metadata": {"name": "shop"}})
    cluster.create(
        ResourceQuotas,
        {"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}},
        namespace="shop",
    )
    cluster.converge()
    assert cluster.get(ResourceQuotas, "q", namespace="shop")["status"]["used"] == {
        "configmaps": "1"
    }
    cluster.delete(Namespaces, "shop", namespace="")
    cluster.converge()
    with pytest.raises(StatusError):
        cluster.get(Namespaces, "shop", namespace="")
    check(cluster)


def test_other_objects_are_nobodys_business(cluster: Cluster) -> None:
    cluster.converge()
    writes = len(cluster.writes)
    cluster.create(ConfigMaps, {"metadata": {"name": "c"}, "data": {"ca.crt": "mine"}})
    cluster.create(ServiceAccounts, {"metadata": {"name": "s"}})
    cluster.converge()
    assert len(cluster.writes) == writes
    assert cluster.get(ConfigMaps, "c")["data"] == {"ca.crt": "mine"}


def test_what_came_and_went_unseen_is_made_again() -> None:
    """A new list has neither the creation nor the deletion: no change comes of it."""
    controller = ServiceAccountController()
    controller.on_change(
        Change(Namespaces.key, None, Namespace(metadata=ObjectMeta(name="shop"))), 0.0
    )
    controller.on_synced(0.0)
    (job,) = controller.take_work(0.0, 5).jobs
    controller.on_done(Done(job, (b"{}",)), 1.0)
    assert controller.take_work(1.0, 5).jobs == (), "the cache is given time"
    assert controller.next_deadline() == 1.0 + RECHECK_S
    (again,) = controller.take_work(1.0 + RECHECK_S, 5).jobs
    assert [(each.verb, each.namespace) for each in again.writes] == [("create", "shop")]
